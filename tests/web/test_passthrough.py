from __future__ import annotations

import asyncio
import gzip
import json
import random
import socket
import struct
from hashlib import sha256

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from proxy.metrics import Metrics
from proxy.settings.load import Settings, UpstreamSettings
from proxy.upstream.client import UpstreamClient
from proxy.web.asgi import Receive, Scope, Send
from proxy.web.error_responses import answer_errors
from proxy.web.passthrough import serve_passthrough
from tests.raw_upstream import (
    HEAD,
    STREAM,
    Connection,
    RawRequest,
    connect,
    make_post,
    run_upstream,
    send_raw,
    serve_app,
    wait_until,
)
from tests.web.conftest import edge

EVENT = b'data: {"choices":[{"delta":{"content":"\xc3\xa4"}}]}\n\n'


async def echo(request: RawRequest, connection: Connection) -> None:
    digest = sha256(request.body).hexdigest().encode()
    await connection.send(HEAD, b"x-sha: %b\r\ncontent-length: 2\r\n\r\n{}" % digest)


def split(answer: bytes) -> tuple[bytes, bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


async def test_method_path_query_headers_and_body_reach_upstream_unchanged() -> None:
    async with edge(echo) as proxy:
        raw = (
            b"PATCH /v1/files/a%2Fb;c//d?x=%7E&y HTTP/1.1\r\nhost: here\r\nX-Stainless-Lang: python\r\nX-Two: 1\r\n"
            b"X-Two: 2\r\nx-context-key: ours\r\nconnection: close, x-hop\r\nx-hop: 1\r\nTE: trailers\r\n"
            b"content-length: 7\r\n\r\n\x00\xff{nojs"
        )
        head, body = split(await send_raw(proxy.port, raw))
        assert head.startswith(b"HTTP/1.1 200")
        assert body == b"{}"
        [got] = proxy.upstream.requests
        assert got.line == b"PATCH /v1/files/a%2Fb;c//d?x=%7E&y HTTP/1.1"
        assert got.body == b"\x00\xff{nojs"
        assert [(name.lower(), value) for name, value in got.headers] == [
            (b"host", b"127.0.0.1:%d" % proxy.upstream.port), (b"x-stainless-lang", b"python"), (b"x-two", b"1"),
            (b"x-two", b"2"), (b"content-length", b"7"),
        ]  # fmt: skip


@examples(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    bodies=st.lists(
        st.one_of(st.binary(max_size=300), st.text(max_size=80).map(lambda t: json.dumps({t: [1.0, t]}).encode())),
        min_size=1,
        max_size=60,
    ),
    pieces=st.integers(0, 3),
)
def test_h7_any_body_arrives_with_the_same_digest(bodies: list[bytes], pieces: int) -> None:
    async def run() -> None:
        async with edge(echo) as proxy:
            connection = await connect(proxy.port)
            for body in bodies:
                if pieces:
                    step = max(1, len(body) // pieces)
                    chunks = [body[at : at + step] for at in range(0, len(body), step)]
                    coded = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
                    await connection.send(
                        b"POST /v1/x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + coded
                    )
                else:
                    await connection.send(
                        b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
                    )
                head = await connection.reader.readuntil(b"\r\n\r\n")
                assert await connection.reader.readexactly(2) == b"{}"
                assert sha256(body).hexdigest().encode() in head
            connection.writer.transport.abort()
            assert [request.body for request in proxy.upstream.requests] == bodies

    asyncio.run(run())


async def test_u13_compressed_bytes_come_back_as_they_were_sent() -> None:
    packed = gzip.compress(b"hello" * 100)

    async def pack(request: RawRequest, connection: Connection) -> None:
        assert request.all(b"accept-encoding") == [b"gzip"]
        await connection.send(HEAD, b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed), packed)

    async with edge(pack) as proxy:
        head, body = split(await send_raw(proxy.port, make_post("/v1/x", b"{}", b"accept-encoding: gzip")))
        assert b"content-encoding: gzip" in head
        assert body == packed


async def test_u1_an_upstream_that_is_not_there_is_reported_in_openais_shape_and_may_be_retried() -> None:
    async with edge(echo) as proxy:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            lost = UpstreamClient(Settings(upstream=f"http://127.0.0.1:{bound.getsockname()[1]}"), proxy.metrics)

            async def app(scope: Scope, receive: Receive, send: Send) -> None:
                await serve_passthrough(scope, receive, send, lost, proxy.metrics, path="/v1/models")

            async with serve_app(answer_errors(app, proxy.metrics)) as port:
                head, body = split(await send_raw(port, make_post()))
        assert head.startswith(b"HTTP/1.1 502")
        assert b"x-should-retry" not in head
        assert json.loads(body)["error"]["code"] == "upstream_unreachable"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(HEAD + b"content-length: 100\r\n\r\n{", id="cut length"),
        pytest.param(STREAM + b"%x\r\n%b\r\n" % (len(EVENT), EVENT), id="no last chunk"),
        pytest.param(STREAM + b"%x\r\n%b\r\nzz" % (len(EVENT), EVENT), id="chunk garbage"),
    ],
)
@pytest.mark.parametrize("reset", [False, True])
async def test_u4_u5_u11_a_broken_answer_never_looks_whole(answer: bytes, reset: bool) -> None:
    async def break_off(_: RawRequest, connection: Connection) -> None:
        await connection.send(answer)
        if reset:
            await connection.reset()
        connection.writer.close()

    async with edge(break_off) as proxy:
        head, body = split(await send_raw(proxy.port, make_post()))
        assert head.startswith(b"HTTP/1.1 200")
        if b"content-length" in head:
            assert body == b"{"
        else:
            assert body == b"%x\r\n%b\r\n" % (len(EVENT), EVENT), "what came goes on, and no last chunk is invented"
        assert proxy.count("upstream_truncated_total") == 1
        assert proxy.busy == 0


async def test_u7_a_stall_in_the_middle_ends_and_is_seen_as_truncation() -> None:
    async def stall(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(EVENT)
        await connection.left()

    async with edge(stall, idle_s=0.2) as proxy:
        _, body = split(await send_raw(proxy.port, make_post()))
        assert body.endswith(EVENT + b"\r\n")
        assert await proxy.upstream.none_open()


async def test_u12_a_thousand_busy_answers_are_a_thousand_requests_upstream() -> None:
    async def busy(_: RawRequest, connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 529 Overloaded\r\nretry-after: 3\r\ncontent-length: 0\r\n\r\n")

    async with edge(busy) as proxy:
        connection = await connect(proxy.port)
        for _ in range(1000):
            await connection.send(b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}")
            head = await connection.reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 529")
            assert b"retry-after: 3" in head
        connection.writer.transport.abort()
        assert len(proxy.upstream.requests) == 1000


@pytest.mark.parametrize("way", ["fin", "rst", "half-close"])
@pytest.mark.parametrize("begun", [False, True], ids=["before the first byte", "in the middle"])
async def test_c1_c2_c4_a_client_that_leaves_closes_the_upstream_within_half_a_second(way: str, begun: bool) -> None:
    async def wait(_: RawRequest, connection: Connection) -> None:
        if begun:
            await connection.send(STREAM)
            await connection.chunk(EVENT)
        await connection.left()

    async with edge(wait) as proxy:
        for _ in range(5):
            client = await connect(proxy.port)
            await client.send(make_post())
            await wait_until(lambda: proxy.upstream.open == 1)
            if begun:
                await client.reader.readuntil(EVENT)
            if way == "rst":
                sock: socket.socket = client.writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.writer.transport.abort()
            elif way == "half-close":
                client.writer.write_eof()
            else:
                client.writer.close()
            assert await proxy.upstream.none_open(0.5 * 4)
            await wait_until(lambda: proxy.busy == 0, 0.5 * 4)
            client.writer.transport.abort()
        assert proxy.count("client_gone_total") == 5


async def test_c1_a_client_that_leaves_in_the_middle_of_its_upload_closes_the_upstream() -> None:
    async with edge(echo) as proxy:
        client = await connect(proxy.port)
        await client.send(b"POST /v1/files HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 1000)
        await wait_until(lambda: proxy.upstream.open == 1)
        client.writer.transport.abort()
        assert await proxy.upstream.none_open(0.5 * 4)
        assert proxy.upstream.requests == []


async def test_c3_after_500_disconnects_at_random_moments_ten_requests_succeed() -> None:
    chance = random.Random(7)

    async def work(_: RawRequest, connection: Connection) -> None:
        await asyncio.sleep(chance.uniform(0, 0.01))
        await connection.send(STREAM)
        for _number in range(4):
            await connection.chunk(EVENT)
            await asyncio.sleep(chance.uniform(0, 0.005))
        await connection.send(b"0\r\n\r\n")

    async with edge(work, connect_s=3) as proxy:

        async def cut_off() -> None:
            client = await connect(proxy.port)
            await client.send(make_post())
            await asyncio.sleep(chance.uniform(0, 0.04))
            client.writer.transport.abort()

        for _ in range(25):
            await asyncio.gather(*(cut_off() for _ in range(20)))
        answers = await asyncio.gather(*(send_raw(proxy.port, make_post()) for _ in range(10)))
        assert all(answer.endswith(b"0\r\n\r\n") and answer.count(EVENT) == 4 for answer in answers)
        assert proxy.count("internal_errors_total", where="upstream_pool") == 0
        assert proxy.busy == 0


async def test_c5_a_client_that_reads_slowly_slows_the_upstream_and_is_given_up_in_the_end() -> None:
    written = 0

    async def flood(_: RawRequest, connection: Connection) -> None:
        nonlocal written
        await connection.send(STREAM)
        while True:
            await connection.chunk(b"x" * 65536)
            written += 65536

    async with edge(flood, idle_s=0.6) as proxy:
        client = await connect(proxy.port)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(make_post())
        await asyncio.sleep(0.4)
        held = written
        assert 0 < held < 40 << 20
        assert await proxy.upstream.none_open(1.5 * 4)
        assert proxy.count("client_gone_total") == 1
        client.writer.transport.abort()


async def test_an_upload_is_passed_on_as_it_comes_and_not_held() -> None:
    seen = asyncio.Event()

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"first")
        seen.set()
        await reader.readuntil(b"last")
        writer.write(HEAD + b"content-length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(early, "127.0.0.1", 0)
    client = UpstreamClient(Settings(upstream=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), Metrics())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await serve_passthrough(scope, receive, send, client, Metrics(), path="/v1/files")

    async with serve_app(app) as port:
        connection = await connect(port)
        await connection.send(
            b"POST /v1/files HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\nconnection: close\r\n\r\nfirst"
        )
        async with asyncio.timeout(20):
            await seen.wait()
            await connection.send(b"last")
            assert (await connection.reader.read()).endswith(b"{}")
        connection.writer.transport.abort()
    await client.close()
    server.close()
    await server.wait_closed()


async def test_head_and_empty_answers_stay_without_a_body() -> None:
    async def say(request: RawRequest, connection: Connection) -> None:
        if request.line.startswith(b"HEAD"):
            await connection.send(HEAD + b"content-length: 10\r\n\r\n")
        else:
            await connection.send(b"HTTP/1.1 204 No Content\r\n\r\n")

    async with edge(say) as proxy:
        for method in (b"HEAD", b"DELETE"):
            raw = await send_raw(proxy.port, method + b" /v1/x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            assert raw.startswith(b"HTTP/1.1 20")
            assert raw.endswith(b"\r\n\r\n")


async def test_with_several_upstreams_a_request_goes_where_the_model_of_its_path_or_body_is() -> None:
    async with run_upstream(echo) as one, run_upstream(echo) as two:
        upstreams = {
            "one": UpstreamSettings(base_url=f"http://127.0.0.1:{one.port}", models=("gpt-*",)),
            "two": UpstreamSettings(base_url=f"http://127.0.0.1:{two.port}", models=("embed-*",)),
        }
        client = UpstreamClient(Settings(upstreams=upstreams), Metrics())

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await serve_passthrough(scope, receive, send, client, Metrics(), path=scope["path"])

        async with serve_app(app) as port:
            json_type = b"content-type: application/json"
            body = b'{ "model":"embed-3",  "model_x": 1}'
            await send_raw(port, make_post("/v1/embeddings", body, json_type))
            await send_raw(port, make_post("/v1/embeddings", b"not json", json_type))
            await send_raw(port, b"GET /v1/files HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            for path in ("/v1beta/models/embed-3:embedContent", "/openai/deployments/embed-3/embeddings"):
                await send_raw(port, make_post(path, b'{"model":"gpt-5"}', json_type, b"x-goog-api-key: own"))
            await send_raw(port, b"GET /v1/models/embed-3 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        assert [request.body for request in two.requests] == [body, *[b'{"model":"gpt-5"}'] * 2, b""]
        assert [request.body for request in one.requests] == [b"not json", b""]
        await client.close()
