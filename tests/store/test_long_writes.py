from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.errors import StoreUnavailable
from proxy.store import write_queue
from proxy.store.base import BranchRow, BranchTipRow, EditRow, ExchangeRow, FormRow, GapRow, Row, SessionRow
from proxy.store.write_queue import PIECE_BYTES, PIECE_GROWTH, PIECE_ROWS, LongWrite, WriteItem, WriteQueue
from tests.store.conftest import RowFactory
from tests.store.test_write_queue import take

make = RowFactory()


def form(session: str, body: bytes) -> FormRow:
    return FormRow("me", session, b"%b" % body[:16], body)


def rows(session: str, count: int) -> list[Row]:
    return [form(session, b"%06d" % n) for n in range(count)]


def item(these: Sequence[Row]) -> WriteItem:
    return WriteItem(these, asyncio.get_running_loop().create_future(), write_queue.count_bytes(these))


def drained(lane: LongWrite) -> list[WriteItem]:
    """All its pieces, while others put something too."""
    found = []
    while (piece := lane.take_next_piece()) is not None:
        found.append(piece)
        assert not lane.enqueue_if_blocked(item(rows("another", 1)))
    return found


async def test_a_long_item_is_cut_by_rows_and_by_bytes_and_loses_none() -> None:
    many, fat = rows("a", 2 * PIECE_ROWS + 1), [form("a", b"%d" % n + b"x" * (PIECE_BYTES // 2)) for n in range(5)]
    for these, count in ((many, 3), (fat, 5)):
        found = drained(LongWrite(item(these)))
        assert [row for piece in found for row in piece.rows] == these
        assert len(found) == count
        assert all(not piece.is_long for piece in found)
        assert sum(piece.size for piece in found) == write_queue.count_bytes(these)
    assert not item(rows("a", PIECE_ROWS)).is_long
    assert not item([form("a", b"x" * 10 * PIECE_BYTES)]).is_long, "one row is one piece"


async def test_what_was_decided_together_is_one_piece_and_so_is_the_end() -> None:
    edits: list[Row] = [make.edit(b"%d" % n) for n in range(2 * PIECE_ROWS)]
    end: list[Row] = [make.exchange("x"), make.tip(b"h", 5.0)]
    found = drained(LongWrite(item([*make.begin(), *edits, *rows("a", 3 * PIECE_ROWS), *edits, *end])))
    kinds = [{type(row) for row in piece.rows} for piece in found]
    assert kinds[0] == {SessionRow, BranchRow, EditRow}, "those that a fork inherits"
    assert kinds[1:-1] == [{FormRow}] * (len(found) - 2)
    assert kinds[-1] == {FormRow, EditRow, ExchangeRow, BranchTipRow}


async def test_while_nobody_else_puts_anything_a_piece_is_longer_than_the_one_before_it() -> None:
    spool = WriteQueue(1 << 30)
    spool.put(rows("a", 60 * PIECE_ROWS))
    sizes = []
    for number in range(4):
        if number == 2:
            spool.put(rows("b", 1))
        (piece, *_) = items = take(spool)
        sizes.append(len(piece.rows) // PIECE_ROWS)
        spool.settle_items(items, None)
    assert sizes == [1, PIECE_GROWTH, PIECE_GROWTH**2, 1]


async def test_rows_of_others_go_between_two_pieces_and_those_of_the_same_session_after_all() -> None:
    spool = WriteQueue(1 << 30)
    long = spool.put(rows("a", 3 * PIECE_ROWS))
    mine, other = spool.put(rows("a", 1)), spool.put(rows("b", 1))
    longer = spool.put(rows("c", 2 * PIECE_ROWS))
    after = spool.put(rows("c", 2))
    first, light = take(spool)
    assert (len(first.rows), light.future) == (PIECE_ROWS, other)
    spool.settle_items([first, light], None)
    assert other.done()
    handed = []
    while items := take(spool):
        handed += [(each.rows[0].session, len(each.rows)) for each in items]
        spool.settle_items(items, None)
        assert long.done() is (len(handed) > 1)
    assert handed == [("a", PIECE_ROWS), ("a", PIECE_ROWS), ("a", 1), ("c", PIECE_ROWS), ("c", PIECE_ROWS), ("c", 2)]
    assert all(future.done() for future in (long, mine, longer, after))
    assert (spool.item_count, spool.byte_count) == (0, 0)


async def test_a_piece_that_cannot_be_stored_is_the_end_of_its_put_and_leaves_one_gap() -> None:
    spool = WriteQueue(1 << 30)
    long, behind = spool.put(rows("a", 3 * PIECE_ROWS)), spool.put(rows("a", 1))
    (first,) = take(spool)
    spool.settle_items([first], None)
    (second,) = take(spool)
    spool.settle_items([second], ValueError("bad"))
    with pytest.raises(StoreUnavailable, match="bad"):
        await long
    assert spool.dropped == 1
    (left,) = take(spool)
    spool.settle_items([left], None)
    assert behind.exception() is None
    (gaps,) = take(spool)
    assert [type(row) for row in gaps.rows] == [GapRow]
    spool.settle_items([gaps], None)
    assert (spool.item_count, spool.byte_count) == (0, 0)


async def test_the_last_take_has_all_pieces_and_what_is_after_them() -> None:
    spool = WriteQueue(1 << 30)
    long, behind, again = (
        spool.put(rows("a", 6 * PIECE_ROWS)),
        spool.put(rows("a", 1)),
        spool.put(rows("b", 2 * PIECE_ROWS)),
    )
    spool.close()
    items = []
    while not spool.inbox.empty():
        items += spool.inbox.get_nowait() or []
    assert [row for each in items for row in each.rows] == [
        *rows("a", 6 * PIECE_ROWS),
        *rows("a", 1),
        *rows("b", 2 * PIECE_ROWS),
    ]
    spool.settle_items(items[:2], None)
    assert not long.done()
    spool.settle_items(items[2:4], None)
    assert (long.exception(), behind.exception(), again.done()) == (None, None, False)
    spool.settle_items(items[4:], OSError("full"))
    assert isinstance(again.exception(), StoreUnavailable)
    assert (spool.item_count, spool.byte_count) == (0, 0)


PUT = st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.booleans())


@settings(max_examples=300)
@given(st.lists(PUT, max_size=12), st.lists(st.integers(1, 4), max_size=40))
def test_every_session_is_written_in_its_order_whatever_is_long(
    puts: list[tuple[str, int, bool]], settled: list[int]
) -> None:
    """puts: (session, rows, whether somebody waits). settled: how many items the writer does at once, between puts."""

    async def run() -> None:
        spool = WriteQueue(1 << 30)
        expected: dict[str, list[bytes]] = {}
        written: dict[str, list[bytes]] = {}
        queue: list[WriteItem] = []
        futures = []

        def work(count: int) -> None:
            queue.extend(take(spool))
            done, queue[:] = queue[:count], queue[count:]
            for each in done:
                for row in each.rows:
                    assert isinstance(row, FormRow)
                    written.setdefault(row.session, []).append(row.body)
            spool.settle_items(done, None)

        for n, (session, count, waited) in enumerate(puts):
            these = [form(session, b"%d %d" % (n, k)) for k in range(count)]
            expected.setdefault(session, []).extend(row.body for row in these)
            futures.append(spool.put(these, waited=waited))
            if n < len(settled):
                work(settled[n])
        spool.flush_deferred()
        for count in (*settled, *[4] * 200):
            work(count)
        assert written == expected
        assert all(future.done() for future in futures)
        assert (spool.item_count, spool.byte_count) == (0, 0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_queue, "PIECE_ROWS", 3)
        asyncio.run(run())
