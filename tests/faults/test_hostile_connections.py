"""S6: a client that holds what it does not use (connections, bodies without an end, queues), and others beside it."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from proxy.web import limits
from proxy.web.error_responses import LINGER_S
from proxy.web.limits import MAX_PIPELINED_BYTES
from tests.faults.test_content import ANSWER, fine
from tests.proxy_server import CHAT, RawAnswer, RunningProxy, make_key, parse_answer, run_proxy
from tests.raw_upstream import (
    HANGS_S,
    HEAD,
    Connection,
    RawRequest,
    abort_all,
    make_post,
    run_upstream,
    send_raw,
    wait_until,
)

pytestmark = pytest.mark.timed

SLACK_S = 3.0
"""Seconds by which the end of a connection may be late on a busy machine."""
KEY = b"x-context-key: cp-tenant"
KEYED: dict[str, Any] = {"keys": [make_key("cp-tenant")]}
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"

_OPEN: list[Connection] = []


@pytest.fixture(autouse=True)
async def nothing_stays_open() -> AsyncIterator[None]:
    yield
    await abort_all(_OPEN)


async def connect(port: int, address: str = "127.0.0.1") -> Connection:
    _OPEN.append(Connection(*await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))))
    return _OPEN[-1]


async def rest(client: Connection, seconds: float = 5.0) -> bytes:
    """Return the bytes that come until the other side closes."""
    async with asyncio.timeout(seconds):
        try:
            return await client.reader.read()
        except ConnectionError:
            return b""


def begun(length: int, *lines: bytes, path: str = CHAT, sent: bytes = b"{") -> bytes:
    """A request whose body will not come whole."""
    head = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n" % (path.encode(), length)
    return head + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + sent


def make_body(size: int) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "H" * size}]}).encode()


async def ask_from(port: int, address: str, body: bytes = b"{}", path: str = "/v1/x") -> RawAnswer:
    client = await connect(port, address)
    await client.send(make_post(path, body, KEY))
    return parse_answer(await rest(client))


async def refused(port: int, body: bytes) -> RawAnswer:
    """The answer to a chat request of which the body is not read to its end, on a connection that stays."""
    client = await connect(port)
    client.writer.write(make_post(CHAT, body, KEY).replace(b"connection: close\r\n", b""))
    async with asyncio.timeout(HANGS_S):
        head = await client.reader.readuntil(b"\r\n\r\n")
    return parse_answer(head)


async def wait(_: RawRequest, connection: Connection) -> None:
    await connection.left()


async def test_s6_bodies_that_do_not_come_from_one_address_leave_places_for_others_and_for_probes() -> None:
    limits = {"connections": 32}
    async with run_upstream(fine) as upstream, run_proxy(upstream.port, limits=limits, **KEYED) as proxy:
        slow = [await connect(proxy.port, "127.0.0.2") for _ in range(60)]
        for client in slow:
            await client.send(begun(10**15, KEY))
        await wait_until(lambda: proxy.count("refused_connections_total", why="crowded") == 32)
        assert (await ask_from(proxy.port, "127.0.0.2")).status == 503
        for _ in range(3):
            assert (await ask_from(proxy.port, "127.0.0.1")).status == 200, "another address"
        others = [await connect(proxy.port, "127.0.0.3") for _ in range(4)]
        for client in others:
            await client.send(begun(100, KEY))
        await asyncio.sleep(0.1)
        assert (await ask_from(proxy.port, "127.0.0.1")).status == 503, "now all places are taken"
        probes = [await connect(proxy.port, "127.0.0.2") for _ in range(5)]
        for client in probes:
            await client.send(HEALTH)
            got = parse_answer(await rest(client))
            assert (got.status, got.header("connection")) == (200, "close"), "a probe holds no place"
        assert b" 503 " in await send_raw(proxy.port, begun(9, path="/healthz")), "nor does what brings a body"


async def test_s6_nobody_is_refused_while_there_is_room_and_a_share_may_be_all() -> None:
    for share, served in ((0.25, 28), (1.0, 32)):
        limits: dict[str, Any] = {"connections": 32, "address_share": share}
        gate = asyncio.Event()

        async def late(request: RawRequest, connection: Connection, gate: asyncio.Event = gate) -> None:
            await gate.wait()
            await fine(request, connection)

        async with run_upstream(late) as upstream, run_proxy(upstream.port, limits=limits) as proxy:
            clients = [await connect(proxy.port) for _ in range(40)]

            def count_decided() -> int:
                return len(upstream.requests) + int(proxy.count("refused_connections_total", why="crowded"))

            for number, client in enumerate(clients, 1):
                await client.send(HEALTH.replace(b"GET /healthz", b"GET /v1/x"))
                await wait_until(partial(lambda wanted: count_decided() == wanted, number))
            gate.set()
            heads = [await client.reader.readuntil(b"\r\n\r\n") for client in clients]
            assert [int(head.split()[1]) for head in heads] == [200] * served + [503] * (40 - served)
            for client in clients[:20]:
                client.writer.transport.abort()
            await asyncio.sleep(0.1)
            assert (await ask_from(proxy.port, "127.0.0.1")).status == 200


@pytest.mark.parametrize("how", [b"content-length: 1000000000000000", b"transfer-encoding: chunked"])
@pytest.mark.parametrize("path", [CHAT, "/v1/x", "/api/sessions"])
async def test_s6_an_unauthorized_client_is_refused_at_once_and_its_body_takes_no_place(path: str, how: bytes) -> None:
    async with run_upstream(fine) as upstream, run_proxy(upstream.port, **KEYED) as proxy:
        client = await connect(proxy.port)
        await client.send(b"POST %b HTTP/1.1\r\nhost: localhost\r\n%b\r\n\r\n" % (path.encode(), how))
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.timeout(1.0):
            assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401")
        ended = asyncio.create_task(rest(client, LINGER_S + SLACK_S))
        while not ended.done():
            with suppress(ConnectionError):
                await client.send(b"5\r\nabcde\r\n" if b"chunked" in how else b"y" * 1000)
            await asyncio.sleep(0.05)
        await ended
        assert loop.time() - began >= LINGER_S - 0.1, "a moment for what is under way"
        assert upstream.requests == []
        assert proxy.app.body_budget.held == 0


async def test_s6_an_unauthorized_client_may_continue_once_its_body_has_arrived() -> None:
    async with run_upstream(fine) as upstream, run_proxy(upstream.port, **KEYED) as proxy:
        client = await connect(proxy.port)
        await client.send(begun(50_000, path="/v1/x"))
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 401")
        await client.send(b"x" * 49_999)
        await asyncio.sleep(LINGER_S + 0.3)
        await client.send(make_post("/v1/x", b"{}", KEY))
        assert (await rest(client)).endswith(ANSWER)


async def test_s6_a_length_that_is_only_declared_buys_no_time() -> None:
    quick: dict[str, Any] = {"timeouts": {"body_s": 0.4, "header_s": 0.4}}
    async with run_upstream(wait) as upstream, run_proxy(upstream.port, **quick) as proxy:
        client = await connect(proxy.port)
        await client.send(begun(10**15, path="/v1/x"))
        ended = asyncio.create_task(rest(client, 4 * 0.4 + SLACK_S))
        while not ended.done() and not client.has_input():
            with suppress(ConnectionError):
                await client.send(b"y" * 100)  # 2,000 bytes a second
            await asyncio.sleep(0.05)
        assert (await ended).startswith(b"HTTP/1.1 408")
        assert await upstream.none_open()


async def test_s6_a_body_without_an_end_gives_way_to_those_that_come_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SLOW_S", 0.3)
    async with run_upstream(fine) as upstream, run_proxy(upstream.port, limits={"bodies_mb": 4}, **KEYED) as proxy:
        slow = [await connect(proxy.port) for _ in range(4)]
        for client in slow:
            await client.send(begun(9_000_000, KEY, sent=b"a" * 1_000_000))
        await wait_until(lambda: proxy.app.body_budget.held >= 4_000_000)
        assert (await refused(proxy.port, make_body(900_000))).status == 503, "they may still come"
        await asyncio.sleep(0.4)
        assert (await ask_from(proxy.port, "127.0.0.1", make_body(900_000), CHAT)).status == 200
        got = await rest(slow[0], LINGER_S + SLACK_S)
        assert got.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in got
        assert proxy.app.body_budget.held == 3_000_000, "one was enough"
        for client in slow:
            client.writer.transport.abort()
        await wait_until(lambda: proxy.app.body_budget.held == 0 and proxy.app.concurrency.taken == 0)


async def test_s6_one_tenant_has_half_of_the_memory_for_bodies_while_there_are_others() -> None:
    keys = [make_key("cp-tenant"), make_key("cp-other", tenant="other")]
    async with run_upstream(wait) as upstream, run_proxy(upstream.port, limits={"bodies_mb": 4}, keys=keys) as proxy:
        hanging = [await connect(proxy.port) for _ in range(2)]
        for client in hanging:
            await client.send(make_post(CHAT, make_body(1_000_000), KEY))
        await wait_until(lambda: len(upstream.requests) == 2)
        got = await refused(proxy.port, make_body(900_000))
        assert (got.status, got.header("retry-after")) == (503, "1")
        other = await connect(proxy.port)
        await other.send(make_post(CHAT, make_body(1_500_000), b"x-context-key: cp-other"))
        await wait_until(lambda: len(upstream.requests) == 3)
        for client in [*hanging, other]:
            client.writer.transport.abort()
        await wait_until(lambda: proxy.app.body_budget.held == 0)


async def queued(proxy: RunningProxy, count: int, body: bytes) -> list[Connection]:
    """Connections on which requests wait behind one that hangs."""
    clients = [await connect(proxy.port) for _ in range(count)]
    one = make_post("/v1/x", body).replace(b"connection: close\r\n", b"")
    for client in clients:
        client.writer.write(one.replace(body, b"{}", 1).replace(b"%d" % len(body), b"2", 1) + one * 16)
    return clients


async def test_s7_bodies_that_wait_on_a_connection_are_bounded() -> None:
    async with run_upstream(wait) as upstream, run_proxy(upstream.port) as proxy:
        clients = await queued(proxy, 8, b"x" * 60_000)
        await wait_until(lambda: len(upstream.requests) == 8)
        await asyncio.sleep(0.5)
        made = list(server_connections(proxy))
        assert len(made) == 8
        assert all(bytes_waiting(one) <= 600_000 for one in made), [bytes_waiting(one) for one in made]
        for client in clients:  # without waiting for what is still to be sent
            sock: socket.socket = client.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.writer.transport.abort()
        await wait_until(lambda: proxy.app.concurrency.taken == 0)
        assert made[0].connection_limit.pipelined == 0


async def test_s7_bytes_waiting_on_all_connections_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Event()

    async def slow(request: RawRequest, connection: Connection) -> None:
        await gate.wait()
        await connection.send(HEAD + b"content-length: 2\r\n\r\n{}")

    monkeypatch.setattr("proxy.web.server.MAX_PIPELINED_BYTES", 300_000)
    assert MAX_PIPELINED_BYTES > 300_000
    async with run_upstream(slow) as upstream, run_proxy(upstream.port) as proxy:
        clients = await queued(proxy, 8, b"x" * 20_000)
        await wait_until(lambda: len(upstream.requests) == 8)
        await asyncio.sleep(0.3)
        assert 0 < sum(map(bytes_waiting, server_connections(proxy))) <= 300_000 + (1 << 18)
        limit = next(iter(server_connections(proxy))).connection_limit
        gate.set()
        answers = [await rest(client, 10) for client in clients if client is not clients[-1]]
        assert all(b"HTTP/1.1 200" in got for got in answers)
        assert any(got.count(b"HTTP/1.1 200") < 9 for got in answers), "what was too much was not read"
        assert not any(b"HTTP/1.1 4" in got for got in answers), "and nothing was written into an answer"
        clients[-1].writer.transport.abort()
        await wait_until(lambda: limit.pipelined == 0)


def bytes_waiting(connection: Any) -> int:
    return sum(len(cycle.body) for cycle, _ in connection.pipeline)


def server_connections(proxy: RunningProxy) -> set[Any]:
    assert proxy.server is not None
    return proxy.server.server_state.connections
