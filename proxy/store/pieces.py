"""Long puts, handed to the writer piece by piece: what others put meanwhile goes between two pieces, and does not wait
until thousands of rows are written.

A put is one transaction's worth where it is short. Of a long one the first messages may be on disk when the process is
killed before the last: each refers to those before it alone, so that what is there is the beginning of a conversation,
and nobody was told that it is there. What was decided together stays together: a new piece begins with a message or a
form, so that all edits are written with the last of those, and where the thread stands. What was put later for the same
session comes behind all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from proxy.store import encode
from proxy.store.base import FormRow, MessageRow, Row

ROWS = 400
"""So many rows are one piece: some 10 ms of the writer's time."""
BYTES = 512 << 10
"""Or so many bytes, unless a row has more by itself."""
GROWING = 4
"""A piece is so many times as long as the one before it while nobody else puts anything: each costs a commit."""


DIVISIBLE = (MessageRow, FormRow)
"""What a piece may begin with."""


class Item:
    """One call of `put`: one transaction's worth, and who waits for it. whole: the long put that it is a piece of."""

    __slots__ = ("future", "rows", "size", "whole")

    def __init__(self, rows: Sequence[Row], future: asyncio.Future[None], size: int, whole: Item | None = None) -> None:
        self.rows = rows
        self.future = future
        self.size = size
        self.whole = whole

    @property
    def is_long(self) -> bool:
        """Whether it is more than one piece."""
        return len(self.rows) > ROWS or (self.size > BYTES and len(self.rows) > 1)

    def sessions(self) -> set[tuple[str, str]]:
        """(tenant, session) of its rows."""
        return {(row.tenant, row.session) for row in self.rows}


class Lane:
    """A long put under way, and all that must not overtake it, in order."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self.behind: list[Item] = []
        self._sessions = item.sessions()
        self._at = 0
        self._under_way = 0
        self._share = 1
        self._alone = False

    def holds(self, item: Item) -> bool:
        """Whether an item has to wait; then it is put behind. There is one lane, so other long ones wait too."""
        sessions = item.sessions()
        if not item.is_long and self._sessions.isdisjoint(sessions):
            self._alone = False
            return False
        self._sessions |= sessions
        self.behind.append(item)
        return True

    def next(self) -> Item | None:
        """The next piece, None where all are on their way."""
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
        """All that has not been handed on, what is behind included; nothing of it is here any more."""
        found = []
        while (piece := self.next()) is not None:
            found.append(piece)
        found += self.behind
        self.behind = []
        return found

    def settled(self, error: Exception | None) -> bool:
        """A piece is on disk, or can never be. Whether that is the end of it."""
        self._under_way -= 1
        if error is not None:
            self._at = len(self.item.rows)
        return error is not None or (self._at == len(self.item.rows) and not self._under_way)
