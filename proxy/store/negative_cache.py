"""Negative cache: sessions known to have no memos, hidden rounds or scratchpad are not queried.

Few conversations have a scratchpad, memos or hidden rounds, yet every prompt would query for each of them. All writes
to the store of one process go through its `put`. So the sessions with rows are read once, when the store is opened, and
each later put adds its sessions. No session is removed again: a session that once had rows is simply queried.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from proxy.store.session_notes import HiddenRoundRow, MemoRow, ScratchpadRow

CachedTable = Literal["memos", "hidden_rounds", "scratchpads"]
SessionKey = tuple[str, str]
"""(tenant, session)"""

MAX_SESSIONS = 10_000
"""Sessions remembered per table; if more sessions have rows, all are queried."""
_ROWS = 100_000
"""Rows above which a table is not scanned at the start, since the scan would take more than 0.1 s."""

_WRITES: dict[type, CachedTable] = {MemoRow: "memos", HiddenRoundRow: "hidden_rounds", ScratchpadRow: "scratchpads"}

_HAVING = {
    table: f"""
SELECT p.tenant, p.session, count(*) FROM (SELECT tenant, session FROM {table} LIMIT {_ROWS + 1}) p
GROUP BY p.tenant, p.session LIMIT $1"""  # noqa: S608  names of ours
    for table in _WRITES.values()
}


class NegativeCache:
    """Sessions with rows in each table, as far as they are known."""

    def __init__(self) -> None:
        self._having: dict[CachedTable, set[SessionKey] | None] = dict.fromkeys(_WRITES.values())

    async def load_sessions(self, fetch: Callable[[str, Sequence[Any]], Awaitable[list[tuple[Any, ...]]]]) -> None:
        """Read the sessions that have rows, before the first put."""
        for table, text in _HAVING.items():
            rows = await fetch(text, (MAX_SESSIONS + 1,))
            if len(rows) <= MAX_SESSIONS and sum(row[2] for row in rows) <= _ROWS:
                self._having[table] = {(row[0], row[1]) for row in rows}

    def add_sessions(self, rows: Sequence[Any]) -> None:
        """Add the sessions of rows that are put."""
        if _WRITES.keys().isdisjoint(map(type, rows)):
            return
        for row in rows:
            table = _WRITES.get(type(row))
            having = self._having[table] if table is not None else None
            if table is not None and having is not None:
                having.add((row.tenant, row.session))
                if len(having) > MAX_SESSIONS:
                    self._having[table] = None

    def has_none(self, table: CachedTable, tenant: str, session: str) -> bool:
        """True if the session certainly has no row in the table."""
        having = self._having[table]
        return having is not None and (tenant, session) not in having
