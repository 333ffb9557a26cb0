"""A client that compacts its own history within a named session keeps the model's state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proxy.notes.state_block import render_recap
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

NOTE = "Goal: go on\nContext: as before"
SAID = "Well.\n\n### STATE\n" + NOTE
NAMED = (b"x-context-session: a",)
SYSTEM: dict[str, Any] = {"role": "system", "content": "Be brief."}
SUMMARY: dict[str, Any] = {"role": "user", "content": "This is what was done so far: all of it. Now the next."}


async def make_agent_with_state(
    proxy: RunningProxy, model: ScriptedModel, lines: tuple[bytes, ...] = NAMED, **more: Any
) -> Agent:
    """An agent whose newest state is NOTE."""
    agent = Agent(proxy, lines, messages=[SYSTEM], **more)
    model.answers = ["One.\n\n### STATE\nGoal: old\nContext: older", SAID, "Fine."]
    await agent.say("Do it")
    await agent.say("Go on")
    return agent


def is_note_sent(model: ScriptedModel) -> bool:
    return NOTE in "".join(text or "" for text in model.texts())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("policy", ["rolling", "thrifty"])
@pytest.mark.parametrize("head", [[], [{"role": "user", "content": "Do it"}]], ids=["new", "same opening"])
async def test_a_compacted_history_begins_with_the_newest_state(
    policy: str, stream: bool, head: list[dict[str, Any]]
) -> None:
    model = ScriptedModel()
    tree: dict[str, Any] = {"policy": policy, "state": {"ask": "always"} if policy == "thrifty" else {}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        await make_agent_with_state(proxy, model, stream=stream)
        said = {"role": "assistant", "content": "I remember."}
        again = Agent(proxy, NAMED, stream=stream, messages=[SYSTEM, *head, said, SUMMARY] if head else [SYSTEM])
        await (again.send() if head else again.say(SUMMARY["content"]))
        assert is_note_sent(model)
        again.messages.append({"role": "assistant", "content": "Fine."})
        await again.say("And now?")
        assert is_note_sent(model)
        found = await proxy.rows("SELECT branch, text FROM states ORDER BY created_at")
        assert [text.decode() for _, text in found][-2:] == [NOTE, NOTE]
        assert found[-1][0] != found[-2][0], "it is the new branch's own"


async def test_an_inherited_state_is_shown_at_the_tail_though_nothing_has_left_the_new_prompt() -> None:
    model = ScriptedModel()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        await make_agent_with_state(proxy, model)
        again = Agent(proxy, (*NAMED, b"x-context-policy: thrifty"), messages=[SYSTEM])
        await again.say("Sum it up")
        assert model.texts()[-1] == "Sum it up\n\n" + render_recap(NOTE)
        await again.say("Next")
        assert model.texts()[1] == "Sum it up\n\n" + render_recap(NOTE), "and stays where it is"
        assert model.texts()[-1] == "Next"


async def test_a_compacted_history_gets_its_state_from_the_store_after_a_restart(tmp_path: Path) -> None:
    model, db = ScriptedModel(), str(tmp_path / "store.sqlite3")
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, policy="rolling", db=db) as proxy:
            await make_agent_with_state(proxy, model)
        async with run_proxy(upstream.port, policy="rolling", db=db) as proxy:
            await Agent(proxy, NAMED, messages=[SYSTEM, SUMMARY]).send()
    assert is_note_sent(model)


async def test_other_branches_begin_without_the_state() -> None:
    model = ScriptedModel()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        agent = await make_agent_with_state(proxy, model)
        await Agent(proxy, (b"x-context-session: b",), messages=[SYSTEM, SUMMARY]).send()
        assert not is_note_sent(model), "another session"
        await Agent(proxy, NAMED, key="sk-two", messages=[SYSTEM, SUMMARY]).send()
        assert not is_note_sent(model), "another tenant"
        await Agent(proxy, messages=[SYSTEM, SUMMARY]).send()
        assert not is_note_sent(model), "no name"
        tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
        other = {"role": "system", "content": "You are another agent, with work of its own."}
        await Agent(proxy, NAMED, messages=[other, SUMMARY], more={"tools": tools}).send()
        assert not is_note_sent(model), "an agent of another kind under the same name"
        await Agent(proxy, NAMED, messages=[*agent.messages[:3], {"role": "user", "content": "No, stop"}]).send()
        assert not is_note_sent(model), "a fork behind an answer has the states of what it shares"


async def test_a_withdrawn_state_is_not_inherited() -> None:
    model = ScriptedModel()
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="rolling", commands={"in_band": True}) as proxy,
    ):
        agent = await make_agent_with_state(proxy, model)
        await agent.say("/undo")
        await Agent(proxy, NAMED, messages=[SYSTEM, SUMMARY]).send()
        assert not is_note_sent(model)
        assert "Goal: old" in model.texts()[0]


async def test_without_a_name_a_new_branch_begins_with_nothing() -> None:
    model = ScriptedModel()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        await make_agent_with_state(proxy, model, ())
        await Agent(proxy, messages=[SYSTEM, SUMMARY]).send()
    assert not is_note_sent(model)
