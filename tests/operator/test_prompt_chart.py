from __future__ import annotations

import pytest

from proxy.operator import edit_messages, give_notes, show
from proxy.operator.prompt_chart import PromptChart, build_chart
from tests.operator.agent import POLICIES, RunningConversation, run_conversation


async def draw_chart(talk: RunningConversation) -> PromptChart:
    return await build_chart(talk.parts, talk.tenant, talk.name)


@pytest.mark.parametrize("policy", POLICIES)
async def test_bars_have_all_messages_and_their_groups_lines(policy: str) -> None:
    async with run_conversation(policy) as talk:
        seen = await draw_chart(talk)
        lines = await show.list_groups(talk.parts, talk.tenant, talk.name)
        assert [bar.group for bar in seen.bars] == lines
        for bar in seen.bars:
            assert sum(piece.tokens for piece in bar.pieces) == bar.group.tokens
            assert sum(piece.sent for piece in bar.pieces) == bar.group.sent
            assert [piece.kind for piece in bar.pieces] == ["user", "thinking", "tool", "thinking"]
        assert [piece.kind for piece in seen.fixed] == ["system"]
        assert (seen.policy, seen.waits, seen.earlier) == (policy, False, 0)


async def test_a_dropped_message_is_shown_with_its_reason() -> None:
    async with run_conversation("thrifty") as talk:
        first = (await talk.groups())[0]
        await edit_messages.drop(talk.parts, talk.tenant, "s", [first])
        await edit_messages.pin(talk.parts, talk.tenant, "s", [(await talk.groups())[1]])
        seen = await draw_chart(talk)
        assert {piece.status for piece in seen.bars[0].pieces} == {"dropped"}
        assert {piece.reason for piece in seen.bars[0].pieces} == {"dropped by the operator"}
        assert all(piece.sent == 0 for piece in seen.bars[0].pieces)
        assert all(piece.pinned for piece in seen.bars[1].pieces)
        assert not any(piece.pinned for piece in seen.bars[2].pieces)


async def test_inserted_texts_are_drawn_too() -> None:
    async with run_conversation("rolling") as talk:
        await give_notes.add_note(talk.parts, talk.tenant, "s", "Leave the lock file.")
        seen = await draw_chart(talk)
        (note,) = [one for one in seen.inserts if "Leave the lock file." in one.text]
        assert note.tokens > 0
