from __future__ import annotations

import pytest

from proxy.errors import ToolRefused
from proxy.notes.memo_matching import Memo
from proxy.store.session_notes import MEMO_SESSION, MemoRow
from proxy.tools import stored_memos
from tests.tools.stored_session import in_memory, make_tool_context

MEMO = Memo("m1", "The printers want UTF-16", ("gotcha", "printers"), "s7", 1.0, 2.0, "shop")


def test_a_memo_is_read_as_it_was_written() -> None:
    row = stored_memos.make_memo_row("t1", MEMO)
    assert (row.tenant, row.session, row.memo, row.project) == ("t1", MEMO_SESSION, "m1", "shop")
    assert stored_memos.read_memo(row) == MEMO


def test_tags_that_cannot_be_read_are_none() -> None:
    assert stored_memos.read_memo(MemoRow("t1", MEMO_SESSION, "m1", "", "text", "no JSON", "s1", 1.0, 1.0)).tags == ()


async def test_only_the_tenants_own_memos_of_the_project_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_memos, "PAGE_SIZE", 3)
    async with in_memory() as store:
        for tenant, project in (("t1", ""), ("t1", "shop"), ("t2", ""), ("t2", "shop")):
            rows = [Memo(f"{project}{n}", f"{tenant} {project} {n}", (), "s", 1.0, 1.0, project) for n in range(7)]
            await store.put([stored_memos.make_memo_row(tenant, memo) for memo in rows])
        found = await stored_memos.load_memos(make_tool_context(store, project="shop"))
        assert sorted(memo.content for memo in found) == [f"t1 shop {n}" for n in range(7)]
        assert len(await stored_memos.load_memos(make_tool_context(store))) == 7
        assert len(await stored_memos.load_memos(make_tool_context(store, memos={"keep": 5}))) == 5


async def test_a_session_that_was_guessed_has_none_unless_the_operator_says_so() -> None:
    async with in_memory() as store:
        with pytest.raises(ToolRefused, match="not open to this conversation"):
            await stored_memos.load_memos(make_tool_context(store, explicit=False))
        assert await stored_memos.load_memos(make_tool_context(store, explicit=False, memos={"scope": "tenant"})) == []


def test_tags_may_come_as_one_text() -> None:
    assert stored_memos.split_tags("a, b") == ["a", " b"]
    assert stored_memos.split_tags(["a, b"]) == ["a, b"]
