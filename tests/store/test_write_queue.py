from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import StoreUnavailable
from proxy.store import write_queue as module
from proxy.store.base import GapRow
from proxy.store.write_queue import WriteItem, WriteQueue
from tests.raw_upstream import wait_until
from tests.store.conftest import RowFactory

make = RowFactory()


def take(spool: WriteQueue) -> list[WriteItem]:
    return [item for part in parts(spool) for item in part]


def parts(spool: WriteQueue) -> list[list[WriteItem]]:
    """The items of each batch that was handed on."""
    found = []
    while not spool.inbox.empty():
        items = spool.inbox.get_nowait()
        assert items is not None
        found.append(items)
    return found


def later(spool: WriteQueue, body: bytes) -> asyncio.Future[None]:
    return spool.put([make.form(body)], waited=False)


async def test_items_come_out_in_the_order_of_put_and_resolve_when_settled() -> None:
    spool = WriteQueue(1 << 20)
    futures = [spool.put([make.form(b"%d" % n)]) for n in range(3)]
    items = take(spool)
    assert [item.future for item in items] == futures
    assert spool.item_count == 3
    spool.settle_items(items[:2], None)
    assert [future.done() for future in futures] == [True, True, False]
    assert spool.item_count == 1


async def test_over_the_bound_the_newest_is_refused_and_the_rest_stays() -> None:
    spool = WriteQueue(3000)
    kept = [spool.put([make.form(b"x" * 1000)]) for _ in range(2)]
    refused = spool.put([make.form(b"x" * 1000)])
    assert not any(future.done() for future in kept)
    with pytest.raises(StoreUnavailable, match="wait to be written"):
        await refused
    assert spool.dropped == 1
    assert len(take(spool)) == 2


async def test_an_item_over_the_bound_is_taken_when_nothing_waits() -> None:
    spool = WriteQueue(1000)
    assert not spool.put([make.form(b"x" * 5000)]).done()
    assert spool.put([make.form(b"x")]).done()


async def test_room_is_there_again_once_items_are_settled() -> None:
    spool = WriteQueue(3000)
    spool.put([make.form(b"x" * 1500)])
    assert spool.put([make.form(b"x" * 1500)]).done()
    spool.settle_items(take(spool), None)
    assert not spool.put([make.form(b"x" * 1500)]).done()


async def test_the_log_says_once_that_rows_are_lost_and_again_after_the_store_has_worked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spool = WriteQueue(1000)
    for number in (1, 2):
        spool.put([make.form(b"x" * 900)])
        for _ in range(3):
            spool.put([make.exchange("x1", at=7.0), make.form(b"x" * 100)])
        lost = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
        assert lost == ["rows are lost until the store works again, and recorded as gaps: spool full"] * number
        spool.settle_items(take(spool), None)
        take(spool)


async def test_what_was_refused_is_written_as_a_gap_when_storing_works_again() -> None:
    spool = WriteQueue(1000)
    spool.put([make.form(b"x" * 900)])
    for _ in range(3):
        spool.put([make.form(b"x" * 100), make.exchange("x1", at=7.0)])
    items = take(spool)
    spool.settle_items(items, None)
    (gaps,) = take(spool)
    (row,) = gaps.rows
    assert isinstance(row, GapRow)
    assert (row.exchange, row.items, row.reason, row.created_at) == ("x1", 3, "spool full", 7.0)
    assert row.bytes > 300
    spool.settle_items([gaps], None)
    assert take(spool) == []


async def test_the_number_of_recorded_gaps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_GAPS", 3)
    spool = WriteQueue(500)
    spool.put([make.form(b"x" * 500)])
    for number in range(10):
        spool.put([make.exchange(f"x{number}")])
    spool.settle_items(take(spool), None)
    (gaps,) = take(spool)
    rows = [row for row in gaps.rows if isinstance(row, GapRow)]
    assert [row.exchange for row in rows] == ["x0", "x1", "x2", ""]
    assert rows[-1].items == 7


async def test_a_failed_item_tells_its_cause() -> None:
    spool = WriteQueue(1000)
    future = spool.put([make.form(b"x")])
    cause = ValueError("odd")
    spool.settle_items(take(spool), cause)
    with pytest.raises(StoreUnavailable, match="ValueError: odd") as caught:
        await future
    assert caught.value.__cause__ is cause


async def test_a_cancelled_future_does_not_disturb() -> None:
    spool = WriteQueue(1000)
    spool.put([make.form(b"x")]).cancel()
    spool.settle_items(take(spool), None)
    assert spool.item_count == 0


async def test_after_close_nothing_is_taken_and_the_end_is_marked_once() -> None:
    spool = WriteQueue(1000)
    spool.close()
    spool.close()
    assert spool.put([make.form(b"x")]).done()
    assert spool.inbox.get_nowait() is None
    assert spool.inbox.empty()


async def test_what_nobody_waits_for_is_held_back_and_goes_with_what_somebody_waits_for() -> None:
    woken: list[int] = []
    spool = WriteQueue(1 << 20, lambda: woken.append(1))
    held = [later(spool, b"%d" % n) for n in range(3)]
    assert (parts(spool), woken, spool.item_count) == ([], [], 3)
    waited = spool.put([make.form(b"last")])
    (items,) = parts(spool)
    assert [item.future for item in items] == [*held, waited]
    assert woken == [1]


@pytest.mark.timed
async def test_what_nobody_comes_for_is_handed_on_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLD_S", 0.02)
    spool = WriteQueue(1 << 20)
    later(spool, b"early")
    await asyncio.sleep(0.015)
    spool.flush_deferred()  # the timer that was set for it is not that of what comes now
    assert len(take(spool)) == 1
    began = time.monotonic()
    later(spool, b"late")
    while spool.inbox.empty():
        assert time.monotonic() - began < 1.0
        await asyncio.sleep(0.001)
    assert time.monotonic() - began >= 0.019
    assert len(take(spool)) == 1


@pytest.mark.timed
async def test_the_wait_is_counted_from_the_first_that_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLD_S", 0.03)
    spool = WriteQueue(1 << 20)
    began = time.monotonic()
    while spool.inbox.empty():
        assert time.monotonic() - began < 1.0
        later(spool, b"x")
        await asyncio.sleep(0.002)
    assert time.monotonic() - began >= 0.029


async def test_a_large_batch_is_written_without_waiting() -> None:
    spool = WriteQueue(1 << 20)
    later(spool, b"x" * 40_000)
    assert parts(spool) == []
    later(spool, b"y" * 40_000)
    assert [len(items) for items in parts(spool)] == [2]


async def test_the_end_takes_what_is_held_back_along() -> None:
    spool = WriteQueue(1000)
    later(spool, b"x")
    spool.close()
    assert len(spool.inbox.get_nowait() or []) == 1
    assert spool.inbox.get_nowait() is None


async def test_what_is_held_back_counts_for_the_bound() -> None:
    spool = WriteQueue(1000)
    assert not later(spool, b"x" * 500).done()
    assert later(spool, b"x" * 500).done()
    assert (spool.dropped, spool.item_count) == (1, 1)


@given(st.lists(st.sampled_from(["put", "later", "hurry"]), max_size=30))
def test_everything_comes_out_in_its_order_whoever_waits(steps: list[str]) -> None:
    async def work() -> None:
        spool = WriteQueue(1 << 20)
        futures = []
        for number, step in enumerate(steps):
            if step == "hurry":
                spool.flush_deferred()
            else:
                futures.append(spool.put([make.form(b"%d" % number)], waited=step == "put"))
                assert spool.item_count == len(futures)
        spool.close()
        items = []
        while (part := spool.inbox.get_nowait()) is not None:
            assert part
            items += part
        assert [item.future for item in items] == futures

    asyncio.run(work())


async def test_a_queue_is_stalled_once_nothing_has_been_written_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALLED_S", 0.05)
    spool = WriteQueue(1 << 20)
    await asyncio.sleep(0.06)
    spool.put([make.form(b"one")])
    spool.put([make.form(b"two")])
    assert not spool.stalled, "it was empty until now"
    await wait_until(lambda: spool.stalled)
    first, second = take(spool)
    spool.settle_items([first], None)
    assert not spool.stalled, "one has been written"
    await wait_until(lambda: spool.stalled)
    spool.settle_items([second], None)
    assert not spool.stalled, "nothing waits"
