from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from proxy.errors import Unavailable
from proxy.metrics import Metrics
from proxy.settings.load import Settings
from proxy.settings.model import LimitSettings
from proxy.web import limits
from proxy.web.asgi import Receive, Scope, Send
from proxy.web.error_responses import answer_errors
from proxy.web.limits import (
    MAX_EVICTIONS,
    PROBE_PLACES,
    BodyBudget,
    BodyShare,
    ConcurrencyLimit,
    ConnectionLimit,
    HalfOpenConnections,
    find_client_address,
    limit_heads,
)
from tests.proxy_server import CHAT, run_proxy
from tests.raw_upstream import run_upstream, send_raw, serve_app
from tests.scripted_model import ScriptedModel


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def status(*lines: bytes, first: bytes = b"GET /v1/models HTTP/1.1") -> int:
    guard = answer_errors(limit_heads(app, Settings(limits=LimitSettings(header_kb=64))), Metrics())
    async with serve_app(guard) as port:
        raw = await send_raw(port, b"\r\n".join([first, b"connection: close", *lines, b"", b""]))
    return int(raw.split()[1])


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        ([b"host: a"], 200),
        ([b"host: localhost:8080"], 200),
        ([b"host: [::1]:8080"], 200),
        ([], 400),
        ([b"host: a", b"host: a"], 400),
        ([b"host: a", b"Host: b"], 400),
        ([b"host: x/#@y"], 400),
        ([b"host: localhost/health?"], 400),
        ([b"host: "], 400),
        ([b"host: a b"], 400),
    ],
)
async def test_h2_a_host_is_there_once_and_is_a_host(lines: list[bytes], answer: int) -> None:
    assert await status(*lines) == answer


async def test_http_1_0_may_go_without_a_host() -> None:
    assert await status(first=b"GET /v1/models HTTP/1.0") == 200


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([b"x-big: " + b"x" * 70_000], id="70 KB header"),
        pytest.param([b"x%d: y" % n for n in range(20_000)], id="20,000 headers"),
        pytest.param([b"x-big: " + b"x" * (5 << 20)], id="5 MB header"),
    ],
)
async def test_h4_a_head_over_the_limit_is_431(lines: list[bytes]) -> None:
    assert await status(b"host: a", *lines) == 431


async def test_h4_a_long_url_counts_as_well() -> None:
    assert await status(b"host: a", b"x: " + b"y" * 9_000, first=b"GET /v1/" + b"x" * 60_000 + b" HTTP/1.1") == 431
    assert await status(b"host: a", b"x: " + b"y" * 9_000, first=b"GET /v1/x?" + b"x" * 60_000 + b" HTTP/1.1") == 431
    over_64k = await status(b"host: a", first=b"GET /v1/" + b"x" * 70_000 + b" HTTP/1.1")
    assert over_64k in (400, 431), "the parser's own limit is 64 KiB, and it says 400"
    assert await status(b"host: a", b"x: " + b"y" * 60_000) == 200


def test_one_more_than_there_is_room_for_is_sent_away_and_a_place_that_is_left_is_taken_again() -> None:
    metrics = Metrics()
    room = ConcurrencyLimit(2, metrics)
    with room.place():
        with pytest.raises(ValueError, match="of its own"), room.place():
            raise ValueError("of its own")
        with room.place(), pytest.raises(Unavailable, match="2 requests"), room.place():
            pass
        assert room.taken == 1
    assert room.taken == 0
    assert metrics.registry.get_sample_value("context_proxy_refused_requests_total") == 1


def test_a_tenant_with_half_of_the_places_leaves_the_last_ones_to_others() -> None:
    room = ConcurrencyLimit(16, Metrics(), several=True)
    with ExitStack() as held:
        for _ in range(14):
            held.enter_context(room.place("busy"))
        with pytest.raises(Unavailable, match="half"), room.place("busy"):
            pass
        with room.place("other"), room.place("other"), pytest.raises(Unavailable, match="16 requests"), room.place():
            pass
    with ExitStack() as held:
        for tenant in ("busy", "other") * 7:
            held.enter_context(room.place(tenant))
        held.enter_context(room.place("busy"))
    alone = ConcurrencyLimit(16, Metrics())
    with ExitStack() as held:
        for _ in range(16):
            held.enter_context(alone.place("one"))


async def test_the_bytes_of_a_request_are_released_at_its_end() -> None:
    metrics = Metrics()
    budget = BodyBudget(100, metrics)
    with budget.share() as one:
        one.reserve(60)
        one.reserve(30)
        with budget.share() as other:
            other.reserve(5)
            with pytest.raises(Unavailable):
                other.reserve(6)
        assert budget.held == 90
    assert budget.held == 0
    assert metrics.registry.get_sample_value("context_proxy_refused_requests_total") == 1


def test_a_body_alone_is_let_in_however_long_it_is() -> None:
    budget = BodyBudget(100, Metrics())
    with budget.share() as one:
        one.reserve(1000)
        one.reserve(1000)
        assert budget.held == 2000
    assert budget.held == 0


async def test_one_of_several_tenants_has_half() -> None:
    budget = BodyBudget(100, Metrics(), several=True)
    with budget.share("a") as one, budget.share("a") as two, budget.share("b") as other:
        one.reserve(30)
        with pytest.raises(Unavailable):
            two.reserve(30)
        two.reserve(20)
        other.reserve(30)
        other.reserve(20)
        with pytest.raises(Unavailable):
            two.reserve(1)
    assert budget.held == 0
    with budget.share("a") as one:
        one.reserve(90)


@pytest.mark.parametrize("slow", [0.0, 60.0])
async def test_the_body_that_has_been_coming_for_longest_gives_way(
    monkeypatch: pytest.MonkeyPatch, slow: float
) -> None:
    monkeypatch.setattr(limits, "SLOW_S", slow)
    budget = BodyBudget(100, Metrics())
    ended: list[str] = []

    async def upload(name: str, share: BodyShare) -> None:
        async def reading() -> bytes:
            share.reserve(40)
            await asyncio.sleep(60)
            return b""

        try:
            await share.give_way_during(reading())
        except Unavailable:
            ended.append(name)

    with budget.share() as one, budget.share() as two, budget.share() as new:
        tasks = [asyncio.create_task(upload(name, share)) for name, share in (("one", one), ("two", two))]
        await asyncio.sleep(0.01)
        if slow:
            with pytest.raises(Unavailable):
                new.reserve(40)
        else:
            new.reserve(40)
        await asyncio.sleep(0.01)
        assert ended == ([] if slow else ["one"])
        assert budget.held == 80
        tasks[1].cancel()
        tasks[0].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(found[1], asyncio.CancelledError), "the server's own cancellation is not taken for that"
        with pytest.raises(Unavailable):
            one.reserve(100)
    assert budget.held == 0


def taken(shares: ConnectionLimit, address: str, most: int) -> int:
    """Number of connections that this address gets of a limit."""
    count = 0
    while count < most and shares.has_room(address):
        shares.add(address)
        count += 1
    return count


def test_nobody_is_refused_while_there_is_room() -> None:
    shares = ConnectionLimit(100, 0.5)
    assert taken(shares, "a", 200) == 88, "seven eighths, rounded up"
    assert taken(shares, "b", 200) == 12
    assert not shares.has_room("c")
    for _ in range(40):
        shares.remove("a")
    assert taken(shares, "a", 200) == 28, "nearly full again"
    assert taken(shares, "c", 200) == 12


def test_a_share_may_be_all_and_no_address_has_none() -> None:
    assert taken(ConnectionLimit(100, 1.0), "a", 200) == 100
    assert taken(ConnectionLimit(100, 0.5), "", 200) == 100
    assert taken(ConnectionLimit(1, 0.1), "a", 200) == 1


def test_probes_have_places_of_their_own() -> None:
    shares = ConnectionLimit(4, 0.5)
    taken(shares, "", 10)
    for _ in range(PROBE_PLACES):
        assert shares.has_room_for_probe()
        shares.add("a")
    assert not shares.has_room_for_probe()
    shares.remove("a")
    assert shares.has_room_for_probe()


class Socket:
    def __init__(self) -> None:
        self.closed = False

    def evict(self) -> None:
        self.closed = True


def test_the_oldest_of_an_address_that_has_too_many_is_closed_once_it_is_not_fresh() -> None:
    held = HalfOpenConnections(3)
    sockets = [Socket() for _ in range(6)]
    for n, one in enumerate(sockets[:4]):
        held.add("a", one, n / 10)
    assert not any(one.closed for one in sockets), "a burst"
    held.add("b", Socket(), 9)
    assert not any(one.closed for one in sockets), "another address"
    held.add("a", sockets[4], 10)
    assert [one.closed for one in sockets] == [True, True, False, False, False, False]
    held.remove("a", sockets[2])
    held.add("a", sockets[5], 20)
    assert [one.closed for one in sockets[2:]] == [False] * 4, "it had brought its head"
    assert len(held) == 4


def test_connections_closed_to_admit_one_are_bounded() -> None:
    held = HalfOpenConnections(1)
    sockets = [Socket() for _ in range(3 * MAX_EVICTIONS)]
    for one in sockets:
        held.add("a", one, 0)
    held.add("a", Socket(), 5)
    assert sum(one.closed for one in sockets) == MAX_EVICTIONS


def test_room_is_made_by_the_address_that_has_most() -> None:
    held = HalfOpenConnections(10)
    assert not held.make_room()
    few, many = Socket(), [Socket() for _ in range(3)]
    held.add("few", few, 0)
    for one in many:
        held.add("many", one, 1)
        held.add("many", one, 2)
    assert held.make_room()
    assert (few.closed, [one.closed for one in many], len(held)) == (False, [True, False, False], 3)
    held.remove("many", many[0])
    held.remove("few", few)
    held.remove("few", few)
    assert len(held) == 2


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2"),
        ("2001:db8::1", "2001:db8"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80"),
        ("", ""),
    ],
)
def test_ipv6_addresses_of_one_network_count_as_one_client(host: str, address: str) -> None:
    assert find_client_address((host, 1)) == address
    assert find_client_address(None) == ""


@pytest.mark.parametrize("path", [CHAT, "/v1/files", "/api/import"])
async def test_a_content_length_of_more_digits_than_can_be_read_is_refused(path: str) -> None:
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port) as proxy:
        head = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n" % path.encode()
        length = b"connection: close\r\ncontent-length: %b2\r\n\r\n{}" % (b"0" * 5000)
        raw = await send_raw(proxy.port, head + length)
        assert raw.split()[1] == b"400"
        assert proxy.count("internal_errors_total") == 0
