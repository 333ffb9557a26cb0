"""Conversion of rows to statements and arguments, and the gap record of lost rows: the same for every backend.

Consecutive rows of one type become one `executemany`, in which SQLite's per-call overhead is paid once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, cast

from msgspec.structs import astuple

from proxy.store import branch_positions, erasure, removal, session_notes, sql
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
from proxy.store.bindings import INSERT_BINDING, BindingRow
from proxy.store.branch_positions import BranchKindRow, WorkingBranchRow
from proxy.store.derived import ContextWindowRow, EmbeddingRow, HelperAnswerRow, IterationRow, SpendingRow
from proxy.store.erasure import EraseFormRow, EraseMessageRow, EraseRoundRow
from proxy.store.full_text_search import DROP_OLD_FORM, INDEX_SESSION, IndexRow, build_index_args, build_old_form_args
from proxy.store.removal import RemovalStepRow
from proxy.store.response_names import UPSERT_RESPONSE_NAME, ResponseNameRow, build_response_name_args
from proxy.store.session_notes import HiddenRoundRow, MemoRow, NoteRow, ScratchpadRow, SettingsRow, ToolOfferRow
from proxy.store.texts import sanitize_label, to_bytes

Args = tuple[Any, ...]


def _build_session_args(row: SessionRow) -> Args:
    return (*astuple(row), row.created_at)


def _build_branch_args(row: BranchRow) -> Args:
    return (*astuple(row), b"", row.created_at)


def _build_tip_args(row: BranchTipRow) -> Args:
    return (row.tip, row.answer, row.last_at, row.stopped, row.asked, row.tenant, row.session, row.branch)


def _build_touch_args(row: BranchTipRow) -> Args:
    return (row.last_at, row.tenant, row.session, row.last_at)


def _build_message_args(row: MessageRow) -> Args:
    call = None if row.call_id is None else sanitize_label(row.call_id)
    role, group = sanitize_label(row.role), sanitize_label(row.group_id)
    args = astuple(row)
    return (*args[:6], role, group, *args[8:10], call, *args[11:], row.tenant, row.session)


def _build_edit_args(row: EditRow) -> Args:
    args = astuple(row)
    text = None if row.text is None else to_bytes(row.text)
    return (*args[:6], sanitize_label(row.reason), args[7], text, *args[9:], row.tenant, row.session, row.branch)


def _build_state_args(row: StateRow) -> Args:
    return (
        *(row.tenant, row.session, row.branch, row.key, to_bytes(row.text), row.created_at),
        *(row.tenant, row.session, row.branch),
    )


def _build_answer_args(row: HelperAnswerRow) -> Args:
    args = astuple(row)
    return (*args[:4], sanitize_label(row.model), *args[5:-1], to_bytes(row.text))


def _build_exchange_args(row: ExchangeRow) -> Args:
    args = astuple(row)
    return (*args[:10], *map(sanitize_label, args[10:15]), *args[15:])


def _build_policy_args(row: ExchangeRow) -> Args:
    policy = sanitize_label(row.policy)
    return (policy, row.tenant, row.session, policy)


def _build_outcome_args(row: OutcomeRow) -> Args:
    args = tuple(sanitize_label(arg) if isinstance(arg, str) else arg for arg in astuple(row)[3:])
    return (*args, row.tenant, row.session, row.exchange)


STATEMENTS: dict[type, tuple[tuple[str, Callable[[Any], Args]], ...]] = {
    SessionRow: ((sql.INSERT_SESSION, _build_session_args),),
    BranchRow: ((sql.INSERT_BRANCH, _build_branch_args),),
    BranchTipRow: ((sql.UPDATE_BRANCH_TIP, _build_tip_args), (sql.TOUCH_SESSION, _build_touch_args)),
    MessageRow: ((sql.INSERT_MESSAGE, _build_message_args),),
    FormRow: ((sql.INSERT_FORM, astuple),),
    EditRow: ((sql.INSERT_EDIT, _build_edit_args),),
    StateRow: ((sql.INSERT_STATE, _build_state_args),),
    ExchangeRow: ((sql.INSERT_EXCHANGE, _build_exchange_args), (sql.SESSION_POLICY, _build_policy_args)),
    OutcomeRow: ((sql.UPDATE_OUTCOME, _build_outcome_args),),
    GapRow: ((sql.ADD_GAP, astuple),),
    IndexRow: (
        (DROP_OLD_FORM, build_old_form_args),
        (INDEX_SESSION, build_index_args),
    ),
    HelperAnswerRow: ((sql.INSERT_HELPER_ANSWER, _build_answer_args),),
    SpendingRow: ((sql.ADD_SPENDING, astuple),),
    ContextWindowRow: ((sql.PUT_CONTEXT_WINDOW, astuple),),
    BindingRow: ((INSERT_BINDING, astuple),),
    EmbeddingRow: ((sql.INSERT_VECTOR, astuple),),
    IterationRow: ((sql.INSERT_ITERATION, astuple),),
    HiddenRoundRow: ((session_notes.INSERT_ROUND, astuple),),
    ToolOfferRow: ((session_notes.UPDATE_OFFER, session_notes.build_offer_args),),
    ScratchpadRow: ((session_notes.INSERT_SCRATCHPAD, session_notes.build_scratchpad_args),),
    MemoRow: ((session_notes.UPSERT_MEMO, session_notes.build_memo_args),),
    SettingsRow: ((session_notes.UPDATE_SETTINGS, session_notes.build_settings_args),),
    NoteRow: ((session_notes.UPSERT_NOTE, session_notes.build_note_args),),
    ResponseNameRow: ((UPSERT_RESPONSE_NAME, build_response_name_args),),
    BranchKindRow: ((branch_positions.UPDATE_KIND, branch_positions.build_kind_args),),
    WorkingBranchRow: (
        (branch_positions.UPDATE_KIND, branch_positions.build_working_branch_args),
        (branch_positions.MARK_SIDE_BRANCHES, branch_positions.build_side_branches_args),
    ),
    EraseMessageRow: erasure.ERASE_STATEMENTS,
    EraseFormRow: ((erasure.ERASE_FORM, erasure.build_erase_form_args),),
    EraseRoundRow: ((erasure.ERASE_ROUND, erasure.build_erase_round_args),),
}

ROWS_OF_SESSIONS: Final = frozenset((
    MessageRow, FormRow, EditRow, StateRow, ExchangeRow, HelperAnswerRow, BindingRow, EmbeddingRow, IterationRow,
    HiddenRoundRow, ScratchpadRow, NoteRow, ResponseNameRow,
))  # fmt: skip
"""Types of rows that are stored only where their session is. A request, or a question to the helper, may end after the
deletion of its session, of which nothing is to be left. The first statement of each inserts the row."""

ROW_TYPE_ORDER = {kind: place for place, kind in enumerate(STATEMENTS)}
"""Order in which the rows of many puts may be sorted: those of a table before those that refer to them."""


def split_by_table(rows: Sequence[Row], in_place: tuple[type, ...]) -> Iterator[list[Row]]:
    """The rows in parts, each sorted by table, with the order within a table kept. A row of a type `in_place` is a part
    of its own, in its original place: it removes or reads other rows."""
    part: list[Row] = []
    for row in rows:
        if isinstance(row, in_place):
            if part:
                yield sorted(part, key=_find_table_order)
            yield [row]
            part = []
        else:
            part.append(row)
    if part:
        yield sorted(part, key=_find_table_order)


def _find_table_order(row: Row) -> int:
    return ROW_TYPE_ORDER[type(row)]


BranchTips = dict[tuple[str, str, str], BranchTipRow]
"""A branch's position at the end of a transaction, by (tenant, session, branch)."""


def build_statements(rows: Sequence[Row], tips: BranchTips | None = None) -> list[tuple[str, list[Args]]]:
    """Each statement with the arguments of consecutive rows. Raises KeyError for an unknown row type.

    tips: each `BranchTipRow` goes there instead of into the result. Of a transaction only a branch's last one counts,
    and no other statement depends on it.
    """
    statements: list[tuple[str, list[Args]]] = []
    for kind, alike in groupby(rows, type):
        if kind is BranchTipRow and tips is not None:
            for row in cast("Iterator[BranchTipRow]", alike):
                place = (row.tenant, row.session, row.branch)
                if place in tips and tips[place].last_at > row.last_at:  # the clock was set back
                    statements.append((sql.TOUCH_SESSION, [_build_touch_args(tips[place])]))
                tips[place] = row
            continue
        if kind is RemovalStepRow:
            statements.extend(
                (removal.select_removal_statement(row), [removal.build_removal_args(row)])
                for row in cast("Iterator[RemovalStepRow]", alike)
            )
            continue
        texts = STATEMENTS[kind]
        several = list(alike)
        statements.extend((text, [arguments(row) for row in several]) for text, arguments in texts)
    return statements


def make_gap(rows: Sequence[Row], byte_count: int, reason: str) -> GapRow | None:
    """The gap record of rows that could not be stored: tenant, session, exchange, and number of bytes.

    Its time is the latest time in the rows. None if there are no rows, or if no data is lost with them. None also if
    the first row is a gap or of an unknown type.
    """
    first = rows[0] if rows else None
    if type(first) not in STATEMENTS or isinstance(first, (GapRow, IndexRow)) or first is None:  # erasures too
        return None
    exchange = ""
    latest = 0.0
    for row in rows:
        exchange = exchange or getattr(row, "exchange", "")
        for name in ("created_at", "started_at", "ended_at", "last_at", "updated_at"):
            latest = max(latest, getattr(row, name, 0.0))
    return GapRow(
        sanitize_label(first.tenant),
        sanitize_label(first.session),
        sanitize_label(exchange),
        byte_count,
        reason,
        latest,
    )
