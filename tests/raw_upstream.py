"""A scripted upstream that breaks as told, a server on a free port, and a client that says exactly what it is given.

All on 127.0.0.1 and real sockets: what is tested is what happens between kernels, which no stand-in shows.
"""

from __future__ import annotations

import asyncio
import random
import select
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import uvicorn
import uvicorn.server

from proxy.web.asgi import App


class _Ticking:
    """asyncio as uvicorn's server sees it in tests: it looks every 5 ms, not every 100, whether it is to end and
    whether all have left. Most tests start a server, and waiting for the ends of them was half of what they took."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.005))


uvicorn.server.asyncio = _Ticking()  # type: ignore[attr-defined, assignment]

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass
class RawRequest:
    """A request as it arrived: the head as it was, and the body with its chunks joined."""

    line: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    raw: bytes = b""

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]


Script = Callable[[RawRequest, "Connection"], Awaitable[None]]


@dataclass
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def has_input(self) -> bool:
        """True if something came, or the other side closed. Who writes on then gets an RST, which takes what came."""
        sock: socket.socket = self.writer.get_extra_info("socket")
        if sock.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))

    async def reset(self) -> None:
        """An RST, once what was sent has left."""
        await asyncio.sleep(0.02)
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def left(self) -> None:
        """Until the other side is gone."""
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


@dataclass
class Upstream:
    """`script` runs for each request; when it returns without having closed, the connection is kept alive."""

    script: Script
    port: int = 0
    requests: list[RawRequest] = field(default_factory=list)
    open: int = 0
    connections: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            while (request := await read_request(reader)) is not None:
                self.requests.append(request)
                await self.script(request, Connection(reader, writer))
                if writer.is_closing():
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self.tasks.discard(task)
            writer.transport.abort()

    async def none_open(self, seconds: float = 0.5 * 4) -> bool:
        """True if all connections were closed in time."""
        async with asyncio.timeout(seconds + 1):
            started = asyncio.get_running_loop().time()
            while self.open:
                await asyncio.sleep(0.005)
        return asyncio.get_running_loop().time() - started <= seconds


async def read_request(reader: asyncio.StreamReader) -> RawRequest | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    line, *rest = head[:-4].split(b"\r\n")
    headers = [(name, value.strip()) for name, _, value in (entry.partition(b":") for entry in rest)]
    body = b""
    lowered = {name.lower(): value for name, value in headers}
    if b"content-length" in lowered:
        body = await reader.readexactly(int(lowered[b"content-length"]))
    elif lowered.get(b"transfer-encoding") == b"chunked":
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
    return RawRequest(line, headers, body, head)


class _OtherHead:
    """A writer that puts another head in the place of that of a stream."""

    def __init__(self, writer: asyncio.StreamWriter, head: bytes) -> None:
        self._writer = writer
        self._head = head

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def write(self, data: bytes) -> None:
        self._writer.write(data.replace(STREAM[: STREAM.index(b"\r\ntransfer")], self._head))


def replace_head(script: Script, head: bytes) -> Script:
    """The same script, whose streams have another status line and media type."""

    async def changed(request: RawRequest, connection: Connection) -> None:
        writer: Any = _OtherHead(connection.writer, head)
        await script(request, Connection(connection.reader, writer))

    return changed


@asynccontextmanager
async def run_upstream(script: Script) -> AsyncIterator[Upstream]:
    upstream = Upstream(script)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0, limit=1 << 24)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()
        for task in list(upstream.tasks):
            task.cancel()
        await asyncio.gather(*upstream.tasks, return_exceptions=True)
        await server.wait_closed()


@asynccontextmanager
async def serve_app(app: App | Any) -> AsyncIterator[int]:
    """`app` behind a real uvicorn; gives its port."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_level="critical", lifespan="off", http="httptools", ws="none",
        server_header=False, date_header=False, timeout_graceful_shutdown=1, timeout_keep_alive=75,
    )  # fmt: skip
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def abort_all(there: list[Connection]) -> None:
    """Empty the list, and end each connection in it at once."""
    while there:
        writer = there.pop().writer
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


HANGS_S = 60.0
"""Seconds without an answer after which something hangs. A busy machine may need ten of them."""


async def connect(port: int) -> Connection:
    return Connection(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))


async def send_raw(port: int, raw: bytes, seconds: float = HANGS_S) -> bytes:
    """Says `raw` and hears everything until the other side closes."""
    client = await connect(port)
    try:
        async with asyncio.timeout(seconds):
            with suppress(ConnectionError):
                await client.send(raw)
            out = b""
            with suppress(ConnectionError):
                while data := await client.reader.read(65536):
                    out += data
            return out
    finally:
        client.writer.transport.abort()


def make_post(path: str = "/v1/chat/completions", body: bytes = b"{}", *lines: bytes) -> bytes:
    head = b"POST %b HTTP/1.1\r\nhost: test\r\nconnection: close\r\n" % path.encode()
    return head + b"".join(line + b"\r\n" for line in lines) + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def free_port() -> int:
    """A port that the kernel gives to nobody before it is used: it is below those that the kernel gives out."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


async def wait_until(condition: Callable[[], bool], seconds: float = HANGS_S) -> float:
    """Seconds until it holds. Fails after `seconds`."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
    return loop.time() - started
