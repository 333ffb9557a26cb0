"""Removal in small steps, during live traffic: a session, a tenant, and data older than the retention time.

Each step is one put of a few hundred rows, so no request waits longer for its own commit than for another request's. A
session's own row goes last. So a removal that broke off is still found by its name, and the next attempt completes it.

A session's messages share data (forms, envelopes) within the session only, so whole sessions can be removed without a
check of others. Of a session that stays, no row is removed that a living branch depends on.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from proxy.errors import StoreUnavailable
from proxy.store.row_reader import RowReader

SessionPlace = tuple[str, str]
"""(tenant, session)."""

STEP_ROWS = 200
"""Maximum number of rows that one step removes."""
_PAUSE_S = 0.005
"""Seconds between two steps."""
_ROUNDS = 20
"""Number of passes over a session that is written to while it is removed."""

_KEYS = {
    "messages": "key",
    "forms": "form",
    "edits": "branch, key, version",
    "states": "branch, key",
    "exchanges": "exchange",
    "gaps": "exchange, reason",
    "helper_answers": "ask",
    "embeddings": "model, form",
    "iterations": "branch, key",
    "hidden_rounds": "key",
    "bindings": "token",
    "scratchpads": "number",
    "notes": "branch, note",
    "response_names": "name",
    "indexed": "kind, branch, version",
    "memos": "memo",
    "context_windows": "upstream, model",
    "spending": "day, kind",
    "branches": "branch",
    "sessions": "session",
}
"""Each table's primary key after tenant and session, in the order in which the tables are emptied. Edits and messages
come before their index rows, which are removed with them."""

_OF_TENANT = ("memos", "context_windows", "spending")
"""Tables of a tenant's rows under a session of no name, which no removal of a session takes with it."""

CLEAR_MEMO_SOURCES = "memos.source_session"
"""The name, used instead of a table's, of the step that clears a removed session's name in the tenant's memos."""


_OF_BRANCH = (
    *("hidden_rounds", "notes", "response_names", "iterations", "states", "edits", "exchanges", "messages"),
    "branches",
)
"""Tables from which a branch's rows are removed, its own row last. Forms may belong to another branch's messages too,
so they stay until the session is removed."""


class RemovalStepRow(Struct, frozen=True, gc=False):
    """One step: removes some rows of a table of a session or a branch. If it is lost, no data is."""

    tenant: str
    session: str
    table: str
    branch: str | None = None
    limit: int = STEP_ROWS


REMOVE_ROWS: dict[str, str] = {
    table: f"""
DELETE FROM {table} WHERE tenant = $1 AND session = $2 AND ({keys}) IN (
    SELECT {keys} FROM {table} WHERE tenant = $3 AND session = $4 LIMIT $5)"""  # noqa: S608  names of ours
    for table, keys in _KEYS.items()
}
REMOVE_ROWS[CLEAR_MEMO_SOURCES] = """
UPDATE memos SET source_session = '' WHERE tenant = $1 AND session = '' AND source_session = $2"""

_IN_BRANCH = {
    table: "key IN (SELECT m.key FROM messages m WHERE m.tenant = {} AND m.session = {} AND m.branch = {})"
    if table == "hidden_rounds"
    else "branch = {}"
    for table in _OF_BRANCH
}
"""A round is filed under the answer that follows it; rows of other tables name their branch."""


def _erase_branch(table: str) -> str:
    count = _IN_BRANCH[table].count("{}")
    within = _IN_BRANCH[table].format(*(f"${n}" for n in range(5, 5 + count)))
    return REMOVE_ROWS[table].replace(" LIMIT $5", f" AND {within} LIMIT ${5 + count}")


REMOVE_BRANCH_ROWS: dict[str, str] = {table: _erase_branch(table) for table in _OF_BRANCH}

BRANCH_LEFT = {
    table: f"SELECT 1 FROM {table} WHERE tenant = $1 AND session = $2 AND "  # noqa: S608  names of ours
    + within.format(*(f"${n}" for n in range(3, 6)))
    + " LIMIT 1"
    for table, within in _IN_BRANCH.items()
}

IDLE_BRANCHES = """
SELECT t.tenant, t.session, t.branch FROM branches t WHERE t.last_at < $1 AND NOT EXISTS (
    SELECT 1 FROM branches c WHERE c.tenant = t.tenant AND c.session = t.session AND c.parent = t.branch)
ORDER BY t.last_at LIMIT $2 OFFSET $3"""

BRANCH_STILL_IDLE = """
SELECT 1 FROM branches WHERE tenant = $1 AND session = $2 AND branch = $3 AND last_at < $4"""

BRANCH_NEEDED = """
SELECT 1 FROM (
    SELECT m.key FROM messages m WHERE m.tenant = $1 AND m.session = $2 AND m.branch = $3
    INTERSECT
    SELECT needed.key FROM (
        SELECT c.parent AS key FROM messages c WHERE c.tenant = $4 AND c.session = $5 AND c.branch <> $6
        UNION ALL SELECT o.tip FROM branches o WHERE o.tenant = $7 AND o.session = $8 AND o.branch <> $9
        UNION ALL SELECT o.answer FROM branches o WHERE o.tenant = $10 AND o.session = $11 AND o.branch <> $12
    ) needed
) shared LIMIT 1"""
"""Finds out if another branch depends on a message that this branch stored first.

The query intersects two sets. A look from each row of one set at the other would become quadratic with a planner that
has no statistics of a table.
"""

_ONE = "EXISTS (SELECT 1 FROM {} WHERE tenant = ${} AND session = ${})"

REMAINING_ROWS = "SELECT " + ", ".join(_ONE.format(table, 2 * n + 1, 2 * n + 2) for n, table in enumerate(_KEYS))

_FIRST = "SELECT * FROM (SELECT session FROM {} WHERE tenant = ${} LIMIT 1) one{}"

ANY_SESSION = " UNION ALL ".join(_FIRST.format(table, n, n) for n, table in enumerate(_KEYS, 1)) + " LIMIT 1"
"""A session with any stored row, even only a gap record."""

IDLE_SESSIONS = "SELECT tenant, session FROM sessions WHERE last_at < $1 ORDER BY last_at LIMIT $2"

STILL_IDLE = "SELECT 1 FROM sessions WHERE tenant = $1 AND session = $2 AND last_at < $3"


def build_removal_args(row: RemovalStepRow) -> tuple[Any, ...]:
    """The arguments of a statement of REMOVE_ROWS, or of REMOVE_BRANCH_ROWS."""
    place = (row.tenant, row.session)
    if row.branch is not None:
        return (*place, *place, *_build_branch_args(row.table, *place, row.branch), row.limit)
    return place if row.table == CLEAR_MEMO_SOURCES else (*place, *place, row.limit)


def select_removal_statement(row: RemovalStepRow) -> str:
    """The statement that removes the rows."""
    return REMOVE_ROWS[row.table] if row.branch is None else REMOVE_BRANCH_ROWS[row.table]


def _build_branch_args(table: str, tenant: str, session: str, branch: str) -> tuple[str, ...]:
    return (tenant, session, branch) if table == "hidden_rounds" else (branch,)


class RemovalSteps(RowReader):
    """Removal, by reads and puts. Each method can be called again after a failure."""

    @abstractmethod
    def put(self, rows: Sequence[Any]) -> asyncio.Future[None]:
        """Queue rows as `Store.put` does."""

    async def delete_session(self, tenant: str, session: str) -> int:
        """Remove all stored rows of a session, and its name from the tenant's memos; return the number of steps. Raises
        StoreUnavailable if new rows keep coming."""
        await self.put([RemovalStepRow(tenant, session, CLEAR_MEMO_SOURCES)])
        return await self._erase(tenant, session, [table for table in _KEYS if table not in _OF_TENANT])

    async def _erase(self, tenant: str, session: str, tables: list[str]) -> int:
        steps = 0
        for _ in range(_ROUNDS):
            has_rows = await self._find_remaining_tables(tenant, session)
            if not any(has_rows[table] for table in tables):
                return steps
            for table in tables:
                while has_rows[table]:
                    await self.put([RemovalStepRow(tenant, session, table)])
                    steps += 1
                    await asyncio.sleep(_PAUSE_S)
                    has_rows = await self._find_remaining_tables(tenant, session)
        raise StoreUnavailable("rows of what is to be removed keep coming.")

    async def _find_remaining_tables(self, tenant: str, session: str) -> dict[str, bool]:
        (row,) = await self._fetch(REMAINING_ROWS, (tenant, session) * len(_KEYS))
        return {table: bool(found) for table, found in zip(_KEYS, row, strict=True)}

    async def maintain(self) -> None:
        """Prepare the store for the time ahead: only one with partitions needs it. Called at intervals. Raises
        StoreUnavailable."""

    async def delete_tenant(self, tenant: str) -> int:
        """Remove all stored rows of a tenant, memos included; return the number of sessions removed."""
        removed = 0
        while found := await self._fetch(ANY_SESSION, (tenant,) * len(_KEYS)):
            await self._erase(tenant, found[0][0], list(_KEYS))
            removed += 1
        return removed

    async def remove_expired(self, before: float, limit: int = 100) -> list[SessionPlace]:
        """Remove sessions that were last used before `before`, the oldest first, and then idle branches of other
        sessions that no other branch depends on. Return the session of each, `limit` at most. Call again until there
        is none."""
        removed: list[SessionPlace] = []
        for tenant, session in await self._fetch(IDLE_SESSIONS, (before, limit)):
            if await self._fetch(STILL_IDLE, (tenant, session, before)):
                await self.delete_session(tenant, session)
                removed.append((tenant, session))
        looked = 0
        while len(removed) < limit and (found := await self._fetch(IDLE_BRANCHES, (before, limit, looked))):
            for tenant, session, branch in found:
                if len(removed) < limit and await self._may_go((tenant, session, branch), before):
                    await self._erase_branch(tenant, session, branch)
                    removed.append((tenant, session))
                else:
                    looked += 1
        return removed

    async def _may_go(self, place: tuple[str, str, str], before: float) -> bool:
        if await self._fetch(BRANCH_NEEDED, place * 4):
            return False
        return bool(await self._fetch(BRANCH_STILL_IDLE, (*place, before)))

    async def _erase_branch(self, tenant: str, session: str, branch: str) -> None:
        for table in _OF_BRANCH:
            args = (tenant, session, *_build_branch_args(table, tenant, session, branch))
            while await self._fetch(BRANCH_LEFT[table], args):
                await self.put([RemovalStepRow(tenant, session, table, branch)])
                await asyncio.sleep(_PAUSE_S)
