"""A removed session is gone from every table, and nothing else is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.store import encode, removal
from proxy.store.base import BranchRow, GapRow, Row, SessionRow
from proxy.store.bindings import BindingRow
from proxy.store.derived import EmbeddingRow, HelperAnswerRow, IterationRow
from proxy.store.reads import Store
from proxy.store.removal import RemovalStepRow
from proxy.store.response_names import ResponseNameRow
from proxy.store.session_notes import HiddenRoundRow, MemoRow, NoteRow, ScratchpadRow
from tests.store.conftest import RowFactory, digest
from tests.stores import TABLES

FIRST, OTHER_SESSION, OTHER_TENANT = ("t1", "s1"), ("t1", "s2"), ("t2", "s1")


def everything(tenant: str, session: str, at: float = 5.0) -> list[Row]:
    """Some rows in every table that a session has rows in."""
    make = RowFactory(tenant, session)
    key = digest("m", 1)
    return [
        *make.begin(),
        *make.line(450),
        make.form(b"form"),
        make.edit(key),
        make.edit(key, 2, stage="compress_levels"),
        make.state(key, "state"),
        make.exchange("x1"),
        GapRow(tenant, session, "x1", 1, "disk", 1.0),
        HelperAnswerRow(tenant, session, "ask", "summary", "mini", 1, 1, 0.1, 1.0, "text"),
        EmbeddingRow(tenant, session, "small", b"form", b"vector", 1.0),
        IterationRow(tenant, session, "main", key, 1, "", 1.0, b"{}"),
        HiddenRoundRow(tenant, session, key, b"tip", "x1", b"{}", 1.0),
        BindingRow(tenant, session, b"token", b"tools", b"chain", b"", b"client", 1.0),
        ScratchpadRow(tenant, session, 1, "text", "model", 1.0),
        NoteRow(tenant, session, "main", "n", "note", "text", 1.0),
        ResponseNameRow(tenant, session, "resp_1", "main", "x1", True, True, False, False, 1.0),
        MemoRow(tenant, "", f"memo-{session}", "p", "content", "[]", session, 1.0, 1.0),
        make.tip(key, at),
    ]


async def rows_of(store: Store, tenant: str, session: str) -> dict[str, list[Any]]:
    """Everything that a session has, by table."""
    found = {}
    for table in TABLES:
        text = f"SELECT * FROM {table} WHERE tenant = $1 AND session = $2"
        found[table] = sorted(map(repr, await store._fetch(text, (tenant, session))))
    return found


async def fill(store: Store) -> None:
    for n, place in enumerate((FIRST, OTHER_SESSION, OTHER_TENANT)):
        await store.put(everything(*place, at=10.0 * n + 5.0))
        assert await store.search(*place, "body")
    found = await rows_of(store, *FIRST)
    assert [table for table in TABLES if not found[table]] == ["spending", "memos", "context_windows"]


def test_every_table_of_a_session_is_emptied() -> None:
    assert set(removal._KEYS) == set(TABLES)
    (statement,) = encode.build_statements([RemovalStepRow("t", "s", "messages")])
    assert statement[0] == removal.REMOVE_ROWS["messages"]
    assert encode.make_gap([RemovalStepRow("t", "s", "messages")], 1, "disk") is None


async def test_a_removed_session_is_gone_from_every_table_and_others_are_untouched(store: Store) -> None:
    await fill(store)
    others = [await rows_of(store, *place) for place in (OTHER_SESSION, OTHER_TENANT)]
    steps = await store.delete_session(*FIRST)
    assert steps >= 450 // removal.STEP_ROWS
    found = await rows_of(store, *FIRST)
    assert [table for table in TABLES if found[table]] == []
    assert [await rows_of(store, *place) for place in (OTHER_SESSION, OTHER_TENANT)] == others
    assert await store.search(*FIRST, "body") == []
    assert len(await store.search(*OTHER_SESSION, "body")) == 10
    assert [item.source_session for item in await store.read_memos("t1")] == ["", "s2"]
    assert await store.delete_session(*FIRST) == 0


async def test_a_removed_tenant_is_gone_with_its_memos(store: Store) -> None:
    await fill(store)
    await store.put([GapRow("t1", "never began", "", 1, "disk", 1.0)])
    other = await rows_of(store, *OTHER_TENANT)
    assert await store.delete_tenant("t1") == 4  # two sessions, one of which only a gap is known, and the memos
    for session in ("s1", "s2", "", "never began"):
        assert not any((await rows_of(store, "t1", session)).values())
    assert await rows_of(store, *OTHER_TENANT) == other
    assert len(await store.read_memos("t2")) == 1
    assert await store.delete_tenant("t1") == 0


async def test_retention_takes_the_oldest_sessions_and_leaves_what_was_used_since(store: Store) -> None:
    await fill(store)
    kept = await rows_of(store, *OTHER_TENANT)
    assert len(await store.remove_expired(20.0, limit=1)) == 1
    assert [item.session for item in await store.list_sessions("t1")] == ["s2"]
    assert len(await store.remove_expired(20.0)) == 1
    assert len(await store.remove_expired(20.0)) == 0
    assert await rows_of(store, *OTHER_TENANT) == kept


async def of_branch(store: Store, branch: str) -> int:
    """Rows of a session that name a branch, and rounds behind its answers."""
    count = 0
    for table in ("messages", "edits", "states", "exchanges", "iterations", "notes", "branches"):
        text = f"SELECT 1 FROM {table} WHERE tenant = 't1' AND session = 's1' AND branch = $1"
        count += len(await store._fetch(text, (branch,)))
    return count


def aside(branch: str, at: float, first: bytes = b"root", parent: str | None = None) -> list[Row]:
    """A branch of 300 messages with some of everything, last used at a time."""
    make = RowFactory()
    keys = [digest(branch, n) for n in range(300)]
    line = [make.message(key, keys[n - 1] if n else first, n, branch=branch) for n, key in enumerate(keys)]
    return [
        make.branch(branch, 2.0, parent),
        *line,
        make.edit(keys[1], branch=branch),
        make.state(keys[1], "state", branch),
        replace(make.exchange(f"x-{branch}"), branch=branch),
        IterationRow("t1", "s1", branch, keys[1], 1, "", 1.0, b"{}"),
        HiddenRoundRow("t1", "s1", keys[1], b"tip", f"x-{branch}", b"{}", 1.0),
        NoteRow("t1", "s1", branch, "n", "note", "text", 1.0),
        make.tip(keys[-1], at, branch),
    ]


@pytest.mark.slow
async def test_retention_takes_branches_that_no_other_stands_on_out_of_sessions_that_live(store: Store) -> None:
    main = digest("m", 449)
    await store.put(everything(*FIRST, at=100.0))
    for branch, at, first, parent in (
        ("side", 5.0, b"root", None),
        ("late", 50.0, b"root", None),
        ("parent", 6.0, b"root", None),
        ("fork", 60.0, digest("parent", 299), "parent"),
        ("base", 7.0, b"root", None),
        ("on top", 61.0, digest("base", 10), None),
        ("old fork", 8.0, main, "main"),
        ("pointed at", 9.0, b"root", None),
    ):
        await store.put(aside(branch, at, first, parent))
    await store.put(
        [RowFactory().branch("pointer"), replace(RowFactory().tip(digest("pointed at", 5), 62.0, "pointer"))]
    )
    kept = {name: await of_branch(store, name) for name in ("main", "late", "parent", "fork", "base", "on top")}
    assert len(await store.remove_expired(20.0, limit=1)) == 1
    assert len(await store.remove_expired(20.0)) == 1
    assert len(await store.remove_expired(20.0)) == 0
    assert [await of_branch(store, name) for name in ("side", "old fork")] == [0, 0]
    assert await of_branch(store, "pointed at") > 300
    assert {name: await of_branch(store, name) for name in kept} == kept
    left = {row.exchange for row in await store.read_rounds_page("t1", "s1")}
    assert left == {"x1", *(f"x-{name}" for name in (*kept, "pointed at") if name != "main")}


async def test_a_session_that_is_written_to_while_it_is_removed_is_gone_over_again(
    store: Store, make: RowFactory
) -> None:
    await store.put(everything(*FIRST))

    async def write() -> None:
        for n in range(5):
            await store.put([replace(make.message(digest("late", n)), position=n)])
            await asyncio.sleep(0.01)

    await asyncio.gather(store.delete_session(*FIRST), write())
    await store.delete_session(*FIRST)
    assert not any((await rows_of(store, *FIRST)).values())


async def test_no_row_is_stored_of_a_session_that_is_not_there(store: Store) -> None:
    """A request, or a question to the helper, may end behind the deletion of its session."""
    late = [row for row in everything(*FIRST) if not isinstance(row, (SessionRow, BranchRow))]
    await store.put(late)
    found = await rows_of(store, *FIRST)
    assert [table for table in TABLES if found[table]] == ["gaps"]
    assert await store.search(*FIRST, "body") == []
    await store.put([*RowFactory(*FIRST).begin(), *late])
    found = await rows_of(store, *FIRST)
    assert [table for table in TABLES if not found[table]] == ["spending", "indexed", "memos", "context_windows"]


@pytest.mark.parametrize("broken_off", [1, 4])
async def test_a_removal_that_broke_off_is_ended_by_the_next(store: Store, broken_off: int) -> None:
    await store.put(everything(*FIRST))
    await store.put([RemovalStepRow(*FIRST, table) for table in list(removal._KEYS)[:broken_off]])
    await store.delete_session(*FIRST)
    assert not any((await rows_of(store, *FIRST)).values())
