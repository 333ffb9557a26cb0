"""A client of one scripted upstream, and what it is asked and found to have got."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import ProxyError, UpstreamError
from proxy.metrics import Metrics
from proxy.settings.load import Settings
from proxy.settings.model import PoolSettings, TimeoutSettings
from proxy.upstream.client import Reply, UpstreamClient, UpstreamRequest
from proxy.upstream.transport import AiohttpTransport
from tests.raw_upstream import HEAD, Connection, RawRequest

EVENTS = [b'data: {"n":%d,"text":"\xc3\xa4"}\n\n' % n for n in range(20)]
JSON = [(b"content-type", b"application/json")]


@asynccontextmanager
async def make_client(
    port: int, connections: int = 10, keepalive: int = 10, /, **timeouts: float
) -> AsyncIterator[UpstreamClient]:
    pool = PoolSettings(connections=connections, keepalive=keepalive)
    settings = Settings(upstream=f"http://127.0.0.1:{port}/v1", timeouts=TimeoutSettings(**timeouts), pool=pool)
    client = UpstreamClient(settings, Metrics())
    yield client
    assert client._transports["default"].open_responses == 0
    await client.close()


def transport_of(client: UpstreamClient) -> AiohttpTransport:
    [line] = client._transports.values()
    assert isinstance(line.transport, AiohttpTransport)
    return line.transport


def idle(client: UpstreamClient) -> int:
    """Connections that are there and not in use."""
    connector = transport_of(client)._connector
    kept = [] if connector is None else [protocol for each in connector._conns.values() for protocol, _ in each]
    return sum(protocol.is_connected() for protocol in kept)


def connections(client: UpstreamClient) -> int:
    """Connections that are there."""
    return idle(client) + len(transport_of(client)._answers)


def sound(client: UpstreamClient, limit: int = 10) -> bool:
    """Nothing is under way, and all that may be there can be had."""
    transport = transport_of(client)
    return transport._slots._value == limit and not transport._slots._waiters and not transport._answers


async def send(client: UpstreamClient, body: bytes = b"{}", **more: Any) -> Reply:
    return await client.send(
        client.targets[0], UpstreamRequest("POST", "/v1/chat/completions", b"", JSON, body), **more
    )


async def gathered(reply: Reply) -> tuple[bytes, ProxyError | None]:
    """The bytes that came, and the error that ended them."""
    out = b""
    try:
        async for part in reply.iter_bytes():
            out += part
    except UpstreamError as error:
        return out, error
    return out, None


def errors(client: UpstreamClient, kind: str) -> float:
    value = client._metrics.registry.get_sample_value(
        "context_proxy_upstream_errors_total", {"upstream": "default", "kind": kind}
    )
    return value or 0.0


async def answer_json(_: RawRequest, connection: Connection) -> None:
    await connection.send(HEAD, b"content-length: 2\r\n\r\n{}")


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


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"), "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost"],
        capture_output=True,
    )  # fmt: skip
    if made.returncode != 0:
        pytest.skip("openssl makes no certificate here")
    return folder


def serving(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


async def post_and_read(client: UpstreamClient, body: bytes = b"{}") -> tuple[int, bytes] | ProxyError:
    try:
        reply = await client.send(client.targets[0], UpstreamRequest("POST", "/v1/x", b"", [], body))
        return reply.status, await reply.read_body(1 << 26)
    except UpstreamError as error:
        return error
