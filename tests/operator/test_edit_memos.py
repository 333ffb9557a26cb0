"""Memos as an operator reads and changes them; the routes are in tests/web/api/test_operator_actions.py."""

from __future__ import annotations

import pytest

from proxy.errors import Conflict, NotFound, Unprocessable
from proxy.events import bus
from proxy.events.bus import EventFilter
from proxy.operator import edit_memos
from tests.operator.agent import run_conversation

TEXTS = (
    "The printers in the cellar read UTF-16 only, since their firmware is old.",
    "The release is cut on Thursdays by the build server, and never by hand.",
    "Lunch is served at noon sharp, so no deployment begins between twelve and one.",
)


async def test_memos_are_read_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edit_memos, "PAGE_SIZE", 2)
    async with run_conversation("thrifty") as talk:
        place = (talk.parts, talk.tenant)
        made = sorted([(await edit_memos.save_memo(*place, text)).memo for text in TEXTS])
        found = [one async for one in edit_memos.iterate_memos(*place, project=None)]
        assert [one.memo for one in found] == made
        (printers,) = [one async for one in edit_memos.iterate_memos(*place, project="", text="utf-16")]
        assert printers.content == TEXTS[0]
        rest = [one.memo async for one in edit_memos.iterate_memos(*place, project=None, after=made[0])]
        assert rest == made[1:]


async def test_a_memo_is_edited_in_part_and_does_not_come_back_once_deleted() -> None:
    async with run_conversation("thrifty") as talk:
        place = (talk.parts, talk.tenant)
        memo = (await edit_memos.save_memo(*place, TEXTS[0], tags=["Printers"])).memo
        edited = await edit_memos.edit_memo(*place, memo, content=TEXTS[1])
        assert (edited.content, edited.tags) == (TEXTS[1], ["printers"])
        assert (await edit_memos.edit_memo(*place, memo, tags=[])).tags == []
        with pytest.raises(Unprocessable):
            await edit_memos.edit_memo(*place, memo, content="")
        assert (await edit_memos.delete_memo(*place, memo)).memo == memo
        with pytest.raises(NotFound):
            await edit_memos.read_memo(*place, memo)
        with pytest.raises(NotFound):
            await edit_memos.delete_memo(talk.parts, "stranger", memo)


async def test_no_more_memos_are_saved_than_a_project_keeps() -> None:
    async with run_conversation("thrifty", memos={"keep": 2}) as talk:
        place = (talk.parts, talk.tenant)
        for text in TEXTS[:2]:
            await edit_memos.save_memo(*place, text)
        with pytest.raises(Conflict):
            await edit_memos.save_memo(*place, TEXTS[2])
        assert (await edit_memos.save_memo(*place, TEXTS[2], project="kitchen")).project == "kitchen"


async def test_a_memo_of_the_operator_is_reported_and_says_whether_it_was_merged() -> None:
    async with run_conversation("thrifty") as talk:
        place = (talk.parts, talk.tenant)
        listener = talk.parts.event_bus.subscribe(EventFilter(kinds=(bus.MEMO,)))
        memo = (await edit_memos.save_memo(*place, TEXTS[0])).memo
        assert (await edit_memos.save_memo(*place, TEXTS[0])).memo == memo
        assert listener.waiting_count == 2
        _, told = await listener.take_events()
        assert [one.data for one in told] == [{"by": "operator", "memo": memo, "merged": n > 0} for n in range(2)]
