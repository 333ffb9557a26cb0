from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from proxy.chat.tokens import TokenCounter
from proxy.exchange import prepare_request
from proxy.exchange.services import LARGE_BODY_BYTES, PREPARED_AT_ONCE
from tests.exchange.long_results import LONG, has_short_result, make_looking_model, work_until
from tests.failing_store import FailingStore, use_store
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream, wait_until
from tests.scripted_model import ScriptedModel
from tests.strict_messages import StrictMessages
from tests.strict_responses import StrictResponses

MORE = {"role": "user", "content": "Go on"}
HELLO: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "system", "content": "Be."}, {"role": "user", "content": "Hello"}],
}


async def test_new_edits_are_stored_before_they_are_sent() -> None:
    model, store = make_looking_model(), FailingStore()
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="thrifty", before=use_store(store)) as proxy,
    ):
        await work_until(Agent(proxy, (b"x-context-session: a",)), lambda: has_short_result(model.last))
        exchanges = await proxy.rows("SELECT exchange, count(*) FROM edits GROUP BY exchange")
        counted = sum(proxy.count("edits_total", stage=stage) for stage in ("shorten_results", "refer_repeats"))
        assert counted == sum(n for _, n in exchanges) > 0


@pytest.mark.timed
async def test_a_slow_store_delays_an_answer_at_most_by_the_limit_and_is_reported() -> None:
    model, store = ScriptedModel("Well."), FailingStore()
    tree: dict[str, Any] = {"policy": "thrifty", "limits": {"commit_wait_ms": 250}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, before=use_store(store), **tree) as proxy:
        store.hold = True
        whole = await check_duration(proxy.post(HELLO), at_least=0.25)
        assert whole.header("x-context-persist") == "deferred"
        stream = await check_duration(proxy.post(HELLO | {"stream": True}), at_least=0.25)
        assert stream.body.endswith(b": persist deferred\n\ndata: [DONE]\n\n")
        assert proxy.count("persist_deferred_total") == 2
        store.release()
        quick = await check_duration(proxy.post(HELLO))
        assert quick.header("x-context-persist") is None


async def check_duration(asked: Any, *, at_least: float = 0.0) -> Any:
    started = time.monotonic()
    found = await asked
    assert at_least <= time.monotonic() - started
    assert found.status == 200
    assert found.whole
    return found


async def test_while_the_store_lingers_a_request_goes_out_without_its_new_edits() -> None:
    model, store = make_looking_model(), FailingStore()
    tree: dict[str, Any] = {"policy": "thrifty", "limits": {"commit_wait_ms": 20}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree, before=use_store(store)) as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        store.hold = True
        await work_until(agent, lambda: proxy.count("replans_total", reason="edits_not_stored") > 0)
        assert not has_short_result(model.last)
        counted = proxy.count("fallbacks_total", reason="store")
        assert counted == proxy.count("replans_total", reason="edits_not_stored")
        assert (await agent_goes_on(agent)).header("x-context-fallback") == "store"
        assert proxy.count("fallbacks_total", reason="store") == counted + 1
        store.release()
        assert (await agent_goes_on(agent)).header("x-context-fallback") is None
        assert has_short_result(model.last)


async def agent_goes_on(agent: Agent) -> Any:
    agent.brings(LONG)
    return await agent.say()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_store_that_cannot_be_written_does_not_fail_a_request(stream: bool) -> None:
    model, store = ScriptedModel("Well."), FailingStore()
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="rolling", before=use_store(store)) as proxy,
    ):
        agent = Agent(proxy, (b"x-context-session: a",), stream=stream)
        await agent.say("One")
        store.writes = False
        before = proxy.count("persist_deferred_total")
        found = await agent.say("Two")
        marked = b"persist deferred" in found.body if stream else found.header("x-context-persist") == "deferred"
        assert marked
        assert proxy.count("persist_deferred_total") == before + 1, "an answer that says so is counted, lost or late"
        assert proxy.count("persist_dropped_total") > 0
        store.writes = True
        await agent.say("Three")
        stored = await proxy.rows("SELECT body FROM messages ORDER BY position")
        said = [json.loads(body)["content"] for (body,) in stored]
        assert said == ["One", "Well.", "Two", "Well.", "Three", "Well."], "what was lost is stored when it comes again"


async def test_a_store_that_cannot_be_read_lets_the_request_through_untouched() -> None:
    model, store = ScriptedModel("Well."), FailingStore()
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="rolling", before=use_store(store)) as proxy,
    ):
        store.reads = False
        raw = json.dumps(HELLO).encode()
        found = await proxy.post(raw, b"x-context-session: a")
        assert found.status == 200
        assert found.header("x-context-fallback") == "store"
        assert proxy.count("fallbacks_total", reason="store") == 1
        assert proxy.count("persist_dropped_total") == 1, "nothing of it is stored: the alert hears of that"
        store.reads = True
        assert (await proxy.post(raw, b"x-context-session: a")).header("x-context-fallback") is None
    assert model.received[0].body == raw


@pytest.mark.parametrize("fails", ["reads", "writes"])
async def test_where_storing_is_required_a_store_that_is_away_refuses_before_upstream_is_asked(fails: str) -> None:
    model, store, required = ScriptedModel("Well."), FailingStore(), {"persist": "required"}
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, store=required, before=use_store(store)) as proxy,
    ):
        setattr(store, fails, False)
        found = await proxy.post(HELLO, b"x-context-session: a")
        assert found.status == 503
        assert found.header("retry-after") == "1"
        assert model.received == []
        setattr(store, fails, True)
        assert (await proxy.post(HELLO, b"x-context-session: a")).status == 200


async def test_a_policy_can_be_named_by_the_request_and_an_unknown_one_is_counted() -> None:
    model = ScriptedModel("Well.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="passthrough") as proxy:
        await proxy.post(HELLO, b"x-context-policy: rolling")
        await proxy.post(HELLO, b"x-context-policy: nonsense")
        assert await proxy.rows("SELECT policy FROM exchanges ORDER BY started_at") == [("rolling",), ("passthrough",)]
        assert proxy.count("ignored_headers_total", header="x-context-policy") == 1
        assert proxy.count("internal_errors_total") == 0, "a typo of a client is no fault of the proxy"


async def test_counting_a_large_request_does_not_hold_the_loop() -> None:
    model = ScriptedModel("Well.")
    count = {"count": "exact"}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty", tokens=count) as proxy:
        await proxy.post(HELLO)
        longest, stop = 0.0, threading.Event()

        async def watch() -> None:
            nonlocal longest
            while not stop.is_set():
                before = time.monotonic()
                await asyncio.sleep(0.002)
                longest = max(longest, time.monotonic() - before)

        watching = asyncio.create_task(watch())
        text = " ".join(f"word{n}" for n in range(150_000))
        found = await proxy.post({"model": "m", "messages": [{"role": "user", "content": text}]}, seconds=30)
        stop.set()
        await watching
        assert found.status == 200
        assert longest < 0.5


async def test_tokens_are_not_counted_again_after_a_message_was_released() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text) // 4

    counters = {"m": TokenCounter(count), "other": TokenCounter(count)}
    limits = {"message_cache_mb": 1}
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port, limits=limits) as proxy:
        model = proxy.app.services.models[-1]
        proxy.app.services.models_by_name.update((name, replace(model, name=name)) for name in counters)
        proxy.app.services.find_token_counter = lambda model: counters[model.name]
        one, big = Agent(proxy, more={"model": "m"}), Agent(proxy, more={"model": "m"})
        await one.say(LONG + LONG)
        for name, again in (("m", 0), ("other", 1)):
            await big.send(messages=[{"role": "user", "content": f"{name} {LONG * 60}"}])  # all else is let go
            counted.clear()
            one.more["model"] = name
            found = await one.say("And now?")
            assert counted.count(LONG + LONG) == again
            assert ("And now?" in counted) is True
            rows = await proxy.rows("SELECT tokens_before FROM exchanges ORDER BY started_at DESC LIMIT 1")
            assert rows[0][0] >= 2 * len(LONG) // 4, found


async def test_a_known_conversation_that_the_cache_has_no_room_for_is_a_miss() -> None:
    async with (
        run_upstream(ScriptedModel("Well.")) as upstream,
        run_proxy(upstream.port, limits={"message_cache_mb": 1}) as proxy,
    ):
        one, other = Agent(proxy), Agent(proxy)
        for text in (f"one {LONG * 24}", "It goes on.", "And on."):
            await one.say(text)
        assert proxy.count("message_cache_misses_total") == 0
        await other.say(f"other {LONG * 24}")
        assert proxy.count("message_cache_misses_total") == 0  # it is new
        for misses in (1, 1):
            await one.say("Once more.")
            assert proxy.count("message_cache_misses_total") == misses


async def test_a_prefix_shared_by_concurrent_requests_is_counted_off_the_event_loop() -> None:
    on_loop: list[str] = []

    def count(text: str) -> int:
        if threading.current_thread() is threading.main_thread():
            on_loop.append(text)
        time.sleep(0.002)
        return len(text) // 4

    token_counter = TokenCounter(count)
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port) as proxy:
        proxy.app.services.find_token_counter = lambda _: token_counter
        said = [{"role": ("user", "assistant")[n % 2], "content": f"{n} {LONG}"} for n in range(31)]
        found = await asyncio.gather(*(Agent(proxy, messages=said).send() for _ in range(4)))
    assert [one.status for one in found] == [200] * 4
    assert not [text for text in on_loop if LONG in text]


@pytest.mark.parametrize(
    ("given", "is_hashed"),
    [("fix-it", False), ("a\x00b", True), ("a\r\nset-cookie: b", True), ("\x7f", True), ("long" * 20_000, True)],
)
async def test_a_session_name_of_a_wire_format_can_be_shown_and_stored(given: str, is_hashed: bool) -> None:
    user = {"role": "user", "content": "Hello"}
    bodies = {
        "/v1/messages": {"model": "m", "max_tokens": 9, "messages": [user]}
        | {"metadata": {"user_id": json.dumps({"session_id": given})}},
        "/v1/responses": {"model": "m", "input": [user], "store": False, "client_metadata": {"thread_id": given}},
    }
    for path, body in bodies.items():
        strict: Any = {"/v1/messages": StrictMessages, "/v1/responses": StrictResponses}[path]
        async with run_upstream(strict()) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
            heard = await proxy.post(body, b"anthropic-version: 2023-06-01", b"x-api-key: sk-one", path=path)
            assert (heard.status, heard.whole) == (200, True), path
            assert len(heard.session) < 40
            assert heard.session.startswith("h-") is is_hashed
            assert await proxy.rows("SELECT session FROM sessions") == [(heard.session,)]


async def test_of_many_that_come_together_a_few_are_prepared_at_once_and_none_goes_out_unplanned() -> None:
    """Each had waited for all others before its first read of the store, which was then too late for nearly all."""
    model = ScriptedModel("Well.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        places = proxy.app.services.preparing
        for _ in range(PREPARED_AT_ONCE):
            await places.acquire()
        asked = [asyncio.create_task(proxy.post(HELLO, b"x-context-session: %d" % n)) for n in range(30)]
        gone = asyncio.create_task(proxy.post(HELLO))
        await wait_until(lambda: len(places._waiters or ()) == 31)
        assert not model.received
        gone.cancel()
        for _ in range(PREPARED_AT_ONCE):
            places.release()
        answers = await asyncio.gather(*asked)
        assert all(one.status == 200 and one.header("x-context-fallback") is None for one in answers)
        await wait_until(lambda: proxy.app.services.preparing._value == PREPARED_AT_ONCE)


async def test_small_requests_do_not_wait_for_large_ones_to_be_prepared() -> None:
    large = {"model": "m", "messages": [{"role": "user", "content": "word " * (LARGE_BODY_BYTES // 5)}]}
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        places = proxy.app.services.preparing_large
        for _ in range(PREPARED_AT_ONCE):
            await places.acquire()
        asked = asyncio.create_task(proxy.post(large))
        await wait_until(lambda: len(places._waiters or ()) == 1)
        assert (await proxy.post(HELLO)).status == 200
        assert not asked.done()
        places.release()
        assert (await asked).status == 200


async def test_requests_that_wait_for_something_else_do_not_keep_others_from_being_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prepare_request, "PLACE_S", 0.05)
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        names = [b"x-context-session: %d" % n for n in range(PREPARED_AT_ONCE)]
        first = [(await proxy.post(HELLO, name)).message for name in names]
        sessions = proxy.app.services.live_sessions._sessions.values()
        branches = [branch for live_session in sessions for branch in live_session.branches.values()]
        async with AsyncExitStack() as locked:
            for branch in branches:
                await locked.enter_async_context(branch.planning)
            held = [
                asyncio.create_task(proxy.post(HELLO | {"messages": [*HELLO["messages"], answer, MORE]}, name))
                for name, answer in zip(names, first, strict=True)
            ]
            await wait_until(lambda: all(branch.planning._waiters for branch in branches))
            assert (await proxy.post(HELLO, b"x-context-session: other")).status == 200
            assert not any(one.done() for one in held)
        assert all(one.status == 200 for one in await asyncio.gather(*held))
        await wait_until(lambda: proxy.app.services.preparing._value == PREPARED_AT_ONCE)
