"""Data that the proxy's tools, the model through them, and operators write into a session: rows, tables, statements and
reads.

These are hidden rounds that the proxy held with the model, the versions of a scratchpad, memos, an operator's settings,
notes and feedback. Only the store has these data: the client does not resend them, as it does its messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import astuple

from proxy.store.row_reader import MAX_PAGE_BYTES, RowReader, expand_per_chunk, split_into_chunks
from proxy.store.texts import sanitize_label, to_bytes, to_text

MEMO_SESSION = ""
"""The session name under which a tenant's memos are filed: memos outlive the sessions in which they were written."""

NoteKind = Literal["feedback", "note"]


class HiddenRoundRow(Struct, frozen=True, gc=False):
    """The hidden rounds before one answer of the client's history. Inserted once; the first row counts."""

    tenant: str
    session: str
    key: bytes
    """Chain key of the answer as the client has it."""
    tip: bytes
    """Chain key of the end of the request that was answered."""
    exchange: str
    body: bytes
    """JSON object."""
    created_at: float


class ToolOfferRow(Struct, frozen=True, gc=False):
    """The proxy's tools that a branch is offered: updates its row if nothing is decided yet."""

    tenant: str
    session: str
    branch: str
    offer: str


class ScratchpadRow(Struct, frozen=True, gc=False):
    """A version of a session's scratchpad. The first row of a number counts. Read back the stored row; if another
    writer was first, write the next number from its text."""

    tenant: str
    session: str
    number: int
    """The version number, from 1: one more than that of the version from which this one was made."""
    text: str
    author: str
    created_at: float


class MemoRow(Struct, frozen=True, gc=False):
    """A memo of a tenant. A later row of the same name replaces it, unless the memo was deleted. Of a deleted memo only
    its name and times are left, and it stays deleted."""

    tenant: str
    session: str
    """Always `MEMO_SESSION`."""
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
    """The settings of a session: updates the session's row, and does nothing if there is none."""

    tenant: str
    session: str
    settings: str
    """JSON object."""


class NoteRow(Struct, frozen=True, gc=False):
    """An operator's text: feedback on the iterations so far, or a note for the prompt. A later row of the same name
    replaces it; a row without text withdraws it."""

    tenant: str
    session: str
    branch: str
    note: str
    """The note's id."""
    kind: NoteKind
    text: str
    created_at: float


SessionNotesRow = HiddenRoundRow | ToolOfferRow | ScratchpadRow | MemoRow | SettingsRow | NoteRow

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
    # If a client changes the answer before it resends it, the round is found by the request that it answered.
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
INSERT INTO hidden_rounds (tenant, session, key, tip, exchange, body, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (tenant, session, key) DO NOTHING"""

UPDATE_OFFER = """
UPDATE branches SET offer = $1 WHERE tenant = $2 AND session = $3 AND branch = $4 AND offer IS NULL"""

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

UPSERT_NOTE = """
INSERT INTO notes (tenant, session, branch, note, kind, text, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (tenant, session, branch, note) DO UPDATE SET text = excluded.text"""

_ROUND = "SELECT tenant, session, key, tip, exchange, body, created_at FROM hidden_rounds "

ROUNDS = expand_per_chunk(
    _ROUND
    + "WHERE tenant = ? AND session = ? AND key IN ({keys})\nUNION ALL\n"
    + _ROUND
    + "WHERE tenant = ? AND session = ? AND tip IN ({keys})"
)

ROUNDS_BY_KEY = """
SELECT r.tenant, r.session, r.key, r.tip, r.exchange, r.body, r.created_at FROM (
    SELECT sized.tenant, sized.session, sized.key,
        sum(sized.size) OVER (ORDER BY sized.key) - sized.size AS bytes_before
    FROM (
        SELECT h.tenant, h.session, h.key, length(h.body) AS size FROM hidden_rounds h
        WHERE h.tenant = $1 AND h.session = $2 AND h.key > $3 ORDER BY h.key LIMIT $4) sized
) page JOIN hidden_rounds r ON /* each */ (r.tenant = page.tenant AND r.session = page.session AND r.key = page.key)
WHERE page.bytes_before < $5 ORDER BY r.key"""
"""In the order of the primary key: SQLite reads all of a body to get to the time behind it."""

ROUNDS_PAGE = 1000
"""Rounds that are read at a time."""

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
SELECT tenant, session, branch, note, kind, text, created_at FROM notes
WHERE tenant = $1 AND session = $2 AND branch = $3 AND length(text) > 0 ORDER BY created_at, note"""


def build_offer_args(row: ToolOfferRow) -> tuple[Any, ...]:
    """The arguments of UPDATE_OFFER; the functions below are named after their statements too."""
    return (row.offer, row.tenant, row.session, row.branch)


def build_scratchpad_args(row: ScratchpadRow) -> tuple[Any, ...]:
    return (*astuple(row)[:3], to_bytes(row.text), sanitize_label(row.author), row.created_at)


def build_memo_args(row: MemoRow) -> tuple[Any, ...]:
    """The arguments of UPSERT_MEMO. A deleted memo keeps only its name and its times."""
    if row.deleted:
        return (row.tenant, row.session, row.memo, "", b"", "[]", "", row.created_at, row.updated_at, True)
    args = astuple(row)
    return (*args[:4], to_bytes(row.content), sanitize_label(row.tags), *args[6:])


def build_settings_args(row: SettingsRow) -> tuple[Any, ...]:
    return (sanitize_label(row.settings), row.tenant, row.session)


def build_note_args(row: NoteRow) -> tuple[Any, ...]:
    return (*astuple(row)[:5], to_bytes(row.text), row.created_at)


def _decode_memo(row: Sequence[Any]) -> MemoRow:
    return MemoRow(*(*row[:4], to_text(row[4]), *row[5:9], bool(row[9])))


class SessionNotesReads(RowReader):
    """The reads of these tables."""

    async def read_rounds_page(self, tenant: str, session: str, after: bytes = b"") -> list[HiddenRoundRow]:
        """A page of the session's rounds in the order of their keys, after `after` (exclusive, a key), which turns the
        page. It ends with the round that brings it to MAX_PAGE_BYTES, and is empty behind the last one."""
        args = (tenant, session, after, ROUNDS_PAGE, MAX_PAGE_BYTES)
        return [HiddenRoundRow(*row) for row in await self._fetch(ROUNDS_BY_KEY, args)]

    async def read_hidden_rounds(self, tenant: str, session: str, keys: Sequence[bytes]) -> list[HiddenRoundRow]:
        """The rounds whose key or tip is among `keys`, oldest first."""
        rounds: dict[bytes, HiddenRoundRow] = {}
        for chunk in split_into_chunks(keys):
            args = (tenant, session, *chunk, tenant, session, *chunk)
            rounds.update((row[2], HiddenRoundRow(*row)) for row in await self._fetch(ROUNDS[len(chunk)], args))
        return sorted(rounds.values(), key=lambda row: (row.created_at, row.key))

    async def read_scratchpad(self, tenant: str, session: str) -> ScratchpadRow | None:
        """The newest version of the scratchpad, or None."""
        newest = await self.read_scratchpad_versions(tenant, session, 1)
        return newest[0] if newest else None

    async def read_scratchpad_versions(
        self, tenant: str, session: str, limit: int = 20, before: int | None = None
    ) -> list[ScratchpadRow]:
        """Versions of the scratchpad, newest first, before `before` (exclusive, a number), which turns the page."""
        end = 1 << 62 if before is None else before
        rows = await self._fetch(SCRATCHPADS, (tenant, session, end, limit))
        return [ScratchpadRow(*(*row[:3], to_text(row[3]), *row[4:])) for row in rows]

    async def read_memo(self, tenant: str, memo: str) -> MemoRow | None:
        """The memo with this id; None also if it was deleted."""
        rows = await self._fetch(MEMO, (tenant, memo))
        return _decode_memo(rows[0]) if rows else None

    async def read_memos(
        self, tenant: str, project: str | None = None, limit: int = 1000, after: str = ""
    ) -> list[MemoRow]:
        """Memos in the order of their ids, of one project or all, after `after` (exclusive, an id)."""
        if project is None:
            rows = await self._fetch(MEMOS, (tenant, after, limit))
        else:
            rows = await self._fetch(PROJECT_MEMOS, (tenant, after, project, limit))
        return [_decode_memo(row) for row in rows]

    async def read_notes(self, tenant: str, session: str, branch: str) -> list[NoteRow]:
        """Operators' texts on a branch that were not withdrawn, oldest first."""
        rows = await self._fetch(NOTES, (tenant, session, branch))
        return [NoteRow(*(*row[:5], to_text(row[5]), row[6])) for row in rows]
