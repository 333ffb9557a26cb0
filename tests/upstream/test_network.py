from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import ConfigError, ProxyError, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from proxy.metrics import Metrics
from proxy.settings import Settings, Timeouts, Upstream
from proxy.upstream import network
from proxy.upstream.client import Client
from proxy.upstream.network import Way
from proxy.upstream.target import read_targets
from tests.faulty import HEAD, STREAM, Connection, Request, faulty, read_request
from tests.upstream.conftest import EVENTS, listening


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


def client_of(base: str, *, proxy: str = "", bundle: str = "", connect_s: float = 2) -> Client:
    upstream = Upstream(base_url=base, ca_bundle=bundle, proxy=proxy)
    return Client(Settings(upstreams={"t": upstream}, timeouts=Timeouts(connect_s=connect_s)), Metrics())


async def asked(client: Client, body: bytes = b"{}") -> tuple[int, bytes] | ProxyError:
    try:
        reply = await client.send(client.targets[0], "POST", "/v1/x", b"", [], body)
        return reply.status, await reply.read(1 << 26)
    except UpstreamError as error:
        return error


async def encrypted(there: Connection, certificate: Path) -> None:
    """Requests behind a handshake: a body of 3 bytes is answered with a stream, any other with its length."""
    await there.writer.start_tls(serving(certificate))
    tls: ssl.SSLObject = there.writer.get_extra_info("ssl_object")
    assert tls.selected_alpn_protocol() == "http/1.1"
    while (request := await read_request(there.reader)) is not None:
        if len(request.body) == 3:
            await there.send(STREAM)
            for event in EVENTS:
                await there.chunk(event)
            await there.send(b"0\r\n\r\n")
        else:
            await there.send(HEAD + b"content-length: 9\r\n\r\n%9d" % len(request.body))


async def test_tls_is_checked_against_the_targets_own_bundle(certificate: Path) -> None:
    async with listening(lambda there: encrypted(there, certificate)) as port:
        for bundle, works in ((str(certificate / "cert.pem"), True), ("", False)):
            client = client_of(f"https://localhost:{port}/v1", bundle=bundle)
            for _ in range(3):
                got = await asked(client)
                if works:
                    assert got == (200, b"        2")
                else:
                    assert isinstance(got, UpstreamUnreachable)
                    assert "certificate verify failed" in str(got)
            assert len(client._lines["t"].pool._all) == works
            await client.close()


async def test_the_name_is_checked_and_the_environments_authorities_are_none(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = str(certificate / "cert.pem")
    monkeypatch.setenv("SSL_CERT_FILE", bundle)
    async with listening(lambda there: encrypted(there, certificate)) as port:
        for client in (client_of(f"https://127.0.0.1:{port}", bundle=bundle), client_of(f"https://localhost:{port}")):
            assert isinstance(await asked(client), UpstreamUnreachable)
            await client.close()


async def test_large_bodies_and_streams_go_through_tls_as_they_are(certificate: Path) -> None:
    async with listening(lambda there: encrypted(there, certificate)) as port:
        client = client_of(f"https://localhost:{port}", bundle=str(certificate / "cert.pem"))
        assert await asked(client, b"x" * 10_000_000) == (200, b" 10000000")
        assert await asked(client, b"abc") == (200, b"".join(EVENTS))
        assert len(client._lines["t"].pool._all) == 1
        await client.close()


async def test_a_tls_handshake_with_something_else_fails_and_closes() -> None:
    async def silent(_: Request, there: Connection) -> None:
        raise AssertionError("no request can be read from a handshake")

    async def other(there: Connection) -> None:
        await there.send(b"220 smtp ready\r\n")
        await there.left()

    async with faulty(silent) as upstream:
        client = client_of(f"https://localhost:{upstream.port}", connect_s=0.1)
        assert isinstance(await asked(client), UpstreamTimeout)
        assert await upstream.none_open()
        await client.close()
    async with listening(other) as port:
        client = client_of(f"https://localhost:{port}")
        assert isinstance(await asked(client), UpstreamUnreachable)
        assert client._lines["t"].pool._taken == 0
        await client.close()


# Through an outbound proxy


async def tunnel(there: Connection, certificate: Path, answer: bytes, asked_for: list[bytes]) -> None:
    asked_for.append(await there.reader.readuntil(b"\r\n\r\n"))
    await there.send(answer)
    if b" 200 " in answer:
        await encrypted(there, certificate)


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_an_https_target_is_reached_through_a_tunnel(certificate: Path, version: bytes) -> None:
    asked_for: list[bytes] = []
    answer = b"HTTP/%b 200 Connection established\r\n\r\n" % version
    async with listening(lambda there: tunnel(there, certificate, answer, asked_for)) as port:
        client = client_of(
            "https://localhost/v1", proxy=f"http://u%40:p@127.0.0.1:{port}", bundle=str(certificate / "cert.pem")
        )
        for _ in range(3):
            assert await asked(client) == (200, b"        2")
        await client.close()
    [head] = asked_for
    assert head.startswith(b"CONNECT localhost:443 HTTP/1.1\r\nhost: localhost:443\r\n")
    assert b"\r\nproxy-authorization: Basic dUA6cA==\r\n" in head


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n", "status 407"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", "status 101"),
        (b"HTTP/1.1 200 OK\r\n\r\nmore", "said more"),
        (b"nonsense\r\n\r\n", "no status line"),
        (b"", "closed"),
    ],
)
async def test_a_tunnel_that_is_refused_is_unreachable(certificate: Path, answer: bytes, told: str) -> None:
    asked_for: list[bytes] = []

    async def refuse(there: Connection) -> None:
        asked_for.append(await there.reader.readuntil(b"\r\n\r\n"))
        if answer:
            await there.send(answer)
            with suppress(ConnectionError):
                await there.left()

    async with listening(refuse) as port:
        client = client_of("https://localhost", proxy=f"http://u:secret@127.0.0.1:{port}")
        got = await asked(client)
        assert isinstance(got, UpstreamUnreachable)
        assert told in str(got)
        assert "secret" not in str(got)
        assert client._lines["t"].pool._taken == 0
        await client.close()
    assert len(asked_for) == 2, "once more, since nothing had been sent to the target"


async def test_a_tunnel_that_is_not_answered_ends_in_time() -> None:
    async def wait(there: Connection) -> None:
        await asyncio.sleep(60)

    async with listening(wait) as port:
        client = client_of("https://localhost", proxy=f"http://127.0.0.1:{port}", connect_s=0.1)
        assert isinstance(await asked(client), UpstreamTimeout)
        await client.close()


async def test_an_http_target_is_asked_for_in_full_and_through_an_encrypted_proxy_too(certificate: Path) -> None:
    lines: list[bytes] = []

    async def forward(there: Connection) -> None:
        await there.writer.start_tls(serving(certificate))
        while (request := await read_request(there.reader)) is not None:
            lines.append(request.line)
            await there.send(HEAD + b"content-length: 2\r\n\r\n{}")

    async with listening(forward) as port:
        client = client_of("http://[::1]:81/base", proxy=f"https://localhost:{port}")
        assert isinstance(await asked(client), UpstreamUnreachable), "its authority is not known"
        way = client._lines["t"].way
        assert way._outer is not None
        way._outer.load_verify_locations(certificate / "cert.pem")
        assert await asked(client) == (200, b"{}")
        await client.close()
    assert lines == [b"POST http://[::1]:81/base/x HTTP/1.1"]


@pytest.mark.parametrize("proxy", ["socks5://u:pass@x", "http://:1", "u:pass@x"])
def test_an_outbound_proxy_that_is_none_is_refused_without_showing_its_password(proxy: str) -> None:
    [target] = read_targets(Settings(upstreams={"t": Upstream(base_url="http://h", proxy=proxy)}))
    with pytest.raises(ConfigError) as caught:
        Way(target, 1)
    assert "pass@" not in str(caught.value)


def test_the_systems_authorities_are_used_wherever_they_lie(
    certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [target] = read_targets(Settings(upstreams={"t": Upstream(base_url="https://h")}))
    there = ssl.get_default_verify_paths()
    file, folder = tmp_path / "cert.pem", tmp_path / "certs"

    def found() -> int:
        monkeypatch.setattr(
            ssl, "get_default_verify_paths",
            lambda: there._replace(openssl_cafile=str(file), openssl_capath=str(folder)),
        )  # fmt: skip
        context = Way(target, 1)._tls
        assert context is not None
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
        return context.cert_store_stats()["x509"]

    monkeypatch.setattr(network, "BUNDLES", ())
    with pytest.raises(ConfigError, match="no authorities"):
        found()
    folder.mkdir()
    (folder / "README").touch()
    monkeypatch.setattr(network, "BUNDLES", (str(tmp_path / "none"), str(certificate / "cert.pem")))
    assert found() == 1
    monkeypatch.setattr(network, "BUNDLES", ())
    (folder / "0123abcd.0").write_bytes((certificate / "cert.pem").read_bytes())
    assert found() == 0, "a folder is looked into when a certificate is checked"
    file.write_bytes((certificate / "cert.pem").read_bytes())
    assert found() == 1


@pytest.mark.timed
async def test_an_address_that_swallows_packets_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a name with two addresses the first takes no connection and refuses none: its queue is full."""

    async def answer(there: Connection) -> None:
        await read_request(there.reader)
        await there.send(HEAD + b"content-length: 2\r\n\r\nok")

    async with listening(answer) as port:
        with socket.socket() as silent, socket.socket() as first, socket.socket() as second:
            silent.bind(("127.0.0.2", port))
            silent.listen(0)
            for filling in (first, second):  # one is taken into the queue, the next fills what the kernel adds to it
                filling.setblocking(False)
                filling.connect_ex(("127.0.0.2", port))
            resolve = socket.getaddrinfo

            def two(host: str, *more: Any, **named: Any) -> Any:
                if host != "two.example":
                    return resolve(host, *more, **named)
                return [one for at in ("127.0.0.2", "127.0.0.1") for one in resolve(at, *more, **named)]

            monkeypatch.setattr(socket, "getaddrinfo", two)
            client = client_of(f"http://two.example:{port}/v1", connect_s=20)
            began = time.monotonic()
            assert await asked(client) == (200, b"ok")
            assert time.monotonic() - began < 4.0, "promised: a second"
            await client.close()


async def test_a_name_whose_addresses_all_refuse_is_told_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = client_of(f"http://localhost:{unused.getsockname()[1]}/v1", connect_s=20)
        assert isinstance(await asked(client), UpstreamUnreachable)
        await client.close()
