"""Rows of data derived from a conversation: helpers' answers, embeddings of texts, the cost of both, context windows,
and records of iterations.

None of them is needed to build a past prompt again: an answer's effect on it is an edit or an insert of that exchange.
They are kept so that nothing is asked, or paid for, twice.
"""

from __future__ import annotations

from msgspec import Struct

NO_CONVERSATION = ("", "")
"""(tenant, session) of rows that belong to no conversation: a tenant is a hash and never empty."""
NO_SESSION = ""
"""Session of rows that belong to a tenant."""


class HelperAnswerRow(Struct, frozen=True, gc=False):
    """A helper's answer to an `Ask`. Inserted once; a later row of the same name is ignored."""

    tenant: str
    session: str
    ask: str
    """`Ask.id`: the question's kind and the chain keys of its subject."""
    kind: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    dollars: float
    created_at: float
    text: str


class SpendingRow(Struct, frozen=True, gc=False):
    """Spending on helpers in a day (UTC, counted from 1970). Added up for the same day and kind."""

    tenant: str
    session: str
    day: int
    kind: str
    asked: int
    prompt_tokens: int
    completion_tokens: int
    dollars: float


class ContextWindowRow(Struct, frozen=True, gc=False):
    """The context window that an upstream has reported to a tenant for a model. The last row counts."""

    tenant: str
    session: str
    upstream: str
    model: str
    tokens: int
    seen_at: float


class EmbeddingRow(Struct, frozen=True, gc=False):
    """An embedding of a text, by the hash of the message's bytes. Inserted once."""

    tenant: str
    session: str
    model: str
    form: bytes
    vector: bytes
    """32-bit floats, little-endian."""
    created_at: float


class IterationRow(Struct, frozen=True, gc=False):
    """A record of one iteration, filed under the answer with the calls. Inserted once. A later row of the same name
    only sets the answer, of a helper or of the model itself, that reflects on it."""

    tenant: str
    session: str
    branch: str
    key: bytes
    number: int
    ask: str
    """The `HelperAnswerRow` that reflects on the iteration, "" for none."""
    created_at: float
    body: bytes
    """JSON (`notes.reflection.IterationReport`), without the reflection."""


class IterationRecord(IterationRow, frozen=True, kw_only=True):
    """An iteration with the text of its reflection, None while there is none."""

    reflection: str | None
