"""From rows to statements and their arguments, and what a lost row leaves behind: the same for every backend.

Rows of a type that follow each other become one `executemany`, in which SQLite's per-call overhead is paid once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import astuple

from proxy.store import keywords, sql
from proxy.store.base import (
    EditRow,
    ExchangeRow,
    FormRow,
    GapRow,
    HeadRow,
    MessageRow,
    OutcomeRow,
    Row,
    SessionRow,
    StateRow,
    ThreadRow,
)
from proxy.store.derived import AnswerRow, IterationRow, SpendingRow, VectorRow
from proxy.store.keywords import IndexRow

Args = tuple[Any, ...]

OVERHEAD = 256
"""Bytes that a row counts in the spool beside its bodies: keys, labels, and the objects themselves."""


def to_bytes(text: str) -> bytes:
    """Text of a model or client, as it is stored. Lone surrogates, which JSON can carry, survive."""
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _thread(row: ThreadRow) -> Args:
    return (*astuple(row), b"", row.created_at)


def _head(row: HeadRow) -> Args:
    return (row.head, row.answer, row.last_at, row.stopped, row.tenant, row.session, row.thread)


def _message(row: MessageRow) -> Args:
    return (*astuple(row), row.tenant, row.session)


def _edit(row: EditRow) -> Args:
    args = astuple(row)
    text = None if row.text is None else to_bytes(row.text)
    return (*args[:8], text, *args[9:], row.tenant, row.session, row.thread)


def _state(row: StateRow) -> Args:
    return (
        *(row.tenant, row.session, row.thread, row.key, to_bytes(row.text), row.created_at),
        *(row.tenant, row.session, row.thread),
    )


def _answer(row: AnswerRow) -> Args:
    return (*astuple(row)[:-1], to_bytes(row.text))


def _outcome(row: OutcomeRow) -> Args:
    args = astuple(row)
    return args[3:] + args[:3]


_STATEMENTS: dict[type, tuple[str, Callable[[Any], Args]]] = {
    SessionRow: (sql.INSERT_SESSION, astuple),
    ThreadRow: (sql.INSERT_THREAD, _thread),
    HeadRow: (sql.UPDATE_HEAD, _head),
    MessageRow: (sql.INSERT_MESSAGE, _message),
    FormRow: (sql.INSERT_FORM, astuple),
    EditRow: (sql.INSERT_EDIT, _edit),
    StateRow: (sql.INSERT_STATE, _state),
    ExchangeRow: (sql.INSERT_EXCHANGE, astuple),
    OutcomeRow: (sql.UPDATE_OUTCOME, _outcome),
    GapRow: (sql.ADD_GAP, astuple),
    IndexRow: (keywords.INDEX_SESSION, keywords.index_args),
    AnswerRow: (sql.INSERT_ANSWER, _answer),
    SpendingRow: (sql.ADD_SPENDING, astuple),
    VectorRow: (sql.INSERT_VECTOR, astuple),
    IterationRow: (sql.INSERT_ITERATION, astuple),
}


def statements(rows: Sequence[Row]) -> list[tuple[str, list[Args]]]:
    """Each statement with the arguments of the rows that follow each other in it. Raises KeyError for a stranger."""
    made: list[tuple[str, list[Args]]] = []
    last: type | None = None
    args: list[Args] = []
    for row in rows:
        kind = type(row)
        text, arguments = _STATEMENTS[kind]
        if kind is not last:
            args = []
            made.append((text, args))
            last = kind
        args.append(arguments(row))
    return made


def size(rows: Sequence[Row]) -> int:
    """Bytes that the rows take in the spool."""
    total = OVERHEAD * len(rows)
    for row in rows:
        if isinstance(row, (MessageRow, FormRow, IterationRow)):
            total += len(row.body)
        elif isinstance(row, (EditRow, StateRow, AnswerRow)):
            total += len(row.text or "")
        elif isinstance(row, ExchangeRow):
            total += len(row.forms) + len(row.inserts)
        elif isinstance(row, VectorRow):
            total += len(row.vector)
    return total


def _plain(label: str) -> str:
    """A label that any column takes, since a label that none takes may be why the rows were lost."""
    return label.encode("utf-8", "replace").decode().replace("\x00", "?")


def gap(rows: Sequence[Row], taken: int, reason: str) -> GapRow | None:
    """What is left of rows that could not be stored: whose they were, of which exchange, and how many bytes.

    The time is the latest that the rows carry. None where the rows are themselves a gap, no rows of ours, or none, and
    where nothing is lost with them.
    """
    first = rows[0] if rows else None
    if type(first) not in _STATEMENTS or isinstance(first, (GapRow, IndexRow)) or first is None:
        return None
    exchange = ""
    latest = 0.0
    for row in rows:
        exchange = exchange or getattr(row, "exchange", "")
        for name in ("created_at", "started_at", "ended_at", "last_at"):
            latest = max(latest, getattr(row, name, 0.0))
    return GapRow(_plain(first.tenant), _plain(first.session), _plain(exchange), taken, reason, latest)
