"""The journal: the rows of a small transaction, packed into one page, until many transactions go to the tables at once.

The rows of one exchange belong to six tables with two dozen b-trees: some 25 pages of 4 KB for 1.5 KB of content. So a
small transaction is first one record in the table `journal`: it is as durable as in the tables, and costs one page.
The writer applies the records in batches, in which neighbouring rows share their pages.

Records are applied once they are many (`MAX_ITEMS`, `MAX_SLOTS`) or old (`MAX_AGE_S`), and when the store is closed.
They are also applied before a read of their session, and before rows that are not journaled. The records of a killed
process are applied when the store is opened, before anything is read.

The table has slots of a fixed size, which are written over, so that a record neither takes nor frees a page. Slot 0
has the number of the last record that was applied; records up to that number are void. A record is void in the same
transaction that writes its rows to the tables, so it is applied once.

A record has the values of its rows by position. A process of an earlier version may have left it. So the fields of a
row type in `KINDS` are never moved or removed, and a new field comes last, with a default.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import compress, groupby
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from proxy.store import encode
from proxy.store.base import (
    BranchRow,
    BranchTipRow,
    EditRow,
    ExchangeRow,
    FormRow,
    GapRow,
    MessageRow,
    OutcomeRow,
    Row,
    SessionRow,
    StateRow,
)
from proxy.store.bindings import BindingRow
from proxy.store.branch_positions import BranchKindRow, WorkingBranchRow
from proxy.store.derived import ContextWindowRow, EmbeddingRow, HelperAnswerRow, IterationRow, SpendingRow
from proxy.store.erasure import EraseFormRow, EraseMessageRow, EraseRoundRow
from proxy.store.removal import RemovalStepRow
from proxy.store.response_names import ResponseNameRow
from proxy.store.session_notes import HiddenRoundRow, MemoRow, NoteRow, ScratchpadRow, SettingsRow, ToolOfferRow
from proxy.store.sql import for_sqlite
from proxy.store.write_queue import count_bytes

log = logging.getLogger(__name__)

SLOT_BYTES: Final = 4000
"""Bytes of a slot: with its row's header a whole page of 4,096 bytes, so that no two slots share a page."""
MAX_RECORD_SLOTS: Final = 24
"""Slots that one record of several transactions may take; more rows are written to the tables at once."""
MAX_ITEM_BYTES: Final = 16 << 10
"""Bytes that one transaction may have. A longer one is written to the tables at once: its content is many pages."""
MAX_SLOTS: Final = 96
"""Slots in use at most: 400 KB of the file."""
MAX_ITEMS: Final = 64
"""Transactions after which the journal is applied: some 10 ms of the writer's time."""
MAX_AGE_S: Final = 60.0
"""Seconds after which the oldest record is applied."""

KINDS: Final[dict[int, type]] = {
    1: SessionRow,
    2: BranchRow,
    3: BranchTipRow,
    4: MessageRow,
    5: FormRow,
    6: EditRow,
    7: StateRow,
    8: ExchangeRow,
    9: OutcomeRow,
    10: GapRow,
    11: BranchKindRow,
    12: WorkingBranchRow,
    13: HelperAnswerRow,
    14: SpendingRow,
    15: ContextWindowRow,
    16: EmbeddingRow,
    17: IterationRow,
    18: HiddenRoundRow,
    19: ToolOfferRow,
    20: ScratchpadRow,
    21: MemoRow,
    22: SettingsRow,
    23: NoteRow,
    24: ResponseNameRow,
    25: BindingRow,
}
"""The row types that are journaled, by the number under which they are stored. A number is never used again. 0 is the
tenant and session of the rows that follow."""
_NUMBERS: Final = {kind: number for number, kind in KINDS.items()}
_PLACE: Final = 0

_ERASING: Final = frozenset({RemovalStepRow, EraseMessageRow, EraseFormRow, EraseRoundRow})
_MAY_ERASE: Final = _ERASING | {MemoRow, NoteRow}
_IN_PLACE: Final = (BranchKindRow, WorkingBranchRow)
"""Row types whose effect depends on the rows before them in other tables."""

_MOST_INT: Final = (1 << 63) - 1
_VALUES: Final = frozenset({bytes, float, bool, type(None)})
_SURROGATES: Final = 1


@cache
def _write_slots(count: int) -> str:
    """The statement that writes `count` slots, at most MAX_RECORD_SLOTS."""
    places = ", ".join(["(?, ?, ?, ?)"] * count)
    return f"""
INSERT INTO journal (slot, batch, part, data) VALUES {places}
ON CONFLICT (slot) DO UPDATE SET batch = excluded.batch, part = excluded.part, data = excluded.data"""  # noqa: S608


_READ = """
SELECT j.batch, j.slot, j.data FROM journal j
WHERE j.slot > 0 AND j.batch > coalesce((SELECT m.batch FROM journal m WHERE m.slot = 0), 0) ORDER BY j.batch, j.part"""

MIGRATION: tuple[str, ...] = (
    """
CREATE TABLE journal (
    slot INTEGER PRIMARY KEY,
    batch BIGINT NOT NULL,
    part BIGINT NOT NULL,
    data BLOB NOT NULL
)""",
    # All slots are there from the start: a page that is taken from the file costs two or three others.
    f"""
INSERT INTO journal (slot, batch, part, data)
WITH RECURSIVE slots (slot) AS (SELECT 0 UNION ALL SELECT slot + 1 FROM slots WHERE slot < {MAX_SLOTS})
SELECT slot, 0, 0, zeroblob(CASE slot WHEN 0 THEN 0 ELSE {SLOT_BYTES} END) FROM slots""",  # noqa: S608  numbers of ours
)


def is_erasing(rows: Sequence[Row]) -> bool:
    """True if the rows remove content, which must not be left in the slots either."""
    return not _MAY_ERASE.isdisjoint(map(type, rows)) and any(
        type(row) in _ERASING
        or (isinstance(row, MemoRow) and row.deleted)
        or (isinstance(row, NoteRow) and not row.text)
        for row in rows
    )


class Journal:
    """The records that are durable and not applied yet. The methods run in the writer's thread, in its transaction."""

    def __init__(self) -> None:
        self.items: list[Sequence[Row]] = []
        """The rows of each transaction, in order."""
        self.places: set[tuple[str, str]] = set()
        """(tenant, session) of the rows. The event loop reads it."""
        self.unreadable_bytes = 0
        """Bytes of records that could not be read when the journal was loaded."""
        self._batch = 0
        self._slot = 1
        self._stale = MAX_SLOTS
        """Slots that may have content of records that are applied: all, after a start."""

    @property
    def is_empty(self) -> bool:
        """True if no record waits to be applied, not even one that cannot be read."""
        return self._slot == 1

    @property
    def is_full(self) -> bool:
        """True if the records should be applied before more are written."""
        return len(self.items) >= MAX_ITEMS or self._slot + MAX_RECORD_SLOTS > MAX_SLOTS

    def load(self, connection: sqlite3.Connection) -> None:
        """Read the records that are not applied: those of a killed process, or those of this one. The event loop sees
        the earlier `places` until all are read."""
        last = connection.execute("SELECT coalesce(max(batch), 0) FROM journal").fetchone()[0]
        parts: dict[int, list[bytes]] = {}
        end = 1
        for batch, slot, data in connection.execute(_READ):
            parts.setdefault(batch, []).append(data)
            end = max(end, slot + 1)
        items: list[Sequence[Row]] = []
        self.unreadable_bytes = 0
        for record in map(b"".join, parts.values()):
            try:
                items += unpack(record)
            except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
                log.error("a record of the journal cannot be read: %s", type(error).__name__)
                self.unreadable_bytes += len(record)
        self._batch, self._slot, self._stale = last, end, MAX_SLOTS
        self.items, self.places = items, _list_places(items)

    def write(self, connection: sqlite3.Connection, data: bytes) -> None:
        """Write a record, in one statement. The records count once `commit` is called."""
        batch, first = self._batch + 1, self._slot
        args: list[int | bytes] = []
        for n, at in enumerate(range(0, len(data), SLOT_BYTES)):
            args += (first + n, batch, n, data[at : at + SLOT_BYTES].ljust(SLOT_BYTES, b"\0"))
        connection.execute(_write_slots(len(args) // 4), args)

    def commit(self, items: Sequence[Sequence[Row]], data: bytes) -> None:
        """Note that a written record is durable."""
        self._batch += 1
        self._slot += -(-len(data) // SLOT_BYTES)
        self._add_items(items)

    def _add_items(self, items: Sequence[Sequence[Row]]) -> None:
        self.items += items
        self.places |= _list_places(items)

    def write_tables(self, connection: sqlite3.Connection, tips: encode.BranchTips) -> None:
        """Write the rows of all records to the tables, sorted by table as far as their effect allows it. The branches'
        positions go into `tips`, which the caller writes last."""
        for part in encode.split_by_table([row for rows in self.items for row in rows], _IN_PLACE):
            execute_rows(connection, part, tips)

    def void_records(self, connection: sqlite3.Connection, *, erasing: bool) -> None:
        """Void all records, as part of the transaction that applies them. erasing: content is removed too."""
        if self._slot > 1:
            connection.execute(_write_slots(1), (0, self._batch, 0, b""))
        stale = max(self._stale, self._slot - 1)
        if erasing and stale:
            connection.execute("UPDATE journal SET data = zeroblob(?) WHERE slot BETWEEN 1 AND ?", (SLOT_BYTES, stale))

    def mark_applied(self, *, erased: bool) -> None:
        """Note that the transaction that applied the records is durable."""
        self._stale = 0 if erased else max(self._stale, self._slot - 1)
        self.items, self.places, self._slot, self.unreadable_bytes = [], set(), 1, 0


_HAS_SESSION = "SELECT 1 FROM sessions WHERE tenant = ? AND session = ?"


def execute_rows(connection: sqlite3.Connection, rows: Sequence[Row], tips: encode.BranchTips | None = None) -> None:
    """Write rows to the tables; see `encode.build_statements`. Rows of a session that is not stored are left out.

    Sessions are looked up here and not by the statements. SQLite copies each row to a temporary table where a statement
    also reads the table that it writes to: a message of 16 MB left 50 MB more in memory."""
    for kind, alike in groupby(rows, type):
        several = list(alike)
        statements = encode.build_statements(several, tips)
        if kind in encode.ROWS_OF_SESSIONS:
            stored = {place for place in _list_places([several]) if connection.execute(_HAS_SESSION, place).fetchone()}
            is_kept = [(row.tenant, row.session) in stored for row in several]
            statements = [(text, list(compress(args, is_kept))) for text, args in statements]
        for text, args in statements:
            connection.executemany(for_sqlite(text), args)


def _list_places(items: Sequence[Sequence[Row]]) -> set[tuple[str, str]]:
    return {(row.tenant, row.session) for rows in items for row in rows}


def pack(items: Sequence[Sequence[Row]]) -> bytes | None:
    """The rows of transactions as one record. None if they are not journaled: too long, of another type, or with a
    value that a column might not take. Those are written to the tables, which take or refuse them."""
    place: tuple[Any, ...] = ()
    packed: list[list[tuple[Any, ...]]] = []
    for rows in items:
        if not rows or is_erasing(rows) or count_bytes(rows) > MAX_ITEM_BYTES:
            return None
        records: list[tuple[Any, ...]] = []
        for row in rows:
            number = _NUMBERS.get(type(row))
            if number is None:
                return None
            values = astuple(row)
            if not has_plain_values(row, values):
                return None
            if values[:2] != place:
                place = values[:2]
                records.append((_PLACE, *place))
            records.append((number, *values[2:]))
        packed.append(records)
    try:
        data = msgspec.msgpack.encode(packed)
    except UnicodeEncodeError:  # a lone surrogate, which JSON can carry
        data = msgspec.msgpack.encode(
            [[tuple(map(_encode_surrogates, values)) for values in records] for records in packed]
        )
    data = len(data).to_bytes(4) + data
    return data if len(data) <= MAX_RECORD_SLOTS * SLOT_BYTES else None


def unpack(data: bytes) -> list[list[Row]]:
    """The rows of a record."""
    size = int.from_bytes(data[:4])
    items: list[list[Row]] = []
    place: Sequence[Any] = ()
    for packed in msgspec.msgpack.decode(data[4 : 4 + size], ext_hook=_decode_surrogates):
        rows: list[Row] = []
        for number, *values in packed:
            if number == _PLACE:
                place = values
            else:
                rows.append(KINDS[number](*place, *values))
        items.append(rows)
    return items


def has_plain_values(row: Row, values: Sequence[Any]) -> bool:
    """True if the statements of this row have only values that every column takes."""
    for n in _find_required_fields(type(row)):
        if values[n] is None:
            return False
    # Arguments are the values of the row, or texts made of them. So the statements are only built for odd values.
    if _are_plain_values(values):
        return True
    return all(_are_plain_values(args) for _, several in encode.build_statements((row,)) for args in several)


def _are_plain_values(values: Sequence[Any]) -> bool:
    for value in values:
        kind = value.__class__
        if kind is str:
            if not (value.isascii() or _is_text(value)):
                return False
        elif kind is int:
            if not -_MOST_INT <= value <= _MOST_INT:
                return False
        elif kind not in _VALUES:
            return False
    return True


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


@cache
def _find_required_fields(kind: type) -> tuple[int, ...]:
    """The indexes of the fields that are never None."""
    fields = msgspec.inspect.type_info(kind).fields  # type: ignore[attr-defined]  # msgspec says less than it returns
    return tuple(n for n, field in enumerate(fields) if not _takes_none(field.type))


def _takes_none(column_type: msgspec.inspect.Type) -> bool:
    several = column_type.types if isinstance(column_type, msgspec.inspect.UnionType) else (column_type,)
    return any(isinstance(one, msgspec.inspect.NoneType) for one in several)


def _encode_surrogates(value: object) -> object:
    if not isinstance(value, str) or value.isascii():
        return value
    return msgspec.msgpack.Ext(_SURROGATES, value.encode("utf-8", "surrogatepass"))


def _decode_surrogates(_: int, data: memoryview) -> str:
    return bytes(data).decode("utf-8", "surrogatepass")
