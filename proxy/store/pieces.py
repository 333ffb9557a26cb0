"""Long puts, handed to the writer in pieces: puts of other callers go between two pieces, and do not wait for thousands
of rows.

A short put is one transaction. Of a long put the first messages may be on disk when the process is killed before the
last. Each message refers only to earlier ones, so the stored rows are the beginning of a conversation. No caller was
told that they are stored.

Rows that were decided together stay together. A new piece begins with a message or a form, so all edits are written
with the last of those, and with the thread's position. Later puts for the same session come after all pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from proxy.store import encode
from proxy.store.base import FormRow, MessageRow, Row

ROWS = 400
"""Rows in one piece: some 10 ms of the writer's time."""
BYTES = 512 << 10
"""Bytes in one piece, unless one row alone has more."""
GROWING = 4
"""Growth factor: each piece is this many times as long as the one before, while no other caller puts anything. Each
piece costs a commit."""


DIVISIBLE = (MessageRow, FormRow)
"""Row types with which a piece may begin."""


class Item:
    """One call of `put`: the rows of one transaction, and the future of its caller. whole: the long put that a piece
    belongs to."""

    __slots__ = ("future", "rows", "size", "whole")

    def __init__(self, rows: Sequence[Row], future: asyncio.Future[None], size: int, whole: Item | None = None) -> None:
        self.rows = rows
        self.future = future
        self.size = size
        self.whole = whole

    @property
    def is_long(self) -> bool:
        """True if the item is longer than one piece."""
        return len(self.rows) > ROWS or (self.size > BYTES and len(self.rows) > 1)

    def sessions(self) -> set[tuple[str, str]]:
        """(tenant, session) of the item's rows."""
        return {(row.tenant, row.session) for row in self.rows}


class Lane:
    """A long put in progress, and all items that must not overtake it, in order."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self.behind: list[Item] = []
        self._sessions = item.sessions()
        self._at = 0
        self._under_way = 0
        self._share = 1
        self._alone = False

    def holds(self, item: Item) -> bool:
        """True if an item has to wait; the item is then queued behind the long put. There is one lane, so other long
        items wait too."""
        sessions = item.sessions()
        if not item.is_long and self._sessions.isdisjoint(sessions):
            self._alone = False
            return False
        self._sessions |= sessions
        self.behind.append(item)
        return True

    def next(self) -> Item | None:
        """The next piece, None if all are handed on."""
        if self._at == len(self.item.rows):
            return None
        self._share = self._share * GROWING if self._alone else 1
        self._alone = True
        end = self._end(self._at)
        rows = self.item.rows[self._at : end]
        self._at = end
        self._under_way += 1
        return Item(rows, self.item.future, encode.size(rows), self.item)

    def _end(self, begin: int) -> int:
        rows, size = self.item.rows, 0
        for n in range(begin, len(rows)):
            more = encode.size((rows[n],))
            full = n - begin >= ROWS * self._share or size + more > BYTES * self._share
            if n > begin and full and isinstance(rows[n], DIVISIBLE):
                return n
            size += more
        return len(rows)

    def rest(self) -> list[Item]:
        """The remaining pieces and the items queued behind them. The lane is empty afterwards."""
        found = []
        while (piece := self.next()) is not None:
            found.append(piece)
        found += self.behind
        self.behind = []
        return found

    def settled(self, error: Exception | None) -> bool:
        """Record that a piece is on disk, or can never be. Return True if the long put is thereby complete or
        failed."""
        self._under_way -= 1
        if error is not None:
            self._at = len(self.item.rows)
        return error is not None or (self._at == len(self.item.rows) and not self._under_way)
