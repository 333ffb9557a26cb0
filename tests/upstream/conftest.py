"""A client of one scripted upstream, and what it is asked and found to have got."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from proxy.errors import ProxyError, UpstreamError
from proxy.metrics import Metrics
from proxy.settings import Pool, Settings, Timeouts
from proxy.upstream.client import Client, Reply
from tests.faulty import HEAD, Connection, Request

EVENTS = [b'data: {"n":%d,"text":"\xc3\xa4"}\n\n' % n for n in range(20)]
JSON = [(b"content-type", b"application/json")]


@asynccontextmanager
async def client_of(port: int, **timeouts: float) -> AsyncIterator[Client]:
    settings = Settings(
        upstream=f"http://127.0.0.1:{port}/v1", timeouts=Timeouts(**timeouts), pool=Pool(connections=10, keepalive=10)
    )
    client = Client(settings, Metrics())
    yield client
    assert client._lines["default"].open == 0
    await client.close()


async def send(client: Client, body: bytes = b"{}", **more: Any) -> Reply:
    return await client.send(client.targets[0], "POST", "/v1/chat/completions", b"", JSON, body, **more)


async def gathered(reply: Reply) -> tuple[bytes, ProxyError | None]:
    """What came, and what ended it."""
    out = b""
    try:
        async for part in reply.chunks():
            out += part
    except UpstreamError as error:
        return out, error
    return out, None


def errors(client: Client, kind: str) -> float:
    value = client._metrics.registry.get_sample_value(
        "context_proxy_upstream_errors_total", {"upstream": "default", "kind": kind}
    )
    return value or 0.0


async def answer_json(_: Request, there: Connection) -> None:
    await there.send(HEAD, b"content-length: 2\r\n\r\n{}")


@asynccontextmanager
async def listening(script: Callable[[Connection], Awaitable[None]]) -> AsyncIterator[int]:
    """A server that reads no requests by itself; gives its port."""
    tasks = set[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await script(Connection(reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
