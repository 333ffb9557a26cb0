from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from proxy.chat.message import checkpoint
from proxy.context.plan import Proposal
from proxy.context.stage import Stage, When
from proxy.context.view import View
from proxy.exchange import plan_request, plan_timer
from tests.dialect_agents import MessagesAgent
from tests.exchange.long_results import LONG, has_short_result, make_looking_model, work_until
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel
from tests.strict_messages import StrictMessages

HELLO = {"model": "m", "messages": [{"role": "system", "content": "Be."}, {"role": "user", "content": "Hello"}]}


THREADS: list[str] = []
"""The threads in which the stage below has worked."""
WORK_S = 0.005
"""Seconds that it works between two checkpoints: twice as much is more than a plan needs to come to it under load."""


@dataclass(frozen=True, slots=True)
class Spoil(Stage):
    """A stage of a user's own that does what it must not, when the last message says so."""

    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        """Raises, lingers, works, leaves half a step out, or nothing."""
        text = view.messages[-1].text
        THREADS.append(threading.current_thread().name)
        if "raise" in text:
            raise ZeroDivisionError("a mistake in a stage")
        if "linger" in text:
            time.sleep(0.4)
        if "recurse" in text:
            raise RecursionError
        for _ in range(3 * ("work" in text)):
            until = time.thread_time() + WORK_S
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
        "the request goes on as received: the dialect does not allow" in one.getMessage() for one in caplog.records
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


async def test_a_plan_that_would_hold_the_loop_is_made_again_in_a_worker_thread(
    spoilt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_request, "MAX_LOOP_S", 2 * WORK_S)
    model = ScriptedModel("Well.")
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="spoilt", policies_dir=spoilt) as proxy,
    ):
        agent = Agent(proxy, (b"x-context-session: a",))
        await agent.say("Do nothing")
        THREADS.clear()
        found = await agent.say("Now work" + " on" * plan_request.MAX_UNCHECKED_BYTES)
        assert found.header("x-context-fallback") is None
        on_loop, in_thread = THREADS
        assert on_loop != in_thread
        THREADS.clear()
        await agent.say("Now work")  # a short one holds the loop
        assert [on_loop] == THREADS


async def test_a_plan_that_takes_too_long_repeats_the_edits_of_earlier_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_looking_model()
    tree: dict[str, Any] = {"policy": "thrifty", "limits": {"plan_ms": 300}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        await work_until(agent, lambda: has_short_result(model.last))
        before = model.last["messages"]

        start, late = plan_timer.PlanTimer.start, [0.6]  # seconds by which the first plan begins too late

        def start_late(timer: plan_timer.PlanTimer) -> None:
            time.sleep(late.pop() if late else 0)
            start(timer)

        monkeypatch.setattr(plan_timer.PlanTimer, "start", start_late)
        agent.brings(LONG + "x" * plan_request.MAX_NEW_BYTES)  # planned in a worker thread
        found = await agent.say()
        assert found.header("x-context-fallback") == "timeout"
        assert model.last["messages"][: len(before)] == before
        assert model.last["messages"][-1]["content"] == agent.messages[-2]["content"]
        assert proxy.count("fallbacks_total", reason="timeout") == 1
        assert (await proxy.outcome())[2] == "timeout"
        sent_while_late = model.last["messages"]
        agent.brings("ok")
        assert (await agent.say()).header("x-context-fallback") is None
        assert model.last["messages"][: len(sent_while_late)] == sent_while_late


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
    model = make_looking_model()
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
