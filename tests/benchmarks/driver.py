"""The load generator: a minimal HTTP client on asyncio and uvloop, which must never be the bottleneck.

Connections are kept alive, and each has one request at a time. An answer that is not a whole 200 ends the run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import uvloop

from tests.benchmarks.start_servers import Server

HEAD = (
    "POST {} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer sk-bench\r\naccept: application/json\r\n"
    "user-agent: bench\r\ncontent-type: application/json\r\n"
)
T = TypeVar("T")


class UnexpectedAnswer(RuntimeError):
    """An answer that is not whole, is no 200, or does not belong to the right conversation."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. first: seconds until the first event of a stream, or until the head. all: seconds until the end."""

    first: float
    all: float
    head: bytes
    body: bytes

    def header(self, name: bytes) -> bytes:
        """Return the value of a header; empty if the answer does not have it. name: in lower case."""
        _, found, rest = self.head.lower().partition(b"\r\n" + name + b":")
        return rest.partition(b"\r\n")[0].strip() if found else b""


class Connection(asyncio.Protocol):
    """One connection to a server. It is opened again if the server has closed it between two requests."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.WriteTransport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._head = b""
        self._parts: list[bytes] = []
        self._left: int | None = None
        self._began = self._first = 0.0
        self._start = HEAD.format(server.path).encode() + server.headers

    async def send(self, body: bytes, headers: bytes = b"") -> Answer:
        """Send a request and return its answer. headers: further header lines, each with its line end."""
        loop = asyncio.get_running_loop()
        if self._transport is None or self._transport.is_closing():
            await loop.create_connection(lambda: self, "127.0.0.1", self._server.port)
        assert self._transport is not None
        self._answer = loop.create_future()
        self._head, self._parts, self._left, self._first = b"", [], None, 0.0
        raw = b"%b%bcontent-length: %d\r\n\r\n%b" % (self._start, headers, len(body), body)
        self._began = time.perf_counter()
        self._transport.write(raw)
        return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's is none of asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(UnexpectedAnswer(f"{self._server.name} closed the connection: {exc}"))

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            return
        if self._left is None:
            self._head += data
            head, ended, data = self._head.partition(b"\r\n\r\n")
            if not ended:
                return
            self._head = head
            _, known, length = head.lower().partition(b"\r\ncontent-length:")
            self._left = int(length.partition(b"\r\n")[0]) if known else -1
        if not self._first and (self._left >= 0 or b"data:" in data):
            self._first = time.perf_counter()
        self._parts.append(data)
        if self._left >= 0:
            self._left -= len(data)
            if not self._left:
                self._end()
        elif data.endswith(b"0\r\n\r\n") or (len(data) < 5 and b"".join(self._parts[-5:]).endswith(b"0\r\n\r\n")):
            self._end()

    def _end(self) -> None:
        assert self._answer is not None
        now = time.perf_counter()
        found = Answer((self._first or now) - self._began, now - self._began, self._head, b"".join(self._parts))
        if not self._head.startswith(b"HTTP/1.1 200"):
            text = (self._head.partition(b"\r\n")[0] + b": " + found.body)[:600].decode("latin-1")
            self._answer.set_exception(UnexpectedAnswer(text))
        else:
            self._answer.set_result(found)


async def send_lines(
    server: Server,
    lines: Sequence[Sequence[bytes]],
    headers: Sequence[bytes] = (),
    over: float = 0.0,
    pause: float = 0.0,
) -> list[list[Answer]]:
    """Send the bodies of each line one after the other; all lines run at once, each on a connection of its own.

    over: seconds over which the first requests of the lines are spread. pause: seconds from an answer to the next
    request of its line.
    """
    made = [Connection(server) for _ in lines]
    given = list(headers) or [b""] * len(lines)

    async def one(number: int, connection: Connection, bodies: Sequence[bytes], header: bytes) -> list[Answer]:
        if over:
            await asyncio.sleep(over * number / len(lines))
        answers: list[Answer] = []
        for body in bodies:
            if answers and pause:
                await asyncio.sleep(pause)
            answers.append(await connection.send(body, header))
        return answers

    try:
        return await asyncio.gather(*map(one, range(len(made)), made, lines, given))
    finally:
        for connection in made:
            connection.close()


def send_all(
    server: Server,
    lines: Sequence[Sequence[bytes]],
    headers: Sequence[bytes] = (),
    over: float = 0.0,
    pause: float = 0.0,
) -> list[list[Answer]]:
    """Run `send_lines` on an event loop of its own."""
    return run_client(lambda: send_lines(server, lines, headers, over, pause))


def run_client(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on an event loop of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work())
