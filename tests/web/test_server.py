"""Deadlines and limits of connections, and what a connection may make the proxy do; all on real sockets.

The table of requests that front ends and back ends read differently is in tests/faults/test_smuggling.py.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import psutil
import pytest

from tests import raw_upstream as sockets
from tests.proxy_server import RunningProxy, parse_answer, run_proxy
from tests.raw_upstream import (
    HANGS_S,
    HEAD,
    STREAM,
    Connection,
    RawRequest,
    abort_all,
    run_upstream,
    send_raw,
    wait_until,
)

QUICK: dict[str, Any] = {"timeouts": {"header_s": 0.4, "body_s": 0.4}}
SLACK_S = 2.0
"""Seconds by which a deadline may be late here: a quarter of it, and more on a busy machine."""


async def echo(request: RawRequest, connection: Connection) -> None:
    await connection.send(HEAD + b"content-length: %d\r\n\r\n" % len(request.body) + request.body)


def say(path: str, *lines: bytes, body: bytes = b"") -> bytes:
    """A request on a connection that stays open."""
    head = b"POST %b HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n" % (path.encode(), len(body))
    return head + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


_OPEN: list[Connection] = []


@pytest.fixture(autouse=True)
async def nothing_stays_open() -> AsyncIterator[None]:
    yield
    await abort_all(_OPEN)


async def connect(port: int) -> Connection:
    _OPEN.append(await sockets.connect(port))
    return _OPEN[-1]


async def read_until_closed(client: Connection, seconds: float) -> bytes:
    """Return the bytes that still come until the other side closes."""
    async with asyncio.timeout(seconds):
        return await client.reader.read()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"", b""),
        (b"\r\n", b"HTTP/1.1 408"),
        (b"POST /v1/x HT", b"HTTP/1.1 408"),
        (b"POST /v1/x HTTP/1.1\r\nhost: a\r\n", b"HTTP/1.1 408"),
        (b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n", b"HTTP/1.1 408"),
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{", b"HTTP/1.1 408"),
        (b"POST /v1/x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab", b"HTTP/1.1 408"),
    ],
    ids=["silent", "empty line", "half a line", "half a head", "no body", "half a body", "half a chunk"],
)
async def test_c6_a_request_that_never_completes_is_ended(said: bytes, told: bytes) -> None:
    async with run_upstream(echo) as upstream, run_proxy(upstream.port, **QUICK) as proxy:
        client = await connect(proxy.port)
        if said:
            await client.send(said)
        got = await read_until_closed(client, 0.4 + SLACK_S)
        assert got.startswith(told)
        assert told or not got
        if told:
            error = json.loads(got.partition(b"\r\n\r\n")[2])["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "request_timeout")
            assert b"x-should-retry" not in got, "the next try may come in time"
        assert upstream.requests == []
        await wait_until(lambda: proxy.app.concurrency.taken == 0)
        assert proxy.count("refused_connections_total", why="408" if told else "silent") == 1


@pytest.mark.parametrize("part", ["head", "body"])
async def test_c6_a_byte_now_and_then_is_not_progress(part: str) -> None:
    async with run_upstream(echo) as upstream, run_proxy(upstream.port, **QUICK) as proxy:
        client = await connect(proxy.port)
        await client.send(b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: 9999\r\n" + (b"\r\n" * (part == "body")))
        ended = asyncio.create_task(read_until_closed(client, 0.4 + SLACK_S))
        while not ended.done() and not client.has_input():
            client.writer.write(b"x")
            await asyncio.sleep(0.05)
        assert (await ended).startswith(b"HTTP/1.1 408")
        assert await upstream.none_open()


async def test_c6_a_body_that_comes_steadily_may_take_longer_than_the_deadline() -> None:
    async with run_upstream(echo) as upstream, run_proxy(upstream.port, **QUICK) as proxy:
        client = await connect(proxy.port)
        await client.send(b"POST /v1/x HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 20000\r\n\r\n")
        for _ in range(20):
            await client.send(b"y" * 1000)
            await asyncio.sleep(0.06)
        assert parse_answer(await read_until_closed(client, HANGS_S)).body == b"y" * 20000


@pytest.mark.parametrize("chunked", [False, True])
async def test_s6_a_body_has_a_deadline_by_its_length(chunked: bool) -> None:
    async with run_upstream(echo) as upstream, run_proxy(upstream.port, **QUICK) as proxy:
        client = await connect(proxy.port)
        how = b"transfer-encoding: chunked" if chunked else b"content-length: 16384"
        await client.send(b"POST /v1/x HTTP/1.1\r\nhost: a\r\n%b\r\n\r\n" % how)
        loop = asyncio.get_running_loop()
        began = loop.time()
        ended = asyncio.create_task(read_until_closed(client, 4 * 0.4 + 0.5 + SLACK_S))
        while not ended.done() and not client.has_input():
            client.writer.write(b"40\r\n" + b"x" * 64 + b"\r\n" if chunked else b"x" * 64)  # 1,280 bytes a second
            await asyncio.sleep(0.05)
        assert (await ended).startswith(b"HTTP/1.1 408")
        assert loop.time() - began >= 4 * 0.4
        assert await upstream.none_open()


async def test_s6_half_open_sockets_cost_others_nothing_and_the_oldest_goes_first() -> None:
    limits = {"connections": 50, "half_open": 30}
    async with run_upstream(echo) as upstream, run_proxy(upstream.port, limits=limits) as proxy:
        silent = [await connect(proxy.port) for _ in range(30)]
        await asyncio.sleep(0.7)
        silent += [await connect(proxy.port) for _ in range(10)]
        for client in silent[:10]:
            with suppress(ConnectionError):
                assert await read_until_closed(client, HANGS_S) == b""
        assert not any(client.reader.at_eof() for client in silent[10:])
        assert proxy.count("refused_connections_total", why="half_open") == 10
        for _ in range(5):  # more at once than the server holds in all
            silent += [await connect(proxy.port) for _ in range(100)]
            got = parse_answer(await send_raw(proxy.port, say("/v1/x", b"connection: close", body=b"{}")))
            assert (got.status, got.body) == (200, b"{}")
        half = await connect(proxy.port)
        await half.send(say("/v1/x", body=b"{}")[:30])
        silent += [await connect(proxy.port) for _ in range(20)]
        await half.send(say("/v1/x", body=b"{}")[30:])
        assert (await half.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert proxy.count("refused_connections_total", why="crowded") == 0


async def answered(client: Connection) -> bytes:
    """The status line of one more answer on a connection that stays open."""
    await client.send(say("/v1/x", body=b"{}"))
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert await client.reader.readexactly(2) == b"{}" or b" 503 " in head
    return head.split(b"\r\n")[0]


async def test_a_connection_stays_open_longer_than_load_balancers_keep_it() -> None:
    async with run_upstream(echo) as upstream, run_proxy(upstream.port) as proxy:
        client = await connect(proxy.port)
        assert await answered(client) == b"HTTP/1.1 200 OK"
        assert proxy.server is not None
        connections: list[Any] = list(proxy.server.server_state.connections)
        timer = connections[0].timeout_keep_alive_task
        assert timer.when() - asyncio.get_running_loop().time() > 60 - SLACK_S
        assert await answered(client) == b"HTTP/1.1 200 OK"
    async with run_upstream(echo) as upstream, run_proxy(upstream.port, timeouts={"keep_alive_s": 0.2}) as proxy:
        client = await connect(proxy.port)
        assert await answered(client) == b"HTTP/1.1 200 OK"
        assert await read_until_closed(client, 30) == b""


async def test_idle_connections_take_no_place_of_others() -> None:
    limits = {"connections": 4, "address_share": 1, "half_open": 7}
    async with run_upstream(echo) as upstream, run_proxy(upstream.port, limits=limits) as proxy:
        idle = [await connect(proxy.port) for _ in range(7)]
        for _ in range(2):
            assert [await answered(client) for client in idle] == [b"HTTP/1.1 200 OK"] * 7
        await asyncio.sleep(0.6)  # none is closed within half a second
        idle.append(await connect(proxy.port))
        with suppress(ConnectionError):
            assert await read_until_closed(idle[0], 30) == b""
        assert [await answered(client) for client in idle[1:]] == [b"HTTP/1.1 200 OK"] * 7


async def test_c6_an_answer_may_take_as_long_as_it_likes() -> None:
    async def slow(request: RawRequest, connection: Connection) -> None:
        await asyncio.sleep(1.2)
        await echo(request, connection)

    async with run_upstream(slow) as upstream, run_proxy(upstream.port, **QUICK) as proxy:
        got = parse_answer(await send_raw(proxy.port, say("/v1/x", b"connection: close", body=b"{}")))
        assert (got.status, got.body) == (200, b"{}")


async def test_c6_a_thousand_sockets_that_say_nothing_do_not_stop_others() -> None:
    async with run_upstream(echo) as upstream, run_proxy(upstream.port, timeouts={"header_s": 1.5}) as proxy:
        silent = [await connect(proxy.port) for _ in range(1000)]
        for _ in range(20):
            assert (
                parse_answer(await send_raw(proxy.port, say("/v1/x", b"connection: close", body=b"{}"))).body == b"{}"
            )
        for client in silent:
            assert await read_until_closed(client, HANGS_S) == b""


async def test_h4_a_head_without_an_end_is_ended_before_it_is_held() -> None:
    async with run_upstream(echo) as upstream, run_proxy(upstream.port) as proxy:
        client = await connect(proxy.port)
        sent = 0
        await client.send(b"POST /v1/x HTTP/1.1\r\nhost: a\r\n")
        with suppress(ConnectionError):
            while sent < 64 << 20:
                await client.send(b"x-many: %b\r\n" % (b"y" * 60_000))
                sent += 60_000
        assert sent < 32 << 20, "no more than sockets hold"
        assert proxy.count("refused_connections_total", why="431") == 1


async def test_trailers_never_become_headers() -> None:
    async with run_upstream(echo) as upstream, run_proxy(upstream.port) as proxy:
        client = await connect(proxy.port)
        head = b"POST /v1/x HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        trailers = b"host: b\r\nx-late: 1\r\nauthorization: Bearer other\r\n" + b"x-z: 1\r\n" * 100
        await client.send(head + b"2\r\n{}\r\n0\r\n" + trailers + b"\r\n")
        assert parse_answer(await read_until_closed(client, HANGS_S)).status == 200
        [got] = upstream.requests
        names = {name.lower() for name, _ in got.headers}
        assert got.body == b"{}"
        assert not names & {b"x-late", b"authorization", b"x-z"}
        assert got.all(b"host") == [b"127.0.0.1:%d" % upstream.port]


async def test_c9_pipelined_requests_are_answered_in_their_order_and_each_its_own() -> None:
    async with run_upstream(echo) as upstream, run_proxy(upstream.port) as proxy:
        client = await connect(proxy.port)
        await client.send(b"".join(say("/v1/x", body=b"mark %02d" % n) for n in range(10)))
        for n in range(10):
            assert (await reply(client)).body == b"mark %02d" % n


async def reply(client: Connection) -> Any:
    """One answer with a Content-Length."""
    async with asyncio.timeout(30):
        head = await client.reader.readuntil(b"\r\n\r\n")
        lines = dict(line.lower().split(b": ", 1) for line in head[:-4].split(b"\r\n")[1:])
        return parse_answer(head + await client.reader.readexactly(int(lines[b"content-length"])))


async def test_c9_a_flood_of_pipelined_requests_is_bounded_and_the_first_ones_are_answered() -> None:
    gate = asyncio.Event()

    async def wait(request: RawRequest, connection: Connection) -> None:
        await gate.wait()
        await echo(request, connection)

    async with run_upstream(wait) as upstream, run_proxy(upstream.port) as proxy:
        client = await connect(proxy.port)
        await client.send(b"".join(say("/v1/x", body=b"mark %04d" % n) for n in range(2000)))
        await wait_until(lambda: bool(upstream.requests))
        gate.set()
        got = await read_until_closed(client, HANGS_S)
        assert got.count(b"HTTP/1.1 200") == got.count(b"mark ") == len(upstream.requests) == 17
        assert got.endswith(b"mark 0016")


@pytest.mark.parametrize("behind", [b"\x00\x01\x02 garbage\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n"])
async def test_c9_garbage_after_a_request_never_gets_into_its_answer(behind: bytes) -> None:
    event = b'data: {"n":1}\n\n'

    async def stream(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        for _number in range(5):
            await connection.chunk(event)
            await asyncio.sleep(0.03)
        await connection.send(b"0\r\n\r\n")

    async with run_upstream(stream) as upstream, run_proxy(upstream.port) as proxy:
        client = await connect(proxy.port)
        await client.send(say("/v1/x", body=b"{}"))
        await client.reader.readuntil(event)
        await client.send(behind)
        got = await read_until_closed(client, HANGS_S)
        assert got == (b"\r\n%x\r\n" % len(event) + event) * 4 + b"\r\n0\r\n\r\n"


async def test_c9_a_client_that_leaves_with_more_requests_waiting_is_noticed() -> None:
    async def wait(_: RawRequest, connection: Connection) -> None:
        await connection.left()

    async with run_upstream(wait) as upstream, run_proxy(upstream.port) as proxy:
        client = await connect(proxy.port)
        await client.send(say("/v1/x", body=b"1") + say("/v1/x", body=b"2") + say("/v1/x", body=b"3"))
        await wait_until(lambda: upstream.open == 1)
        sock: socket.socket = client.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.writer.transport.abort()
        assert await upstream.none_open(0.5 * 4)
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("size", [1_000, 100_000, 300_000, 4_000_000])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/x"])
async def test_c2_a_client_that_leaves_before_the_answer_is_noticed_whatever_its_body(path: str, size: int) -> None:
    async def wait(_: RawRequest, connection: Connection) -> None:
        await connection.left()

    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "H" * size}]}).encode()
    async with run_upstream(wait) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        client = await connect(proxy.port)
        head, _, rest = say(path, b"content-type: application/json", body=body).partition(b"\r\n\r\n")
        await client.send(head + b"\r\n\r\n")
        await asyncio.sleep(0.05)
        await client.send(rest)
        await wait_until(lambda: len(upstream.requests) == 1)
        client.writer.close()
        assert await upstream.none_open(0.5 * 4)
        await wait_until(lambda: proxy.app.body_budget.held == 0 and proxy.app.concurrency.taken == 0)


async def test_c2_a_client_that_leaves_is_noticed_while_its_next_request_waits_to_be_read() -> None:
    async def wait(_: RawRequest, connection: Connection) -> None:
        await connection.left()

    async with run_upstream(wait) as upstream, run_proxy(upstream.port) as proxy:
        client = await connect(proxy.port)
        await client.send(say("/v1/x", body=b"1"))
        await wait_until(lambda: upstream.open == 1)
        await client.send(say("/v1/x", body=b"2" * 200_000)[:-1])
        await asyncio.sleep(0.1)
        client.writer.close()
        assert await upstream.none_open(0.5 * 4)
        assert len(upstream.requests) == 1


async def test_c2_a_client_that_leaves_is_noticed_while_the_upstream_takes_nothing() -> None:
    accepted: list[asyncio.StreamWriter] = []

    def deaf(_: asyncio.StreamReader, there: asyncio.StreamWriter) -> None:
        there.transport.pause_reading()  # type: ignore[attr-defined]  # of a socket it has one
        accepted.append(there)

    server = await asyncio.start_server(deaf, "127.0.0.1", 0)
    try:
        async with run_proxy(server.sockets[0].getsockname()[1]) as proxy:
            client = await connect(proxy.port)
            client.writer.write(say("/v1/x", body=b"x" * 40_000_000))
            await wait_until(lambda: len(accepted) == 1)
            await asyncio.sleep(0.5)
            assert proxy.app.concurrency.taken == 1
            client.writer.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            client.writer.transport.abort()
            await wait_until(lambda: proxy.app.concurrency.taken == 0, 0.5 * 4)
    finally:
        for there in accepted:
            there.transport.abort()
        server.close()


async def test_c9_expect_100_continue_is_answered_once_and_only_when_the_body_is_wanted() -> None:
    async with run_upstream(echo) as upstream, run_proxy(upstream.port) as proxy:
        client = await connect(proxy.port)
        head = b"POST /v1/x HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
        await client.send(head)
        async with asyncio.timeout(30):
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"{}")
        assert (await reply(client)).body == b"{}"
        assert upstream.requests[0].all(b"expect") == []
        await client.send(head.replace(b"length: 2", b"length: 99999999999").replace(b"/v1/x", b"/v1/chat/completions"))
        assert (await reply(client)).status == 413, "refused without asking for the body"


async def test_c9_an_answer_that_comes_before_the_body_leaves_the_connection_usable() -> None:
    async with run_upstream(echo) as upstream, run_proxy(upstream.port, limits={"requests": 1}) as proxy:
        async with held(proxy):
            client = await connect(proxy.port)
            await client.send(say("/v1/x", body=b"x" * 50_000)[:-10_000])
            got = await reply(client)
            assert got.status == 503
            await client.send(b"x" * 10_000)
        await client.send(say("/v1/x", body=b"mine"))
        assert (await reply(client)).body == b"mine"


class held:  # noqa: N801  used as a function
    """The only place that there is is taken."""

    def __init__(self, proxy: RunningProxy) -> None:
        self._place = proxy.app.concurrency.place()

    async def __aenter__(self) -> None:
        self._place.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self._place.__exit__(None, None, None)


@pytest.mark.parametrize("token", [b"h2c", b"websocket"])
async def test_an_offer_to_change_the_protocol_is_declined_and_the_connection_continues(token: bytes) -> None:
    async with run_upstream(echo) as upstream, run_proxy(upstream.port) as proxy:
        client = await connect(proxy.port)
        offer = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: " + token, b"http2-settings: AAMAAABkAAQ")
        for n in range(3):
            await client.send(say("/v1/x", *offer, body=b"mark %d" % n))
            assert (await reply(client)).body == b"mark %d" % n
        assert all(not request.all(b"upgrade") for request in upstream.requests)


@pytest.mark.parametrize("path", [b"/v1/realtime", b"/v1/responses"])
async def test_without_the_package_a_websocket_handshake_is_told_to_use_http_before_anybody_is_asked(
    path: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.web.server.find_spec", lambda _: None)
    async with run_upstream(echo) as upstream, run_proxy(upstream.port) as proxy:
        client = await connect(proxy.port)
        offer = (b"connection: Upgrade", b"upgrade: websocket", b"sec-websocket-key: x", b"sec-websocket-version: 13")
        await client.send(
            b"GET %b HTTP/1.1\r\nhost: a\r\n" % path + b"".join(line + b"\r\n" for line in offer) + b"\r\n"
        )
        found = await reply(client)
        assert (found.status, found.header("connection")) == (426, "close")
        assert found.header("x-should-retry") == "false"
        assert found.error["code"] == "upgrade_required"
        assert found.error["message"] == "WebSocket is not served here; use HTTP."
        assert upstream.requests == []


async def test_c10_beyond_the_limit_503_says_when_to_retry_and_the_other_requests_continue() -> None:
    gate = asyncio.Event()

    async def wait(request: RawRequest, connection: Connection) -> None:
        await gate.wait()
        await echo(request, connection)

    async with (
        run_upstream(wait) as upstream,
        run_proxy(upstream.port, limits={"requests": 5, "connections": 20}) as proxy,
    ):
        working = [asyncio.create_task(proxy.post(b"{}", path="/v1/x")) for _ in range(5)]
        await wait_until(lambda: len(upstream.requests) == 5)
        for path in ("/v1/x", "/v1/chat/completions"):
            refused = await proxy.post(b"{}", path=path)
            assert (refused.status, refused.header("retry-after")) == (503, "1")
            assert refused.header("x-should-retry") is None
        assert b" 200 " in await send_raw(proxy.port, b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        idle = [await connect(proxy.port) for _ in range(16)]
        for client in idle:
            await client.send(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        flood = [await connect(proxy.port) for _ in range(30)]
        for client in idle[:5]:  # they have been silent for longest
            with suppress(ConnectionError):
                assert (await read_until_closed(client, 30)).endswith(b'"ok"}')
        assert not flood[-1].reader.at_eof()
        gate.set()
        assert [answer.status for answer in await asyncio.gather(*working)] == [200] * 5
        for client in [*idle, *flood]:
            client.writer.transport.abort()
        await wait_until(lambda: proxy.app.concurrency.taken == 0)
        assert (await proxy.post(b"{}", path="/v1/x")).status == 200
        assert proxy.count("refused_requests_total") == 2


async def test_c10_beyond_the_limit_of_connections_with_a_request_503_comes_and_the_connection_closes() -> None:
    gate = asyncio.Event()

    async def wait(request: RawRequest, connection: Connection) -> None:
        await gate.wait()
        await echo(request, connection)

    async with run_upstream(wait) as upstream, run_proxy(upstream.port, limits={"connections": 5}) as proxy:
        working = [asyncio.create_task(proxy.post(b"{}", path="/v1/x")) for _ in range(5)]
        await wait_until(lambda: len(upstream.requests) == 5)
        crowd = await proxy.post(b"{}", path="/healthz")
        assert (crowd.status, crowd.header("retry-after"), crowd.header("connection")) == (503, "1", "close")
        assert proxy.count("refused_connections_total", why="crowded") == 1
        gate.set()
        assert [answer.status for answer in await asyncio.gather(*working)] == [200] * 5


async def test_bytes_for_a_client_that_does_not_read_are_dropped_in_the_end() -> None:
    big = b"x" * (8 << 20)

    async def flood(_: RawRequest, connection: Connection) -> None:
        await connection.send(HEAD + b"content-length: %d\r\n\r\n" % len(big) + big)

    async with (
        run_upstream(flood) as upstream,
        run_proxy(upstream.port, timeouts={"body_s": 0.4, "idle_s": 0.4}) as proxy,
    ):
        client = await connect(proxy.port)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(say("/v1/x", b"connection: close", body=b"{}"))
        await wait_until(lambda: bool(upstream.requests))
        await wait_until(lambda: proxy.app.concurrency.taken == 0)
        port = client.writer.get_extra_info("sockname")[1]

        def kept() -> bool:
            return any(port in found.raddr for found in psutil.Process().net_connections())

        assert kept()
        await wait_until(lambda: not kept())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/x"])
async def test_an_answer_that_breaks_off_is_reset_for_an_http_1_0_client(path: str) -> None:
    async def breaks(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Well."}}]}\n\n')
        await connection.reset()

    asked = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"Hello"}]}'
    head = b"POST %b HTTP/1.0\r\nhost: a\r\nauthorization: Bearer a\r\n" % path.encode()
    async with run_upstream(breaks) as upstream, run_proxy(upstream.port) as proxy:
        client = await connect(proxy.port)
        await client.send(head + b"content-length: %d\r\n\r\n" % len(asked) + asked)
        assert b"Well." in await client.reader.readuntil(b"Well.")
        with pytest.raises(ConnectionResetError):
            await client.reader.read()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/x"])
async def test_the_close_of_the_connection_ends_a_stream_to_an_http_1_0_client(path: str) -> None:
    chunks = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"Well."},"finish_reason":"stop"}]}\n\n'

    async def stream(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(chunks)
        await connection.chunk(b"data: [DONE]\n\n")
        await connection.send(b"0\r\n\r\n")

    asked = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"Hello"}]}'
    head = b"POST %b HTTP/1.0\r\nhost: a\r\nauthorization: Bearer a\r\nconnection: keep-alive\r\n" % path.encode()
    async with run_upstream(stream) as upstream, run_proxy(upstream.port) as proxy:
        raw = await send_raw(proxy.port, head + b"content-length: %d\r\n\r\n" % len(asked) + asked)
        told, _, body = raw.partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in told
        assert b"connection: close" in told
        assert body == chunks + b"data: [DONE]\n\n"
        raw = await send_raw(proxy.port, b"GET /healthz HTTP/1.0\r\nhost: a\r\n\r\n")
        assert parse_answer(raw).whole


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/x"])
async def test_an_http_1_0_client_gets_no_interim_answer(path: str) -> None:
    """It would take `100 Continue` for the answer. A server ignores its `expect` (RFC 9110, 10.1.1)."""
    head = b"POST %b HTTP/1.0\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n" % path.encode()
    async with run_upstream(echo) as upstream, run_proxy(upstream.port) as proxy:
        raw = await send_raw(proxy.port, head + b"{}")
    assert raw.startswith(b"HTTP/1.1 200 OK\r\n")
    assert parse_answer(raw).body == b"{}"
