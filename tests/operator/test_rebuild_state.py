from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from proxy.operator import edit_messages, give_notes, rebuild_state
from proxy.sessions.operator_decisions import read_decisions
from proxy.tools.tool_context import MAX_MESSAGE_READS
from tests.conversations import make_messages, user
from tests.operator.agent import make_helper_settings, run_conversation
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

NOTE = "Goal: rebuilt\nContext: as left"
STATE = "### STATE\n" + NOTE


async def test_the_helper_is_asked_over_what_is_left() -> None:
    helper = ScriptedModel(STATE)
    async with (
        run_upstream(helper) as upstream,
        run_conversation("thrifty", **make_helper_settings(upstream.port)) as talk,
    ):
        await edit_messages.drop(talk.parts, talk.tenant, "s", [(await talk.groups())[0]])
        found = await rebuild_state.rebuild(talk.parts, talk.tenant, "s")
        assert (found.how, found.text, found.outcome) == ("helper", NOTE, "written")
        asked = helper.texts()[0]
        assert "Answer number 1." in asked
        assert "number 0" not in asked
        assert "follow no instruction" in asked
        assert sum("Goal: rebuilt" in text for text in await talk.ask()) == 1
        assert (await give_notes.read_state(talk.parts, talk.tenant, "s")).by == "operator"


async def test_else_the_upstream_with_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_OWN_KEY", "sk-own")
    async with run_conversation("thrifty", own_key="TEST_OWN_KEY") as talk:
        talk.upstream.answers = [STATE, "Well."]
        found = await rebuild_state.rebuild(talk.parts, talk.tenant, "s")
        assert (found.how, found.text) == ("upstream", NOTE)
        assert "Answer number 2." in talk.upstream.texts()[0]
        assert any("Goal: rebuilt" in text for text in await talk.ask())


@pytest.mark.parametrize("policy", ["thrifty", "rolling", "progressive"])
async def test_without_a_helper_the_next_request_asks_the_model_for_the_state(policy: str) -> None:
    async with run_conversation(policy) as talk:
        found = await rebuild_state.rebuild(talk.parts, talk.tenant, "s")
        assert (found.how, found.text) == ("next_request", None)
        talk.upstream.answers = ["Fine.\n\n" + STATE, "Well."]
        assert any("### STATE" in text for text in await talk.ask())
        assert talk.agent.messages[-1]["content"] == "Fine."
        assert (await give_notes.read_state(talk.parts, talk.tenant, "s")).text == NOTE
        if policy == "progressive":
            assert not any("End your answer" in text for text in await talk.ask())


@pytest.mark.parametrize("answer", ["I cannot.", "### STATE\n", "### STATE\nGoal: rebuilt"])
async def test_an_answer_without_a_state_is_none(answer: str) -> None:
    helper = ScriptedModel(answer)
    async with (
        run_upstream(helper) as upstream,
        run_conversation("thrifty", **make_helper_settings(upstream.port)) as talk,
    ):
        found = await rebuild_state.rebuild(talk.parts, talk.tenant, "s")
        assert (found.how, found.outcome) == ("next_request", "no state in the answer")
        assert (await give_notes.read_state(talk.parts, talk.tenant, "s")).text is None


async def test_a_day_without_money_is_one_without_a_helper() -> None:
    helper = ScriptedModel(STATE)
    tree: dict[str, Any] = make_helper_settings(9)
    tree["helper"]["dollars_a_day"] = 0
    async with run_conversation("thrifty", **tree) as talk:
        found = await rebuild_state.rebuild(talk.parts, talk.tenant, "s")
        assert (found.how, found.outcome) == ("next_request", "over_budget")
    assert helper.received == []


async def test_undo_rebuilds_where_there_was_a_state() -> None:
    helper = ScriptedModel(STATE)
    async with (
        run_upstream(helper) as upstream,
        run_conversation("thrifty", **make_helper_settings(upstream.port)) as talk,
    ):
        await give_notes.set_state(talk.parts, talk.tenant, "s", "Goal: old")
        changed = await edit_messages.undo(talk.parts, talk.tenant, "s")
        assert changed.note == "state: helper, written"
        assert (await give_notes.read_state(talk.parts, talk.tenant, "s")).text == NOTE


def test_long_conversations_are_asked_about_from_the_end() -> None:
    said = make_messages(*(user(f"{n} " + "x" * 50_000) for n in range(9)))
    text = rebuild_state.build_question(said)
    assert "[user] 8 " in text
    assert "[user] 0 " not in text
    assert len(text) < rebuild_state.CONVERSATION_CHARS + 5000


@pytest.mark.parametrize("action", [rebuild_state.rebuild, edit_messages.undo])
async def test_a_turn_is_held_while_the_history_is_read_and_not_while_a_model_answers(action: Any) -> None:
    free: list[int] = []

    async def answer(request: Any, there: Any) -> None:
        free.append(talk.parts.read_slots.free)
        await ScriptedModel(STATE)(request, there)

    async with (
        run_upstream(ScriptedModel(answer)) as upstream,
        run_conversation("thrifty", **make_helper_settings(upstream.port)) as talk,
    ):
        await give_notes.set_state(talk.parts, talk.tenant, "s", "Goal: first\nContext: none")
        async with AsyncExitStack() as taken:
            for _ in range(MAX_MESSAGE_READS):
                await taken.enter_async_context(talk.parts.read_slots.hold("other"))
            asked = asyncio.ensure_future(action(talk.parts, talk.tenant, "s"))
            await asyncio.sleep(0.1)
            assert (asked.done(), free) == (False, [])
            assert not (await read_decisions(talk.parts.store, talk.tenant, "s")).dropped, "undo waits before it acts"
        await asked
        assert free == [MAX_MESSAGE_READS]
