"""Reflection through the running proxy: the question to the model, its withheld block, and the iteration records."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.chat.chain import public_id
from proxy.chat.message import Call, Message
from proxy.context.analysis import call_batches
from proxy.context.injections.reflect import HEADING
from proxy.errors import ConfigError
from proxy.exchange import iteration_records
from proxy.exchange.plan_timer import PlanTimer
from proxy.exchange.turn import Turn
from proxy.notes.call_summaries import QuotedOutcome
from proxy.notes.reflection import IterationReport, add_reflection
from proxy.web.app import create_app
from tests.conversations import Json
from tests.exchange.helper_setup import make_helper_settings
from tests.proxy_server import Agent, RawAnswer, RunningProxy, make_settings, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, make_calls, send_reply

INLINE = b"x-context-reflect: inline"
HELPER = b"x-context-reflect: helper"
TOOLS = {"tools": [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]}
STREAMING = pytest.mark.parametrize("stream", [False, True])


def reflection_block(insight: str, progress: str = "advancing", relevance: str = "medium") -> str:
    """A REFLECTION block as a model writes it."""
    item = {"call": 1, "insights": insight, "learning": "so it goes", "relevance": relevance, "outcome": "failure"}
    value = {"tool_calls": [item], "synthesis": "a step", "progress_assessment": progress}
    return f"\n\n### REFLECTION\n{json.dumps(value)}"


def searching(n: int, text: str = "") -> Json:
    return make_calls((f"c{n}", "search"), text=f"I look for {n}.{text}", query=f"topic {n}")


@asynccontextmanager
async def run_reflective_proxy(*answers: Any, **tree: Any) -> AsyncIterator[tuple[RunningProxy, ScriptedModel]]:
    model = ScriptedModel(*answers)
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="reflective", **tree) as proxy:
        yield proxy, model


async def work(agent: Agent, times: int, *lines: bytes, tool: str = "result") -> list[RawAnswer]:
    """So many rounds: ask, and bring the result of what was called."""
    found = [await agent.say("learn about topics", *lines, **TOOLS)]
    for n in range(times):
        agent.brings(f"{tool} {n} " + "x" * 300)
        found.append(await agent.say(None, *lines, **TOOLS))
    return found


async def records(proxy: RunningProxy) -> list[IterationReport]:
    await proxy.rows("SELECT 1")  # everything is written
    ((tenant, session, branch),) = await proxy.rows("SELECT tenant, session, branch FROM branches")
    found = await proxy.app.store.read_iterations(tenant, session, branch)
    made = [(msgspec.json.decode(row.body, type=IterationReport), row.reflection) for row in found]
    return [add_reflection(one, text) if text is not None else one for one, text in made]


@STREAMING
async def test_c1_iterations_are_recorded_with_the_answer_to_their_results(stream: bool) -> None:
    async with run_reflective_proxy(searching(0), searching(1), "Well.") as (proxy, _):
        agent = Agent(proxy, (b"x-context-session: a",), stream=stream)
        await work(agent, 2)
        agent.messages.append({"role": "user", "content": "thanks"})
        await agent.send(**TOOLS)
        found = await records(proxy)
    assert [one.iteration for one in found] == [1, 2]
    assert [one.mode for one in found] == ["fast", "fast"]
    (call,) = found[1].tool_calls
    assert (call.tool, call.params, call.outcome) == ("search", {"query": "topic 1"}, "success")
    assert call.raw_output == "result 1 " + "x" * 300
    assert call.tool_selection_rationale == "I look for 1."
    assert call.execution_time is not None
    assert 0 < call.execution_time < 5
    assert call.cost.tokens > 20
    assert call.relevance in ("high", "medium", "low")
    assert found[0].timestamp < found[1].timestamp


async def test_c1_effort_makes_it_deep_and_what_the_user_says_before_the_end_is_feedback() -> None:
    async with run_reflective_proxy(searching(0), "Well.") as (proxy, _):
        agent = Agent(proxy, (b"x-context-session: a",))
        await agent.say("learn", **TOOLS)
        agent.brings("result")
        await agent.say("no, the other one", reasoning_effort="high", **TOOLS)
        (found,) = await records(proxy)
    assert (found.mode, found.user_feedback) == ("deep", "no, the other one")


async def test_c1_other_policies_record_nothing() -> None:
    async with run_reflective_proxy(searching(0), "Well.") as (proxy, _):
        await work(Agent(proxy, (b"x-context-policy: thrifty",)), 1)
        assert await proxy.rows("SELECT * FROM iterations") == []


@STREAMING
async def test_c2_inline_the_block_is_asked_for_withheld_stored_and_shown(stream: bool) -> None:
    answers = [
        searching(0),
        *(searching(n, reflection_block(f"insight {n - 1}")) for n in range(1, 8)),
        "Well." + reflection_block("last"),
    ]
    async with run_reflective_proxy(*answers) as (proxy, model):
        agent = Agent(proxy, (b"x-context-session: a",), stream=stream)
        heard = await work(agent, 8, INLINE)
        found = await records(proxy)
        assert proxy.count("reflections_total", outcome="json") == 8
        assert proxy.count("reflection_tokens_total", kind="asked") > 0
        assert proxy.count("reflection_tokens_total", kind="written") > 0
    for one in heard:
        assert b"REFLECTION" not in one.body
        assert b"insight" not in one.body
        assert one.header("x-context-fallback") is None
    assert agent.messages[1]["content"] == "I look for 0."
    assert agent.messages[3]["content"] == "I look for 1."
    assert agent.messages[-1]["content"] == "Well."
    asked = [texts[-1].count("### REFLECTION") for texts in map(model.texts, range(9))]
    assert asked == [0] + [1] * 8
    tail = model.texts()[-1]
    assert "- searched 'topic 0' → insight 0; so it goes" in tail
    assert tail.index("topic 0") < tail.index("topic 1")
    assert not any("result 0 x" in text for text in model.texts() if text)
    assert [one.tool_calls[0].insights for one in found] == [*(f"insight {n}" for n in range(7)), "last"]
    assert {one.tool_calls[0].outcome for one in found} == {"failure"}
    assert {one.progress_assessment for one in found} == {"advancing"}
    assert not [one for one in found if one.reflection]


@STREAMING
async def test_c2_a_reflection_that_does_not_parse_is_stored_as_text_and_the_result_decides(stream: bool) -> None:
    odd = "\n\n### REFLECTION\nI did {splendidly}."
    async with run_reflective_proxy(searching(0), *(searching(n, odd) for n in range(1, 7)), "Well.") as (proxy, model):
        heard = await work(Agent(proxy, (b"x-context-session: a",), stream=stream), 7, INLINE)
        found = await records(proxy)
        assert proxy.count("reflections_total", outcome="text") == 6
        assert proxy.count("reflections_total", outcome="missing") == 1
    assert not any(b"splendidly" in one.body for one in heard)
    assert found[0].reflection == "I did {splendidly}."
    assert found[0].progress_assessment is None
    assert found[0].tool_calls[0].insights == ""
    assert "- searched 'topic 0' → result 0 xxx" in model.texts()[-1]
    assert "splendidly" not in model.texts()[-1]


@STREAMING
async def test_c2_a_block_that_was_not_asked_for_is_the_clients(stream: bool) -> None:
    async with run_reflective_proxy("Well." + reflection_block("x")) as (proxy, _):
        heard = await Agent(proxy, stream=stream).say("write about reflection")
    assert heard.message["content"] == "Well." + reflection_block("x")


@STREAMING
async def test_c2_state_and_reflection_are_asked_for_and_withheld_together(stream: bool, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "config/policies/reflective.toml").read_text()
    (tmp_path / "both.toml").write_text(text.replace('"never"', '"always"').replace('"reflective"', '"both"'))
    answer = "Well.\n\n### STATE\nGoal: more topics\nContext: none" + reflection_block("insight")
    model = ScriptedModel(searching(0), answer, "Done.")
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="both", policies_dir=str(tmp_path)) as proxy,
    ):
        agent = Agent(proxy, (b"x-context-session: a", INLINE), stream=stream)
        await work(agent, 1)
        assert agent.messages[-1]["content"] == "Well."
        ((stored,),) = await proxy.rows("SELECT text FROM states")
        assert stored == b"Goal: more topics\nContext: none"
        assert (await records(proxy))[0].tool_calls[0].insights == "insight"


async def test_c2_nothing_is_taken_from_an_answer_to_the_original() -> None:
    """The upstream refused our prompt: what it says to the client's own is all the client's."""

    async def refuse(request: Any, there: Any) -> None:
        await send_reply(there, b"400 Bad Request", b'{"error": {"message": "no"}}', b"content-type: application/json")

    async with run_reflective_proxy(searching(0), refuse, "Well." + reflection_block("x")) as (proxy, _):
        heard = await work(Agent(proxy, (b"x-context-session: a",)), 1, INLINE)
    assert heard[-1].header("x-context-fallback") == "upstream_reject"
    assert heard[-1].message["content"] == "Well." + reflection_block("x")


async def test_c2_a_reflection_outlives_a_restart(tmp_path: Path) -> None:
    db = str(tmp_path / "db" / "store.sqlite3")
    answers = [searching(0), *(searching(n, reflection_block(f"insight {n - 1}")) for n in range(1, 6)), "Well."]
    async with run_reflective_proxy(*answers, db=db) as (proxy, _):
        agent = Agent(proxy, (b"x-context-session: a",))
        await work(agent, 6, INLINE)
    async with run_reflective_proxy("Again.", db=db) as (proxy, model):
        agent.proxy = proxy
        await agent.say("and now?")
    assert "→ insight 0; so it goes" in model.texts()[-1]


@asynccontextmanager
async def run_proxy_with_helper(
    tmp_path: Path, helper: ScriptedModel, *answers: Any, **limits: Any
) -> AsyncIterator[Any]:
    """A proxy whose helper reflects."""
    model = ScriptedModel(*answers)
    async with run_upstream(model) as upstream, run_upstream(helper) as beside:
        tree = make_helper_settings(tmp_path, upstream.port, beside.port, {"timeout_s": 5.0, **limits})
        async with run_proxy(0, **{**tree, "policy": "reflective"}) as proxy:
            yield proxy, model


@STREAMING
async def test_c2_the_helper_reflects_and_the_next_request_waits_for_it(stream: bool, tmp_path: Path) -> None:
    helper = ScriptedModel(reflection_block("of the helper", relevance="high").partition("\n### REFLECTION\n")[2])
    answers = [*(searching(n) for n in range(7)), "Well."]
    async with run_proxy_with_helper(tmp_path, helper, *answers, wait_ms=2000) as (proxy, model):
        heard = await work(Agent(proxy, (b"x-context-session: a",), stream=stream), 7, HELPER)
        found = await records(proxy)
        assert proxy.count("helper_tokens_total", kind="reflection") > 0
        assert proxy.count("reflection_tokens_total", kind="asked") == 0
    assert "- searched 'topic 0' → of the helper; so it goes" in model.texts()[-1]
    assert "REFLECTION" not in json.dumps(model.chats)
    assert not any(b"of the helper" in one.body for one in heard)
    assert found[0].tool_calls[0].insights == "of the helper"
    assert "The goal: learn about topics" in helper.texts(0)[-1]


async def test_c2_a_helper_that_is_of_no_use_is_done_without(tmp_path: Path) -> None:
    answers = [*(searching(n) for n in range(7)), "Well."]
    async with run_proxy_with_helper(tmp_path, ScriptedModel("no JSON"), *answers, wait_ms=500) as (proxy, model):
        await work(Agent(proxy, (b"x-context-session: a",)), 7, HELPER)
        found = await records(proxy)
    assert "- searched 'topic 0' → result 0 xxx" in model.texts()[-1]
    assert found[0].reflection == "no JSON"


@STREAMING
async def test_c3_with_reflection_off_older_results_are_listed_in_a_line(stream: bool) -> None:
    async with run_reflective_proxy(*(searching(n) for n in range(7)), "Well.") as (proxy, model):
        await work(Agent(proxy, (b"x-context-session: a",), stream=stream), 7)
    tail = model.texts()[-1]
    assert tail.count("- searched") == 2
    assert HEADING in tail
    assert "- searched 'topic 1' → result 1 xxx" in tail
    assert next(text for text in model.texts() if text and text.startswith("result")).startswith("result 2")


@STREAMING
async def test_c4_three_stuck_iterations_bring_the_recovery_prompt(stream: bool) -> None:
    answers = [searching(0), *(searching(n, reflection_block("no luck", "stuck")) for n in range(1, 5)), "Well."]
    async with run_reflective_proxy(*answers) as (proxy, model):
        await work(Agent(proxy, (b"x-context-session: a",), stream=stream), 5, INLINE)
    told = ["[RECOVERY: by your own assessment the last 3" in model.texts(n)[-1] for n in range(6)]
    assert told == [False, False, False, False, True, False]


@STREAMING
async def test_c4_with_reflection_off_loops_are_warned_of(stream: bool) -> None:
    same = [make_calls((f"c{n}", "search"), query="x") for n in range(4)]
    async with run_reflective_proxy(*same, "Well.") as (proxy, model):
        agent = Agent(proxy, (b"x-context-session: a",), stream=stream)
        await agent.say("learn", **TOOLS)
        for _ in range(3):
            agent.brings("nothing new")
            await agent.say(None, **TOOLS)
    assert "[LOOP: search was called 3 times" in model.texts()[-1]


@STREAMING
async def test_c5_low_stakes_calls_are_recorded_but_not_reflected_on(stream: bool) -> None:
    think = make_calls(("c0", "think"), thought="hm")
    async with run_reflective_proxy(think, "Well.") as (proxy, model):
        agent = Agent(proxy, (b"x-context-session: a",), stream=stream)
        await work(agent, 1, INLINE)
        (found,) = await records(proxy)
        assert proxy.count("reflection_tokens_total", kind="asked") == 0
    assert "REFLECTION" not in (model.texts()[-1] or "")
    assert (found.tool_calls[0].tool, found.tool_calls[0].reflected) == ("think", 0)


async def test_c5_a_batch_is_reflected_on_at_once_and_its_records_know_it(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "config/policies/reflective.toml").read_text()
    (tmp_path / "few.toml").write_text(
        text.replace("reflect_batch = 1", "reflect_batch = 2").replace('"reflective"', '"few"')
    )
    items = [{"call": n, "insights": f"insight {n}"} for n in (1, 2)]
    block = "\n\n### REFLECTION\n" + json.dumps({"tool_calls": items})
    model = ScriptedModel(searching(0), searching(1), "Well." + block)
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="few", policies_dir=str(tmp_path)) as proxy,
    ):
        await work(Agent(proxy, (b"x-context-session: a",)), 2, INLINE)
        found = await records(proxy)
    assert "REFLECTION" not in model.texts(1)[-1]
    assert "[2] searched 'topic 1'" in model.texts(2)[-1]
    assert [one.tool_calls[0].insights for one in found] == ["insight 1", "insight 2"]
    assert [one.tool_calls[0].execution_time is not None for one in found] == [True, True]


async def test_a_fault_in_recording_is_counted_and_the_answer_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(turn: Turn, injection: object) -> list[object]:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(iteration_records, "_make_record_rows", broken)
    async with run_reflective_proxy(searching(0), "Well.") as (proxy, _):
        heard = await work(Agent(proxy), 1)
        assert proxy.count("internal_errors_total", where="reflection") >= 1
    assert heard[-1].message["content"] == "Well."


async def test_a_result_that_a_worker_could_not_read_in_time_is_not_read_on_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A result of 4 MB of line ends was, with the policy `reflective`: it held every other request for 23 s."""
    threads = set()
    read, start = call_batches.read_call_outcome, PlanTimer.start

    def noting(call: Call, result: Message) -> QuotedOutcome:
        threads.add(threading.current_thread())
        return read(call, result)

    def start_late(timer: PlanTimer) -> None:
        time.sleep(0.1)  # longer than plan_ms, however fast the machine is
        start(timer)

    monkeypatch.setattr(call_batches, "read_call_outcome", noting)
    monkeypatch.setattr(PlanTimer, "start", start_late)
    async with run_reflective_proxy(searching(0), "Well.", limits={"plan_ms": 20}) as (proxy, _):
        agent = Agent(proxy, (b"x-context-session: a",))
        await agent.say("learn about topics", **TOOLS)
        agent.brings("Error: exit code 1\n" * 100_000)
        answer = await agent.say(None, **TOOLS)
        assert (answer.status, answer.header("x-context-fallback")) == (200, "timeout")
    assert threading.main_thread() not in threads


async def test_c1_feedback_of_the_user_goes_into_the_record_of_the_iteration_that_it_came_after() -> None:
    async with run_reflective_proxy(searching(0), searching(1), "Well.") as (proxy, _):
        agent = Agent(proxy, (b"x-context-session: a",))
        await work(agent, 1)
        await proxy.rows("SELECT 1")
        ((tenant, session, branch),) = await proxy.rows("SELECT tenant, session, branch FROM branches")
        place, parts = (tenant, session, branch), proxy.app.services
        await iteration_records.store_feedback(parts, place, "  not that topic  ")
        agent.brings("result 1")
        await agent.say(None, **TOOLS)
        await iteration_records.store_feedback(parts, place, "better")
        agent.messages.append({"role": "user", "content": "thanks"})
        await agent.say(None, **TOOLS)
        await iteration_records.store_feedback(parts, place, "go on like this")
        first, second = await iteration_records.read_iterations(proxy.app.store, place)
        assert first.user_feedback == "not that topic"
        assert second.user_feedback.splitlines()[-2:] == ["better", "go on like this"]
        with pytest.raises(ValueError, match="without a text"):
            await iteration_records.store_feedback(parts, place, "  ")


async def test_c3_a_model_may_have_settings_of_its_own(tmp_path: Path) -> None:
    """`[models."NAME".reflective]` changes what the stage and the injection do for that model alone."""
    models = tmp_path / "models"
    models.write_text("[models.m.reflective]\nrecent = 1\ntokens = 60\n")
    answers = [searching(n) for n in range(5)]
    for name, whole in (("m", 1), ("other", 5)):
        async with run_reflective_proxy(*answers, "Well.", models_file=str(models)) as (proxy, model):
            await work(Agent(proxy, (b"x-context-session: a",), more={"model": name}), 5)
        texts = [t or "" for t in model.texts()]
        assert sum(t.startswith("result ") for t in texts) == whole
        assert (HEADING in texts[-1]) is (whole == 1)
        if whole == 1:
            assert 1 <= texts[-1].count("- searched") <= 2, "as many lines as 60 tokens have room for"


async def test_c3_a_models_table_with_a_setting_that_nothing_has_stops_the_start(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.write_text("[models.m.reflective]\nrecents = 1\n")
    with pytest.raises(ConfigError, match=r"reflective\.recents"):
        create_app(make_settings(1, policy="reflective", models_file=str(models)))


@pytest.mark.parametrize("place", ["tail", "result"])
async def test_c3_each_line_ends_with_the_id_that_recall_takes(tmp_path: Path, place: str) -> None:
    shipped = (Path(__file__).parents[2] / "config/policies/reflective.toml").read_text()
    text = shipped.replace('name = "reflective"', 'name = "mine"').replace('place = "tail"', f'place = "{place}"')
    (tmp_path / "mine.toml").write_text(text)
    model = ScriptedModel(*[searching(n) for n in range(8)])
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="mine", policies_dir=str(tmp_path)) as proxy,
    ):
        agent = Agent(proxy, (b"x-context-session: a",))
        await work(agent, 7)
        lines = [line for t in model.texts() for line in (t or "").splitlines() if " → " in line]
        assert len(lines) == 2
        stored = await proxy.rows("SELECT key, body FROM messages WHERE role = 'tool' ORDER BY seq")
        for line, (chain_key, body) in zip(lines, stored, strict=False):
            name = line.rpartition("; id ")[2]
            assert name == public_id(chain_key)
            model.answers[:0] = [make_calls(("call_r", "recall"), id=name), "Well."]
            await agent.say("again", **TOOLS)
            shown = [m["content"] for m in model.last["messages"] if m.get("tool_call_id") == "call_r"][-1]
            assert json.loads(body)["content"] in shown
        del agent.messages[-2:]
        bare = {"messages": agent.messages, "model": "m"}
        await proxy.post(bare, b"x-context-session: b")
        assert "; id " not in str(model.texts()), "no tools, no recall"
