"""Removal in small steps, beside live traffic: a session, a tenant, and what is older than it may be.

Each step is one put of a few hundred rows, so that no request waits longer for its own commit than for another's. A
session's own row goes last: what was begun and broke off is still found by its name, and ended by the next attempt.
What a session's messages share (forms, envelopes) is shared within the session only, so that whole sessions can go
without a look at others; of a session that lives on, nothing is taken that a living thread stands on.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from proxy.errors import StoreUnavailable
from proxy.store.fetch import Fetch

STEP = 200
"""Rows that one step removes at most."""
_PAUSE_S = 0.005
"""Between two steps."""
_ROUNDS = 20
"""A session that is written to while it is removed is gone over so often."""

_KEYS = {
    "messages": "key",
    "forms": "form",
    "edits": "thread, key, version",
    "states": "thread, key",
    "exchanges": "exchange",
    "gaps": "exchange, reason",
    "answers": "ask",
    "embeddings": "model, form",
    "iterations": "thread, key",
    "rounds": "key",
    "scratchpads": "number",
    "notes": "thread, note",
    "indexed": "kind, thread, version",
    "memos": "memo",
    "threads": "thread",
    "sessions": "session",
}
"""Each table's primary key behind tenant and session, in the order in which tables are emptied: edits and messages
before what is indexed of them, which goes with them."""

SOURCE = "memos.source_session"
"""The step that takes the name of a removed session out of the tenant's memos, in place of a table's."""


_OF_THREAD = ("rounds", "notes", "iterations", "states", "edits", "exchanges", "messages", "threads")
"""What goes with a thread, its own row last. Forms may be those of another thread's messages too: they stay until
the session goes."""


class EraseRow(Struct, frozen=True, gc=False):
    """One step: removes some rows of one table of a session, or of one thread of it. Nothing is lost where it cannot
    be written."""

    tenant: str
    session: str
    table: str
    thread: str | None = None
    limit: int = STEP


ERASE: dict[str, str] = {
    table: f"""
DELETE FROM {table} WHERE tenant = $1 AND session = $2 AND ({keys}) IN (
    SELECT {keys} FROM {table} WHERE tenant = $3 AND session = $4 LIMIT $5)"""  # noqa: S608  names of ours
    for table, keys in _KEYS.items()
}
ERASE[SOURCE] = """
UPDATE memos SET source_session = '' WHERE tenant = $1 AND session = '' AND source_session = $2"""

_IN_THREAD = {
    table: "key IN (SELECT m.key FROM messages m WHERE m.tenant = {} AND m.session = {} AND m.thread = {})"
    if table == "rounds"
    else "thread = {}"
    for table in _OF_THREAD
}
"""A round is filed under the answer that it stands behind, everything else names its thread."""


def _erase_thread(table: str) -> str:
    count = _IN_THREAD[table].count("{}")
    within = _IN_THREAD[table].format(*(f"${n}" for n in range(5, 5 + count)))
    return ERASE[table].replace(" LIMIT $5", f" AND {within} LIMIT ${5 + count}")


ERASE_THREAD: dict[str, str] = {table: _erase_thread(table) for table in _OF_THREAD}

THREAD_LEFT = {
    table: f"SELECT 1 FROM {table} WHERE tenant = $1 AND session = $2 AND "  # noqa: S608  names of ours
    + within.format(*(f"${n}" for n in range(3, 6)))
    + " LIMIT 1"
    for table, within in _IN_THREAD.items()
}

IDLE_THREADS = """
SELECT t.tenant, t.session, t.thread FROM threads t WHERE t.last_at < $1 AND NOT EXISTS (
    SELECT 1 FROM threads c WHERE c.tenant = t.tenant AND c.session = t.session AND c.parent = t.thread)
ORDER BY t.last_at LIMIT $2 OFFSET $3"""

THREAD_STILL_IDLE = """
SELECT 1 FROM threads WHERE tenant = $1 AND session = $2 AND thread = $3 AND last_at < $4"""

THREAD_NEEDED = """
SELECT 1 FROM (
    SELECT m.key FROM messages m WHERE m.tenant = $1 AND m.session = $2 AND m.thread = $3
    INTERSECT
    SELECT needed.key FROM (
        SELECT c.parent AS key FROM messages c WHERE c.tenant = $4 AND c.session = $5 AND c.thread <> $6
        UNION ALL SELECT o.head FROM threads o WHERE o.tenant = $7 AND o.session = $8 AND o.thread <> $9
        UNION ALL SELECT o.answer FROM threads o WHERE o.tenant = $10 AND o.session = $11 AND o.thread <> $12
    ) needed
) shared LIMIT 1"""
"""Whether another thread stands on a message that this one stored first. Two sets, and no look from each of one at the
other, which a planner that knows nothing of a table yet turns into a square."""

_ONE = "EXISTS (SELECT 1 FROM {} WHERE tenant = ${} AND session = ${})"

LEFT = "SELECT " + ", ".join(_ONE.format(table, 2 * n + 1, 2 * n + 2) for n, table in enumerate(_KEYS))

_FIRST = "SELECT * FROM (SELECT session FROM {} WHERE tenant = ${} LIMIT 1) one{}"

ANY_SESSION = " UNION ALL ".join(_FIRST.format(table, n, n) for n, table in enumerate(_KEYS, 1)) + " LIMIT 1"
"""A session of which anything is stored, be it a gap of a session that never was."""

IDLE_SESSIONS = "SELECT tenant, session FROM sessions WHERE last_at < $1 ORDER BY last_at LIMIT $2"

STILL_IDLE = "SELECT 1 FROM sessions WHERE tenant = $1 AND session = $2 AND last_at < $3"


def erase_args(row: EraseRow) -> tuple[Any, ...]:
    """The arguments of ERASE, or of ERASE_THREAD."""
    place = (row.tenant, row.session)
    if row.thread is not None:
        return (*place, *place, *_thread_args(row.table, *place, row.thread), row.limit)
    return place if row.table == SOURCE else (*place, *place, row.limit)


def erase_text(row: EraseRow) -> str:
    """The statement that takes them."""
    return ERASE[row.table] if row.thread is None else ERASE_THREAD[row.table]


def _thread_args(table: str, tenant: str, session: str, thread: str) -> tuple[str, ...]:
    return (tenant, session, thread) if table == "rounds" else (thread,)


class RemovalStore(Protocol):
    """Its part of a `Store`. Each can be called again where it broke off."""

    async def delete_session(self, tenant: str, session: str) -> int:
        """Removes all that is stored of a session, and its name from the tenant's memos; returns the steps taken.
        Raises StoreUnavailable where rows keep coming."""
        ...

    async def delete_tenant(self, tenant: str) -> int:
        """Removes all that is stored of a tenant, memos included; returns the sessions removed."""
        ...

    async def retention(self, before: float, limit: int = 100) -> int:
        """Removes sessions that were last used before this time, the oldest first and so many at most, and of those
        that live on the threads that no other stands on; returns how many. To be called until it returns 0."""
        ...


class Removal(Fetch):
    """`RemovalStore` by reads and puts."""

    @abstractmethod
    def put(self, rows: Sequence[Any]) -> asyncio.Future[None]:
        """As `Store.put`."""

    async def delete_session(self, tenant: str, session: str) -> int:
        await self.put([EraseRow(tenant, session, SOURCE)])
        # A tenant's memos lie under a session of no name; a session of no name does not take them with it.
        return await self._erase(tenant, session, [table for table in _KEYS if table != "memos"])

    async def _erase(self, tenant: str, session: str, tables: list[str]) -> int:
        steps = 0
        for _ in range(_ROUNDS):
            left = await self._left(tenant, session)
            if not any(left[table] for table in tables):
                return steps
            for table in tables:
                while left[table]:
                    await self.put([EraseRow(tenant, session, table)])
                    steps += 1
                    await asyncio.sleep(_PAUSE_S)
                    left = await self._left(tenant, session)
        raise StoreUnavailable("rows of what is to be removed keep coming.")

    async def _left(self, tenant: str, session: str) -> dict[str, bool]:
        (row,) = await self._fetch(LEFT, (tenant, session) * len(_KEYS))
        return {table: bool(found) for table, found in zip(_KEYS, row, strict=True)}

    async def delete_tenant(self, tenant: str) -> int:
        removed = 0
        while found := await self._fetch(ANY_SESSION, (tenant,) * len(_KEYS)):
            await self._erase(tenant, found[0][0], list(_KEYS))
            removed += 1
        return removed

    async def retention(self, before: float, limit: int = 100) -> int:
        removed = 0
        for tenant, session in await self._fetch(IDLE_SESSIONS, (before, limit)):
            if await self._fetch(STILL_IDLE, (tenant, session, before)):
                await self.delete_session(tenant, session)
                removed += 1
        looked = 0
        while removed < limit and (found := await self._fetch(IDLE_THREADS, (before, limit, looked))):
            for tenant, session, thread in found:
                if removed < limit and await self._may_go((tenant, session, thread), before):
                    await self._erase_thread(tenant, session, thread)
                    removed += 1
                else:
                    looked += 1
        return removed

    async def _may_go(self, place: tuple[str, str, str], before: float) -> bool:
        if await self._fetch(THREAD_NEEDED, place * 4):
            return False
        return bool(await self._fetch(THREAD_STILL_IDLE, (*place, before)))

    async def _erase_thread(self, tenant: str, session: str, thread: str) -> None:
        for table in _OF_THREAD:
            args = (tenant, session, *_thread_args(table, tenant, session, thread))
            while await self._fetch(THREAD_LEFT[table], args):
                await self.put([EraseRow(tenant, session, table, thread)])
                await asyncio.sleep(_PAUSE_S)
