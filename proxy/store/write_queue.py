"""The queue of rows to be written, on the event loop's side: futures, the size limit, and the record of lost rows.

All of this runs on the event loop, so that it needs no lock. The writer takes items from `inbox` and has `settle_items`
called with the finished items. An item counts against the limit from `put` until it is durable. So an item that the
writer holds while a disk is full still counts.

A commit costs more than its rows. So rows that no caller awaits are held back until a caller does, and go into the same
transaction. For example, a request and its answer are one commit if the answer comes quickly. Rows are held back for
`HOLD_S` at most, and never behind later rows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from proxy.errors import StoreUnavailable
from proxy.store import encode
from proxy.store.base import GapRow, Row
from proxy.store.long_writes import LongWrite, WriteItem

log = logging.getLogger(__name__)

HOLD_S = 0.05
"""Maximum seconds for which rows are held back. A model hardly ever answers sooner, and the rows of a longer request
are on disk if the process is killed."""
_HOLD_BYTES = 64 << 10
"""Bytes above which held rows are written at once: the next awaited rows would have to wait for them, too."""

_MOST_GAPS = 4096
"""Exchanges whose losses are recorded one by one; further losses are added up without a name."""


class WriteQueue:
    """Items on their way to the writer. `limit` is in bytes, as `encode.count_bytes` counts them. wake: called when the
    inbox has a new entry."""

    def __init__(self, limit: int, wake: Callable[[], None] = lambda: None) -> None:
        self.inbox: SimpleQueue[list[WriteItem] | None] = SimpleQueue()
        """Lists of items for the writer. None is the last entry."""
        self.item_count = 0
        self.byte_count = 0
        self.dropped = 0
        self._limit = limit
        self._wake = wake
        self._gaps: dict[tuple[str, str, str, str], GapRow] = {}
        self._held: list[WriteItem] = []
        self._held_bytes = 0
        self._due_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._open = True
        self._lane: LongWrite | None = None

    @property
    def closed(self) -> bool:
        """True if the spool takes no more rows."""
        return not self._open

    def take_unrecorded_gaps(self) -> tuple[GapRow, ...]:
        """The gaps that could not be stored, once the writer has ended. The call empties the record."""
        gaps = tuple(self._gaps.values())
        self._gaps.clear()
        return gaps

    def put(self, rows: Sequence[Row], *, waited: bool = True) -> asyncio.Future[None]:
        """Queue rows as one transaction, and return its future. waited: the caller awaits these rows, so they and all
        held rows are handed on at once."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if not rows:
            future.set_result(None)
            return future
        item = WriteItem(rows, future, encode.count_bytes(rows))
        if not self._open:
            self._lose(item, "closed", StoreUnavailable("the store is closed."))
        elif self.byte_count and self.byte_count + item.size > self._limit:
            # A single item over the limit is taken when nothing else waits: it could never be stored otherwise.
            self._lose(item, "spool full", StoreUnavailable(f"{self.byte_count} bytes already wait to be written."))
        else:
            self._hold(item)
            if waited or self._held_bytes > _HOLD_BYTES:
                self.flush_deferred()
            elif self._timer is None:
                self._timer = loop.call_later(HOLD_S, self._due, loop)
        return future

    def put_barrier(self) -> asyncio.Future[None]:
        """Queue an item without rows, and return its future: it is done once all rows before it are in the tables. It
        holds StoreUnavailable if they cannot be written now."""
        self.flush_deferred()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._open:
            future.set_result(None)
            return future
        self.item_count += 1
        self._give([WriteItem((), future, 0)])
        return future

    def record_loss(self, gap: GapRow) -> None:
        """Record durable rows that could not be read again, or that no table takes."""
        self.dropped += 1
        self._note(gap)
        if self._open:
            self._write_gaps()

    def _hold(self, item: WriteItem) -> None:
        self.item_count += 1
        self.byte_count += item.size
        if not self._held:
            self._due_at = asyncio.get_running_loop().time() + HOLD_S
        self._held.append(item)
        self._held_bytes += item.size

    def flush_deferred(self) -> None:
        """Hand on the rows that are held back."""
        if self._held:
            held, self._held, self._held_bytes = self._held, [], 0
            self._hand_on(held)

    def _hand_on(self, items: Sequence[WriteItem]) -> None:
        """Hand items to the writer. A long item starts with its first piece; items that must come after it wait."""
        ready: list[WriteItem | None] = []
        for item in items:
            if self._lane is not None and self._lane.enqueue_if_blocked(item):
                continue
            if item.is_long:
                self._lane = LongWrite(item)
                ready.append(self._lane.next_piece())
            else:
                ready.append(item)
        self._give([item for item in ready if item is not None])

    def _give(self, items: list[WriteItem]) -> None:
        if items:
            self.inbox.put(items)
            self._wake()

    def _due(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand on the held rows if they are due. The timer is not reset with every item, so it checks the due time of
        the rows that are held now."""
        self._timer = None
        left = self._due_at - loop.time()
        if self._held and left > 0:
            self._timer = loop.call_later(left, self._due, loop)
        else:
            self.flush_deferred()

    def settle_items(self, items: Sequence[WriteItem], error: Exception | None) -> None:
        """Record that the items are durable, or can never be because of `error`."""
        for item in items:
            if item.whole is None:
                self._settle(item, error)
            elif self._lane is not None and self._lane.item is item.whole:
                self._go_on(self._lane, error)
        if error is None and self._gaps and self._open:
            self._write_gaps()

    def _settle(self, item: WriteItem, error: Exception | None) -> None:
        self.item_count -= 1
        self.byte_count -= item.size
        if error is None:
            if not item.future.done():
                item.future.set_result(None)
            return
        unavailable = StoreUnavailable(f"the rows could not be stored: {type(error).__name__}: {error}.")
        unavailable.__cause__ = error
        if item.rows:
            self._lose(item, type(error).__name__, unavailable)
        elif not item.future.done():
            item.future.set_exception(unavailable)
            item.future.exception()  # its reader may have stopped waiting

    def _go_on(self, lane: LongWrite, error: Exception | None) -> None:
        """Continue after a piece of a long item is settled: with the next piece, or with the items that waited behind
        the long item."""
        if not lane.settle_piece(error):
            more = lane.next_piece()
            self._give([more] if more is not None else [])
            return
        self._lane = None
        self._settle(lane.item, error)
        self._hand_on(lane.waiting_items)

    def _lose(self, item: WriteItem, reason: str, error: StoreUnavailable) -> None:
        self.dropped += 1
        if not item.future.done():
            item.future.set_exception(error)
            # Marks the exception as seen: no caller has to await a put, and losses are counted and recorded here.
            item.future.exception()
        gaps = [row for row in item.rows if isinstance(row, GapRow)]  # a gap record that is lost is recorded again
        gap = encode.make_gap(item.rows, item.size, reason)
        for one in gaps if gap is None else [gap]:
            self._note(one)

    def _note(self, gap: GapRow) -> None:
        place = (gap.tenant, gap.session, gap.exchange, gap.reason)
        if place not in self._gaps and len(self._gaps) >= _MOST_GAPS:
            place = ("", "", "", gap.reason)
        known = self._gaps.get(place)
        taken, items = (known.bytes, known.items) if known else (0, 0)
        self._gaps[place] = GapRow(*place[:3], taken + gap.bytes, gap.reason, gap.created_at, items + gap.items)

    def _write_gaps(self) -> None:
        """Record losses as soon as rows can be written again, over the limit if need be."""
        gaps = tuple(self._gaps.values())
        self._gaps.clear()
        log.warning("storing works again; %d gaps are recorded", len(gaps))
        self._hold(WriteItem(gaps, asyncio.get_running_loop().create_future(), encode.count_bytes(gaps)))
        self.flush_deferred()

    def close(self) -> None:
        """Take no more rows, and hand the rest and the end mark to the writer. Idempotent."""
        if self._open:
            if self._gaps:
                self._write_gaps()
            self.flush_deferred()
            if self._lane is not None:
                self._give(self._lane.take_rest())
            self._open = False
            if self._timer is not None:
                self._timer.cancel()
            self.inbox.put(None)
            self._wake()
