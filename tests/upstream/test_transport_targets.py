from __future__ import annotations

import asyncio
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest

from proxy.errors import ConfigError, UpstreamTimeout, UpstreamUnreachable
from proxy.metrics import Metrics
from proxy.settings.load import Settings, UpstreamSettings
from proxy.settings.model import PoolSettings, TimeoutSettings
from proxy.upstream import transport
from proxy.upstream.client import UpstreamClient
from proxy.upstream.transport import (
    Target,
    create_client_context,
    create_transport,
    find_key_header,
    find_own_base_paths,
    parse_address,
    read_targets,
)
from tests.raw_upstream import HEAD, STREAM, Connection, RawRequest, read_request, run_upstream
from tests.upstream.conftest import EVENTS, connections, listening, post_and_read, serving, sound, transport_of


def target(base_url: str, **more: Any) -> Target:
    [made] = read_targets(Settings(upstreams={"t": UpstreamSettings(base_url=base_url, **more)}))
    return made


@pytest.mark.parametrize(
    ("base", "strategy", "path", "header"),
    [
        ("https://generativelanguage.googleapis.com", "openai", "/v1/models", b"x-goog-api-key"),
        ("https://generativelanguage.googleapis.com/v1beta", "openai", "/v1/models/gemini-3", b"x-goog-api-key"),
        ("https://gateway.lan", "gemini", "/v1/models/gemini-3", b"x-goog-api-key"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gemini", "/v1/models", b"authorization"),
        ("https://generativelanguage.googleapis.com", "gemini", "/v1/chat/completions", b"authorization"),
        ("https://api.openai.com/v1", "openai", "/v1/models", b"authorization"),
    ],
)
def test_the_key_of_a_google_upstream_goes_where_its_paths_of_models_read_it(
    base: str, strategy: str, path: str, header: bytes
) -> None:
    """Google's stable path of its models is also that of OpenAI, whose keys are tokens."""
    made = target(base, strategy=strategy)
    assert find_key_header(made, parse_address(made), path) == header


@pytest.mark.parametrize(
    ("base", "path", "goes_to"),
    [
        ("https://h/v1", "/v1/chat/completions", b"/v1/chat/completions"),
        ("https://h/v1", "/chat/completions", b"/v1/chat/completions"),
        ("https://h/openai/v1beta/", "/v1/models", b"/openai/v1beta/models"),
        ("https://h/a//b", "//v1//models", b"/a/b//models"),
        ("https://h", "/v1/models", b"/v1/models"),
        ("https://h/", "/models", b"/models"),
        ("https://h", "/", b"/"),
        ("https://h/v1", "/v1", b"/v1"),
        ("https://h/v1", "/v1beta/x", b"/v1/v1beta/x"),
        ("https://h/v1", "/v1beta/models/g:generateContent", b"/v1beta/models/g:generateContent"),
        ("https://h/v1beta", "/v1beta/models", b"/v1beta/models"),
        ("https://h/a/v1beta/openai", "/v1beta/models/g:countTokens", b"/a/v1beta/models/g:countTokens"),
        ("http://h:11434/v1", "/api/chat", b"/api/chat"),
        ("https://h/ollama/v1", "/api/blobs/sha256:1", b"/ollama/api/blobs/sha256:1"),
        ("https://h", "/api/tags", b"/api/tags"),
        ("https://h/v1", "/api/chat/completions", b"/v1/api/chat/completions"),
        ("https://h", "/openai/deployments/d/chat/completions", b"/openai/deployments/d/chat/completions"),
        ("https://h/openai", "/openai/deployments/d/embeddings", b"/openai/deployments/d/embeddings"),
        ("https://h/openai/v1", "/openai/responses", b"/openai/responses"),
        ("https://h/openai/v1", "/openai/v1/models", b"/openai/v1/models"),
        ("https://h/openai/v1", "/v1/models", b"/openai/v1/models"),
        ("https://h/v1", "/v1/a%2Fb%20c", b"/v1/a%2Fb%20c"),
        ("https://h/v1", "/v1/a b?c#d\r\né", b"/v1/a%20b%3Fc%23d%0D%0A%C3%A9"),
    ],
)
def test_a_path_goes_where_the_base_says(base: str, path: str, goes_to: bytes) -> None:
    assert parse_address(target(base)).request_target(path, b"") == goes_to
    assert parse_address(target(base)).request_target(path, b"x=%2F") == goes_to + b"?x=%2F"


def test_paths_of_base_urls_that_clients_may_name_are_the_providers_own_the_longest_first() -> None:
    paths = ["", "/v1", "/v1beta", "/openai", "/api", "/api/v1", "/inference/v1", "/api/v1"]
    assert find_own_base_paths(paths) == ("/inference/v1", "/api/v1", "/api")


@pytest.mark.parametrize(
    ("base", "host"),
    [
        ("http://h:8000/v1", b"h:8000"),
        ("https://h", b"h"),
        ("http://[::1]:80/v1", b"[::1]:80"),
        ("http://bücher.example", b"xn--bcher-kva.example"),
    ],
)
def test_the_host_header_is_the_bases_authority(base: str, host: bytes) -> None:
    assert parse_address(target(base)).host_header == host


def test_a_base_without_a_host_is_refused() -> None:
    made = target("https://h")
    with pytest.raises(ConfigError, match=r"upstreams\.t\.base_url"):
        parse_address(Target(made.name, "ftp://x", made.strategy, None, (), "", "", ""))


def test_one_upstream_setting_is_one_target_named_default() -> None:
    [made] = read_targets(Settings(upstream="http://h/v1"))
    assert (made.name, made.base_url, made.models) == ("default", "http://h/v1", ("*",))


def test_a_key_is_printed_as_stars() -> None:
    made = Target("t", "http://h", "openai", "sk-canary", ("*",), "http://u:p@x", "", "")
    assert "canary" not in repr(made)
    assert "u:p" not in repr(made)
    assert "key=***" in repr(made)


def client_of(base: str, *, proxy: str = "", bundle: str = "", connect_s: float = 2) -> UpstreamClient:
    upstream = UpstreamSettings(base_url=base, ca_bundle=bundle, proxy=proxy)
    return UpstreamClient(Settings(upstreams={"t": upstream}, timeouts=TimeoutSettings(connect_s=connect_s)), Metrics())


async def encrypted(connection: Connection, certificate: Path) -> None:
    """Requests behind a handshake: a body of 3 bytes is answered with a stream, any other with its length."""
    await connection.writer.start_tls(serving(certificate))
    tls: ssl.SSLObject = connection.writer.get_extra_info("ssl_object")
    assert tls.selected_alpn_protocol() == "http/1.1"
    while (request := await read_request(connection.reader)) is not None:
        if len(request.body) == 3:
            await connection.send(STREAM)
            for event in EVENTS:
                await connection.chunk(event)
            await connection.send(b"0\r\n\r\n")
        else:
            await connection.send(HEAD + b"content-length: 9\r\n\r\n%9d" % len(request.body))


async def test_tls_is_checked_against_the_targets_own_bundle(certificate: Path) -> None:
    async with listening(lambda there: encrypted(there, certificate)) as port:
        for bundle, works in ((str(certificate / "cert.pem"), True), ("", False)):
            client = client_of(f"https://localhost:{port}/v1", bundle=bundle)
            for _ in range(3):
                got = await post_and_read(client)
                if works:
                    assert got == (200, b"        2")
                else:
                    assert isinstance(got, UpstreamUnreachable)
                    assert "certificate verify failed" in str(got)
            assert connections(client) == works
            await client.close()


async def test_the_name_is_checked_and_the_environments_authorities_are_none(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = str(certificate / "cert.pem")
    monkeypatch.setenv("SSL_CERT_FILE", bundle)
    async with listening(lambda there: encrypted(there, certificate)) as port:
        for client in (client_of(f"https://127.0.0.1:{port}", bundle=bundle), client_of(f"https://localhost:{port}")):
            assert isinstance(await post_and_read(client), UpstreamUnreachable)
            await client.close()


@pytest.mark.parametrize("transport", ["aiohttp", "httpx2"])
async def test_a_targets_own_certificate_is_shown_to_it(
    certificate: Path, transport: Literal["aiohttp", "httpx2"]
) -> None:
    shown: list[object] = []

    async def asks_for_one(connection: Connection) -> None:
        context = serving(certificate)
        context.set_alpn_protocols(["http/1.1"])
        context.load_verify_locations(certificate / "cert.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        await connection.writer.start_tls(context)
        shown.append(connection.writer.get_extra_info("peercert"))
        while await read_request(connection.reader) is not None:
            await connection.send(HEAD + b"content-length: 2\r\n\r\n{}")

    file, key = str(certificate / "cert.pem"), str(certificate / "key.pem")
    async with listening(asks_for_one) as port:
        for named in ({"client_cert": file, "client_key": key}, {}):
            upstream = UpstreamSettings(
                base_url=f"https://localhost:{port}",
                ca_bundle=file,
                transport=transport,
                **named,  # type: ignore[arg-type]
            )
            client = UpstreamClient(Settings(upstreams={"t": upstream}), Metrics())
            got = await post_and_read(client)
            assert got == (200, b"{}") if named else isinstance(got, UpstreamUnreachable)
            await client.close()
    [peer] = shown
    assert "localhost" in repr(peer)


def test_a_certificate_that_cannot_be_shown_stops_the_start(certificate: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked.pem"
    lock = ["openssl", "pkey", "-in", str(certificate / "key.pem"), "-aes128", "-passout", "pass:secret"]
    subprocess.run([*lock, "-out", str(locked)], check=True, capture_output=True)
    for cert, key in (("cert.pem", str(locked)), ("cert.pem", ""), ("key.pem", "")):
        there = UpstreamSettings(base_url="https://h", client_cert=str(certificate / cert), client_key=key)
        with pytest.raises(ConfigError, match=r"upstreams\.t\.client_cert"):
            UpstreamClient(Settings(upstreams={"t": there}), Metrics())


async def test_large_bodies_and_streams_go_through_tls_as_they_are(certificate: Path) -> None:
    async with listening(lambda there: encrypted(there, certificate)) as port:
        client = client_of(f"https://localhost:{port}", bundle=str(certificate / "cert.pem"))
        assert await post_and_read(client, b"x" * 10_000_000) == (200, b" 10000000")
        assert await post_and_read(client, b"abc") == (200, b"".join(EVENTS))
        assert connections(client) == 1
        await client.close()


async def test_a_tls_handshake_with_something_else_fails_and_closes() -> None:
    async def silent(_: RawRequest, connection: Connection) -> None:
        raise AssertionError("no request can be read from a handshake")

    async def other(connection: Connection) -> None:
        await connection.send(b"220 smtp ready\r\n")
        await connection.left()

    async with run_upstream(silent) as upstream:
        client = client_of(f"https://localhost:{upstream.port}", connect_s=0.1)
        assert isinstance(await post_and_read(client), UpstreamTimeout)
        assert await upstream.none_open()
        await client.close()
    async with listening(other) as port:
        client = client_of(f"https://localhost:{port}")
        assert isinstance(await post_and_read(client), UpstreamUnreachable)
        assert sound(client, 1000)
        await client.close()


# Through an outbound proxy


async def tunnel(connection: Connection, certificate: Path, answer: bytes, asked_for: list[bytes]) -> None:
    asked_for.append(await connection.reader.readuntil(b"\r\n\r\n"))
    await connection.send(answer)
    if b" 200 " in answer:
        await encrypted(connection, certificate)


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_an_https_target_is_reached_through_a_tunnel(certificate: Path, version: bytes) -> None:
    asked_for: list[bytes] = []
    answer = b"HTTP/%b 200 Connection established\r\n\r\n" % version
    async with listening(lambda there: tunnel(there, certificate, answer, asked_for)) as port:
        client = client_of(
            "https://localhost/v1", proxy=f"http://u%40:p@127.0.0.1:{port}", bundle=str(certificate / "cert.pem")
        )
        for _ in range(3):
            assert await post_and_read(client) == (200, b"        2")
        await client.close()
    [head] = asked_for
    assert head.startswith(b"CONNECT localhost:443 HTTP/1.1\r\nHost: localhost:443\r\n")
    assert b"\r\nProxy-Authorization: Basic dUA6cA==\r\n" in head


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n", "status 407"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", "status 101"),
        (b"nonsense\r\n\r\n", "no status line"),
        (b"", "closed"),
    ],
)
async def test_a_tunnel_that_is_refused_is_unreachable(answer: bytes, told: str) -> None:
    asked_for: list[bytes] = []

    async def refuse(connection: Connection) -> None:
        asked_for.append(await connection.reader.readuntil(b"\r\n\r\n"))
        if answer:
            await connection.send(answer)
            with suppress(ConnectionError):
                await connection.left()

    async with listening(refuse) as port:
        client = client_of("https://localhost", proxy=f"http://u:secret@127.0.0.1:{port}")
        got = await post_and_read(client)
        assert isinstance(got, UpstreamUnreachable)
        assert told in str(got)
        assert "secret" not in str(got)
        assert sound(client, 1000)
        await client.close()
    assert len(asked_for) == 2, "once more, since nothing had been sent to the target"


async def test_bytes_after_the_answer_of_a_tunnel_are_not_the_targets_answer() -> None:
    heard: list[bytes] = []

    async def forge(connection: Connection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        await connection.send(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        heard.append(await connection.reader.read(3))

    async with listening(forge) as port:
        client = client_of("https://localhost", proxy=f"http://127.0.0.1:{port}", connect_s=0.5)
        assert isinstance(await post_and_read(client), (UpstreamUnreachable, UpstreamTimeout))
        assert set(heard) <= {b"", b"\x16\x03\x01"}, "nothing goes there in the clear"
        assert sound(client, 1000)
        await client.close()


async def test_a_tunnel_that_is_not_answered_ends_in_time() -> None:
    async def wait(connection: Connection) -> None:
        await asyncio.sleep(60)

    async with listening(wait) as port:
        client = client_of("https://localhost", proxy=f"http://127.0.0.1:{port}", connect_s=0.1)
        assert isinstance(await post_and_read(client), UpstreamTimeout)
        await client.close()


async def test_an_http_target_is_asked_for_in_full_and_through_an_encrypted_proxy_too(certificate: Path) -> None:
    lines: list[bytes] = []

    async def forward(connection: Connection) -> None:
        await connection.writer.start_tls(serving(certificate))
        while (request := await read_request(connection.reader)) is not None:
            lines.append(request.line)
            await connection.send(HEAD + b"content-length: 2\r\n\r\n{}")

    async with listening(forward) as port:
        client = client_of("http://[::1]:81/base", proxy=f"https://localhost:{port}")
        assert isinstance(await post_and_read(client), UpstreamUnreachable), "its authority is not known"
        context = transport_of(client).tls
        assert context is not None
        context.load_verify_locations(certificate / "cert.pem")
        assert await post_and_read(client) == (200, b"{}")
        await client.close()
    assert lines == [b"POST http://[::1]:81/base/x HTTP/1.1"]


@pytest.mark.parametrize("proxy", ["socks5://u:pass@x", "http://:1", "u:pass@x"])
def test_an_outbound_proxy_that_is_none_is_refused_without_showing_its_password(proxy: str) -> None:
    [target] = read_targets(Settings(upstreams={"t": UpstreamSettings(base_url="http://h", proxy=proxy)}))
    with pytest.raises(ConfigError) as caught:
        create_transport(target, PoolSettings())
    assert "pass@" not in str(caught.value)


def test_the_systems_authorities_are_used_wherever_they_lie(
    certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [target] = read_targets(Settings(upstreams={"t": UpstreamSettings(base_url="https://h")}))
    there = ssl.get_default_verify_paths()
    file, folder = tmp_path / "cert.pem", tmp_path / "certs"

    def found() -> int:
        monkeypatch.setattr(
            ssl, "get_default_verify_paths",
            lambda: there._replace(openssl_cafile=str(file), openssl_capath=str(folder)),
        )  # fmt: skip
        context = create_client_context(target)
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
        return context.cert_store_stats()["x509"]

    monkeypatch.setattr(transport, "BUNDLES", ())
    with pytest.raises(ConfigError, match="no authorities"):
        found()
    folder.mkdir()
    (folder / "README").touch()
    monkeypatch.setattr(transport, "BUNDLES", (str(tmp_path / "none"), str(certificate / "cert.pem")))
    assert found() == 1
    monkeypatch.setattr(transport, "BUNDLES", ())
    (folder / "0123abcd.0").write_bytes((certificate / "cert.pem").read_bytes())
    assert found() == 0, "a folder is looked into when a certificate is checked"
    file.write_bytes((certificate / "cert.pem").read_bytes())
    assert found() == 1
