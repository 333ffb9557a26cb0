"""Taking out of the store what a message said, for good, while its place in the conversation stays.

The client goes on resending the message: its row, its chain key and its form are still there to know it by, so that
it is not stored again. What was made of it (index, vectors, records, states, hidden rounds, edits' texts) goes with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct


class BlankRow(Struct, frozen=True, gc=False):
    """A message that says nothing any more. body: the bytes that stand in the place of its own."""

    tenant: str
    session: str
    key: bytes
    body: bytes


class BlankFormRow(Struct, frozen=True, gc=False):
    """Another form of such a message, or an array in which it stood: other bytes under the same name."""

    tenant: str
    session: str
    form: bytes
    body: bytes


class BlankRoundRow(Struct, frozen=True, gc=False):
    """Hidden rounds behind such a message that say nothing either. body: as `RoundRow` has it."""

    tenant: str
    session: str
    key: bytes
    body: bytes


_BY_KEY: tuple[str, ...] = (
    # The index first: what leaves it is read through the rows that are blanked below.
    "DELETE FROM indexed WHERE tenant = $1 AND session = $2 AND key = $3",
    "DELETE FROM iterations WHERE tenant = $1 AND session = $2 AND key = $3",
    "DELETE FROM states WHERE tenant = $1 AND session = $2 AND key = $3",
)

BLANK_VECTORS = """
DELETE FROM embeddings WHERE tenant = $1 AND session = $2 AND form IN (
    SELECT m.form FROM messages m WHERE m.tenant = $3 AND m.session = $4 AND m.key = $5)"""

BLANK_ANSWERS = """
DELETE FROM answers WHERE tenant = $1 AND session = $2 AND (kind = 'summary' OR ask IN (
    SELECT i.ask FROM iterations i WHERE i.tenant = $3 AND i.session = $4 AND i.key = $5 AND i.ask <> ''))"""
"""Which summaries were made of it, nobody knows any more: they can be asked for again."""

BLANK_EDITS = """
UPDATE edits SET text = $1 WHERE tenant = $2 AND session = $3 AND key = $4 AND text IS NOT NULL"""

BLANK_MESSAGE = "UPDATE messages SET body = $1, status = 'removed' WHERE tenant = $2 AND session = $3 AND key = $4"

BLANK_FORM = "UPDATE forms SET body = $1 WHERE tenant = $2 AND session = $3 AND form = $4"

BLANK_ROUND = "UPDATE rounds SET body = $1 WHERE tenant = $2 AND session = $3 AND key = $4"


def _by_key(row: BlankRow) -> tuple[Any, ...]:
    return (row.tenant, row.session, row.key)


def _twice(row: BlankRow) -> tuple[Any, ...]:
    return (row.tenant, row.session, row.tenant, row.session, row.key)


def _edits(row: BlankRow) -> tuple[Any, ...]:
    return (b"", row.tenant, row.session, row.key)


def _message(row: BlankRow) -> tuple[Any, ...]:
    return (row.body, row.tenant, row.session, row.key)


def form_args(row: BlankFormRow) -> tuple[Any, ...]:
    """The arguments of BLANK_FORM."""
    return (row.body, row.tenant, row.session, row.form)


def round_args(row: BlankRoundRow) -> tuple[Any, ...]:
    """The arguments of BLANK_ROUND."""
    return (row.body, row.tenant, row.session, row.key)


BLANK: tuple[tuple[str, Callable[[BlankRow], tuple[Any, ...]]], ...] = (
    (BLANK_ANSWERS, _twice),
    *((text, _by_key) for text in _BY_KEY),
    (BLANK_VECTORS, _twice),
    (BLANK_EDITS, _edits),
    (BLANK_MESSAGE, _message),
)
"""Every statement of a BlankRow with what makes its arguments, in the order in which they are to be run."""
