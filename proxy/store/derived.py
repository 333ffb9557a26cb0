"""Rows of what was made of a conversation by others than the client and its model: a helper's answers, vectors of
texts, what both have cost; and the records of iterations.

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


class WindowRow(Struct, frozen=True, gc=False):
    """The context window that an upstream has named for a model. A later one of the same names takes its place."""

    tenant: str
    session: str
    upstream: str
    model: str
    tokens: int
    seen_at: float


class VectorRow(Struct, frozen=True, gc=False):
    """An embedding of a text, by the hash of the message's bytes. Inserted once."""

    tenant: str
    session: str
    model: str
    form: bytes
    vector: bytes
    """32-bit floats, little-endian."""
    created_at: float


class IterationRow(Struct, frozen=True, gc=False):
    """A record of one iteration, filed under the answer that called. Inserted once; a later one of the same name only
    says by which answer of a helper, or of the model itself, it was reflected on."""

    tenant: str
    session: str
    thread: str
    key: bytes
    number: int
    ask: str
    """The `AnswerRow` in which it is reflected on, "" for none."""
    created_at: float
    body: bytes
    """JSON (`memory.reflection.Iteration`), without what was reflected."""


class IterationRecord(IterationRow, frozen=True, kw_only=True):
    """An iteration with the text in which it was reflected on, None while there is none."""

    reflection: str | None
