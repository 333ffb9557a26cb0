"""The operator is shown the prompt that goes out, with a reason for each message that does not."""

from __future__ import annotations

import json

import pytest

from proxy.errors import NotFound
from proxy.operator import edit_messages, show
from tests.operator.agent import POLICIES, find_messages, list_group_messages, run_conversation
from tests.scripted_model import make_calls


@pytest.mark.parametrize("policy", POLICIES)
async def test_the_next_prompt_is_what_goes_out_next(policy: str) -> None:
    async with run_conversation(policy) as talk:
        await edit_messages.drop(talk.parts, talk.tenant, "s", [(await talk.groups())[1]])
        shown = await show.preview_next_prompt(talk.parts, talk.tenant, "s")
        foreseen = json.loads(shown.body)
        await talk.ask("(the client's next message)")
        assert foreseen["messages"] == talk.upstream.last["messages"]
        assert foreseen.get("tools") == talk.upstream.last.get("tools")


@pytest.mark.parametrize("policy", POLICIES)
async def test_previews_change_neither_the_next_prompt_nor_the_store(policy: str) -> None:
    async with run_conversation(policy) as talk, run_conversation(policy) as other:
        for _ in range(2):
            await show.preview_next_prompt(talk.parts, talk.tenant, "s")
            await show.list_groups(talk.parts, talk.tenant, "s")
            assert await talk.ask() == await other.ask()
        for table in ("messages", "forms", "edits", "exchanges"):
            count = f"SELECT count(*) FROM {table}"
            assert await talk.proxy.rows(count) == await other.proxy.rows(count)


@pytest.mark.parametrize("policy", POLICIES)
async def test_every_message_that_was_changed_has_a_why(policy: str) -> None:
    async with run_conversation(policy) as talk:
        first = (await talk.groups())[0]
        await edit_messages.drop(talk.parts, talk.tenant, "s", [first])
        before = await show.preview_next_prompt(talk.parts, talk.tenant, "s")
        why = next(m.why for m in before.messages if m.group == first and m.role == "user")
        assert why is not None
        assert (why.stage, why.reason, why.tokens_after) == ("operator", "dropped by the operator", 0)
        assert why.tokens_before > 0
        assert why.since is not None
        assert why.find.startswith("recall(id=")
        await talk.ask()
        (newest,) = await talk.parts.store.read_exchanges(talk.tenant, "s", 1)
        past = await show.read_past_prompt(talk.parts, talk.tenant, "s", newest.exchange)
        assert json.loads(past.body)["messages"] == talk.upstream.last["messages"]
        assert {m.status for m in past.messages if m.group == first and m.role != "system"} == {"dropped"}
        for message in past.messages:
            assert (message.why is None) == (message.status == "in")
        told = next(m.why for m in past.messages if m.group == first and m.role == "user")
        assert told is not None
        assert told.exchange == newest.exchange
        assert past.tokens_before == newest.tokens_before


async def test_a_message_left_out_by_the_policy_names_its_stage_and_returns_when_restored() -> None:
    async with run_conversation("rolling") as talk:
        first = (await talk.groups())[0]
        for n in range(4):
            await talk.ask(f"More {n}?")
        listed = await show.list_groups(talk.parts, talk.tenant, "s")
        assert [line.status for line in listed[:4]] == ["changed", "out", "out", "in"]  # the next prompt makes eight
        assert (listed[1].sent, listed[0].title) == (0, "Prompt number 0?")
        shown = await show.read_group(talk.parts, talk.tenant, "s", first)
        assert {m.why.stage for m in shown if m.why} == {"close_window", "remark"}
        assert [m.whole["content"] for m in shown if m.role == "user"] == ["Prompt number 0?"]
        await edit_messages.restore(talk.parts, talk.tenant, "s", [first])
        for n in range(2):
            assert list_group_messages(0) <= find_messages(await talk.ask(f"And {n}?"))


async def test_groups_have_their_tokens_as_counted_and_as_reported() -> None:
    async with run_conversation("thrifty") as talk:
        first, *_ = await show.list_groups(talk.parts, talk.tenant, "s")
        assert first.messages == 4
        assert first.tokens == first.sent > 0
        assert first.snapshot == 14
        found = await show.read_group(talk.parts, talk.tenant, "s", first.id)
        assert found[1].content == {"role": "user", "content": "Prompt number 0?"}


async def test_results_are_awaited_where_the_last_answer_called() -> None:
    async with run_conversation("thrifty") as talk:
        talk.upstream.answers = [make_calls(("call_a_12345", "look"), ("call_b_12345", "look")), "Done."]
        await talk.agent.say("Two?")
        shown = await show.preview_next_prompt(talk.parts, talk.tenant, "s")
        assert [(m.role, m.source) for m in shown.messages[-3:]] == [
            ("assistant", "client"), ("tool", "next"), ("tool", "next"),
        ]  # fmt: skip


async def test_an_unknown_message_is_not_found() -> None:
    async with run_conversation("thrifty") as talk:
        parts, tenant = talk.parts, talk.tenant
        with pytest.raises(NotFound):
            await show.read_past_prompt(parts, tenant, "s", "none")
        with pytest.raises(NotFound):
            await show.read_past_prompt(parts, "stranger", "s", "none")
        with pytest.raises(NotFound):
            await show.read_group(parts, tenant, "s", "none")
        with pytest.raises(NotFound):
            await show.preview_next_prompt(parts, tenant, "none")
