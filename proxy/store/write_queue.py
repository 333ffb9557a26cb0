"""The queue of rows to be written, on the event loop's side: futures, the size limit, and the record of lost rows.

All of this runs on the event loop, so that it needs no lock. The writer takes items from `inbox`, and schedules a call
of `settle_items` with the finished items. An item counts against the limit from `put` until it is durable. So an item
that the writer holds while a disk is full still counts.

A commit costs more than its rows. So rows that no caller awaits are held back until a caller does, and go into the same
transaction. For example, a request and its answer are one commit if the answer comes quickly. Rows are held back for
`HOLD_S` at most, and never behind later rows.

Long puts are handed to the writer in pieces (`LongWrite`): puts of other callers go between two pieces, and do not wait
for thousands of rows. A short put is one transaction. Of a long put the first messages may be on disk when the process
is killed before the last. Each message refers only to earlier ones, so the stored rows are the beginning of a
conversation. No caller got the answer that they are stored.

Rows that were decided together stay together. A new piece begins with a message or a form, so all edits are written
with the last of those, and with the branch's position. Later puts for the same session come after all pieces.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, Final, Protocol

from proxy.errors import StoreUnavailable
from proxy.store import encode, gap_file
from proxy.store.base import (
    EditRow,
    ExchangeRow,
    FormRow,
    GapRow,
    MessageRow,
    Row,
    StateRow,
)
from proxy.store.derived import EmbeddingRow, HelperAnswerRow, IterationRow
from proxy.store.session_notes import HiddenRoundRow, MemoRow, NoteRow, ScratchpadRow

log = logging.getLogger(__name__)

HOLD_S = 0.05
"""Maximum seconds for which rows are held back. A model hardly ever answers sooner, and the rows of a longer request
are on disk if the process is killed."""
_HOLD_BYTES = 64 << 10
"""Bytes above which held rows are written at once: the next awaited rows would have to wait for them, too."""

_MAX_GAPS = 4096
"""Exchanges whose losses are recorded one by one; further losses are added up without a name."""

STALLED_S = 2.0
"""Seconds without a write after which nobody waits for one any more, while rows wait."""

ROW_OVERHEAD = 256
"""Bytes that a row counts in the queue in addition to its bodies: keys, labels, and the objects themselves."""


_BODY_SIZES: Final[Mapping[type, Callable[[Any], int]]] = {
    **dict.fromkeys((MessageRow, FormRow, IterationRow, HiddenRoundRow), lambda row: len(row.body)),
    **dict.fromkeys(
        (EditRow, StateRow, HelperAnswerRow, ScratchpadRow, NoteRow), lambda row: len(row.text) if row.text else 0
    ),
    ExchangeRow: lambda row: len(row.forms) + len(row.inserts),
    EmbeddingRow: lambda row: len(row.vector),
    MemoRow: lambda row: len(row.content),
}
"""Bytes of the bodies of a row, by its type; other types have none."""


def count_bytes(rows: Sequence[Row]) -> int:
    """Bytes that the rows occupy in the queue."""
    total = ROW_OVERHEAD * len(rows)
    for row in rows:
        size = _BODY_SIZES.get(type(row))
        if size is not None:
            total += size(row)
    return total


PIECE_ROWS = 400
"""Rows in one piece: some 10 ms of the writer's time."""
PIECE_BYTES = 512 << 10
"""Bytes in one piece, unless one row alone has more."""
PIECE_GROWTH = 4
"""Factor by which each piece is longer than the one before while no other puts: each costs a commit."""


PIECE_START_TYPES = (MessageRow, FormRow)
"""Row types with which a piece may begin."""


class WriteItem:
    """One call of `put`: the rows of a transaction, and its future. piece_of: the long put of a piece."""

    __slots__ = ("future", "piece_of", "rows", "size")

    def __init__(
        self, rows: Sequence[Row], future: asyncio.Future[None], size: int, piece_of: WriteItem | None = None
    ) -> None:
        self.rows = rows
        self.future = future
        self.size = size
        self.piece_of = piece_of

    @property
    def is_long(self) -> bool:
        """True if the item is longer than one piece."""
        return len(self.rows) > PIECE_ROWS or (self.size > PIECE_BYTES and len(self.rows) > 1)

    def collect_sessions(self) -> set[tuple[str, str]]:
        """(tenant, session) of the item's rows."""
        return {(row.tenant, row.session) for row in self.rows}


class LongWrite:
    """A long put in progress, and all items that must not overtake it, in order."""

    def __init__(self, item: WriteItem) -> None:
        self.item = item
        self.waiting_items: list[WriteItem] = []
        self._sessions = item.collect_sessions()
        self._at = 0
        self._unsettled_pieces = 0
        self._growth = 1
        self._alone = False

    def enqueue_if_blocked(self, item: WriteItem) -> bool:
        """True if an item has to wait; the item is then queued behind the long put. One long put is in progress at a
        time, so other long items wait too."""
        sessions = item.collect_sessions()
        if not item.is_long and self._sessions.isdisjoint(sessions):
            self._alone = False
            return False
        self._sessions |= sessions
        self.waiting_items.append(item)
        return True

    def take_next_piece(self) -> WriteItem | None:
        """The next piece, None if all are handed on."""
        if self._at == len(self.item.rows):
            return None
        self._growth = self._growth * PIECE_GROWTH if self._alone else 1
        self._alone = True
        end = self._find_piece_end(self._at)
        rows = self.item.rows[self._at : end]
        self._at = end
        self._unsettled_pieces += 1
        return WriteItem(rows, self.item.future, count_bytes(rows), self.item)

    def _find_piece_end(self, begin: int) -> int:
        rows, size = self.item.rows, 0
        for n in range(begin, len(rows)):
            row_size = count_bytes((rows[n],))
            full = n - begin >= PIECE_ROWS * self._growth or size + row_size > PIECE_BYTES * self._growth
            if n > begin and full and isinstance(rows[n], PIECE_START_TYPES):
                return n
            size += row_size
        return len(rows)

    def take_rest(self) -> list[WriteItem]:
        """The remaining pieces and the items queued behind them. Nothing is queued behind it afterwards."""
        items = []
        while (piece := self.take_next_piece()) is not None:
            items.append(piece)
        items += self.waiting_items
        self.waiting_items = []
        return items

    def settle_piece(self, error: Exception | None) -> bool:
        """Record that a piece is on disk, or can never be. True if the long put has ended with it."""
        self._unsettled_pieces -= 1
        if error is not None:
            self._at = len(self.item.rows)
        return error is not None or (self._at == len(self.item.rows) and not self._unsettled_pieces)


class WriteQueue:
    """Items on their way to the writer. limit: bytes by `count_bytes`. wake: called for a new entry."""

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
        self._progress_at = 0.0
        """Time of the last settled item, or of the first one since the queue was empty."""
        self._timer: asyncio.TimerHandle | None = None
        self._open = True
        self._long_write: LongWrite | None = None

    @property
    def closed(self) -> bool:
        """True if the queue takes no more rows."""
        return not self._open

    @property
    def stalled(self) -> bool:
        """True if rows wait, and none has been written for `STALLED_S`."""
        return self.item_count > 0 and asyncio.get_running_loop().time() - self._progress_at > STALLED_S

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
        item = WriteItem(rows, future, count_bytes(rows))
        if not self._open:
            self._record_lost_item(item, "closed", StoreUnavailable("the store is closed."))
        elif self.byte_count and self.byte_count + item.size > self._limit:
            # A single item over the limit is taken when nothing else waits: it could never be stored otherwise.
            self._record_lost_item(
                item, "spool full", StoreUnavailable(f"{self.byte_count} bytes already wait to be written.")
            )
        else:
            self._hold(item)
            if waited or self._held_bytes > _HOLD_BYTES:
                self.flush_deferred()
            elif self._timer is None:
                self._timer = loop.call_later(HOLD_S, self._flush_if_due, loop)
        return future

    def put_barrier(self) -> asyncio.Future[None]:
        """Queue an item without rows, and return its future. The future is done once all rows before the item are in
        the tables. It holds StoreUnavailable if they cannot be written now."""
        self.flush_deferred()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._open:
            future.set_result(None)
            return future
        item = WriteItem((), future, 0)
        self._add_item(item)
        self._send_to_writer([item])
        return future

    def record_loss(self, gap: GapRow) -> None:
        """Record durable rows that could not be read again, or that no table takes."""
        self.dropped += 1
        self._add_gap(gap)
        if self._open:
            self._write_gaps()

    def _add_item(self, item: WriteItem) -> None:
        if not self.item_count:
            self._progress_at = asyncio.get_running_loop().time()
        self.item_count += 1
        self.byte_count += item.size

    def _hold(self, item: WriteItem) -> None:
        self._add_item(item)
        if not self._held:
            self._due_at = asyncio.get_running_loop().time() + HOLD_S
        self._held.append(item)
        self._held_bytes += item.size

    def flush_deferred(self) -> None:
        """Hand on the rows that are held back."""
        if self._held:
            held, self._held, self._held_bytes = self._held, [], 0
            self._dispatch_items(held)

    def _dispatch_items(self, items: Sequence[WriteItem]) -> None:
        """Hand items to the writer. A long item starts with its first piece; items that must come after it wait."""
        ready: list[WriteItem | None] = []
        for item in items:
            if self._long_write is not None and self._long_write.enqueue_if_blocked(item):
                continue
            if item.is_long:
                self._long_write = LongWrite(item)
                ready.append(self._long_write.take_next_piece())
            else:
                ready.append(item)
        self._send_to_writer([item for item in ready if item is not None])

    def _send_to_writer(self, items: list[WriteItem]) -> None:
        if items:
            self.inbox.put(items)
            self._wake()

    def _flush_if_due(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand on the held rows if they are due. The timer is not reset with every item, so it checks the due time of
        the rows that are held now."""
        self._timer = None
        left = self._due_at - loop.time()
        if self._held and left > 0:
            self._timer = loop.call_later(left, self._flush_if_due, loop)
        else:
            self.flush_deferred()

    def settle_items(self, items: Sequence[WriteItem], error: Exception | None) -> None:
        """Record that the items are durable, or can never be because of `error`."""
        if error is None:
            self._progress_at = asyncio.get_running_loop().time()
        for item in items:
            if item.piece_of is None:
                self._settle_item(item, error)
            elif self._long_write is not None and self._long_write.item is item.piece_of:
                self._continue_long_write(self._long_write, error)
        if error is None and self._gaps and self._open:
            self._write_gaps()

    def _settle_item(self, item: WriteItem, error: Exception | None) -> None:
        self.item_count -= 1
        self.byte_count -= item.size
        if error is None:
            if not item.future.done():
                item.future.set_result(None)
            return
        unavailable = StoreUnavailable(f"the rows could not be stored: {type(error).__name__}: {error}.")
        unavailable.__cause__ = error
        if item.rows:
            self._record_lost_item(item, type(error).__name__, unavailable)
        elif not item.future.done():
            item.future.set_exception(unavailable)
            item.future.exception()  # retrieved, or asyncio would log it: the reader may have stopped waiting

    def _continue_long_write(self, long_write: LongWrite, error: Exception | None) -> None:
        """Continue after a piece of a long item: with the next piece, or the items that waited behind it."""
        if not long_write.settle_piece(error):
            more = long_write.take_next_piece()
            self._send_to_writer([more] if more is not None else [])
            return
        self._long_write = None
        self._settle_item(long_write.item, error)
        self._dispatch_items(long_write.waiting_items)

    def _record_lost_item(self, item: WriteItem, reason: str, error: StoreUnavailable) -> None:
        """Fail the item's future, and record its rows as a gap."""
        self.dropped += 1
        if not self._gaps:
            log.error("rows are lost until the store works again, and recorded as gaps: %s", reason)
        if not item.future.done():
            item.future.set_exception(error)
            # Retrieved, or asyncio would log it: no caller has to await a put, and losses are recorded below.
            item.future.exception()
        gaps = [row for row in item.rows if isinstance(row, GapRow)]  # a gap record that is lost is recorded again
        gap = encode.make_gap(item.rows, item.size, reason)
        for one in gaps if gap is None else [gap]:
            self._add_gap(one)

    def _add_gap(self, gap: GapRow) -> None:
        """Add the gap to the one of its exchange and reason, or to the one without a name if there are too many."""
        place = (gap.tenant, gap.session, gap.exchange, gap.reason)
        if place not in self._gaps and len(self._gaps) >= _MAX_GAPS:
            place = ("", "", "", gap.reason)
        known = self._gaps.get(place)
        taken, items = (known.bytes, known.items) if known else (0, 0)
        self._gaps[place] = GapRow(*place[:3], taken + gap.bytes, gap.reason, gap.created_at, items + gap.items)

    def _write_gaps(self) -> None:
        """Record losses as soon as rows can be written again, over the limit if need be."""
        gaps = tuple(self._gaps.values())
        self._gaps.clear()
        log.warning("storing works again; %d gaps are recorded", len(gaps))
        self._hold(WriteItem(gaps, asyncio.get_running_loop().create_future(), count_bytes(gaps)))
        self.flush_deferred()

    def close(self) -> None:
        """Take no more rows, and hand the rest and the end mark to the writer. Idempotent."""
        if self._open:
            if self._gaps:
                self._write_gaps()
            self.flush_deferred()
            if self._long_write is not None:
                self._send_to_writer(self._long_write.take_rest())
            self._open = False
            if self._timer is not None:
                self._timer.cancel()
            self.inbox.put(None)
            self._wake()


class StoreWriter(Protocol):
    """A writer: takes the items from the queue's `inbox`, and settles them."""

    commits: int
    trouble: str
    """The writer's fault, "" for none."""
    queue: WriteQueue


class QueuedStore(ABC):
    """The writing half of a `Store` whose rows go through a queue; a backend adds opening, closing and reading."""

    def __init__(self, writer: StoreWriter) -> None:
        self._writing = writer

    @abstractmethod
    def _find_read_trouble(self) -> str:
        """The fault of the last read, "" for none."""

    @property
    def writable(self) -> bool:
        return not self._writing.trouble

    @property
    def readable(self) -> bool:
        return not self._find_read_trouble()

    @property
    def trouble(self) -> str:
        return self._writing.trouble or self._find_read_trouble()

    @property
    def stalled(self) -> bool:
        return self._writing.queue.stalled

    @property
    def queued(self) -> int:
        return self._writing.queue.item_count

    @property
    def dropped(self) -> int:
        return self._writing.queue.dropped

    @property
    def commits(self) -> int:
        """Number of transactions so far; far fewer than items under load."""
        return self._writing.commits

    def put(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        return self._writing.queue.put(rows)

    def put_deferred(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        return self._writing.queue.put(rows, waited=False)

    def flush_deferred(self) -> None:
        self._writing.queue.flush_deferred()

    @abstractmethod
    def _keep_gaps(self, gaps: Sequence[GapRow]) -> None:
        """Store the gaps outside of the store itself, if the backend can."""

    def _log_close(self) -> None:
        gaps = self._writing.queue.take_unrecorded_gaps()
        gap_file.log_gaps(gaps)
        self._keep_gaps(gaps)
        if self.dropped:
            log.warning("store closed; %d items were not stored", self.dropped)
        else:
            log.info("store closed; 0 items dropped")
