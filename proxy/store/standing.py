"""Where a thread stands in the store, and its messages: what is looked at before what is remembered is taken for the
truth.

Any number of processes may write to one session. Each remembers threads, and looks here with every request whether
another one has moved the thread on since: one row by its primary key, and two ends of an index.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from msgspec import Struct

from proxy.store.fetch import Fetch


class Standing(Struct, frozen=True, gc=False):
    """A stored thread: `head` (empty before its first request is recorded), `answer` and `last_at` as `HeadRow` has
    them; the number of its newest edit, and how many STATE blocks it has."""

    head: bytes
    answer: bytes | None
    last_at: float
    edits: int
    states: int


class Hit(Struct, frozen=True, gc=False):
    """A stored node of the hash chain that a request reaches."""

    session: str
    thread: str
    """The thread that stored the node first; forks of it share the node."""
    key: bytes
    position: int
    reached: bool
    answer: bool
    last_at: float
    """When that thread was last used."""


class Known(Struct, frozen=True, gc=False):
    """What is known of a stored message without reading it: see `MessageRow`."""

    form: bytes
    thread: str
    reached: bool
    strategy: str
    seen: float
    """When it was first stored."""


STANDING = """
SELECT t.head, t.answer, t.last_at,
    (SELECT coalesce(max(e.number), 0) FROM edits e WHERE e.tenant = $1 AND e.session = $2 AND e.thread = $3),
    (SELECT coalesce(max(s.number), 0) FROM states s WHERE s.tenant = $4 AND s.session = $5 AND s.thread = $6)
FROM threads t WHERE t.tenant = $7 AND t.session = $8 AND t.thread = $9"""

SYSTEMS = "SELECT DISTINCT system FROM threads WHERE tenant = $1 AND session = $2 LIMIT 100"

LAST_STATUS = """
SELECT status FROM exchanges WHERE tenant = $1 AND session = $2 AND thread = $3 AND head = $4
ORDER BY started_at DESC LIMIT 1"""


class StandingStore(Protocol):
    """Its part of a `Store`."""

    @property
    def shared(self) -> bool:
        """Whether other processes may write to it too."""
        ...

    async def standing(self, tenant: str, session: str, thread: str) -> Standing | None:
        """None where there is no such thread, or not any more."""
        ...

    async def systems(self, tenant: str, session: str) -> list[bytes]:
        """The digests of the system prompts that threads of the session have, 100 at most."""
        ...

    async def last_status(self, tenant: str, session: str, thread: str, head: bytes) -> str:
        """How the thread's newest request that ended with this message came out, "open" while it has not; "" where
        there was none."""
        ...

    def alone(self, what: str) -> AbstractAsyncContextManager[bool]:
        """Whether nobody else is at this work now, on any replica; others are told False until it is left.
        StoreUnavailable where that cannot be said."""
        ...


class StandingReads(Fetch):
    """The reading half of `StandingStore`."""

    shared = False

    @asynccontextmanager
    async def alone(self, what: str) -> AsyncIterator[bool]:  # noqa: ARG002  one process has one worker
        """Always: nobody else writes to it."""
        yield True

    async def standing(self, tenant: str, session: str, thread: str) -> Standing | None:
        rows = await self._fetch(STANDING, (tenant, session, thread) * 3)
        return Standing(*rows[0]) if rows else None

    async def systems(self, tenant: str, session: str) -> list[bytes]:
        return [row[0] for row in await self._fetch(SYSTEMS, (tenant, session))]

    async def last_status(self, tenant: str, session: str, thread: str, head: bytes) -> str:
        rows = await self._fetch(LAST_STATUS, (tenant, session, thread, head))
        return str(rows[0][0]) if rows else ""
