from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path

import httpcore2
import pytest

from proxy.errors import ConfigError
from proxy.metrics import Metrics
from proxy.settings import Pool, Settings, Upstream
from proxy.upstream.client import Client
from proxy.upstream.network import HIGH_WATER, Sockets, Stream, new_pool
from proxy.upstream.target import read_targets
from tests.faulty import Connection, Request, faulty, read_request


async def opened(port: int) -> Stream:
    stream = await Sockets().connect_tcp("127.0.0.1", port, timeout=2)
    assert isinstance(stream, Stream)
    return stream


GET = b"GET / HTTP/1.1\r\n\r\n"


async def test_what_came_before_a_reset_is_read_and_then_the_reset() -> None:
    async def reset(_: Request, there: Connection) -> None:
        await there.send(b"before")
        await there.reset()

    async with faulty(reset) as upstream:
        stream = await opened(upstream.port)
        await stream.write(GET)
        await asyncio.sleep(0.1)
        assert await stream.read(100) == b"before"
        with pytest.raises(httpcore2.ReadError):
            await stream.read(100)
        with pytest.raises(httpcore2.WriteError):
            await stream.write(b"more")


async def test_a_close_is_an_empty_read_again_and_again() -> None:
    async def close(_: Request, there: Connection) -> None:
        there.writer.close()

    async with faulty(close) as upstream:
        stream = await opened(upstream.port)
        await stream.write(GET)
        assert [await stream.read(100), await stream.read(100)] == [b"", b""]
        assert stream.get_extra_info("is_readable") is True
        await stream.aclose()


async def test_a_read_can_be_ended_from_outside_and_by_its_own_timeout() -> None:
    async def wait(_: Request, there: Connection) -> None:
        await there.left()

    async with faulty(wait) as upstream:
        stream = await opened(upstream.port)
        await stream.write(GET)
        with pytest.raises(httpcore2.ReadTimeout):
            await stream.read(100, timeout=0.05)
        asyncio.get_running_loop().call_later(0.05, stream.fail, httpcore2.ReadTimeout("from outside"))
        with pytest.raises(httpcore2.ReadTimeout, match="from outside"):
            await stream.read(100)
        await stream.aclose()
        assert await upstream.none_open()


async def test_more_than_the_high_water_mark_is_not_taken_from_the_kernel() -> None:
    async def flood(_: Request, there: Connection) -> None:
        await there.send(b"x" * (8 << 20))
        there.writer.close()

    async with faulty(flood) as upstream:
        stream = await opened(upstream.port)
        await stream.write(GET)
        await asyncio.sleep(0.2)
        assert stream._size <= 2 * HIGH_WATER
        whole = 0
        while data := await stream.read(100):
            whole += len(data)
        assert whole == 8 << 20
        await stream.aclose()


async def test_unsent_bytes_hold_the_writer_back() -> None:
    release = asyncio.Event()

    async def slow(_: Request, there: Connection) -> None:
        await release.wait()
        await there.left()

    async with faulty(slow) as upstream:
        stream = await opened(upstream.port)
        await stream.write(GET)
        writing = asyncio.create_task(stream.write(b"x" * (64 << 20)))
        await asyncio.sleep(0.2)
        assert not writing.done()
        release.set()
        async with asyncio.timeout(5):
            await writing
        await stream.aclose()


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


async def test_tls_is_checked_against_the_targets_own_bundle(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await read_request(reader) is not None:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    base = f"https://localhost:{server.sockets[0].getsockname()[1]}/v1"
    for bundle, works in ((str(certificate / "cert.pem"), True), ("", False)):
        client = Client(Settings(upstreams={"t": Upstream(base_url=base, ca_bundle=bundle)}), Metrics())
        asking = client.send(client.targets[0], "GET", "/v1/models", b"", [], None)
        if works:
            assert await (await asking).read(10) == b"{}"
        else:
            with pytest.raises(Exception, match="certificate verify failed"):
                await asking
        await client.close()
    server.close()
    await server.wait_closed()


async def test_a_tls_handshake_with_something_else_fails_and_closes() -> None:
    async def say(_: Request, there: Connection) -> None:
        raise AssertionError("no request can be read from a handshake")

    async with faulty(say) as upstream:
        stream = await opened(upstream.port)
        with pytest.raises(httpcore2.ConnectTimeout):
            await stream.start_tls(ssl.create_default_context(), "localhost", timeout=0.1)
        assert await upstream.none_open()


def test_an_outbound_proxy_that_is_none_is_refused_without_showing_its_password() -> None:
    [target] = read_targets(Settings(upstreams={"t": Upstream(base_url="http://h", proxy="socks5://u:pass@x")}))
    with pytest.raises(ConfigError) as caught:
        new_pool(target, Pool())
    assert "pass@" not in str(caught.value)
