"""Long puts, handed to the writer piece by piece: what others put meanwhile goes between two pieces, and does not wait
until thousands of rows are written.

A put is one transaction's worth where it is short. Of a long one, the first rows may be on disk when the process is
killed before the last: each refers to rows before it alone, so that what is there is the beginning of a conversation,
and nobody was told that it is there. What was put later for the same session comes behind all of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence

from proxy.store import encode
from proxy.store.base import Row

ROWS = 400
"""So many rows at most are one piece: some 10 ms of the writer's time."""
BYTES = 512 << 10
"""And so many bytes, unless a row has more by itself."""


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
        self._pieces = deque(_cut(item))
        self._left = len(self._pieces)

    def holds(self, item: Item) -> bool:
        """Whether an item has to wait; then it is put behind. There is one lane, so other long ones wait too."""
        sessions = item.sessions()
        if not item.is_long and self._sessions.isdisjoint(sessions):
            return False
        self._sessions |= sessions
        self.behind.append(item)
        return True

    def next(self) -> Item | None:
        """The next piece, None where all are on their way."""
        return self._pieces.popleft() if self._pieces else None

    def rest(self) -> list[Item]:
        """All that has not been handed on, what is behind included; nothing of it is here any more."""
        found = [*self._pieces, *self.behind]
        self._pieces.clear()
        self.behind = []
        return found

    def settled(self, error: Exception | None) -> bool:
        """A piece is on disk, or can never be. Whether that is the end of it."""
        self._left -= 1
        if error is not None:
            self._left -= len(self._pieces)
            self._pieces.clear()
        return self._left == 0 or error is not None


def _cut(item: Item) -> Iterator[Item]:
    rows: list[Row] = []
    size = 0
    for row in item.rows:
        more = encode.size((row,))
        if rows and (len(rows) >= ROWS or size + more > BYTES):
            yield Item(rows, item.future, size, item)
            rows, size = [], 0
        rows.append(row)
        size += more
    yield Item(rows, item.future, size, item)
