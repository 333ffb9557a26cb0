from __future__ import annotations

import asyncio
import gzip
import random
import socket
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import httpx2
import psutil
import pytest

from proxy.errors import BadRequest, ConfigError, UpstreamBroken, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from proxy.metrics import Metrics
from proxy.settings.load import Settings, UpstreamSettings
from proxy.settings.model import PoolSettings, TimeoutSettings
from proxy.upstream import transport as transports
from proxy.upstream.client import UpstreamClient, UpstreamRequest
from tests.raw_upstream import HEAD, STREAM, Connection, RawRequest, read_request, run_upstream, wait_until
from tests.upstream.conftest import (
    EVENTS,
    answer_json,
    connections,
    gathered,
    idle,
    listening,
    make_client,
    post_and_read,
    send,
    serving,
    sound,
    transport_of,
)


async def test_a_connection_that_came_back_is_used_before_a_new_one() -> None:
    async with run_upstream(answer_json) as upstream, make_client(upstream.port) as client:
        one, two = await send(client), await send(client)
        for reply in (one, two, await send(client), await send(client)):
            assert await reply.read_body(10) == b"{}"
        assert upstream.connections == 4
        for _ in range(8):
            assert await (await send(client)).read_body(10) == b"{}"
        assert upstream.connections == 4
        assert connections(client) == idle(client) == 4


async def test_waiting_requests_get_freed_connections_in_order() -> None:
    gates = {n: asyncio.Event() for n in range(6)}

    async def wait(request: RawRequest, connection: Connection) -> None:
        await gates[int(request.body)].wait()
        await answer_json(request, connection)

    async with run_upstream(wait) as upstream, make_client(upstream.port, 2, connect_s=5) as client:
        tasks = []
        for n in range(6):
            tasks.append(asyncio.create_task(send(client, b"%d" % n)))
            await asyncio.sleep(0.01)
        assert [request.body for request in upstream.requests] == [b"0", b"1"]
        for n in range(6):
            gates[n].set()
            assert await (await tasks[n]).read_body(10) == b"{}"
            await wait_until(lambda n=n: len(upstream.requests) == min(n + 3, 6))  # type: ignore[misc]
        assert [request.body for request in upstream.requests] == [b"%d" % n for n in range(6)]
        assert upstream.connections == 2
        assert sound(client, 2)


async def test_the_time_to_wait_ends_and_what_is_freed_after_goes_to_the_next() -> None:
    async with run_upstream(answer_json) as upstream, make_client(upstream.port, 1, connect_s=0.2) as client:
        one = await send(client)
        late = asyncio.create_task(send(client))
        await asyncio.sleep(0.15)
        patient, gone = asyncio.create_task(send(client)), asyncio.create_task(send(client))
        with pytest.raises(UpstreamTimeout, match="in use"):
            await late
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone
        await one.read_body(10)
        assert await (await patient).read_body(10) == b"{}"
        assert sound(client, 1)


async def test_a_connection_freed_as_the_wait_ends_is_not_leaked() -> None:
    async with run_upstream(answer_json) as upstream, make_client(upstream.port, 1, connect_s=0.1) as client:
        [held, transport] = await send(client), transport_of(client)
        waits = asyncio.create_task(send(client))
        await asyncio.sleep(0.01)
        [answer] = transport._answers
        asyncio.get_running_loop().call_later(0.15, answer.close)
        time.sleep(0.3)  # so that both are due in one turn of the loop, the patience first
        assert await (await waits).read_body(10) == b"{}"
        assert transport_of(client) is transport
        await held.close()


async def test_a_reader_is_told_when_everything_is_closed() -> None:
    async def stall(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.left()

    async with run_upstream(stall) as upstream, make_client(upstream.port) as client:
        reading = asyncio.create_task((await send(client)).read_body(1000))
        await asyncio.sleep(0.01)
        await client.close()
        with pytest.raises(UpstreamError, match="closed here"):
            await asyncio.wait_for(reading, 20)


@pytest.mark.parametrize("closed", [True, False])
async def test_a_connection_given_to_a_cancelled_request_goes_to_the_next(closed: bool) -> None:
    async with run_upstream(answer_json) as upstream, make_client(upstream.port, 1) as client:
        one = await send(client)
        first, second = asyncio.create_task(send(client)), asyncio.create_task(send(client))
        await asyncio.sleep(0.01)
        [answer] = transport_of(client)._answers
        answer._is_reusable = not closed
        assert await one.read_body(10) == b"{}"
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await (await asyncio.wait_for(second, 20)).read_body(10) == b"{}"
        assert upstream.connections == 1 + closed
        assert sound(client, 1)


async def test_a_connection_that_does_not_come_about_frees_its_place() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound and not listening: refused
        async with make_client(bound.getsockname()[1], 1) as client:
            for _ in range(3):
                with pytest.raises(UpstreamError, match="cannot be reached") as told:
                    await asyncio.wait_for(send(client), 20)
                assert "Errno" not in told.value.message
            both = await asyncio.gather(send(client), send(client), return_exceptions=True)
            assert all(isinstance(one, UpstreamError) for one in both)
            assert sound(client, 1)
            assert connections(client) == 0


async def test_idle_ones_are_kept_for_so_long_and_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "KEPT_S", 0.3)
    async with run_upstream(answer_json) as upstream, make_client(upstream.port, 10, 3) as client:
        for reply in [await send(client) for _ in range(5)]:
            await reply.read_body(10)
        assert idle(client) == 3
        await wait_until(lambda: upstream.open == 3)
        for _ in range(5):
            await asyncio.sleep(0.1)
            await (await send(client)).read_body(10)
        assert upstream.connections == 5, "the time runs from when it came back"
        await asyncio.sleep(0.4)
        await (await send(client)).read_body(10)
        assert upstream.connections == 6
        await wait_until(lambda: upstream.open == 0)
        assert connections(client) == 0
        assert sound(client)


async def test_closing_closes_all_and_what_comes_back_after() -> None:
    async with run_upstream(answer_json) as upstream, make_client(upstream.port) as client:
        three = [await send(client) for _ in range(3)]
        await three[0].read_body(10)
        await client.close()
        assert await upstream.none_open()
        for reply in three:
            await reply.close()
        assert connections(client) == 0
        assert sound(client)


@pytest.mark.slow
async def test_a_thousand_at_once_each_get_their_own_answer() -> None:
    async def echo(request: RawRequest, connection: Connection) -> None:
        await asyncio.sleep(0.05)
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(request.body), request.body))

    async with run_upstream(echo) as upstream, make_client(upstream.port, 1000, 1000, connect_s=20) as client:

        async def one(number: int) -> None:
            reply = await send(client, b"%d" % number)
            assert await reply.read_body(100) == b"%d" % number
            await reply.close()

        await asyncio.gather(*(one(number) for number in range(2000)))
        assert upstream.connections <= 1000
        assert sound(client, 1000)


async def test_with_all_places_in_use_others_wait_and_are_then_refused() -> None:
    gate = asyncio.Event()

    async def wait(request: RawRequest, connection: Connection) -> None:
        await gate.wait()
        await answer_json(request, connection)

    async with run_upstream(wait) as upstream, make_client(upstream.port, connect_s=0.2) as client:
        held = [asyncio.create_task(send(client)) for _ in range(10)]
        await wait_until(lambda: len(upstream.requests) == 10)
        with pytest.raises(UpstreamTimeout, match=r"all 10 connections .* are in use"):
            await send(client)
        waits = asyncio.create_task(send(client))
        await asyncio.sleep(0.05)
        gate.set()
        for task in (*held, waits):
            assert await (await task).read_body(10) == b"{}"
        assert upstream.connections == 10


@pytest.mark.parametrize("seed", range(3))
async def test_cancels_at_random_moments_leave_nothing_behind(seed: int) -> None:
    chance = random.Random(seed)

    async def work(_: RawRequest, connection: Connection) -> None:
        await asyncio.sleep(chance.uniform(0, 0.01))
        await connection.send(STREAM)
        for event in EVENTS[:5]:
            await connection.chunk(event)
            await asyncio.sleep(chance.uniform(0, 0.004))
        if chance.random() < 0.1:
            await connection.reset()
        await connection.send(b"0\r\n\r\n")

    process = psutil.Process()
    tasks, files = len(asyncio.all_tasks()), process.num_fds()
    async with run_upstream(work) as upstream, make_client(upstream.port, connect_s=0.05) as client:

        async def one() -> None:
            reply = await send(client)
            try:
                async for _ in reply.iter_bytes():
                    if chance.random() < 0.05:
                        return
            finally:
                await reply.close()

        async def cut_off() -> None:
            task = asyncio.create_task(one())
            if chance.random() < 0.7:
                await asyncio.sleep(chance.choice([0, 0.001, 0.01, 0.03]))
                for _ in range(chance.randint(1, 3)):
                    task.cancel()
                    for _turn in range(chance.randint(0, 3)):
                        await asyncio.sleep(0)
            with suppress(asyncio.CancelledError, UpstreamError):
                await task

        await asyncio.gather(*(cut_off() for _ in range(200)))
        assert client._transports["default"].open_responses == 0
        assert sound(client)
        await wait_until(lambda: upstream.open == idle(client))
        assert len([t for t in asyncio.all_tasks() if "raw_upstream" not in repr(t)]) <= tasks + 1
    await wait_until(lambda: process.num_fds() <= files)
    assert len(asyncio.all_tasks()) == tasks


async def test_an_answer_that_is_over_cannot_touch_the_one_that_comes_after() -> None:
    async with run_upstream(answer_json) as upstream, make_client(upstream.port) as client:
        first = await send(client)
        assert await first.read_body(10) == b"{}"
        second = await send(client)
        await first.close()
        with suppress(httpx2.TransportError):
            await first._source.aclose()
        assert await second.read_body(10) == b"{}"
        assert upstream.connections == 1


# The way there


@pytest.mark.timed
async def test_an_address_that_swallows_packets_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a name with two addresses the first takes no connection and refuses none: its queue is full."""

    async def answer(connection: Connection) -> None:
        await read_request(connection.reader)
        await connection.send(HEAD + b"content-length: 2\r\n\r\nok")

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
            client = UpstreamClient(
                Settings(upstream=f"http://two.example:{port}/v1", timeouts=TimeoutSettings(connect_s=20)), Metrics()
            )
            began = time.monotonic()
            assert await post_and_read(client) == (200, b"ok")
            assert time.monotonic() - began < 4.0, "promised: a second"
            await client.close()


async def test_a_name_whose_addresses_all_refuse_is_reported_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = UpstreamClient(Settings(upstream=f"http://localhost:{unused.getsockname()[1]}/v1"), Metrics())
        assert isinstance(await post_and_read(client), UpstreamUnreachable)
        await client.close()


async def test_the_environments_proxy_is_used_where_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_upstream(answer_json) as outbound:
        monkeypatch.setenv("http_proxy", f"http://u:p@127.0.0.1:{outbound.port}")
        monkeypatch.setenv("no_proxy", "near.invalid")
        for host, through in (("far.invalid", True), ("near.invalid", False)):
            there = {"t": UpstreamSettings(base_url=f"http://{host}/v1", proxy="environment")}
            client = UpstreamClient(Settings(upstreams=there), Metrics())
            got = await post_and_read(client)
            assert got == (200, b"{}") if through else isinstance(got, UpstreamUnreachable)
            await client.close()
        [request] = outbound.requests
    assert request.line == b"POST http://far.invalid/v1/x HTTP/1.1"
    assert request.all(b"proxy-authorization") == [b"Basic dTpw"]


# httpx2's own


def httpx2_of(base: str, *, proxy: str = "", bundle: str = "", **timeouts: float) -> UpstreamClient:
    upstream = UpstreamSettings(base_url=base, transport="httpx2", proxy=proxy, ca_bundle=bundle)
    pool = PoolSettings(connections=10, keepalive=10)
    return UpstreamClient(
        Settings(upstreams={"default": upstream}, timeouts=TimeoutSettings(**timeouts), pool=pool), Metrics()
    )


async def test_httpx2s_own_sends_and_gives_out_the_same_bytes() -> None:
    packed = gzip.compress(b"{}")

    async def say(request: RawRequest, connection: Connection) -> None:
        if request.body == b"packed":
            await connection.send(HEAD, b"X-A: 1\r\nx-a: 2\r\ncontent-encoding: gzip\r\n")
            await connection.send(b"content-length: %d\r\n\r\n" % len(packed), packed)
            return
        await connection.send(STREAM)
        for event in EVENTS:
            await connection.chunk(event)
        await connection.send(b"0\r\n\r\n")

    async def pieces() -> AsyncIterator[bytes]:
        yield b"ab"
        yield b"cd"

    async with run_upstream(say) as upstream:
        client = httpx2_of(f"http://127.0.0.1:{upstream.port}/v1")
        [target], headers = client.targets, [(b"X-Odd", b"\xe4"), (b"x-odd", b"2"), (b"cookie", b"a=b")]
        reply = await client.send(
            target, UpstreamRequest("POST", "/v1/a%2Fb", b"c=%20", headers, b"packed"), identity=False
        )
        assert await reply.read_body(1000) == packed
        assert [value for name, value in reply.headers if name == b"x-a"] == [b"1", b"2"]
        reply = await client.send(target, UpstreamRequest("POST", "/v1/x", b"", [(b"content-length", b"4")], pieces()))
        assert await gathered(reply) == (b"".join(EVENTS), None)
        first, second = upstream.requests
        assert first.line == b"POST /v1/a%2Fb?c=%20 HTTP/1.1"
        sent = [(name.lower(), value) for name, value in headers]
        assert [header for header in first.headers if header[0] in (b"x-odd", b"cookie")] == sent
        assert {name.lower() for name, _ in first.headers} == {
            *(b"host", b"x-odd", b"cookie", b"content-length"),
        }
        assert second.all(b"accept-encoding") == [b"identity"]
        assert second.body == b"abcd"
        assert upstream.connections == 1
        await client.close()


async def test_both_transports_raise_the_same_error_for_each_failure() -> None:
    async def fail(request: RawRequest, connection: Connection) -> None:
        if request.body == b"silent":
            await connection.left()
        elif request.body == b"reset":
            await connection.reset()
        else:
            await connection.send(STREAM)
            await connection.chunk(EVENTS[0])
            if request.body == b"broken":
                connection.writer.close()
            while request.body == b"drip":
                await asyncio.sleep(0.05)
                await connection.chunk(b".")
            await connection.left()

    async with run_upstream(fail) as upstream:
        client = httpx2_of(f"http://127.0.0.1:{upstream.port}", idle_s=0.2, total_s=0.5)
        for body, kind in ((b"silent", UpstreamTimeout), (b"reset", UpstreamUnreachable)):
            with pytest.raises(kind):
                await send(client, body)
        for body, late in ((b"broken", UpstreamBroken), (b"stalls", UpstreamTimeout), (b"drip", UpstreamTimeout)):
            came, error = await gathered(await send(client, body))
            assert came.startswith(EVENTS[0])
            assert type(error) is late
        task = asyncio.create_task(send(client, b"silent"))
        await wait_until(lambda: upstream.open == 1)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await upstream.none_open()
        assert client._transports["default"].open_responses == 0
        with pytest.raises(BadRequest):
            await client.send(client.targets[0], UpstreamRequest("GET", "/v1/x", b"", [(b"bad name", b"x")], None))
        await client.close()
    refused = httpx2_of("http://127.0.0.1:1")
    with pytest.raises(UpstreamUnreachable):
        await send(refused)


async def test_httpx2s_own_speaks_http_2_where_the_upstream_does(certificate: Path) -> None:
    streams: list[int] = []

    async def speak(connection: Connection) -> None:
        await connection.writer.start_tls(serving(certificate))
        here = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        here.initiate_connection()
        await connection.send(here.data_to_send())
        while data := await connection.reader.read(65536):
            for event in here.receive_data(data):
                if isinstance(event, h2.events.StreamEnded):
                    streams.append(event.stream_id)
                    here.send_headers(event.stream_id, [(":status", "200"), ("content-type", "application/json")])
                    here.send_data(event.stream_id, b"{}", end_stream=True)
            await connection.send(here.data_to_send())

    async with listening(speak) as port:
        client = httpx2_of(f"https://localhost:{port}/v1", bundle=str(certificate / "cert.pem"))
        for _ in range(3):
            assert await (await send(client)).read_body(10) == b"{}"
        await client.close()
    assert streams == [1, 3, 5], "one connection for all"


async def test_httpx2s_own_goes_through_a_socks_proxy() -> None:
    asked_for: list[bytes] = []

    async def forward(connection: Connection) -> None:
        await connection.reader.readexactly(3)
        await connection.send(b"\x05\x00")
        head = await connection.reader.readexactly(5)
        asked_for.append(await connection.reader.readexactly(head[4]))
        await connection.reader.readexactly(2)
        await connection.send(b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x50")
        assert await read_request(connection.reader) is not None
        await connection.send(HEAD + b"content-length: 2\r\n\r\n{}")

    async with listening(forward) as port:
        client = httpx2_of("http://api.invalid/v1", proxy=f"socks5://127.0.0.1:{port}")
        assert await (await send(client)).read_body(10) == b"{}"
        await client.close()
    assert asked_for == [b"api.invalid"]


def test_httpx2s_own_without_what_it_needs_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "find_spec", lambda name: None if name == "socksio" else object())
    httpx2_of("http://h")
    with pytest.raises(ConfigError, match=r"context-proxy\[httpx2\]"):
        httpx2_of("http://h", proxy="socks5://h")
