"""Any number of proxies, each a process of its own, behind a round-robin that gives every request to the next one."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tests.faults.fork_server import ForkServer
from tests.raw_upstream import RawRequest, read_request


@dataclass(eq=False)
class Replica:
    """A process. up: it is given requests. busy: how many it is answering."""

    pid: int
    port: int
    up: bool = True
    busy: int = 0
    served: int = 0


class Fleet:
    """The proxies, and the address that their clients have."""

    def __init__(self, fork_server: ForkServer, tree: dict[str, Any]) -> None:
        self.fork_server = fork_server
        self.tree = tree
        self.replicas: list[Replica] = []
        self.port = 0
        self.ended = 0
        self.killed = 0
        self._turn = itertools.count()
        self.tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self) -> None:
        """One more replica."""
        self.replicas.append(Replica(*await self.fork_server.started(**self.tree)))

    async def restart(self) -> None:
        """SIGTERM for the oldest one, whatever it is at; it gives all answers that it has begun. Another comes."""
        replica = await self._leave()
        await asyncio.to_thread(self.fork_server.end, replica.pid)
        self.ended += 1
        await self.start()

    async def kill(self) -> None:
        """-9 for the oldest one, between two requests. Another comes."""
        replica = await self._leave()
        while replica.busy:
            await asyncio.sleep(0.002)
        await asyncio.to_thread(self.fork_server.kill, replica.pid)
        self.killed += 1
        await self.start()

    async def _leave(self) -> Replica:
        replica = self.replicas.pop(0)
        replica.up = False
        return replica

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: one request, to the replica whose turn it is."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            with suppress(ConnectionError, OSError):
                request = await read_request(reader)
                if request is not None:
                    await self._pass(request, writer)
        finally:
            self.tasks.discard(task)
            writer.close()

    async def _pass(self, request: RawRequest, writer: asyncio.StreamWriter) -> None:
        replica = self.replicas[next(self._turn) % len(self.replicas)]
        replica.busy += 1
        replica.served += 1
        try:
            there, to = await asyncio.open_connection("127.0.0.1", replica.port, limit=1 << 24)
            try:
                to.write(request.raw[:-2] + b"connection: close\r\n\r\n" + request.body)
                while data := await there.read(1 << 16):
                    writer.write(data)
                    await writer.drain()
            finally:
                to.close()
        finally:
            replica.busy -= 1


@asynccontextmanager
async def fleet(count: int, **tree: Any) -> AsyncIterator[Fleet]:
    """So many replicas with these settings. They end with this."""
    fork_server = await asyncio.to_thread(ForkServer)
    made = Fleet(fork_server, tree)
    server = await asyncio.start_server(made.answer, "127.0.0.1", 0, limit=1 << 24)
    made.port = server.sockets[0].getsockname()[1]
    try:
        for _ in range(count):
            await made.start()
        yield made
    finally:
        server.close()
        for task in list(made.tasks):
            task.cancel()
        await asyncio.gather(*made.tasks, return_exceptions=True)
        await asyncio.to_thread(fork_server.close)
        await server.wait_closed()
