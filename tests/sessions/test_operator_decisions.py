from __future__ import annotations

from proxy.context.branch_state import BranchState
from proxy.context.operator_edits import OperatorNote
from proxy.context.plan import Edit
from proxy.sessions.operator_decisions import (
    RELEASED_STAGE,
    REMOVED_STAGE,
    SessionSettings,
    StoredDecisions,
    apply_rows,
    parse_settings,
)
from proxy.store.base import WHOLE_SESSION, EditAction, EditRow

K, L = b"k" * 16, b"l" * 16


def row(action: EditAction, version: int, key: bytes = K, stage: str = "operator") -> EditRow:
    return EditRow("t", "s", WHOLE_SESSION, key, version, stage, f"v{version}", action, None, 9, 0, "", 1.0)


def after(*rows: EditRow) -> StoredDecisions:
    return apply_rows(StoredDecisions(), list(rows))


def test_the_last_word_on_a_message_counts() -> None:
    assert after(row("gone", 1)).dropped == {K: "v1"}
    back = after(row("gone", 1), row("withdrawn", 2))
    assert not back.dropped
    assert back.restored == {K}
    again = after(row("gone", 1), row("withdrawn", 2), row("gone", 3))
    assert (again.dropped, again.restored) == ({K: "v3"}, frozenset())
    free = after(row("withdrawn", 1), row("unpin", 2), row("withdrawn", 3, stage=RELEASED_STAGE))
    assert (free.restored, free.find_pins(frozenset({K}))) == (frozenset(), frozenset())
    assert free.versions == {K: 3}


def test_removed_messages_stay_removed() -> None:
    gone = after(row("gone", 1, stage=REMOVED_STAGE), row("withdrawn", 2))
    assert gone.dropped == {K: "v1"}
    assert gone.removed == {K}
    assert gone.restored == frozenset()


def test_pins_of_both_and_what_takes_them_off() -> None:
    assert after(row("pin", 1)).find_pins(frozenset({L})) == {K, L}
    assert after(row("pin", 1), row("unpin", 2)).find_pins(frozenset({K, L})) == {L}
    assert after(row("withdrawn", 1)).find_pins(frozenset()) == {K}
    assert after(row("pin", 1), row("gone", 2)).find_pins(frozenset({K})) == frozenset()


def test_a_session_is_planned_with_what_was_decided() -> None:
    state = BranchState(
        edits={L: Edit(L, "gone", None, "x", "", 1, 0)}, states=((K, "old"), (L, "kept"), (K + b"1", "new"))
    )
    assert StoredDecisions().apply_to(state, side=False) is state
    known = apply_rows(
        StoredDecisions(SessionSettings(window=3, force="prune"), notes=(OperatorNote("n", "t"),)), [row("gone", 1)]
    )
    put = known.apply_to(state, side=False)
    assert put.states == ((L, "kept"),)
    assert put.edits == state.edits
    assert put.decisions is not None
    assert (put.decisions.window, put.decisions.forced_action, put.decisions.dropped) == (3, "prune", {K: "v1"})
    side = known.apply_to(state, side=True).decisions
    assert side is not None
    assert (side.window, side.forced_action, side.notes, side.dropped) == (None, "", (), {K: "v1"})


def test_settings_that_cannot_be_read_are_the_usual_ones() -> None:
    assert parse_settings("{}") == SessionSettings()
    assert parse_settings('{"window": 3}') == SessionSettings(window=3)
    for text in ("", "[]", '{"unknown": 1}', '{"window": "x"}'):
        assert parse_settings(text) == SessionSettings()
