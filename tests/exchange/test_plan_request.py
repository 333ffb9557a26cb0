from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from proxy.chat.message import checkpoint
from proxy.chat.tokens import TokenCounter
from proxy.context.plan import Proposal, View
from proxy.context.stage import Stage, When
from proxy.exchange import plan_timer
from tests.dialect_agents import MessagesAgent
from tests.failing_store import FailingStore, use_store
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, make_calls
from tests.strict_messages import StrictMessages

HELLO = {"model": "m", "messages": [{"role": "system", "content": "Be."}, {"role": "user", "content": "Hello"}]}
LONG = "\n".join(f"line {n} of a long result" for n in range(200))


@dataclass(frozen=True, slots=True)
class Spoil(Stage):
    """A stage of a user's own that does what it must not, when the last message says so."""

    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        """Raises, lingers, works, leaves half a step out, or nothing."""
        text = view.messages[-1].text
        if "raise" in text:
            raise ZeroDivisionError("a mistake in a stage")
        if "linger" in text:
            time.sleep(0.4)
        if "recurse" in text:
            raise RecursionError
        for _ in range(3 * ("work" in text)):
            until = time.thread_time() + 0.001
            while time.thread_time() < until:
                pass
            checkpoint()
        if "reword" in text:
            yield Proposal(2, "text", "spoil", "no reason", 1, text="Other words.", since=0)
        if "break" in text:
            yield Proposal(1, "text", "spoil", "no reason", 1, text="", since=0)


@pytest.fixture
def spoilt(tmp_path: Path) -> str:
    """A folder with a policy that has such a stage."""
    policy = 'name = "spoilt"\nschedule = "always"\nask = "never"\n[[stages]]\nuse = "{}:Spoil"\n'
    (tmp_path / "spoilt.toml").write_text(policy.format(__name__))
    return str(tmp_path)


@pytest.mark.parametrize("how", ["raise", "recurse"])
async def test_a_mistake_while_planning_sends_the_original_and_says_so(spoilt: str, how: str) -> None:
    model = ScriptedModel("Well.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="spoilt", policies_dir=spoilt) as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        first = await agent.say(f"Now {how}")
        second = await agent.say("Now do nothing")
        assert first.header("x-context-fallback") == "error"
        assert second.header("x-context-fallback") is None
        assert proxy.count("fallbacks_total", reason="error") == 1
        stored = await proxy.rows("SELECT body FROM messages ORDER BY seq")
        assert [json.loads(body)["content"] for (body,) in stored] == [m["content"] for m in agent.messages]
    assert model.received[0].body == json.dumps({"model": "m", "messages": agent.messages[:1]}).encode()


async def test_a_plan_that_the_wire_format_has_no_room_for_is_logged_with_its_reason(
    spoilt: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    model = StrictMessages("Well.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="spoilt", policies_dir=spoilt) as proxy:
        agent = MessagesAgent(proxy, lambda *_: "")
        await agent.work("Hello")
        await agent.work("Now reword")
        assert agent.heard[-1].header("x-context-fallback") == "dialect"
    assert any(
        "the request goes on as it came: the dialect does not allow" in one.getMessage() for one in caplog.records
    )


@pytest.mark.timed
async def test_planning_that_takes_too_long_is_given_up(spoilt: str) -> None:
    model = ScriptedModel("Well.")
    tree: dict[str, Any] = {"policy": "spoilt", "policies_dir": spoilt, "limits": {"plan_ms": 100}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        agent.messages = [{"role": "user", "content": "a" * 300_000}, {"role": "assistant", "content": "Yes."}]
        started = time.monotonic()
        found = await agent.say("Now linger")
        assert time.monotonic() - started < 4 * 0.1
        assert found.header("x-context-fallback") == "timeout"
        assert (await agent.say("Now do nothing")).header("x-context-fallback") is None
        assert len(await proxy.rows("SELECT key FROM messages")) == len(agent.messages)
    assert model.received[0].body == json.dumps({"model": "m", "messages": agent.messages[:3]}).encode()


def hostile(lines: int) -> list[dict[str, Any]]:
    """Ten runs of a shell, each of which brought so many lines that tell of an error: seconds of work a megabyte."""
    made: list[dict[str, Any]] = [{"role": "user", "content": "Mend the build."}]
    for n in range(10):
        inner = {"name": "bash", "arguments": json.dumps({"command": f"make part{n}"})}
        text = "".join(f"error {n} {k}\n" for k in range(lines))
        made.append({"role": "assistant", "tool_calls": [{"id": f"call_{n}", "type": "function", "function": inner}]})
        made.append({"role": "tool", "tool_call_id": f"call_{n}", "content": text})
    return made


@pytest.mark.timed
async def test_what_takes_too_long_to_plan_takes_no_worker_from_the_next_requests() -> None:
    model = ScriptedModel("Well.", "Well.", "Well.")
    tree: dict[str, Any] = {"policy": "thrifty", "limits": {"plan_ms": 1000}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        attackers = [Agent(proxy, (b"x-context-session: a%d" % n,), messages=hostile(60_000)) for n in range(2)]
        for found in await asyncio.gather(*(agent.say() for agent in attackers)):
            assert found.header("x-context-fallback") == "timeout"
        await asyncio.sleep(1)
        other = Agent(proxy, (b"x-context-session: b",))
        assert (await other.say("a word " * 20_000)).header("x-context-fallback") is None
        assert proxy.count("fallbacks_total", reason="timeout") == 2
        assert proxy.count("plans_stopped_total") == 2


async def test_the_plan_of_a_preview_pauses_from_its_beginning_and_that_of_a_request_when_it_has_taken_long(
    spoilt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(plan_timer, "sleep", pause)
    monkeypatch.setattr(plan_timer, "UNDIVIDED_S", 100.0)  # what a slow machine does not take either
    model = ScriptedModel("Now work.", "Done.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="spoilt", policies_dir=spoilt) as proxy:
        agent = Agent(proxy, (b"x-context-session: a",), messages=[{"role": "user", "content": "a" * 300_000}])
        await agent.say("Now work")
        assert pauses == []
        monkeypatch.setattr("proxy.operator.preview.NEXT_MESSAGE_TEXT", "Now work")
        await proxy.get("/api/sessions/a/stats")
        of_preview = len(pauses)
        monkeypatch.setattr(plan_timer, "UNDIVIDED_S", 0.0)
        await agent.say("Now work" + "b" * 300_000)
    assert of_preview >= 3
    assert len(pauses) >= of_preview + 3
    assert min(pauses) > plan_timer.SLICE_S / 3


async def test_a_plan_that_breaks_a_rule_is_thrown_away(spoilt: str) -> None:
    model = ScriptedModel("Well.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="spoilt", policies_dir=spoilt) as proxy:
        agent = Agent(proxy, messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
        found = await agent.say("Now break it")
        assert found.header("x-context-fallback") == "rule W8"
        assert proxy.count("refusals_total", rule="W8") == 1
        assert (await proxy.outcome())[2] == "rule W8"
    assert model.last["messages"] == agent.messages[:3]


async def test_observe_records_a_plan_and_sends_the_original() -> None:
    model = looking()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="observe") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",), stream=True)
        told: list[tuple[int, int]] = []
        await agent.say("Look at all of them")
        for _ in range(60):
            agent.brings(LONG)
            before, _, after = str((await agent.say()).header("x-context-tokens")).partition(", ")
            told.append((int(before), int(after)))
        stored = await proxy.rows("SELECT tokens_before, tokens_after FROM exchanges ORDER BY started_at")
        assert await proxy.rows("SELECT key FROM edits") == []
    assert all(before == after for before, after in told), "nothing was taken out of what went upstream"
    assert [before for before, _ in stored[1:]] == [before for before, _ in told]
    assert any(after < before * 0.8 for before, after in stored), "what it would have saved is on record"
    for n, received in enumerate(model.received):
        sent = {"model": "m", "messages": agent.messages[: 1 + 2 * n], "stream": True}
        assert received.body == json.dumps(sent).encode()


def shortened(body: dict[str, Any]) -> bool:
    """True if a result went out in another form than the client sent it."""
    return any(m["role"] == "tool" and not m["content"].startswith(LONG) for m in body["messages"])


async def works(agent: Agent, until: Callable[[], bool]) -> None:
    """Let the agent work until thrifty has had a reason to make edits."""
    await agent.say("Look at all of them")
    for _ in range(150):
        if until():
            return
        agent.brings(LONG)
        await agent.say()
    raise AssertionError("thrifty made no edit")


def looking() -> ScriptedModel:
    return ScriptedModel(*[make_calls((f"call_{n:09}", "look"), n=n) for n in range(200)])


async def test_new_edits_are_stored_before_they_are_sent() -> None:
    model, store = looking(), FailingStore()
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="thrifty", before=use_store(store)) as proxy,
    ):
        await works(Agent(proxy, (b"x-context-session: a",)), lambda: shortened(model.last))
        exchanges = await proxy.rows("SELECT exchange, count(*) FROM edits GROUP BY exchange")
        counted = sum(proxy.count("edits_total", stage=stage) for stage in ("shorten_results", "refer_repeats"))
        assert counted == sum(n for _, n in exchanges) > 0


@pytest.mark.timed
async def test_a_slow_store_delays_an_answer_by_its_limit_at_most_and_is_told() -> None:
    model, store = ScriptedModel("Well."), FailingStore()
    tree: dict[str, Any] = {"policy": "thrifty", "limits": {"commit_wait_ms": 250}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, before=use_store(store), **tree) as proxy:
        store.hold = True
        whole = await timed(proxy.post(HELLO), at_least=0.25)
        assert whole.header("x-context-persist") == "deferred"
        stream = await timed(proxy.post(HELLO | {"stream": True}), at_least=0.25)
        assert stream.body.endswith(b": persist deferred\n\ndata: [DONE]\n\n")
        assert proxy.count("persist_deferred_total") == 2
        store.release()
        quick = await timed(proxy.post(HELLO))
        assert quick.header("x-context-persist") is None


async def timed(asked: Any, *, at_least: float = 0.0) -> Any:
    started = time.monotonic()
    found = await asked
    assert at_least <= time.monotonic() - started
    assert found.status == 200
    assert found.whole
    return found


async def test_while_the_store_lingers_a_request_goes_out_without_its_new_edits() -> None:
    model, store = looking(), FailingStore()
    tree: dict[str, Any] = {"policy": "thrifty", "limits": {"commit_wait_ms": 20}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree, before=use_store(store)) as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        store.hold = True
        await works(agent, lambda: proxy.count("replans_total", reason="edits_not_stored") > 0)
        assert not shortened(model.last)
        assert (await agent_goes_on(agent)).header("x-context-fallback") == "store"
        store.release()
        assert (await agent_goes_on(agent)).header("x-context-fallback") is None
        assert shortened(model.last)


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
        await agent.say("Two")
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


async def test_what_was_counted_once_is_not_counted_again_though_the_message_was_let_go() -> None:
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


async def test_what_several_begin_with_at_once_is_counted_beside_the_loop_for_each() -> None:
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
