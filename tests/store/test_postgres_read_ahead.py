"""Rows that are read ahead are those that each read would have got by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from proxy.errors import StoreUnavailable
from proxy.store.expected_reads import ExpectedReads
from proxy.store.postgres import _AHEAD, PostgresStore
from proxy.store.session_notes import HiddenRoundRow, MemoRow, NoteRow, ScratchpadRow, ToolOfferRow
from tests.store.conftest import RowFactory, digest
from tests.store.round_trips import RoundTrips, counted
from tests.stores import postgres_store

make = RowFactory()
KEYS = [row.key for row in make.line(4)]


@pytest.fixture
async def found(database: str) -> AsyncIterator[tuple[PostgresStore, RoundTrips]]:
    async with counted(database) as (way, trips):
        store = postgres_store(way)
        await store.open()
        offer = make.form(b"tools")
        await store.put(
            [
                *make.begin(), *make.line(4), make.edit(KEYS[0]), make.edit(KEYS[1]), make.state(KEYS[1], "a state"),
                make.exchange("x1"), make.tip(KEYS[3], 9.0), offer, ToolOfferRow("t1", "s1", "main", offer.form.hex()),
                HiddenRoundRow("t1", "s1", KEYS[3], KEYS[2], "x1", b"{}", 5.0),
                ScratchpadRow("t1", "s1", 1, "pad", "model", 6.0),
                MemoRow("t1", "", "memo1", "", "content", "[]", "", 1.0, 1.0),
                NoteRow("t1", "s1", "", "n1", "note", "told", 7.0),
            ]
        )  # fmt: skip
        yield store, trips
        _AHEAD.set(None)
        await store.close()


def expected(**more: object) -> ExpectedReads:
    return replace(
        ExpectedReads("t1", "s1", KEYS, KEYS, scratchpad=True, memos=10, is_new=True, system=b"system"), **more
    )


async def read_all(store: PostgresStore, form: bytes) -> list[object]:
    """The reads of a request on a replica that has nothing of its session."""
    return [
        await store.find_known_messages("t1", "s1", KEYS[:3]),
        await store.read_branch_position("t1", "s1", "main"),
        await store.read_branch("t1", "s1", "main"),
        await store.read_form("t1", "s1", form),
        await store.read_branch_kinds("t1", "s1"),
        await store.read_decisions("t1", "s1", ""),
        await store.read_newest_states("t1", "s1", b"system", 16),
        await store.read_hidden_rounds("t1", "s1", KEYS[1:3]),
        await store.read_scratchpad("t1", "s1"),
        await store.read_memos("t1", "", 10),
    ]


async def test_all_reads_of_a_cold_session_are_one_round_trip_and_the_same(
    found: tuple[PostgresStore, RoundTrips],
) -> None:
    store, trips = found
    form = make.form(b"tools").form
    alone = await read_all(store, form)
    assert all(alone)
    store.expect_reads(expected())
    assert await read_all(store, form) == alone
    before = trips.count
    store.expect_reads(expected())
    assert await read_all(store, form) == alone
    assert trips.count - before == 1


async def test_a_branch_that_memory_has_is_not_read_again(found: tuple[PostgresStore, RoundTrips]) -> None:
    store, trips = found
    known = expected(keys=[], branch="main", moves=[9.0], edits=2, states=1)
    store.expect_reads(known)
    position = await store.read_branch_position("t1", "s1", "main")
    assert position is not None
    assert position.last_at == 9.0
    before = trips.count
    await store.read_decisions("t1", "s1", "")
    assert trips.count == before
    assert await store.read_edits("t1", "s1", "main")
    assert trips.count > before, "not read ahead, since memory has them"
    for moved in ({"moves": [8.0]}, {"edits": 1}, {"states": 0}):
        store.expect_reads(replace(known, **moved))
        await store.read_branch_position("t1", "s1", "main")
        before = trips.count
        assert len(await store.read_edits("t1", "s1", "main")) == 2
        assert trips.count == before, moved


async def test_rows_are_taken_once_and_never_after_a_write(found: tuple[PostgresStore, RoundTrips]) -> None:
    store, _ = found
    store.expect_reads(expected())
    assert len(await store.find_known_messages("t1", "s1", KEYS)) == 4
    assert (await store.read_scratchpad("t1", "s1")).number == 1  # type: ignore[union-attr]
    other = postgres_store(store._url)
    await other.open()
    await other.put([ScratchpadRow("t1", "s1", 2, "new", "model", 8.0)])
    await other.close()
    assert (await store.read_scratchpad("t1", "s1")).number == 2  # type: ignore[union-attr]
    store.expect_reads(expected())
    await store.find_known_messages("t1", "s1", KEYS)
    await store.put([ScratchpadRow("t1", "s1", 3, "mine", "model", 9.0)])
    assert (await store.read_scratchpad("t1", "s1")).number == 3  # type: ignore[union-attr]


async def test_rows_read_ahead_serve_no_other_session(found: tuple[PostgresStore, RoundTrips]) -> None:
    store, _ = found
    store.expect_reads(expected())
    assert await store.find_known_messages("t1", "s2", KEYS) == {}
    assert await store.read_branch_position("t2", "s1", "main") is None
    assert len(await store.find_known_messages("t1", "s1", [*KEYS, digest("new")])) == 4


async def test_a_literal_policy_is_seen(found: tuple[PostgresStore, RoundTrips]) -> None:
    store, _ = found
    await store.put([replace(make.exchange("x2"), schedule="always"), replace(make.edit(digest("z")), exchange="x2")])
    alone = await store.read_branch("t1", "s1", "main")
    assert alone is not None
    assert alone.lasting is not None
    store.expect_reads(expected())
    await store.find_known_messages("t1", "s1", KEYS)
    assert await store.read_branch("t1", "s1", "main") == alone


async def test_reads_that_fail_together_are_made_one_by_one(
    found: tuple[PostgresStore, RoundTrips], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = found
    monkeypatch.setattr("proxy.store.postgres_read_ahead.build_statement", lambda _: ("SELECT 1 / 0", ()))
    store.expect_reads(expected())
    with pytest.raises(StoreUnavailable):
        await store.find_known_messages("t1", "s1", KEYS)
    assert len(await store.find_known_messages("t1", "s1", KEYS)) == 4
    assert await store.read_branch_position("t1", "s1", "main")
