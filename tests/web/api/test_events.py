"""`GET /api/events` on a real socket: what traffic brings about, resuming, filters, whose events they are, and ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proxy.events import bus as bus_module
from proxy.web.api.events import render_frames
from tests.event_stream_client import EventStreamClient, event_stream
from tests.proxy_server import Agent, RunningProxy, make_key, run_proxy
from tests.raw_upstream import connect, run_upstream, send_raw, wait_until
from tests.scripted_model import ScriptedModel


def tell(
    proxy: RunningProxy, kind: str = bus_module.FALLBACK, tenant: str = "t", session: str = "s", **data: Any
) -> None:
    proxy.app.services.event_bus.publish(kind, tenant, data, session=session)


async def test_an_event_is_one_block_with_an_id_that_rises_a_kind_and_json() -> None:
    async with run_proxy("demo") as proxy, event_stream(proxy) as stream:
        for n in range(3):
            tell(proxy, n=n)
        await stream.wait(bus_module.FALLBACK, 3)
        ids = [number for number, _, _ in stream.told]
        assert ids == sorted(set(ids), key=int)  # type: ignore[arg-type]
        assert b"text/event-stream" in stream.head
        _, _, told = stream.told[0]
        assert set(told) == {"id", "kind", "tenant", "session", "branch", "exchange", "at", "data"}
        assert (told["id"], told["kind"], told["data"]) == (ids[0], bus_module.FALLBACK, {"n": 0})


@pytest.mark.parametrize("way", ["header", "query"])
async def test_a_reader_who_comes_back_continues_after_its_last_event(way: str) -> None:
    async with run_proxy("demo") as proxy:
        async with event_stream(proxy) as stream:
            tell(proxy, n=0)
            await stream.wait(bus_module.FALLBACK)
            last = stream.told[0][0]
        for n in (1, 2):
            tell(proxy, n=n)
        more = (f"?after={last}", ()) if way == "query" else ("", (f"Last-Event-ID: {last}",))
        async with event_stream(proxy, more[0], *more[1]) as stream:
            tell(proxy, n=3)
            assert await stream.wait(bus_module.FALLBACK, 3) == [{"n": 1}, {"n": 2}, {"n": 3}]
            assert stream.of(bus_module.GAP) == []


async def test_a_reader_who_asks_for_events_that_are_gone_is_told_of_a_gap_first() -> None:
    async with run_proxy("demo", events={"kept": 2}) as proxy:
        async with event_stream(proxy) as stream:
            tell(proxy, n=0)
            await stream.wait(bus_module.FALLBACK)
            last = stream.told[0][0]
        for n in (1, 2, 3):
            tell(proxy, n=n)
        async with event_stream(proxy, f"?after={last}") as stream:
            assert await stream.wait(bus_module.FALLBACK, 2) == [{"n": 2}, {"n": 3}]
            assert stream.told[0][:2] == (None, bus_module.GAP)
            assert len(stream.of(bus_module.GAP)) == 1


async def test_after_a_restart_ids_keep_rising_and_earlier_events_are_a_gap() -> None:
    async with run_proxy("demo") as proxy, event_stream(proxy) as stream:
        tell(proxy)
        await stream.wait(bus_module.FALLBACK)
        last = stream.told[0][0]
    async with run_proxy("demo") as proxy, event_stream(proxy, f"?after={last}") as stream:
        tell(proxy)
        await stream.wait(bus_module.FALLBACK)
        number = stream.told[-1][0]
        assert last is not None
        assert number is not None
        assert number > last
        assert stream.told[0][1] == bus_module.GAP


async def test_a_reader_that_does_not_follow_gets_stored_events_and_an_end() -> None:
    async with run_proxy("demo") as proxy:
        tell(proxy, n=0)
        async with event_stream(proxy, "?follow=false") as stream:
            await wait_until(lambda: stream.ended)
            assert stream.of(bus_module.FALLBACK) == [{"n": 0}]


async def test_only_what_is_asked_for_is_heard() -> None:
    async with run_proxy("demo") as proxy:
        async with event_stream(proxy, "?session=a&kind=memo:saved&kind=context:*") as stream:
            for session in ("a", "b"):
                for kind in bus_module.EVENT_KINDS:
                    tell(proxy, kind, session=session)
            await stream.wait(bus_module.MEMO)
            assert {kind for _, kind, _ in stream.told} == {
                bus_module.MEMO,
                *(k for k in bus_module.EVENT_KINDS if k[:8] == "context:"),
            }
            assert {told["session"] for _, _, told in stream.told} == {"a"}
        async with event_stream(proxy, "?kind=no:such") as stream:
            assert b" 400 " in stream.head
        async with event_stream(proxy, "?kind=" + "*a" * 40) as stream:  # one of 50 KB was compiled for a second
            assert b" 422 " in stream.head


async def test_a_key_hears_of_its_tenant_alone() -> None:
    keys = [make_key(f"cp-{t}-{p}", t, p) for t in ("acme", "other") for p in ("read", "admin", "data")]
    keys.append(make_key("cp-all", "*", "read"))
    async with run_proxy("demo", keys=keys) as proxy:
        async with (
            event_stream(proxy, "", "x-context-key: cp-acme-read") as acme,
            event_stream(proxy, "", "x-context-key: cp-all") as everybody,
            event_stream(proxy, "?tenant=other", "x-context-key: cp-all") as chosen,
        ):
            for tenant in ("other", "acme"):
                await Agent(proxy, (f"x-context-key: cp-{tenant}-data".encode(), b"x-context-off: 1")).say("Hello")
            await everybody.wait(bus_module.FALLBACK, 2)
            await acme.wait(bus_module.FALLBACK)
            assert [told["tenant"] for _, _, told in acme.told] == ["acme"]
            assert [told["tenant"] for _, _, told in everybody.told] == ["other", "acme"]
            assert [told["tenant"] for _, _, told in chosen.told] == ["other"]
        for key, status in (("cp-acme-data", b" 403 "), ("none", b" 401 ")):
            async with event_stream(proxy, "", f"x-context-key: {key}") as stream:
                assert status in stream.head
        async with event_stream(proxy, "?tenant=other", "x-context-key: cp-acme-admin") as stream:
            assert b" 403 " in stream.head


async def test_a_listener_that_is_too_slow_loses_the_oldest_and_is_told_how_many() -> None:
    async with run_proxy("demo", events={"queue": 3}) as proxy, event_stream(proxy) as stream:
        for n in range(10):  # without a pause: nothing is written meanwhile
            tell(proxy, n=n)
        assert await stream.wait(bus_module.FALLBACK, 3) == [{"n": 7}, {"n": 8}, {"n": 9}]
        assert stream.told[0][:2] == (None, bus_module.LOST)
        assert stream.of(bus_module.LOST) == [{"lost": 7}]
        assert proxy.count("events_lost_total") == 7


async def test_a_client_that_does_not_read_costs_a_bounded_queue_and_reads_on_with_what_is_new() -> None:
    async with run_proxy("demo", events={"queue": 10, "kept": 10}) as proxy:
        connection = await connect(proxy.port)
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]  # of a socket's transport
        await connection.send(b"GET /api/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await wait_until(lambda: proxy.count("event_listeners") == 1)
        for n in range(10_000):  # ten megabytes and more: no socket's buffers hold them
            tell(proxy, n=n, text="x" * 1000)
            await asyncio.sleep(0)
            if proxy.count("events_lost_total") > 20:
                break
        assert proxy.count("events_lost_total") > 20
        (listener,) = proxy.app.services.event_bus._listeners
        assert listener.waiting_count <= 10
        connection.writer.transport.resume_reading()  # type: ignore[attr-defined]  # as above
        stream = EventStreamClient(connection)
        try:
            lost = (await stream.wait(bus_module.LOST))[0]["lost"]
            await wait_until(lambda: stream.of(bus_module.FALLBACK)[-1]["n"] == n)
            assert lost == proxy.count("events_lost_total")
            assert len(stream.of(bus_module.FALLBACK)) + lost == n + 1
        finally:
            stream.task.cancel()
            connection.writer.transport.abort()


async def test_a_client_that_only_listens_is_not_taken_for_a_slow_one() -> None:
    async with (
        run_proxy("demo", timeouts={"header_s": 0.1, "body_s": 0.1, "idle_s": 0.1}) as proxy,
        event_stream(proxy) as stream,
    ):
        await asyncio.sleep(0.6)
        tell(proxy)
        await stream.wait(bus_module.FALLBACK)


async def test_a_listener_over_the_limit_gets_429() -> None:
    async with run_proxy("demo", events={"listeners": 1}) as proxy, event_stream(proxy) as first:
        async with event_stream(proxy) as second:
            assert b" 429 " in second.head
        tell(proxy)
        await first.wait(bus_module.FALLBACK)


async def test_a_client_that_leaves_is_forgotten_within_500_ms() -> None:
    async with run_proxy("demo") as proxy:
        async with event_stream(proxy):
            assert proxy.count("event_listeners") == 1
        assert await wait_until(lambda: proxy.count("event_listeners") == 0) < 0.5 * 4


async def test_when_the_proxy_is_told_to_stop_streams_end_as_they_should_within_500_ms() -> None:
    async with run_proxy("demo") as proxy, event_stream(proxy) as stream:
        tell(proxy)
        proxy.app.drain()
        assert await wait_until(lambda: stream.ended) < 0.5 * 4
        assert stream.of(bus_module.FALLBACK) == [{}]


async def test_silence_is_broken_by_comments() -> None:
    async with run_proxy("demo") as proxy:
        bus = proxy.app.services.event_bus
        listener = bus.subscribe(bus_module.EventFilter())
        found = [frame async for frame in taken(render_frames(listener, 0.01), 2)]
        assert found == [b": still here\n\n"] * 2


async def taken(source: AsyncIterator[bytes], count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield await anext(source)


async def test_the_kinds_are_listed() -> None:
    async with run_proxy("demo") as proxy:
        asked = b"GET /api/events/kinds HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        answer = await send_raw(proxy.port, asked)
        assert {one["kind"] for one in json.loads(answer.partition(b"\r\n\r\n")[2])} == set(bus_module.EVENT_KINDS)


async def test_a_name_that_no_encoder_takes_is_reported_with_a_question_mark() -> None:
    async with run_proxy("demo") as proxy, event_stream(proxy) as stream:
        tell(proxy, session="a\ud800b")
        await stream.wait(bus_module.FALLBACK)
        assert stream.told[0][2]["session"] == "a?b"


async def test_a_request_that_is_sent_unchanged_is_logged_with_the_reason() -> None:
    async with (
        run_upstream(ScriptedModel()) as upstream,
        run_proxy(upstream.port) as proxy,
        event_stream(proxy) as stream,
    ):
        await Agent(proxy, (b"x-context-session: mine", b"x-context-off: 1")).say("Hello")
        assert await stream.wait(bus_module.FALLBACK) == [{"reason": "off"}]
        assert stream.told[0][2]["session"] == "mine"
