"""Permanent erasure of a message's content from the store, while the message keeps its place in the conversation.

The client continues to resend the message. So its row, its chain key and its form stay, to recognise the message and
not store it again. Data derived from the message is erased too: index, vectors, records, states, hidden rounds, edits'
texts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct


class EraseMessageRow(Struct, frozen=True, gc=False):
    """An erased message. body: the bytes that replace its own."""

    tenant: str
    session: str
    key: bytes
    body: bytes


class EraseFormRow(Struct, frozen=True, gc=False):
    """Another form of an erased message, or an array that contained the message: other bytes under the same name."""

    tenant: str
    session: str
    form: bytes
    body: bytes


class EraseRoundRow(Struct, frozen=True, gc=False):
    """Erased hidden rounds of an erased message. body: as in `HiddenRoundRow`."""

    tenant: str
    session: str
    key: bytes
    body: bytes


_DELETE_BY_KEY: tuple[str, ...] = (
    # The index first: rows that leave the index are read through the rows that are erased below.
    "DELETE FROM indexed WHERE tenant = $1 AND session = $2 AND key = $3",
    "DELETE FROM iterations WHERE tenant = $1 AND session = $2 AND key = $3",
    "DELETE FROM states WHERE tenant = $1 AND session = $2 AND key = $3",
)

ERASE_EMBEDDINGS = """
DELETE FROM embeddings WHERE tenant = $1 AND session = $2 AND form IN (
    SELECT m.form FROM messages m WHERE m.tenant = $3 AND m.session = $4 AND m.key = $5)"""

ERASE_HELPER_ANSWERS = """
DELETE FROM helper_answers WHERE tenant = $1 AND session = $2 AND (kind = 'summary' OR ask IN (
    SELECT i.ask FROM iterations i WHERE i.tenant = $3 AND i.session = $4 AND i.key = $5 AND i.ask <> ''))"""
"""Deletes all summaries, which can be asked for again: their messages are not recorded."""

ERASE_EDITS = """
UPDATE edits SET text = $1 WHERE tenant = $2 AND session = $3 AND key = $4 AND text IS NOT NULL"""

ERASE_MESSAGE = "UPDATE messages SET body = $1, status = 'removed' WHERE tenant = $2 AND session = $3 AND key = $4"

ERASE_FORM = "UPDATE forms SET body = $1 WHERE tenant = $2 AND session = $3 AND form = $4"

ERASE_ROUND = "UPDATE hidden_rounds SET body = $1 WHERE tenant = $2 AND session = $3 AND key = $4"


def _build_key_args(row: EraseMessageRow) -> tuple[Any, ...]:
    return (row.tenant, row.session, row.key)


def _build_nested_key_args(row: EraseMessageRow) -> tuple[Any, ...]:
    return (row.tenant, row.session, row.tenant, row.session, row.key)


def _build_edit_args(row: EraseMessageRow) -> tuple[Any, ...]:
    return (b"", row.tenant, row.session, row.key)


def _build_message_args(row: EraseMessageRow) -> tuple[Any, ...]:
    return (row.body, row.tenant, row.session, row.key)


def build_erase_form_args(row: EraseFormRow) -> tuple[Any, ...]:
    """The arguments of ERASE_FORM."""
    return (row.body, row.tenant, row.session, row.form)


def build_erase_round_args(row: EraseRoundRow) -> tuple[Any, ...]:
    """The arguments of ERASE_ROUND."""
    return (row.body, row.tenant, row.session, row.key)


ERASE_STATEMENTS: tuple[tuple[str, Callable[[EraseMessageRow], tuple[Any, ...]]], ...] = (
    (ERASE_HELPER_ANSWERS, _build_nested_key_args),
    *((text, _build_key_args) for text in _DELETE_BY_KEY),
    (ERASE_EMBEDDINGS, _build_nested_key_args),
    (ERASE_EDITS, _build_edit_args),
    (ERASE_MESSAGE, _build_message_args),
)
"""Every statement of an EraseMessageRow with the function that makes its arguments, in the order of execution."""
