"""What a store knows not to be there, so that nobody has to be asked for it.

Hardly a conversation has a scratchpad, memos or hidden rounds, and each would be asked for them with every prompt. All
that is written to the store of one process goes through its `put`: who has any is read once, when the store is opened,
and noted with every put after that. Nothing is taken out again, so that who has had some once is simply asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from proxy.store.written import MemoRow, RoundRow, ScratchpadRow

Table = Literal["memos", "rounds", "scratchpads"]
Place = tuple[str, str]
"""(tenant, session)"""

MOST = 10_000
"""Sessions that are known to have some, a table; where more have, all are asked."""
_ROWS = 100_000
"""A table with more rows than that is not looked through at the start, which would take more than 0.1 s."""

_WRITES: dict[type, Table] = {MemoRow: "memos", RoundRow: "rounds", ScratchpadRow: "scratchpads"}

_HAVING = {
    table: f"""
SELECT p.tenant, p.session, count(*) FROM (SELECT tenant, session FROM {table} LIMIT {_ROWS + 1}) p
GROUP BY p.tenant, p.session LIMIT $1"""  # noqa: S608  names of ours
    for table in _WRITES.values()
}


class Absent:
    """Which sessions have rows in a table, as far as that is known."""

    def __init__(self) -> None:
        self._having: dict[Table, set[Place] | None] = dict.fromkeys(_WRITES.values())

    async def read(self, fetch: Callable[[str, Sequence[Any]], Awaitable[list[tuple[Any, ...]]]]) -> None:
        """Find out who has any, before the first put."""
        for table, text in _HAVING.items():
            rows = await fetch(text, (MOST + 1,))
            if len(rows) <= MOST and sum(row[2] for row in rows) <= _ROWS:
                self._having[table] = {(row[0], row[1]) for row in rows}

    def note(self, rows: Sequence[Any]) -> None:
        """These are put."""
        if _WRITES.keys().isdisjoint(map(type, rows)):
            return
        for row in rows:
            table = _WRITES.get(type(row))
            having = self._having[table] if table is not None else None
            if table is not None and having is not None:
                having.add((row.tenant, row.session))
                if len(having) > MOST:
                    self._having[table] = None

    def has_none(self, table: Table, tenant: str, session: str) -> bool:
        """Whether the session certainly has no row there."""
        having = self._having[table]
        return having is not None and (tenant, session) not in having
