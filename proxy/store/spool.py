"""What waits to be written, seen from the event loop: futures, the bound, and the record of what was lost.

All of this runs on the event loop, so that it needs no lock; the writer takes items from `inbox` and has `settle`
called with those that are done. The bound holds from the moment of `put` until the item is durable: an item that the
writer has in hand while a disk is full still counts.

A commit costs more than what is in it. So what nobody waits for is held back until somebody does, and goes into the
same transaction: what a request says and what it is answered are one commit where the answer comes quickly. It is held
back for `HOLD_S` at most, and never behind what was put after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from proxy.errors import StoreUnavailable
from proxy.store import encode
from proxy.store.base import GapRow, Row
from proxy.store.pieces import Item, Lane

log = logging.getLogger(__name__)

HOLD_S = 0.05
"""So long something may be held back: a model hardly ever answers sooner, and a request that is under way when the
process is killed is on disk by then."""
_HOLD_BYTES = 64 << 10
"""More than that is written at once: who is waited for next would wait until it is written, too."""

_MOST_GAPS = 4096
"""Exchanges of which a loss is remembered one by one; beyond that, losses are added up without a name."""


class Spool:
    """Items on their way to the writer. `limit` is in bytes, as `encode.size` counts them. wake: called when something
    is in the inbox."""

    def __init__(self, limit: int, wake: Callable[[], None] = lambda: None) -> None:
        self.inbox: SimpleQueue[list[Item] | None] = SimpleQueue()
        """None is the last thing that comes."""
        self.waiting = 0
        self.bytes = 0
        self.dropped = 0
        self._limit = limit
        self._wake = wake
        self._gaps: dict[tuple[str, str, str, str], GapRow] = {}
        self._held: list[Item] = []
        self._held_bytes = 0
        self._due_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._open = True
        self._lane: Lane | None = None

    @property
    def closed(self) -> bool:
        """Whether nothing more comes."""
        return not self._open

    def unrecorded(self) -> tuple[GapRow, ...]:
        """The gaps that could not be stored, once the writer has ended."""
        gaps = tuple(self._gaps.values())
        self._gaps.clear()
        return gaps

    def put(self, rows: Sequence[Row], *, waited: bool = True) -> asyncio.Future[None]:
        """waited: for these rows, so that they and all that is held back are handed on at once."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if not rows:
            future.set_result(None)
            return future
        item = Item(rows, future, encode.size(rows))
        if not self._open:
            self._lose(item, "closed", StoreUnavailable("the store is closed."))
        elif self.bytes and self.bytes + item.size > self._limit:
            # A single item over the limit is taken when nothing else waits: it could never be stored otherwise.
            self._lose(item, "spool full", StoreUnavailable(f"{self.bytes} bytes already wait to be written."))
        else:
            self._hold(item)
            if waited or self._held_bytes > _HOLD_BYTES:
                self.hurry()
            elif self._timer is None:
                self._timer = loop.call_later(HOLD_S, self._due, loop)
        return future

    def _hold(self, item: Item) -> None:
        self.waiting += 1
        self.bytes += item.size
        if not self._held:
            self._due_at = asyncio.get_running_loop().time() + HOLD_S
        self._held.append(item)
        self._held_bytes += item.size

    def hurry(self) -> None:
        """Hand on what is held back."""
        if self._held:
            held, self._held, self._held_bytes = self._held, [], 0
            self._hand_on(held)

    def _hand_on(self, items: Sequence[Item]) -> None:
        """Of a long item the first piece; nothing that must come behind one."""
        ready: list[Item | None] = []
        for item in items:
            if self._lane is not None and self._lane.holds(item):
                continue
            if item.is_long:
                self._lane = Lane(item)
                ready.append(self._lane.next())
            else:
                ready.append(item)
        self._give([item for item in ready if item is not None])

    def _give(self, items: list[Item]) -> None:
        if items:
            self.inbox.put(items)
            self._wake()

    def _due(self, loop: asyncio.AbstractEventLoop) -> None:
        """The timer is not set anew with every item: it finds out whether what is held back now is due."""
        self._timer = None
        left = self._due_at - loop.time()
        if self._held and left > 0:
            self._timer = loop.call_later(left, self._due, loop)
        else:
            self.hurry()

    def settle(self, items: Sequence[Item], error: Exception | None) -> None:
        """The items are durable, or can never be because of `error`."""
        for item in items:
            if item.whole is None:
                self._settle(item, error)
            elif self._lane is not None and self._lane.item is item.whole:
                self._go_on(self._lane, error)
        if error is None and self._gaps and self._open:
            self._write_gaps()

    def _settle(self, item: Item, error: Exception | None) -> None:
        self.waiting -= 1
        self.bytes -= item.size
        if error is not None:
            unavailable = StoreUnavailable(f"the rows could not be stored: {type(error).__name__}: {error}.")
            unavailable.__cause__ = error
            self._lose(item, type(error).__name__, unavailable)
        elif not item.future.done():
            item.future.set_result(None)

    def _go_on(self, lane: Lane, error: Exception | None) -> None:
        """A piece of a long item is settled: the next one, or what has waited behind it."""
        if not lane.settled(error):
            more = lane.next()
            self._give([more] if more is not None else [])
            return
        self._lane = None
        self._settle(lane.item, error)
        self._hand_on(lane.behind)

    def _lose(self, item: Item, reason: str, error: StoreUnavailable) -> None:
        self.dropped += 1
        if not item.future.done():
            item.future.set_exception(error)
            # Marks it as seen: nobody has to wait for a put, and what is lost is counted and recorded here.
            item.future.exception()
        gaps = [row for row in item.rows if isinstance(row, GapRow)]  # what was lost once is not lost to the record
        gap = encode.gap(item.rows, item.size, reason)
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
        """What was lost is recorded as soon as something can be written again, over the bound if need be."""
        gaps = tuple(self._gaps.values())
        self._gaps.clear()
        log.warning("storing works again; %d gaps are recorded", len(gaps))
        self._hold(Item(gaps, asyncio.get_running_loop().create_future(), encode.size(gaps)))
        self.hurry()

    def close(self) -> None:
        """Nothing is taken any more, and the writer learns that what it has is all. Idempotent."""
        if self._open:
            if self._gaps:
                self._write_gaps()
            self.hurry()
            if self._lane is not None:
                self._give(self._lane.rest())
            self._open = False
            if self._timer is not None:
                self._timer.cancel()
            self.inbox.put(None)
            self._wake()
