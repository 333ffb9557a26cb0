"""A way to a PostgreSQL server on which the round trips of its clients are counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

READY = ord("Z")
"""The message by which the server ends its answer to what it was sent: one each round trip."""


class RoundTrips:
    """count: the answers of the server so far, on all connections."""

    def __init__(self, url: str) -> None:
        self.count = 0
        self._there = urlsplit(url)
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        back, away = await asyncio.open_connection(self._there.hostname, self._there.port)
        hearing = asyncio.create_task(self._hear(back, writer))
        self._tasks.add(hearing)
        try:
            while data := await reader.read(65536):
                away.write(data)
        except ConnectionError:
            pass
        finally:
            for one in (away, writer):
                one.close()

    async def _hear(self, back: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await back.readexactly(5)
                self.count += head[0] == READY
                writer.write(head + await back.readexactly(int.from_bytes(head[1:]) - 4))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def counted(url: str) -> AsyncIterator[tuple[str, RoundTrips]]:
    """(the address of the way, its count)."""
    trips = RoundTrips(url)
    server = await asyncio.start_server(trips.serve, "127.0.0.1", 0)
    there = urlsplit(url)
    place = f"{there.username}@127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield there._replace(netloc=place, query="sslmode=disable").geturl(), trips
    finally:
        server.close()
