"""The policy `hierarchical` through the running proxy: the prompt that reaches the upstream, also after a restart."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from proxy.cli import prompt as cli_prompt
from proxy.context import validate
from proxy.context.models import Model
from proxy.dialects.completions.request import read_request
from proxy.errors import ConfigError
from proxy.exchange.rebuild_prompt import rebuild_prompt
from proxy.settings.load import find_shipped_file
from proxy.web.app import ContextProxy
from tests.dialect_agents import MessagesAgent, ResponsesAgent
from tests.exchange.helper_setup import make_helper_settings, wait_for_helper
from tests.gemini_agent import GeminiAgent
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import ScriptedModel, make_calls, send_reply
from tests.stores import count_rows
from tests.strict_gemini import StrictGemini
from tests.strict_messages import StrictMessages
from tests.strict_responses import StrictResponses

SCHEDULES = pytest.mark.parametrize("schedule", ["always", "over_budget", "when_it_pays"])
STREAMS = pytest.mark.parametrize("stream", [False, True])
LOG = "\n".join(f"line {n}: plain words of a log that nobody reads twice" for n in range(40))
"""Some 480 tokens."""
NAMED = (b"x-context-session: a",)


@dataclass
class Clock:
    """Time that moves when it is told to."""

    at: float = 1_000_000.0

    def __call__(self) -> float:
        self.at += 0.001
        return self.at


@asynccontextmanager
async def serving(
    folder: Path,
    model: ScriptedModel,
    clock: Clock,
    *,
    schedule: str = "always",
    window: int | None = None,
    **fields: Any,
) -> AsyncIterator[RunningProxy]:
    """The proxy with `hierarchical` as it is shipped, its schedule and some settings of its levels changed."""
    text = find_shipped_file("policies/hierarchical.toml").read_text().replace('name = "hierarchical"', 'name = "mine"')
    lines = [line for line in text.splitlines() if line.partition(" = ")[0] not in fields]
    at = lines.index('use = "compress_levels"') + 1
    lines[at:at] = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]
    (folder / "mine.toml").write_text("\n".join(lines).replace('"always"', f'"{schedule}"'))
    models = folder / "models"
    models.write_text(f"[models.m]\nwindow = {window}\n" if window else "[models.x]\n")

    def set_clock(app: ContextProxy) -> None:
        app.services.now = clock

    tree: dict[str, Any] = {"policies_dir": str(folder), "models_file": str(models), "policy": "mine"}
    tree["db"] = str(folder / "store.sqlite3")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, before=set_clock, **tree) as proxy:
        yield proxy


def scripted(rounds: int) -> ScriptedModel:
    """Calls one tool after the other, then answers, for ever."""
    answers: list[Any] = [make_calls((f"call_{n}", "read"), n=n) for n in range(rounds)]
    return ScriptedModel(*answers, "All done.")


async def work(agent: Agent, prompt: str, rounds: int, text: str = LOG) -> None:
    """One prompt with so many rounds of tool calls."""
    await agent.say(prompt)
    for n in range(rounds):
        agent.brings(f"result {n} of {prompt}\n{text}")
        await agent.say()


def valid(body: dict[str, Any]) -> None:
    sent = read_request(json.dumps(body).encode()).messages
    validate.check([validate.PlannedMessage(m, m.text, bool(m.calls)) for m in sent], sent, Model())
    assert not validate._find_violations([validate.PlannedMessage(m, m.text, bool(m.calls)) for m in sent], Model())


@STREAMS
async def test_e1_age_decides_by_when_a_message_was_first_stored_and_outlives_a_restart(
    tmp_path: Path, stream: bool
) -> None:
    model, clock = scripted(3), Clock()
    async with serving(tmp_path, model, clock, recent=1) as proxy:
        agent = Agent(proxy, NAMED, stream=stream)
        await work(agent, "look around", 3)
        assert LOG in model.texts()[2]
        clock.at += 200
        await agent.say("go on")
        assert LOG in model.texts()[2]
    clock.at += 150
    async with serving(tmp_path, model, clock, recent=1) as proxy:
        agent.proxy = proxy
        await agent.say("next")
        assert LOG not in " ".join(t or "" for t in model.texts())
        assert any((t or "").startswith("[summary of 6 messages, ") for t in model.texts())
        valid(model.last)


@SCHEDULES
@STREAMS
async def test_e4_every_schedule_sends_what_strict_upstreams_accept(
    tmp_path: Path, schedule: str, stream: bool
) -> None:
    model, clock = scripted(25), Clock()
    fields: dict[str, Any] = {"total": 4000, "session": 800, "working": 2000, "recent": 2, "block": 4}
    async with serving(tmp_path, model, clock, schedule=schedule, window=6000, **fields) as proxy:
        agent = Agent(proxy, NAMED, stream=stream)
        await work(agent, "look around", 25)
        await agent.say("Next task: write the summary of it")
        for body in model.chats:
            valid(body)
        assert {f for *_, f in await proxy.outcomes()} == {None}
        ((before, after),) = await proxy.rows(
            "SELECT tokens_before, tokens_after FROM exchanges ORDER BY started_at DESC LIMIT 1"
        )
        assert after < before / 2


async def failing(_: RawRequest, connection: Connection) -> None:
    await send_reply(connection, b"500 No", b"no")


@pytest.mark.parametrize("answer", ["Six runs of the log; nothing was found.", "", "x" * 9000, failing])
async def test_e4_a_helpers_summary_takes_the_place_of_the_extract_where_it_is_any_good(
    tmp_path: Path, answer: Any
) -> None:
    model, helper, clock = scripted(6), ScriptedModel(answer), Clock()

    def set_clock(app: ContextProxy) -> None:
        app.services.now = clock

    async with run_upstream(model) as upstream, run_upstream(helper) as beside:
        tree = make_helper_settings(tmp_path, upstream.port, beside.port, {"timeout_s": 2.0}) | {
            "policy": "hierarchical"
        }
        async with run_proxy(0, before=set_clock, **tree) as proxy:
            agent = Agent(proxy, NAMED)
            await work(agent, "look around", 6)
            clock.at += 400
            for _ in range(2):
                await agent.say("go on")
                await wait_for_helper(proxy)
            (text,) = [t for t in model.texts() if (t or "").startswith("[summary of ")]
            good = isinstance(answer, str) and 0 < len(answer) < 1000
            assert (text.partition("\n")[2] == answer) == good
            assert ("read({" in text) != good
            assert len(helper.chats) >= 1
            assert "preserving: key decisions, action items, errors" in str(helper.chats[0]["messages"])
            assert {f for *_, f in await proxy.outcomes()} == {None}


async def test_e1_e2_levels_and_volatile_through_the_proxy(tmp_path: Path) -> None:
    model, clock = ScriptedModel(make_calls(("call_1", "grep")), make_calls(("call_2", "read")), "Done."), Clock()
    async with serving(tmp_path, model, clock, total=2000, recent=1) as proxy:
        agent = Agent(proxy, NAMED)
        agent.messages.append({"role": "system", "content": "Always be brief."})
        await agent.say("find the parser")
        agent.brings(LOG + LOG)
        await agent.say()
        agent.brings(LOG + LOG)
        await agent.say()
        roles = [m["role"] for m in model.last["messages"]]
        assert roles == ["system", "user", "assistant", "tool"]  # the search was volatile
        assert model.last["messages"][2]["tool_calls"][0]["function"]["name"] == "read"


async def test_e5_a_past_topic_comes_back_at_the_tail_with_its_source(tmp_path: Path) -> None:
    model, clock = scripted(1), Clock()
    async with serving(tmp_path, model, clock, recent=1, total=3000) as proxy:
        agent = Agent(proxy, NAMED)
        await work(agent, "read the zebra protocol", 1, "the zebra handshake uses port 4711\n" + LOG)
        clock.at += 3000
        await agent.say("Next task: compare gardens with tulips and roses")
        assert "4711" not in model.texts()[-1]
        await agent.say("which port has the zebra handshake")
        last = model.last["messages"][-1]
        assert last["role"] == "user"
        assert last["content"].startswith("which port has the zebra handshake\n\n[retrieved, message ")
        assert "> the zebra handshake uses port 4711" in last["content"]
        await agent.say("continue")
        assert model.texts()[-1] == "continue"
        assert proxy.count("retrieved_items_total") >= 1


async def test_e6_text_that_the_client_dropped_is_found_only_in_its_own_session(tmp_path: Path) -> None:
    model, clock = ScriptedModel("Noted."), Clock()
    async with serving(tmp_path, model, clock) as proxy:
        agent = Agent(proxy, NAMED)
        await agent.say("the zebra handshake uses port 4711")
        other = Agent(proxy, (b"x-context-session: b",))
        await other.say("the zebra password is hunter2")
        assert await proxy.rows("SELECT count(*) FROM indexed WHERE session = 'b'") == [(0,)]
        agent.messages = []  # the client begins anew under the same name
        await agent.say("tell me the port of the zebra handshake")
        assert "> the zebra handshake uses port 4711" in model.texts()[-1]
        assert "hunter2" not in model.texts()[-1]
        nameless = Agent(proxy)
        await nameless.say("tell me the port of the zebra handshake")
        assert model.texts() == ["tell me the port of the zebra handshake"]


async def test_e6_policies_that_do_not_search_leave_the_index_empty() -> None:
    async with run_upstream(ScriptedModel("ok")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = Agent(proxy, NAMED)
        await agent.say("the zebra handshake uses port 4711")
        await agent.say("which port?")
        assert (await count_rows(proxy.app.store))["indexed"] == 0


@pytest.mark.parametrize("by", ["header", "mark"])
async def test_e7_a_pin_keeps_a_message_whole_and_outlives_a_restart(tmp_path: Path, by: str) -> None:
    model, clock = ScriptedModel("Fine. " * 80), Clock()
    long = "remember the rule of the house: " + "no shoes inside, " * 60
    pinned = ("[pin] " if by == "mark" else "") + long
    async with serving(tmp_path, model, clock) as proxy:
        agent = Agent(proxy, NAMED)
        await agent.say("hello")
        await agent.say(pinned, *((b"x-context-pin: true",) if by == "header" else ()))
        await agent.say(long + " again")
    clock.at += 4000
    async with serving(tmp_path, model, clock) as proxy:
        agent.proxy = proxy
        await agent.say("now")
        texts = model.texts()
        assert texts[2] == pinned
        assert texts[4] != long + " again"  # the same without a pin
        clock.at += 4000
        await agent.say("and now")
        assert model.texts()[2] == pinned
        if by == "header":
            assert await proxy.rows("SELECT action, stage FROM edits WHERE action = 'pin'") == [("pin", "pin")]


async def test_e7_a_fork_keeps_the_pins_of_what_it_shares(tmp_path: Path) -> None:
    model, clock = ScriptedModel("Fine. " * 80), Clock()
    long = "a long word of the user, " * 60
    async with serving(tmp_path, model, clock) as proxy:
        agent = Agent(proxy, NAMED)
        await agent.say("hello")
        await agent.say(long, b"x-context-pin: true")
        shared = list(agent.messages)
        await agent.say("one way")
        agent.messages = [*shared]
        await agent.say("another way")
    clock.at += 4000
    async with serving(tmp_path, model, clock) as proxy:
        agent.proxy = proxy
        await agent.say("on")
        assert model.texts()[2] == long
        branches = await proxy.rows("SELECT DISTINCT branch FROM edits WHERE action = 'pin'")
        assert len(branches) == 2


async def test_e9_compression_is_measured_per_event_and_in_the_metrics(tmp_path: Path) -> None:
    model, clock = scripted(3), Clock()
    async with serving(tmp_path, model, clock, recent=1) as proxy:
        agent = Agent(proxy, NAMED)
        await work(agent, "look around", 3)
        clock.at += 400
        await agent.say("go on")
        before, after = (proxy.count("compressed_tokens_total", kind=kind) for kind in ("before", "after"))
        assert before > 2 * after > 0
        assert proxy.count("compression_ratio_count") == 1
        assert proxy.count("level_tokens_count", level="session") == 5
        assert proxy.count("level_tokens_sum", level="permanent") > 0
        ((stored_before, stored_after),) = await proxy.rows(
            "SELECT sum(before), sum(after) FROM edits WHERE stage = 'compress_levels' GROUP BY exchange"
        )
        assert (stored_before, stored_after) == (before, after)
        # What went out is rebuilt byte for byte, pins and searches or not.
        body = json.loads(await _rebuilt(proxy))
        assert body == model.last


async def _rebuilt(proxy: RunningProxy) -> bytes:
    ((tenant, session, exchange),) = await proxy.rows(
        "SELECT tenant, session, exchange FROM exchanges ORDER BY started_at DESC LIMIT 1"
    )
    found = await rebuild_prompt(proxy.app.store, tenant, session, exchange)
    assert found is not None
    return found.sent_body


@STREAMS
async def test_e1_e9_a_conversation_of_one_prompt_ages_after_a_system_prompt_too(tmp_path: Path, stream: bool) -> None:
    model, clock = scripted(9), Clock()
    async with serving(tmp_path, model, clock, working_s=1, session_s=600, recent=1, block=2) as proxy:
        agent = Agent(proxy, NAMED, stream=stream)
        agent.messages.append({"role": "system", "content": "Be brief."})
        await work(agent, "look around", 6)
        assert LOG in str(model.texts()[3])
        clock.at += 400
        agent.brings(f"result 6\n{LOG}")
        await agent.say()
        assert sum(LOG in (t or "") for t in model.texts()) < 4
        assert any((t or "").startswith("[summary of 4 messages, ") for t in model.texts())
        clock.at += 400
        async with asyncio.timeout(30):  # the process is idle: what is due is compressed ahead
            while not proxy.count("idle_compressions_total", outcome="planned"):
                await asyncio.sleep(0.05)


async def test_e2_alike_tasks_are_summarised_once_each_is_answered(tmp_path: Path) -> None:
    answers: list[Any] = []
    for n in range(8):
        answers += [*(make_calls((f"call_{n}_{k}", "read"), n=n, k=k) for k in range(4)), f"File {n} is fine."]
    model, clock = ScriptedModel(*answers), Clock()
    async with serving(tmp_path, model, clock) as proxy:
        agent = Agent(proxy, NAMED)
        for n in range(8):
            await work(agent, f"check the configuration file number {n}", 4)
        texts = [t or "" for t in model.texts()]
        assert sum(t.startswith("[summary of ") for t in texts) == 7
        assert sum(LOG in t for t in texts) <= 4
        valid(model.last)


@pytest.mark.parametrize("helped", [False, True])
async def test_e2_e4_no_exchange_of_plain_chat_leaves_without_a_summary(tmp_path: Path, helped: bool) -> None:
    told = "They spoke of a garden."
    model, helper, clock = ScriptedModel("The answer has many words about gardens. " * 60), ScriptedModel(told), Clock()

    def set_clock(app: ContextProxy) -> None:
        app.services.now = clock

    async with run_upstream(model) as upstream, run_upstream(helper) as beside:
        tree = make_helper_settings(tmp_path, upstream.port, beside.port, {"timeout_s": 2.0}) | {
            "policy": "hierarchical"
        }
        tree = tree if helped else {"policy": "hierarchical"}
        async with run_proxy(0 if helped else upstream.port, before=set_clock, **tree) as proxy:
            agent = Agent(proxy, NAMED)
            for n in range(40):
                await agent.say(f"question {n}: " + "what of the garden, and why? " * 40)
                if helped:
                    await wait_for_helper(proxy)
            sent = [m["content"] for m in model.last["messages"]]
            whole = {n for n in range(40) if any(t.startswith(f"question {n}:") for t in sent)}
            stood = [t for t in sent if t.startswith("[summary of ")]
            assert len(whole) < 40, "something has left"
            counted = sum(int(t.split()[2]) for t in stood)
            assert counted == 2 * (40 - len(whole)), "all that left is told of"
            assert any(told in t for t in stood) == helped
            assert {f for *_, f in await proxy.outcomes()} == {None}
            valid(model.last)


@STREAMS
@pytest.mark.parametrize("dialect", ["messages", "responses", "gemini"])
async def test_e4_answers_are_never_changed_so_every_wire_format_has_room_for_the_plan(
    dialect: str, stream: bool
) -> None:
    text = "The answer has many words about gardens. " * 60
    made: dict[str, tuple[Any, Any]] = {
        "messages": (StrictMessages(text), MessagesAgent),
        "responses": (StrictResponses(text), ResponsesAgent),
        "gemini": (StrictGemini(text), GeminiAgent),
    }
    model, make_agent = made[dialect]
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="hierarchical") as proxy:
        agent = make_agent(proxy, lambda *_: "", stream=("events" if dialect == "gemini" else True) if stream else "")
        agent.more = {"model": "gpt-5", "include": []} if dialect == "responses" else {}  # no reasoning is bound
        for n in range(20):
            await agent.work(f"question {n}: " + "what of the garden, and why? " * 40)
        assert {found for *_, found in await proxy.outcomes()} == {None}
        last = agent.heard[-1].header("x-context-tokens") or ""
    before, after = (int(part) for part in last.split(", "))
    assert after < 0.9 * before, "something has left"


@pytest.mark.parametrize(("total", "of"), [(5000, ""), (1200, ", the highest of its block")])
async def test_e3_where_priority_chose_the_why_says_it_in_the_api_and_on_the_command_line(
    tmp_path: Path, total: int, of: str
) -> None:
    model, clock = scripted(12), Clock()
    async with serving(tmp_path, model, clock, total=total, recent=1, block=3) as proxy:
        agent = Agent(proxy, NAMED)
        await agent.say("look around")
        for n in range(12):
            clock.at += 5
            agent.brings(f"result {n}\n{LOG}")
            await agent.say()
        ((last,),) = await proxy.rows("SELECT exchange FROM exchanges ORDER BY started_at DESC LIMIT 1")
        shown = (await proxy.get(f"/api/sessions/a/exchanges/{last}/prompt")).json()
        reasons = [m["why"]["reason"] for m in shown["messages"] if m.get("why")]
        by_priority = [found for r in reasons if (found := re.fullmatch(r"priority (\d+) of 100(.*?): .* is full", r))]
        assert len(by_priority) == len(reasons) > 3, reasons
        assert of in {found[2] for found in by_priority}
        assert all(0 <= int(found[1]) <= 100 for found in by_priority)
        told = cli_prompt.render_prompt(shown).plain
        assert all(reason in told for reason in reasons)


async def test_e3_e4_weights_are_settings_of_the_policy_and_checked_at_the_start(tmp_path: Path) -> None:
    model, clock = scripted(12), Clock()
    weights: dict[str, Any] = {"recency": 0, "references": 0, "relevance": 0, "mark": 1}
    async with serving(tmp_path, model, clock, total=5000, recent=1, **weights) as proxy:
        await work(Agent(proxy, NAMED), "look around", 12)
        reasons = {reason for (reason,) in await proxy.rows("SELECT reason FROM edits")}
    assert reasons == {"priority 0 of 100: the prompt is full"}
    for wrong in ({"mark": 0}, {"recency": -1}):
        with pytest.raises(ConfigError, match=r"stages\.compress_levels\.recency"):
            async with serving(tmp_path, model, clock, **{**weights, **wrong}):
                pass


async def test_e3_a_priority_that_sinks_with_time_makes_no_new_edit(tmp_path: Path) -> None:
    model, clock = scripted(12), Clock()
    async with serving(tmp_path, model, clock, total=4000, recent=1, working_s=9000) as proxy:
        agent = Agent(proxy, NAMED)
        await work(agent, "look around", 12)
        stored = await proxy.rows("SELECT count(*) FROM edits")
        assert stored[0][0] > 0
        for _ in range(3):
            clock.at += 100
            await agent.say("go on")
        edits = await proxy.rows("SELECT key, text, action, reason FROM edits ORDER BY key, version")
        same = [(a, b) for a, b in pairwise(edits) if a[:3] == b[:3]]
        assert not same, "each edit is stored once, for the reason that it was made for"
