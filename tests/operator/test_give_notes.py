from __future__ import annotations

import pytest

from proxy.errors import Conflict, NotFound, Unprocessable
from proxy.operator import edit_messages, give_notes
from tests.operator.agent import POLICIES, run_conversation

LITERAL_OR_OWN = [name for name in POLICIES if name not in ("passthrough", "observe")]


@pytest.mark.parametrize("policy", LITERAL_OR_OWN)
async def test_a_state_that_was_set_is_reported(policy: str) -> None:
    async with run_conversation(policy) as talk:
        assert (await give_notes.read_state(talk.parts, talk.tenant, "s")).text is None
        made = await give_notes.set_state(talk.parts, talk.tenant, "s", "Goal: the operator's")
        assert (made.text, made.by) == ("Goal: the operator's", "operator")
        for _ in range(2):
            assert sum("Goal: the operator's" in text for text in await talk.ask()) == 1
        again = await give_notes.set_state(talk.parts, talk.tenant, "s", "Goal: another")
        assert again.text == "Goal: another"
        assert any("Goal: another" in text for text in await talk.ask())


async def test_a_state_of_an_undone_group_is_none_of_the_conversation() -> None:
    async with run_conversation("rolling") as talk:
        await give_notes.set_state(talk.parts, talk.tenant, "s", "Goal: before")
        talk.upstream.answers = ["Fine.\n\n### STATE\nGoal: after\nContext: it", "Well."]
        await talk.ask("Another?")
        assert (await give_notes.read_state(talk.parts, talk.tenant, "s")).text == "Goal: after\nContext: it"
        await edit_messages.undo(talk.parts, talk.tenant, "s")
        assert (await give_notes.read_state(talk.parts, talk.tenant, "s")).text == "Goal: before"
        said = await talk.ask()
        assert any("Goal: before" in text for text in said)
        assert not any("Goal: after" in text for text in said)


async def test_a_state_that_no_prompt_would_have_is_refused() -> None:
    async with run_conversation("thrifty") as talk:
        for _ in range(20):
            try:
                await edit_messages.undo(talk.parts, talk.tenant, "s")
            except Conflict:
                break
        with pytest.raises(Conflict, match="every message"):
            await give_notes.set_state(talk.parts, talk.tenant, "s", "Goal: nobody reads it")
        assert (await give_notes.read_state(talk.parts, talk.tenant, "s")).text is None


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_note_is_in_the_prompt_until_it_is_withdrawn(policy: str) -> None:
    async with run_conversation(policy) as talk:
        note = await give_notes.add_note(talk.parts, talk.tenant, "s", " Use tabs. ")
        assert [one.text for one in await give_notes.list_notes(talk.parts, talk.tenant, "s")] == ["Use tabs."]
        for _ in range(2):
            assert sum("Use tabs." in text for text in await talk.ask()) == 1
        await give_notes.withdraw_note(talk.parts, talk.tenant, "s", note.id)
        assert await give_notes.list_notes(talk.parts, talk.tenant, "s") == []
        for _ in range(2):
            assert not any("Use tabs." in text for text in await talk.ask())
        with pytest.raises(NotFound):
            await give_notes.withdraw_note(talk.parts, talk.tenant, "s", note.id)


async def test_too_many_empty_or_too_long_notes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(give_notes, "MAX_NOTES", 2)
    async with run_conversation("thrifty") as talk:
        for n in range(2):
            await give_notes.add_note(talk.parts, talk.tenant, "s", f"Note {n}.")
        with pytest.raises(Conflict):
            await give_notes.add_note(talk.parts, talk.tenant, "s", "Note 2.")
        with pytest.raises(Unprocessable):
            await give_notes.add_note(talk.parts, talk.tenant, "s", " ")
        with pytest.raises(Unprocessable):
            await give_notes.add_note(talk.parts, talk.tenant, "s", "x" * (give_notes.MAX_NOTE_CHARS + 1))


async def test_the_scratchpad_is_set_and_reported() -> None:
    async with run_conversation("rolling") as talk:
        assert (await give_notes.read_scratchpad(talk.parts, talk.tenant, "s")).number == 0
        made = await give_notes.set_scratchpad(talk.parts, talk.tenant, "s", "- [ ] first\n")
        assert (made.text, made.number, made.author) == ("- [ ] first", 1, "operator")
        assert await give_notes.read_scratchpad(talk.parts, talk.tenant, "s") == made
        assert any("- [ ] first" in text for text in await talk.ask())
        with pytest.raises(Unprocessable):
            await give_notes.set_scratchpad(talk.parts, talk.tenant, "s", "x" * 1_000_000)


async def test_feedback_of_users_is_stored_and_listed() -> None:
    async with run_conversation("reflective") as talk:
        await give_notes.add_feedback(talk.parts, talk.tenant, "s", "Look elsewhere.")
        assert [one.text for one in await give_notes.list_feedback(talk.parts, talk.tenant, "s")] == ["Look elsewhere."]


async def test_a_state_that_is_empty_or_too_long_is_refused() -> None:
    async with run_conversation("thrifty") as talk:
        for text in ("", " ", "x" * 4001):
            with pytest.raises(Unprocessable):
                await give_notes.set_state(talk.parts, talk.tenant, "s", text)
        for read in (
            give_notes.read_state,
            give_notes.read_scratchpad,
            give_notes.list_notes,
            give_notes.list_feedback,
        ):
            with pytest.raises(NotFound):
                await read(talk.parts, "stranger", "s")
