"""A client of `GET /api/events` on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.proxy_server import RunningProxy
from tests.raw_upstream import Connection, connect, wait_until

EVENTS = "/api/events"


class EventStreamClient:
    """A client that hears events. told: (id, kind, JSON) of each so far."""

    def __init__(self, connection: Connection) -> None:
        self.there = connection
        self.head = b""
        self.raw = b""
        self.ended = False
        self.told: list[tuple[int | None, str, dict[str, Any]]] = []
        self.task = asyncio.create_task(self._hear())

    async def _hear(self) -> None:
        reader = self.there.reader
        self.head = await reader.readuntil(b"\r\n\r\n")
        while (size := int(await reader.readline() or b"0", 16)) > 0:
            self.raw += await reader.readexactly(size)
            await reader.readexactly(2)
            *whole, self.raw = self.raw.split(b"\n\n")
            for block in whole:
                self._read(block.decode())
        self.ended = True

    def _read(self, block: str) -> None:
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if "data" in fields:
            number = int(fields["id"]) if "id" in fields else None
            self.told.append((number, fields["event"], json.loads(fields["data"])))

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The payloads of one kind."""
        return [told["data"] for _, name, told in self.told if name == kind]

    async def wait(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        """The payloads of one kind, once there are so many."""
        await wait_until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)


@asynccontextmanager
async def event_stream(proxy: RunningProxy, query: str = "", *lines: str) -> AsyncIterator[EventStreamClient]:
    """A stream that is heard until the end of the block."""
    connection = await connect(proxy.port)
    head = "".join(line + "\r\n" for line in lines)
    await connection.send(f"GET {EVENTS}{query} HTTP/1.1\r\nhost: localhost\r\n{head}\r\n".encode())
    stream = EventStreamClient(connection)
    try:
        await wait_until(lambda: bool(stream.head))  # it listens before anything is sent
        yield stream
    finally:
        stream.task.cancel()
        connection.writer.transport.abort()
