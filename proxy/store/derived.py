"""Rows of what was made of a conversation by others than the client and its model: a helper's answers, vectors of
texts, and what both have cost.

None of it is needed to build a past prompt again: what an answer changed in a prompt is an edit or an insert of
that exchange. It is kept so that nothing is asked, or paid, twice.
"""

from __future__ import annotations

from msgspec import Struct

OPERATOR = ("", "")
"""(tenant, session) of what belongs to no conversation: a tenant is a hash and never empty."""


class AnswerRow(Struct, frozen=True, gc=False):
    """A helper's answer to an `Ask`. Inserted once; later ones of the same name are ignored."""

    tenant: str
    session: str
    ask: str
    """`Ask.id`: the question's kind and the chain keys of what it is about."""
    kind: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    dollars: float
    created_at: float
    text: str


class SpendingRow(Struct, frozen=True, gc=False):
    """What was spent on helpers in a day (UTC, counted from 1970). Added up for the same day and kind."""

    tenant: str
    session: str
    day: int
    kind: str
    asked: int
    prompt_tokens: int
    completion_tokens: int
    dollars: float


class VectorRow(Struct, frozen=True, gc=False):
    """An embedding of a text, by the hash of the message's bytes. Inserted once."""

    tenant: str
    session: str
    model: str
    form: bytes
    vector: bytes
    """32-bit floats, little-endian."""
    created_at: float
