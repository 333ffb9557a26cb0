"""A preview of a decision shows the prompt that the decision makes, and decides nothing."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from proxy.exchange import plan_request
from proxy.operator.find_session import find_branch
from proxy.operator.preview import NEXT_MESSAGE_TEXT, NEXT_RESULT_TEXT, preview_prompt
from proxy.sessions.operator_decisions import SessionSettings, StoredDecisions
from tests.operator.agent import find_messages, list_group_messages, run_conversation
from tests.scripted_model import make_calls


async def test_a_decision_can_be_tried_without_being_made() -> None:
    async with run_conversation("thrifty") as talk:
        here = await find_branch(talk.parts, talk.tenant, "s")
        tried = await preview_prompt(talk.parts, here, StoredDecisions(SessionSettings(window=1)))
        said = [m["content"] for m in json.loads(tried.turn.prompt.chat_body)["messages"]]
        assert said[0] == "Be brief."
        assert said[1].startswith(NEXT_MESSAGE_TEXT)
        assert len(said) == 2
        assert find_messages(await talk.ask()) == list_group_messages(0, 1, 2)


async def test_a_preview_ends_with_a_user_message_or_a_tool_result() -> None:
    async with run_conversation("thrifty") as talk:
        here = await find_branch(talk.parts, talk.tenant, "s")
        assert (await preview_prompt(talk.parts, here)).stand_ins == 1
        talk.upstream.answers = [make_calls(("call_a_12345", "look"), ("call_b_12345", "look")), "Done."]
        await talk.agent.say("Two?")
        here = await find_branch(talk.parts, talk.tenant, "s")
        seen = await preview_prompt(talk.parts, here)
        assert [m.text for m in seen.turn.request.messages[-2:]] == [NEXT_RESULT_TEXT, NEXT_RESULT_TEXT]
        prompted = await preview_prompt(talk.parts, here, prompted=True)
        assert [m.text for m in prompted.turn.request.messages[-1:]] == [NEXT_MESSAGE_TEXT]


async def test_a_policy_by_header_is_foreseen_as_it_was_last() -> None:
    async with run_conversation("passthrough") as talk:
        await talk.agent.say("More.", b"x-context-policy: rolling")
        here = await find_branch(talk.parts, talk.tenant, "s")
        assert (await preview_prompt(talk.parts, here)).turn.enriched.policy.name == "rolling"


async def test_a_preview_that_fails_does_not_count_as_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("a stage that fails")

    async def count() -> float:
        text = (await talk.proxy.get("/metrics")).body.decode()
        found = re.findall(r"^context_proxy_fallbacks_total\{.*\} (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    async with run_conversation("thrifty") as talk:
        monkeypatch.setattr(plan_request, "rewrite", fail)
        before = await count()
        here = await find_branch(talk.parts, talk.tenant, "s")
        assert (await preview_prompt(talk.parts, here)).turn.prompt.fallback == "error"
        assert await count() == before
        await talk.ask()
        assert await count() == before + 1
