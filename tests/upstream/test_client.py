from __future__ import annotations

import asyncio
import random
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from proxy.errors import BadRequest, ConfigError, UpstreamBroken, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from proxy.metrics import Metrics
from proxy.settings.load import Settings, UpstreamSettings
from proxy.upstream.client import UpstreamClient, UpstreamRequest
from tests.raw_upstream import HEAD, STREAM, Connection, RawRequest, run_upstream, wait_until
from tests.upstream.conftest import EVENTS, JSON, answer_json, errors, make_client, send, sound, transport_of


@pytest.mark.timed
async def test_u1_a_refused_connection_is_reported_at_once_and_tried_twice_at_most() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound and not listening: refused
        async with make_client(bound.getsockname()[1]) as client:
            started = time.monotonic()
            with pytest.raises(UpstreamUnreachable) as caught:
                await send(client)
            assert time.monotonic() - started < 4 * 0.1
            assert caught.value.status == 502
            assert errors(client, "unreachable") == 1


async def test_a_host_that_does_not_exist_is_unreachable() -> None:
    client = UpstreamClient(Settings(upstream="http://nowhere.invalid/v1"), Metrics())
    with pytest.raises(UpstreamUnreachable):
        await send(client)


@pytest.mark.timed
async def test_a_connection_that_is_never_accepted_ends_at_the_connect_timeout() -> None:
    # A full backlog of a listening socket: the kernel drops the SYN, as a black hole would.
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect(deaf.getsockname())
        async with make_client(deaf.getsockname()[1], connect_s=0.3) as client:
            started = time.monotonic()
            with pytest.raises(UpstreamTimeout) as caught:
                await send(client)
            assert time.monotonic() - started == pytest.approx(0.3, abs=0.15)
            assert caught.value.status == 504
        for one in waiting:
            one.close()


async def test_u3_a_reset_before_the_headers_is_unreachable_and_not_sent_again() -> None:
    async def reset(_: RawRequest, connection: Connection) -> None:
        await connection.reset()

    async with run_upstream(reset) as upstream, make_client(upstream.port) as client:
        with pytest.raises(UpstreamUnreachable):
            await send(client)
        assert len(upstream.requests) == 1


async def test_a_connection_closed_without_an_answer_is_unreachable() -> None:
    async def close(_: RawRequest, connection: Connection) -> None:
        connection.writer.close()

    async with run_upstream(close) as upstream, make_client(upstream.port) as client:
        with pytest.raises(UpstreamUnreachable):
            await send(client)


async def test_u7_silence_before_the_headers_ends_at_the_idle_timeout_and_frees_the_connection() -> None:
    async def nothing(_: RawRequest, connection: Connection) -> None:
        await connection.left()

    async with run_upstream(nothing) as upstream, make_client(upstream.port, idle_s=0.2) as client:
        with pytest.raises(UpstreamTimeout):
            await send(client)
        assert await upstream.none_open()
        assert errors(client, "timeout") == 1


async def test_an_answer_that_is_not_http_is_an_upstream_error() -> None:
    async def say(_: RawRequest, connection: Connection) -> None:
        await connection.send(b"220 smtp ready\r\n\r\n")

    async with run_upstream(say) as upstream, make_client(upstream.port) as client:
        with pytest.raises(UpstreamBroken):
            await send(client)


@pytest.mark.parametrize("after", ["17", "Fri, 31 Dec 2100 23:59:59 GMT"])
@pytest.mark.parametrize("status", [429, 500, 503, 529])
async def test_u12_an_upstreams_error_is_passed_on_once_with_its_headers(status: int, after: str) -> None:
    body = b'{"error":{"message":"busy"}}'

    async def busy(_: RawRequest, connection: Connection) -> None:
        head = b"HTTP/1.1 %d X\r\nretry-after: %b\r\ncontent-length: %d\r\n\r\n" % (status, after.encode(), len(body))
        await connection.send(head + body)

    async with run_upstream(busy) as upstream, make_client(upstream.port) as client:
        reply = await send(client)
        assert reply.status == status
        assert (b"retry-after", after.encode()) in reply.headers
        assert await reply.read_body(1000) == body
        assert len(upstream.requests) == 1
        assert errors(client, str(status)) == 1


async def test_the_clients_accept_encoding_is_passed_on_where_the_answer_is_not_read() -> None:
    async with run_upstream(answer_json) as upstream, make_client(upstream.port) as client:
        headers = [(b"accept-encoding", b"br;q=1, gzip")]
        reply = await client.send(
            client.targets[0], UpstreamRequest("GET", "/v1/models", b"", headers, None), identity=False
        )
        await reply.read_body(10)
        assert upstream.requests[0].all(b"accept-encoding") == [b"br;q=1, gzip"]
        assert upstream.requests[0].all(b"content-length") == []


async def test_u16_a_redirect_is_passed_on_and_not_followed() -> None:
    async def move(_: RawRequest, connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n")

    async with run_upstream(move) as upstream, make_client(upstream.port) as client:
        reply = await send(client)
        assert reply.status == 302
        assert (b"location", b"http://169.254.169.254/") in reply.headers
        await reply.read_body(10)
        assert len(upstream.requests) == 1


async def test_u17_informational_answers_trailers_and_listed_headers_stay_on_their_hop() -> None:
    async def say(_: RawRequest, connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")
        await connection.send(
            b"HTTP/1.1 200 OK\r\nconnection: x-secret, keep-alive\r\nx-secret: 1\r\nkeep-alive: timeout=5\r\n"
            b"trailer: x-sum\r\nx-kept: a\r\nx-kept: b\r\ntransfer-encoding: chunked\r\n\r\n"
            b"2\r\n{}\r\n0\r\nx-sum: 1\r\n\r\n"
        )

    async with run_upstream(say) as upstream, make_client(upstream.port) as client:
        reply = await send(client)
        assert reply.headers == [(b"x-kept", b"a"), (b"x-kept", b"b")]
        assert await reply.read_body(10) == b"{}"


async def test_the_path_goes_where_the_base_says() -> None:
    async with run_upstream(answer_json) as upstream, make_client(upstream.port) as client:
        for path, query in (("/v1/models", b""), ("/models", b"a=%2F&b"), ("/v1/a%2Fb//c", b"")):
            reply = await client.send(client.targets[0], UpstreamRequest("GET", path, query, [], None))
            await reply.read_body(10)
        assert [request.line.split()[1] for request in upstream.requests] == [
            b"/v1/models", b"/v1/models?a=%2F&b", b"/v1/a%2Fb//c",
        ]  # fmt: skip
        assert upstream.connections == 1


async def test_a_body_that_comes_in_pieces_keeps_its_length_or_goes_in_chunks() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"abc"
        yield b"def"

    async with run_upstream(answer_json) as upstream, make_client(upstream.port) as client:
        for headers in ([(b"content-length", b"6")], [(b"transfer-encoding", b"chunked")]):
            reply = await client.send(client.targets[0], UpstreamRequest("POST", "/v1/files", b"", headers, pieces()))
            await reply.read_body(10)
        assert [request.body for request in upstream.requests] == [b"abcdef", b"abcdef"]
        assert upstream.requests[0].all(b"content-length") == [b"6"]
        assert upstream.requests[1].all(b"transfer-encoding") == [b"chunked"]


async def test_an_error_of_the_bodys_source_comes_out_as_it_is_and_closes_the_upstream() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"abc"
        raise KeyError("gone")

    async with run_upstream(answer_json) as upstream, make_client(upstream.port) as client:
        with pytest.raises(KeyError):
            await client.send(
                client.targets[0], UpstreamRequest("POST", "/v1/files", b"", [(b"content-length", b"6")], pieces())
            )
        assert await upstream.none_open()


async def test_c3_no_slot_is_lost_over_500_disconnects_and_double_cancels() -> None:
    chance = random.Random(3)

    async def work(_: RawRequest, connection: Connection) -> None:
        await asyncio.sleep(chance.uniform(0, 0.01))
        await connection.send(STREAM)
        for event in EVENTS[:5]:
            await connection.chunk(event)
            await asyncio.sleep(chance.uniform(0, 0.004))
        await connection.send(b"0\r\n\r\n")

    async with run_upstream(work) as upstream, make_client(upstream.port, connect_s=2) as client:

        async def one() -> bytes:
            reply = await send(client)
            try:
                return b"".join([part async for part in reply.iter_bytes()])
            finally:
                await reply.close()

        async def cut_off() -> None:
            task = asyncio.create_task(one())
            await asyncio.sleep(chance.uniform(0, 0.03))
            for _ in range(chance.randint(1, 3)):  # cascaded: cancelled again while it is still ending
                task.cancel()
                for _turn in range(chance.randint(0, 4)):
                    await asyncio.sleep(0)
            with suppress(asyncio.CancelledError, UpstreamError):
                await task

        for _ in range(25):
            await asyncio.gather(*(cut_off() for _ in range(20)))
        transport = transport_of(client)
        assert await asyncio.gather(*(one() for _ in range(10))) == [b"".join(EVENTS[:5])] * 10
        assert transport_of(client) is transport, "the pool had leaked and was made anew"
        assert sound(client)


async def test_a_pool_that_has_leaked_connections_is_replaced() -> None:
    async with run_upstream(answer_json) as upstream, make_client(upstream.port, connect_s=0.1) as client:
        transport = transport_of(client)
        transport._slots = asyncio.Semaphore(0)  # as if every slot were held by nobody
        with pytest.raises(UpstreamTimeout, match="in use"):
            await send(client)
        assert transport_of(client) is not transport
        assert await (await send(client)).read_body(10) == b"{}"


async def test_cancelling_before_the_first_byte_closes_the_upstream_within_half_a_second() -> None:
    async def nothing(_: RawRequest, connection: Connection) -> None:
        await connection.left()

    async with run_upstream(nothing) as upstream, make_client(upstream.port) as client:
        task = asyncio.create_task(send(client))
        await wait_until(lambda: upstream.open == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await upstream.none_open()


async def test_headers_that_cannot_be_sent_are_the_clients_mistake() -> None:
    async with run_upstream(answer_json) as upstream, make_client(upstream.port) as client:
        with pytest.raises(BadRequest):
            await client.send(client.targets[0], UpstreamRequest("GET", "/v1/x", b"", [(b"bad name", b"x")], None))


async def test_questions_of_our_own_add_no_headers_keep_no_cookies_and_follow_no_redirect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def move(_: RawRequest, connection: Connection) -> None:
        await connection.send(
            b"HTTP/1.1 302 Found\r\nset-cookie: a=b\r\nlocation: /other\r\ncontent-length: 2\r\n\r\n{}"
        )

    async with run_upstream(move) as upstream, make_client(upstream.port) as client:
        for _ in range(2):
            request = client.build_request(client.targets[0], UpstreamRequest("POST", "/v1/secret", b"", JSON, b"{}"))
            response = await client.create_http_client(client.targets[0]).send(request, stream=True)
            assert (response.status_code, await response.aread()) == (302, b"{}")
        names = [{name for name, _ in request.headers} for request in upstream.requests]
        assert names == [{b"host", b"content-type", b"accept-encoding", b"content-length"}] * 2
        assert upstream.connections == 1
        assert "secret" not in caplog.text


async def test_no_secret_is_in_what_is_printed_of_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-canary-0123456789")
    upstreams = {"a": UpstreamSettings(base_url="http://127.0.0.1:1/v1", api_key_env="SOME_KEY")}
    client = UpstreamClient(Settings(upstreams=upstreams), Metrics())
    assert client.targets[0].key == "sk-canary-0123456789"
    assert "canary" not in repr(client.targets)


async def test_the_targets_own_key_replaces_the_clients_and_its_echo_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def echo(request: RawRequest, connection: Connection) -> None:
        [authorization] = request.all(b"authorization")
        await connection.send(HEAD, b"x-echo: ", authorization, b"\r\nx-other: 1\r\ncontent-length: 2\r\n\r\n{}")

    monkeypatch.setenv("SOME_KEY", "sk-canary-0123456789")
    async with run_upstream(echo) as upstream:
        base = f"http://127.0.0.1:{upstream.port}/v1"
        client = UpstreamClient(
            Settings(upstreams={"a": UpstreamSettings(base_url=base, api_key_env="SOME_KEY")}), Metrics()
        )
        headers = [(b"Authorization", b"Bearer of-the-client"), (b"X-Context-Key", b"ours")]
        reply = await client.send(client.targets[0], UpstreamRequest("POST", "/v1/x", b"", headers, b"{}"))
        assert upstream.requests[0].all(b"authorization") == [b"Bearer sk-canary-0123456789"]
        assert upstream.requests[0].all(b"x-context-key") == []
        assert [name for name, _ in reply.headers] == [b"content-type", b"x-other", b"content-length"]
        await reply.close()
        await client.close()


async def test_a_model_goes_to_the_first_target_that_wants_it() -> None:
    upstreams = {
        "a": UpstreamSettings(base_url="http://127.0.0.1:1/v1", models=("gpt-*",)),
        "b": UpstreamSettings(base_url="http://127.0.0.1:2/v1", models=("gpt-5", "claude-*")),
    }
    client = UpstreamClient(Settings(upstreams=upstreams), Metrics())
    named = {model: client.select_target(model).name for model in ("gpt-5", "claude-x", "other", None)}
    assert named == {"gpt-5": "a", "claude-x": "b", "other": "a", None: "a"}


async def test_the_environments_proxy_is_not_used_and_the_targets_own_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with run_upstream(answer_json) as upstream, make_client(upstream.port) as client:
        await (await send(client)).read_body(10)
    async with run_upstream(answer_json) as outbound:
        there = {"a": UpstreamSettings(base_url="http://api.invalid/v1", proxy=f"http://u:p@127.0.0.1:{outbound.port}")}
        client = UpstreamClient(Settings(upstreams=there), Metrics())
        await (await send(client)).read_body(10)
        assert outbound.requests[0].line == b"POST http://api.invalid/v1/chat/completions HTTP/1.1"
        assert outbound.requests[0].all(b"proxy-authorization") == [b"Basic dTpw"]
        await client.close()


async def test_a_bundle_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    there = {"a": UpstreamSettings(base_url="https://api.invalid/v1", ca_bundle=str(tmp_path / "none.pem"))}
    with pytest.raises(ConfigError, match=re.escape("upstreams.a.ca_bundle")):
        UpstreamClient(Settings(upstreams=there), Metrics())


async def test_the_demo_answers_without_a_network() -> None:
    client = UpstreamClient(Settings(), Metrics())
    body = b'{"model":"demo","messages":[{"role":"user","content":"hello"}]}'
    reply = await client.send(
        client.select_target("demo"), UpstreamRequest("POST", "/v1/chat/completions", b"", JSON, body)
    )
    assert (reply.status, reply.content_type, reply.encoding) == (200, "application/json", "")
    assert b"demo model" in await reply.read_body(10_000)
    assert client._transports["default"].open_responses == 0


def test_no_module_imports_another_http_client() -> None:
    root = Path(__file__).parents[2] / "proxy"
    imports = re.compile(r"^\s*(?:import|from)\s+(?:httpx|httpcore|httpcore2|requests)\b", re.MULTILINE)
    users = {str(file.relative_to(root)) for file in root.rglob("*.py") if imports.search(file.read_text())}
    assert users == set()
