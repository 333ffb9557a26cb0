from __future__ import annotations

import pytest

from proxy.chat.chain import public_id
from proxy.errors import Conflict
from proxy.operator import edit_messages, find_session, prune, session_settings, session_stats
from proxy.operator.preview import preview_prompt
from proxy.operator.prune import is_prunable, preview_pruned_prompt
from tests.operator.agent import ROUND, find_messages, list_group_messages, run_conversation

LONG = "\n".join(f"line {n} of what it found" for n in range(400))


@pytest.mark.parametrize(("policy", "long"), [("rolling", False), ("importance", True), ("thrifty", True)])
async def test_pruned_messages_stay_out_of_every_later_prompt(policy: str, long: bool) -> None:
    async with run_conversation(policy) as talk:
        if long:
            talk.agent.messages[3]["content"] = LONG
        await talk.ask()
        before = await session_stats.compute_stats(talk.parts, talk.tenant, "s")
        assert before.prunable
        await prune.prune_next_prompt(talk.parts, talk.tenant, "s")
        for text in ("More.", "And more."):
            said = await talk.ask(text)
            (last,) = await talk.parts.store.read_exchanges(talk.tenant, "s", 1)
            assert last.tokens_after < before.sent, text
            assert LONG not in said
        assert (await session_settings.load_settings(talk.parts, talk.tenant, "s")).force == ""


async def test_under_a_literal_policy_what_was_pruned_can_be_restored() -> None:
    async with run_conversation("rolling") as talk:
        await prune.prune_next_prompt(talk.parts, talk.tenant, "s")
        left = find_messages(await talk.ask())
        assert list_group_messages(0) - left, "the first group has left"
        await edit_messages.restore(talk.parts, talk.tenant, "s", await talk.groups())
        assert list_group_messages(*range(ROUND)) <= find_messages(await talk.ask())


@pytest.mark.parametrize("policy", ["passthrough", "observe"])
async def test_pruning_is_not_offered_where_it_would_do_nothing(policy: str) -> None:
    async with run_conversation(policy) as talk:
        talk.agent.messages[3]["content"] = LONG
        await talk.ask()
        assert not (await session_stats.compute_stats(talk.parts, talk.tenant, "s")).prunable
        with pytest.raises(Conflict):
            await prune.prune_next_prompt(talk.parts, talk.tenant, "s")


async def test_messages_that_cannot_leave_alone_are_pruned_with_the_next_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with run_conversation("rolling") as talk:
        here = await find_session.find_branch(talk.parts, talk.tenant, "s")
        messages = here.request.messages
        after = [n for n in range(1, len(messages)) if messages[n - 1].is_result and messages[n].role == "assistant"]
        answer = next(public_id(here.keys[n]) for n in after if not messages[n].calls)
        monkeypatch.setattr(prune, "_find_leaving", lambda *_: [answer])
        with pytest.raises(Conflict):
            await edit_messages.drop(talk.parts, talk.tenant, "s", [answer], branch=here.branch.name, id_kind="message")
        assert (await prune.prune_next_prompt(talk.parts, talk.tenant, "s")).force == "prune"


async def test_a_pruned_prompt_is_tried_and_nothing_is_kept_of_it() -> None:
    async with run_conversation("rolling") as talk:
        here = await find_session.find_branch(talk.parts, talk.tenant, "s")
        plain, pruned = await preview_prompt(talk.parts, here), await preview_pruned_prompt(talk.parts, here)
        assert pruned.turn.prompt.plan.after < plain.turn.prompt.plan.after
        assert await is_prunable(talk.parts, here, plain)
        again = await preview_prompt(talk.parts, await find_session.find_branch(talk.parts, talk.tenant, "s"))
        assert again.turn.prompt.plan.after == plain.turn.prompt.plan.after
