"""What our tools, the model through them, and operators write into a session: rows, tables, statements and reads.

Rounds that the proxy held with the model behind the client's back, the versions of a scratchpad, memos, an operator's
settings, notes and feedback. Nobody but us has them: the client does not resend them, as it does its messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct
from msgspec.structs import astuple

from proxy.store.fetch import Fetch, chunks, per_chunk
from proxy.store.texts import plain, to_bytes, to_text

SHARD = ""
"""The session under which a tenant's memos are filed: they outlive the sessions that they were written in."""

NoteKind = Literal["feedback", "note"]


class RoundRow(Struct, frozen=True, gc=False):
    """What stands behind one answer that the client has got: the rounds before it. Inserted once; the first stands."""

    tenant: str
    session: str
    key: bytes
    """Chain key of the answer as the client has it."""
    head: bytes
    """Chain key of the end of the request that it answers."""
    exchange: str
    body: bytes
    """JSON object."""
    created_at: float


class OfferRow(Struct, frozen=True, gc=False):
    """Which of our tools a thread is offered: updates the thread's row where nothing is decided yet, else nothing."""

    tenant: str
    session: str
    thread: str
    offer: str


class ScratchpadRow(Struct, frozen=True, gc=False):
    """A version of a session's scratchpad. The first of a number stands: read back what was stored, and where another
    writer was first, write the next number from its text."""

    tenant: str
    session: str
    number: int
    """One more than that of the version which it was made from, from 1 on."""
    text: str
    author: str
    created_at: float


class MemoRow(Struct, frozen=True, gc=False):
    """A memo of a tenant. A later one of the same name takes its place, unless the memo was deleted: then nothing but
    its name is left, and it stays so."""

    tenant: str
    session: str
    """SHARD."""
    memo: str
    project: str
    content: str
    tags: str
    """JSON array of strings."""
    source_session: str
    created_at: float
    updated_at: float
    deleted: bool = False


class SettingsRow(Struct, frozen=True, gc=False):
    """What was set for a session: updates the session's row, and does nothing if there is none."""

    tenant: str
    session: str
    settings: str
    """JSON object."""


class NoteRow(Struct, frozen=True, gc=False):
    """What an operator said: feedback on the iterations so far, or a note for the prompt. A later one of the same name
    takes its place; one without text is withdrawn."""

    tenant: str
    session: str
    thread: str
    note: str
    """Its id."""
    kind: NoteKind
    text: str
    created_at: float


WrittenRow = RoundRow | OfferRow | ScratchpadRow | MemoRow | SettingsRow | NoteRow

WRITTEN = ("rounds", "scratchpads", "memos", "notes")
"""The tables, beside columns of others."""

MIGRATION: tuple[str, ...] = (
    """
CREATE TABLE rounds (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    key BLOB NOT NULL,
    head BLOB NOT NULL,
    exchange TEXT NOT NULL,
    body BLOB NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, session, key)
)""",
    # A client that changes the answer before it resends it is known by what it answered.
    "CREATE INDEX rounds_by_head ON rounds (tenant, session, head)",
    "ALTER TABLE threads ADD COLUMN offer TEXT",
    """
CREATE TABLE scratchpads (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    number BIGINT NOT NULL,
    text BLOB NOT NULL,
    author TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, session, number)
)""",
    """
CREATE TABLE memos (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    memo TEXT NOT NULL,
    project TEXT NOT NULL,
    content BLOB NOT NULL,
    tags TEXT NOT NULL,
    source_session TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    updated_at DOUBLE PRECISION NOT NULL,
    deleted BOOLEAN NOT NULL,
    PRIMARY KEY (tenant, session, memo)
)""",
    """
CREATE TABLE notes (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    thread TEXT NOT NULL,
    note TEXT NOT NULL,
    kind TEXT NOT NULL,
    text BLOB NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, session, thread, note)
)""",
)

INSERT_ROUND = """
INSERT INTO rounds (tenant, session, key, head, exchange, body, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (tenant, session, key) DO NOTHING"""

UPDATE_OFFER = """
UPDATE threads SET offer = $1 WHERE tenant = $2 AND session = $3 AND thread = $4 AND offer IS NULL"""

INSERT_SCRATCHPAD = """
INSERT INTO scratchpads (tenant, session, number, text, author, created_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant, session, number) DO NOTHING"""

UPSERT_MEMO = """
INSERT INTO memos (tenant, session, memo, project, content, tags, source_session, created_at, updated_at, deleted)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (tenant, session, memo) DO UPDATE SET
    project = excluded.project, content = excluded.content, tags = excluded.tags,
    source_session = excluded.source_session, updated_at = excluded.updated_at, deleted = excluded.deleted
WHERE NOT memos.deleted AND (excluded.deleted OR excluded.updated_at >= memos.updated_at)"""

UPDATE_SETTINGS = "UPDATE sessions SET settings = $1 WHERE tenant = $2 AND session = $3"

SETTINGS = "SELECT settings FROM sessions WHERE tenant = $1 AND session = $2"

UPSERT_NOTE = """
INSERT INTO notes (tenant, session, thread, note, kind, text, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (tenant, session, thread, note) DO UPDATE SET text = excluded.text"""

_ROUND = "SELECT tenant, session, key, head, exchange, body, created_at FROM rounds "

ROUNDS = per_chunk(
    _ROUND
    + "WHERE tenant = ? AND session = ? AND key IN ({keys})\nUNION ALL\n"
    + _ROUND
    + "WHERE tenant = ? AND session = ? AND head IN ({keys})"
)

ALL_ROUNDS = _ROUND + "WHERE tenant = $1 AND session = $2 ORDER BY created_at, key"

_SCRATCHPAD = "SELECT tenant, session, number, text, author, created_at FROM scratchpads "

SCRATCHPADS = _SCRATCHPAD + "WHERE tenant = $1 AND session = $2 AND number < $3 ORDER BY number DESC LIMIT $4"

_MEMO = """
SELECT tenant, session, memo, project, content, tags, source_session, created_at, updated_at, deleted FROM memos
"""

MEMO = _MEMO + "WHERE tenant = $1 AND session = '' AND memo = $2 AND NOT deleted"

MEMOS = _MEMO + "WHERE tenant = $1 AND session = '' AND memo > $2 AND NOT deleted ORDER BY memo LIMIT $3"

PROJECT_MEMOS = (
    _MEMO + "WHERE tenant = $1 AND session = '' AND memo > $2 AND project = $3 AND NOT deleted ORDER BY memo LIMIT $4"
)

NOTES = """
SELECT tenant, session, thread, note, kind, text, created_at FROM notes
WHERE tenant = $1 AND session = $2 AND thread = $3 AND length(text) > 0 ORDER BY created_at, note"""


def offer_args(row: OfferRow) -> tuple[Any, ...]:
    """The arguments of UPDATE_OFFER; those below are named after their statements too."""
    return (row.offer, row.tenant, row.session, row.thread)


def scratchpad_args(row: ScratchpadRow) -> tuple[Any, ...]:
    return (*astuple(row)[:3], to_bytes(row.text), plain(row.author), row.created_at)


def memo_args(row: MemoRow) -> tuple[Any, ...]:
    """Of a deleted memo nothing is left but its name and when."""
    if row.deleted:
        return (row.tenant, row.session, row.memo, "", b"", "[]", "", row.created_at, row.updated_at, True)
    args = astuple(row)
    return (*args[:4], to_bytes(row.content), plain(row.tags), *args[6:])


def settings_args(row: SettingsRow) -> tuple[Any, ...]:
    return (plain(row.settings), row.tenant, row.session)


def note_args(row: NoteRow) -> tuple[Any, ...]:
    return (*astuple(row)[:5], to_bytes(row.text), row.created_at)


class WrittenStore(Protocol):
    """Its part of a `Store`."""

    async def rounds(self, tenant: str, session: str, keys: Sequence[bytes] | None = None) -> list[RoundRow]:
        """Those whose key or head is among `keys`, or all of the session, oldest first."""
        ...

    async def scratchpad(self, tenant: str, session: str) -> ScratchpadRow | None:
        """The newest version."""
        ...

    async def scratchpads(
        self, tenant: str, session: str, limit: int = 20, before: int | None = None
    ) -> list[ScratchpadRow]:
        """Versions, newest first; `before` (exclusive, a number) turns the page."""
        ...

    async def memo(self, tenant: str, memo: str) -> MemoRow | None:
        """None for a deleted one too."""
        ...

    async def memos(self, tenant: str, project: str | None = None, limit: int = 1000, after: str = "") -> list[MemoRow]:
        """In the order of their ids, those of one project or all; `after` (exclusive, an id) turns the page."""
        ...

    async def notes(self, tenant: str, session: str, thread: str) -> list[NoteRow]:
        """What operators said on a thread and did not withdraw, oldest first."""
        ...

    async def settings(self, tenant: str, session: str) -> str:
        """What was set for a session, as JSON; "{}" where there is no such session."""
        ...


def _memo(row: Sequence[Any]) -> MemoRow:
    return MemoRow(*(*row[:4], to_text(row[4]), *row[5:9], bool(row[9])))


class WrittenReads(Fetch):
    """The reading half of `WrittenStore`."""

    async def rounds(self, tenant: str, session: str, keys: Sequence[bytes] | None = None) -> list[RoundRow]:
        if keys is None:
            return [RoundRow(*row) for row in await self._fetch(ALL_ROUNDS, (tenant, session))]
        found: dict[bytes, RoundRow] = {}
        for chunk in chunks(keys):
            args = (tenant, session, *chunk, tenant, session, *chunk)
            found.update((row[2], RoundRow(*row)) for row in await self._fetch(ROUNDS[len(chunk)], args))
        return sorted(found.values(), key=lambda row: (row.created_at, row.key))

    async def scratchpad(self, tenant: str, session: str) -> ScratchpadRow | None:
        newest = await self.scratchpads(tenant, session, 1)
        return newest[0] if newest else None

    async def scratchpads(
        self, tenant: str, session: str, limit: int = 20, before: int | None = None
    ) -> list[ScratchpadRow]:
        end = 1 << 62 if before is None else before
        rows = await self._fetch(SCRATCHPADS, (tenant, session, end, limit))
        return [ScratchpadRow(*(*row[:3], to_text(row[3]), *row[4:])) for row in rows]

    async def memo(self, tenant: str, memo: str) -> MemoRow | None:
        rows = await self._fetch(MEMO, (tenant, memo))
        return _memo(rows[0]) if rows else None

    async def memos(self, tenant: str, project: str | None = None, limit: int = 1000, after: str = "") -> list[MemoRow]:
        if project is None:
            rows = await self._fetch(MEMOS, (tenant, after, limit))
        else:
            rows = await self._fetch(PROJECT_MEMOS, (tenant, after, project, limit))
        return [_memo(row) for row in rows]

    async def settings(self, tenant: str, session: str) -> str:
        rows = await self._fetch(SETTINGS, (tenant, session))
        return str(rows[0][0]) if rows else "{}"

    async def notes(self, tenant: str, session: str, thread: str) -> list[NoteRow]:
        rows = await self._fetch(NOTES, (tenant, session, thread))
        return [NoteRow(*(*row[:5], to_text(row[5]), row[6])) for row in rows]
