"""Long puts, handed to the writer in pieces: puts of other callers go between two pieces, and do not wait for thousands
of rows.

A short put is one transaction. Of a long put the first messages may be on disk when the process is killed before the
last. Each message refers only to earlier ones, so the stored rows are the beginning of a conversation. No caller was
told that they are stored.

Rows that were decided together stay together. A new piece begins with a message or a form, so all edits are written
with the last of those, and with the branch's position. Later puts for the same session come after all pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from proxy.store import encode
from proxy.store.base import FormRow, MessageRow, Row

PIECE_ROWS = 400
"""Rows in one piece: some 10 ms of the writer's time."""
PIECE_BYTES = 512 << 10
"""Bytes in one piece, unless one row alone has more."""
PIECE_GROWTH = 4
"""Growth factor: each piece is this many times as long as the one before, while no other caller puts anything. Each
piece costs a commit."""


PIECE_START_TYPES = (MessageRow, FormRow)
"""Row types with which a piece may begin."""


class WriteItem:
    """One call of `put`: the rows of one transaction, and the future of its caller. whole: the long put that a piece
    belongs to."""

    __slots__ = ("future", "rows", "size", "whole")

    def __init__(
        self, rows: Sequence[Row], future: asyncio.Future[None], size: int, whole: WriteItem | None = None
    ) -> None:
        self.rows = rows
        self.future = future
        self.size = size
        self.whole = whole

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
        self._under_way = 0
        self._share = 1
        self._alone = False

    def enqueue_if_blocked(self, item: WriteItem) -> bool:
        """True if an item has to wait; the item is then queued behind the long put. There is one lane, so other long
        items wait too."""
        sessions = item.collect_sessions()
        if not item.is_long and self._sessions.isdisjoint(sessions):
            self._alone = False
            return False
        self._sessions |= sessions
        self.waiting_items.append(item)
        return True

    def next_piece(self) -> WriteItem | None:
        """The next piece, None if all are handed on."""
        if self._at == len(self.item.rows):
            return None
        self._share = self._share * PIECE_GROWTH if self._alone else 1
        self._alone = True
        end = self._end(self._at)
        rows = self.item.rows[self._at : end]
        self._at = end
        self._under_way += 1
        return WriteItem(rows, self.item.future, encode.count_bytes(rows), self.item)

    def _end(self, begin: int) -> int:
        rows, size = self.item.rows, 0
        for n in range(begin, len(rows)):
            more = encode.count_bytes((rows[n],))
            full = n - begin >= PIECE_ROWS * self._share or size + more > PIECE_BYTES * self._share
            if n > begin and full and isinstance(rows[n], PIECE_START_TYPES):
                return n
            size += more
        return len(rows)

    def take_rest(self) -> list[WriteItem]:
        """The remaining pieces and the items queued behind them. The lane is empty afterwards."""
        found = []
        while (piece := self.next_piece()) is not None:
            found.append(piece)
        found += self.waiting_items
        self.waiting_items = []
        return found

    def settle_piece(self, error: Exception | None) -> bool:
        """Record that a piece is on disk, or can never be. Return True if the long put is thereby complete or
        failed."""
        self._under_way -= 1
        if error is not None:
            self._at = len(self.item.rows)
        return error is not None or (self._at == len(self.item.rows) and not self._under_way)
