"""Positions of branches in the store, and facts about their messages: a cached branch is checked against them before it
is used.

Any number of processes may write to one session. Each process remembers branches. With every request it checks if
another process has moved the branch on since. The check costs one row by its primary key, and two ends of an index.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

from msgspec import Struct

from proxy.store.row_reader import RowReader

BranchKind = Literal["main", "fork", "twin", "side"]


class BranchPosition(Struct, frozen=True, gc=False):
    """A stored branch's position.

    `tip` (empty before its first request is recorded), `answer` and `last_at` are those of `BranchTipRow`. `edits` is
    the number of its newest edit, `states` the number of its newest STATE block."""

    tip: bytes
    answer: bytes | None
    last_at: float
    edits: int
    states: int


class BranchFork(Struct, frozen=True, gc=False):
    """The place at which a stored branch leaves another one."""

    branch: str
    parent: str | None
    """The other branch; None for a branch that began by itself."""
    position: int | None
    """The position of the last message that both share; None if there is none, or no longer."""


class ChainHit(Struct, frozen=True, gc=False):
    """A stored node of the hash chain that a request reaches."""

    session: str
    branch: str
    """The branch that stored the node first; forks of that branch share the node."""
    key: bytes
    position: int
    reached: bool
    answer: bool
    last_at: float
    """Unix time of the branch's last use."""
    system: bytes
    """A digest of the branch's system messages, without dates and numbers."""


class BranchKindRow(Struct, frozen=True, gc=False):
    """A branch's kind, once known: updates the branch's row if its kind is main or side."""

    tenant: str
    session: str
    branch: str
    kind: BranchKind


class WorkingBranchRow(Struct, frozen=True, gc=False):
    """Event: a branch has begun to work, so it is no side call any more. Other main branches of the session become side
    calls if they have another system prompt, are short and never worked."""

    tenant: str
    session: str
    branch: str
    system: bytes
    short: int
    """Maximum number of messages in a side call, its answer not counted."""


class BranchKindRecord(Struct, frozen=True, gc=False):
    """A stored branch's kind. works: its answers have called tools, or its client has continued after one of them."""

    branch: str
    kind: BranchKind
    system: bytes
    works: bool


class BranchLength(Struct, frozen=True, gc=False):
    """The length of a stored branch, and its last request, by which its agent is known."""

    envelope: bytes
    """The request's body, with an empty array in the place of its messages."""
    forms: bytes
    """See `ExchangeRow`."""
    answers: int
    """The answers that the branch has stored."""


class KnownMessage(Struct, frozen=True, gc=False):
    """Facts about a stored message, without its body: see `MessageRow`."""

    form: bytes
    branch: str
    reached: bool
    strategy: str
    seen: float
    """Unix time at which the message was first stored."""


BRANCH_POSITION = """
SELECT t.tip, t.answer, t.last_at,
    (SELECT coalesce(max(e.number), 0) FROM edits e WHERE e.tenant = $1 AND e.session = $2 AND e.branch = $3),
    (SELECT coalesce(max(s.number), 0) FROM states s WHERE s.tenant = $4 AND s.session = $5 AND s.branch = $6)
FROM branches t WHERE t.tenant = $7 AND t.session = $8 AND t.branch = $9"""

MAX_FORKS = 1000
"""Branches of a session of which `read_branch_forks` tells where they fork."""

BRANCH_FORKS = f"""
SELECT t.branch, t.parent, (
    SELECT m.position FROM messages m WHERE m.tenant = t.tenant AND m.session = t.session AND m.key = t.fork_key)
FROM branches t WHERE t.tenant = $1 AND t.session = $2 ORDER BY t.last_at DESC LIMIT {MAX_FORKS}"""  # noqa: S608  a constant

_WORKED = """EXISTS (
    SELECT 1 FROM messages m WHERE m.tenant = t.tenant AND m.session = t.session AND m.branch = t.branch
        AND m.reached AND (NOT m.answer OR m.status = 'tool_call'))"""

BRANCH_KINDS = f"""
SELECT t.branch, t.kind, t.system, {_WORKED} FROM branches t
WHERE t.tenant = $1 AND t.session = $2 ORDER BY t.last_at DESC LIMIT 100"""  # noqa: S608  put together from constants

UPDATE_KIND = """
UPDATE branches SET kind = $1 WHERE tenant = $2 AND session = $3 AND branch = $4 AND kind IN ('main', 'side')"""

MARK_SIDE_BRANCHES = f"""
UPDATE branches AS t SET kind = 'side'
WHERE t.tenant = $1 AND t.session = $2 AND t.branch <> $3 AND t.kind = 'main' AND t.system <> $4
    AND NOT EXISTS (
        SELECT 1 FROM messages n WHERE n.tenant = t.tenant AND n.session = t.session AND n.branch = t.branch
            AND n.position > $5)
    AND NOT {_WORKED}"""  # noqa: S608  put together from constants

LAST_STATUS = """
SELECT status FROM exchanges WHERE tenant = $1 AND session = $2 AND branch = $3 AND tip = $4
ORDER BY started_at DESC LIMIT 1"""

BRANCH_LENGTHS = """
SELECT f.body, e.forms, (
    SELECT count(*) FROM messages m
    WHERE m.tenant = e.tenant AND m.session = e.session AND m.branch = e.branch AND m.role = 'assistant')
FROM (
    SELECT x.tenant, x.session, x.branch, x.envelope, x.forms, x.started_at,
        row_number() OVER (PARTITION BY x.branch ORDER BY x.started_at DESC) AS newer
    FROM exchanges x WHERE x.tenant = $1 AND x.session = $2) e
JOIN branches t ON t.tenant = e.tenant AND t.session = e.session AND t.branch = e.branch AND t.kind <> 'side'
JOIN forms f ON f.tenant = e.tenant AND f.session = e.session AND f.form = e.envelope
WHERE e.newer = 1 ORDER BY e.started_at DESC LIMIT 10"""


def build_kind_args(row: BranchKindRow) -> tuple[Any, ...]:
    """The arguments of UPDATE_KIND."""
    return (row.kind, row.tenant, row.session, row.branch)


def build_working_branch_args(row: WorkingBranchRow) -> tuple[Any, ...]:
    """The arguments of UPDATE_KIND for the branch that works."""
    return ("main", row.tenant, row.session, row.branch)


def build_side_branches_args(row: WorkingBranchRow) -> tuple[Any, ...]:
    """The arguments of MARK_SIDE_BRANCHES. The first position is 0, and the answer follows the request."""
    return (row.tenant, row.session, row.branch, row.system, row.short)


class BranchReads(RowReader):
    """The reads of a store about branches."""

    shared = False
    """True if other processes may write to the store too."""

    @asynccontextmanager
    async def try_lock(self, work: str) -> AsyncIterator[bool]:  # noqa: ARG002  one process has one worker
        """Lock for the work named `work`, across all replicas. The context manager gives True if the caller holds the
        lock; others get False until it is released. Raises StoreUnavailable if the lock cannot be asked for."""
        yield True  # no other process writes to this store

    async def read_branch_position(self, tenant: str, session: str, branch: str) -> BranchPosition | None:
        """The position of a branch; None if there is no such branch, or no longer."""
        rows = await self._fetch(BRANCH_POSITION, (tenant, session, branch) * 3)
        return BranchPosition(*rows[0]) if rows else None

    async def read_branch_kinds(self, tenant: str, session: str) -> list[BranchKindRecord]:
        """The kinds of the session's branches, last used first, 100 at most."""
        rows = await self._fetch(BRANCH_KINDS, (tenant, session))
        return [BranchKindRecord(branch, kind, system, bool(works)) for branch, kind, system, works in rows]

    async def read_branch_forks(self, tenant: str, session: str) -> list[BranchFork]:
        """The places at which the session's branches fork, of those that were used last, MAX_FORKS at most."""
        return [BranchFork(*row) for row in await self._fetch(BRANCH_FORKS, (tenant, session))]

    async def read_branch_lengths(self, tenant: str, session: str) -> list[BranchLength]:
        """The lengths of the session's branches, side calls excluded, last used first, 10 at most."""
        return [BranchLength(*row) for row in await self._fetch(BRANCH_LENGTHS, (tenant, session))]

    async def read_last_status(self, tenant: str, session: str, branch: str, tip: bytes) -> str:
        """The status of the branch's newest request with this tip: "open" without an outcome, "" without one."""
        rows = await self._fetch(LAST_STATUS, (tenant, session, branch, tip))
        return str(rows[0][0]) if rows else ""
