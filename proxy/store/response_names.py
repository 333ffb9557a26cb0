"""Names that a provider gave to answers, with the exchange of each: by them a client goes on without its history.

A request may name a response, or a conversation object, in place of the messages before it. The messages stand in the
chain of the exchange, so a row has no text.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from proxy.store.row_reader import RowReader
from proxy.store.texts import sanitize_label

MAX_NAME_BYTES = 512
"""Bytes of a provider's name, which is part of an index. A longer one is not stored. Gateways put the provider and the
model into a name in base64: LiteLLM's names have 150 to 300 characters."""


def is_storable(name: str) -> bool:
    """True if a name can be stored."""
    return len(name.encode("utf-8", "replace")) <= MAX_NAME_BYTES


class ResponseNameRow(Struct, frozen=True, gc=False):
    """The provider's name of an answer, or of a conversation object. A later row of the same name replaces it."""

    tenant: str
    session: str
    name: str
    branch: str
    exchange: str
    is_known: bool
    """Every message up to the answer is stored."""
    is_whole: bool
    """The messages can be written as items again, so that the proxy can send them itself."""
    at_provider: bool
    """The provider stores the response, so that it knows the name."""
    has_instructions: bool
    """The first message of the exchange is `instructions`, which no later request inherits."""
    created_at: float


MIGRATION: tuple[str, ...] = (
    """
CREATE TABLE response_names (
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    name TEXT NOT NULL,
    branch TEXT NOT NULL,
    exchange TEXT NOT NULL,
    is_known BOOLEAN NOT NULL,
    is_whole BOOLEAN NOT NULL,
    at_provider BOOLEAN NOT NULL,
    has_instructions BOOLEAN NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, session, name)
)""",
    # A request names a response and no session.
    "CREATE INDEX response_names_by_name ON response_names (tenant, name, created_at)",
)

UPSERT_RESPONSE_NAME = """
INSERT INTO response_names (
    tenant, session, name, branch, exchange, is_known, is_whole, at_provider, has_instructions, created_at
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (tenant, session, name) DO UPDATE SET
    branch = excluded.branch, exchange = excluded.exchange, is_known = excluded.is_known,
    is_whole = excluded.is_whole, at_provider = excluded.at_provider,
    has_instructions = excluded.has_instructions, created_at = excluded.created_at
WHERE excluded.created_at >= response_names.created_at"""

RESPONSE_NAME = """
SELECT tenant, session, name, branch, exchange, is_known, is_whole, at_provider, has_instructions, created_at
FROM response_names WHERE tenant = $1 AND name = $2 ORDER BY created_at DESC LIMIT 1"""


def build_response_name_args(row: ResponseNameRow) -> tuple[Any, ...]:
    """The arguments of UPSERT_RESPONSE_NAME."""
    flags = (row.is_known, row.is_whole, row.at_provider, row.has_instructions)
    return (row.tenant, row.session, sanitize_label(row.name), row.branch, row.exchange, *flags, row.created_at)


class ResponseNameReads(RowReader):
    """The reads of this table."""

    async def read_response_name(self, tenant: str, name: str) -> ResponseNameRow | None:
        """The newest row of this name in all sessions of the tenant; None if there is none."""
        if not name or not is_storable(name):
            return None
        rows = await self._fetch(RESPONSE_NAME, (tenant, sanitize_label(name)))
        flags = [bool(value) for value in rows[0][5:9]] if rows else []
        return ResponseNameRow(*(*rows[0][:5], *flags, rows[0][9])) if rows else None
