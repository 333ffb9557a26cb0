"""Branches are read back from the store, and read again where another process has changed them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.context.plan import Edit
from proxy.errors import StoreUnavailable
from proxy.sessions import load_sessions
from proxy.sessions.branch import Branch, LastRequest, StorePosition
from proxy.sessions.live import LiveSessions
from proxy.sessions.stored_branch import adopt_stored_edits
from proxy.store.base import BranchRow, BranchTipRow, EditRow, Row, SessionRow, StateRow
from proxy.store.branch_positions import BranchPosition
from proxy.store.in_memory import InMemoryStore
from tests.sessions.test_live import begin


async def test_a_branch_is_read_back_with_its_edits_and_states() -> None:
    store = InMemoryStore()
    await store.open()
    rows: list[Row] = [
        SessionRow("me", "a", True, 1.0),
        BranchRow("me", "a", "t", None, None, "main", b"sys", 1.0),
        EditRow("me", "a", "t", b"k1", 1, "s", "r", "text", "short", 90, 9, "x", 2.0),
        EditRow("me", "a", "t", b"k2", 1, "s", "r", "gone", None, 90, 0, "x", 2.0),
        EditRow("me", "a", "t", b"k2", 2, "s", "r", "withdrawn", None, 90, 0, "y", 3.0),
        EditRow("me", "a", "t", b"k3", 1, "state", "r", "append", "note", 5, 9, "y", 3.0),
        StateRow("me", "a", "t", b"k4", "Goal: go on", 4.0),
        BranchTipRow("me", "a", "t", b"head", b"answer", 5.0, "upstream_reject"),
    ]
    await store.put(rows)
    branches = LiveSessions(9, store)
    live_session = branches.open_session("me", "a", explicit=True)
    both = await asyncio.gather(
        load_sessions.load_branch(branches, live_session, "t"), load_sessions.load_branch(branches, live_session, "t")
    )
    branch = both[0]
    assert branch is not None
    assert both[1] is branch, "two requests at once get the same branch"
    assert len(branches) == 1
    assert branch.state.edits == {
        b"k1": Edit(b"k1", "text", "short", "s", "r", 90, 9),
        b"k3": Edit(b"k3", "append", "note", "state", "r", 5, 9),
    }
    assert branch.store_position.edit_versions == {b"k1": 1, b"k2": 2, b"k3": 1}
    assert branch.store_position.edit_number == 4
    assert (branch.state.last_state_request.lossy_edits, branch.state.sent_at) == (1, 5.0)
    assert branch.state.state == "Goal: go on"
    assert branch.last_request == LastRequest(b"head", b"answer", failed=None)
    assert branch.state.stopped == "upstream_reject"
    assert await load_sessions.load_branch(branches, live_session, "nobody") is None
    await store.close()


class Shared(InMemoryStore):
    """One that other processes write to as well."""

    shared = True
    away = False

    async def read_branch_position(self, tenant: str, session: str, branch: str) -> BranchPosition | None:
        if self.away:
            raise StoreUnavailable("away")
        return await super().read_branch_position(tenant, session, branch)


Two = tuple[Shared, LiveSessions, Branch, LiveSessions, Branch]


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    """The same stored branch, as two processes remember it."""
    store = Shared()
    await store.open()
    head = BranchTipRow("me", "a", "t", b"h1", b"a1", 2.0, None)
    await store.put([SessionRow("me", "a", True, 1.0), BranchRow("me", "a", "t", None, None, "main", b"s", 1.0), head])
    found: list[Any] = [store]
    for _ in range(2):
        branches = LiveSessions(9, store)
        branch = await load_sessions.load_branch(branches, branches.open_session("me", "a", explicit=True), "t")
        assert branch is not None
        found += [branches, branch]
    yield tuple(found)
    await store.close()


async def test_a_branch_that_another_process_has_advanced_is_read_again(two: Two) -> None:
    store, ours, mine, theirs, other = two
    assert await load_sessions.refresh_branch(ours, mine.live_session, "t") is mine
    await store.put([mine.record_move(b"h2", None, 3.0)])
    assert await load_sessions.refresh_branch(ours, mine.live_session, "t") is mine, "our own move is none of another's"
    other.state = replace(other.state, note_counts={"loop": 3}, cache_miss_streak=1)
    found = await load_sessions.refresh_branch(theirs, other.live_session, "t")
    assert found is not None
    assert found is not other
    assert (found.state.note_counts, found.state.cache_miss_streak) == ({"loop": 3}, 1), (
        "what is not stored is not lost by that"
    )
    assert found.last_request.tip_key == b"h2"
    assert len(theirs) == 1
    assert (await load_sessions.refresh_branch(theirs, other.live_session, "t")) is found


async def test_rows_on_their_way_to_the_store_are_not_forgotten(two: Two) -> None:
    _, ours, mine, _, _ = two
    mine.record_move(b"h2", None, 3.0)
    assert await load_sessions.refresh_branch(ours, mine.live_session, "t") is mine
    fresh = begin(ours, "b")
    fresh.stored = True
    assert await load_sessions.refresh_branch(ours, fresh.live_session, "t") is fresh


async def test_edits_and_states_made_elsewhere_are_read_though_the_head_is_the_same(two: Two) -> None:
    store, ours, mine, _, _ = two
    await store.put([StateRow("me", "a", "t", b"a1", "Goal: more", 3.0)])
    found = await load_sessions.refresh_branch(ours, mine.live_session, "t")
    assert found is not None
    assert found.state.state == "Goal: more"
    await store.put([edit_row(b"k", 1, "short")])
    again = await load_sessions.refresh_branch(ours, found.live_session, "t")
    assert again is not None
    assert [e.text for e in again.state.edits.values()] == ["short"]


async def test_a_session_that_another_process_has_deleted_is_forgotten(two: Two) -> None:
    store, ours, mine, _, _ = two
    await store.delete_session("me", "a")
    assert await load_sessions.refresh_branch(ours, mine.live_session, "t") is None
    assert ours.find_session("me", "a") is None
    assert len(ours) == 0


async def test_while_the_store_is_away_what_is_remembered_counts_and_that_is_counted(two: Two) -> None:
    store, ours, mine, _, _ = two
    seen: list[str] = []
    ours.on_lookup_failed = seen.append
    store.away = True
    assert await load_sessions.refresh_branch(ours, mine.live_session, "t") is mine
    assert seen == ["standing"]


async def test_the_first_of_two_concurrent_edits_of_a_message_counts_for_both_processes(two: Two) -> None:
    store, _, mine, _, other = two
    for branch, text in ((mine, "first"), (other, "second")):
        branch.state = replace(branch.state, edits={b"k": edit(b"k", text)})
        branch.store_position = StorePosition(edit_versions={b"k": 1}, edit_number=1)
        await store.put([edit_row(b"k", 1, text)])
    await store.put([edit_row(b"j", 1, "another")])
    rows = await store.read_edits("me", "a", "t")
    assert not adopt_stored_edits(mine, rows, {b"k": edit(b"k", "first")})
    assert adopt_stored_edits(other, rows, {b"k": edit(b"k", "second")})
    assert other.state.edits[b"k"].text == "first"
    assert sorted(other.state.edits) == [b"j", b"k"]
    assert (mine.store_position.edit_number, other.store_position.edit_number) == (2, 2)


def edit(k: bytes, text: str) -> Edit:
    return Edit(k, "text", text, "mask", "old", 100, 10)


def edit_row(k: bytes, version: int, text: str) -> EditRow:
    return EditRow("me", "a", "t", k, version, "mask", "old", "text", text, 100, 10, "x", 2.0)
