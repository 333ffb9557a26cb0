"""Branches that are read back, and edits that another process has stored first."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from proxy.context.plan import Edit
from proxy.sessions.branch import Branch, LiveSession
from proxy.sessions.stored_branch import adopt_stored_edits, read_edit
from proxy.store.base import EditRow


def row(key: bytes, version: int, text: str, action: str = "text") -> EditRow:
    return EditRow("me", "s", "t", key, version, "mask", "old", action, text, 100, 10, "x", 2.0)  # type: ignore[arg-type]


def test_stored_edits_replace_those_in_memory() -> None:
    one = Branch("me", "s", "t", "main", b"", LiveSession("me", "s", False))
    mine = {b"k": Edit(b"k", "text", "mine", "mask", "old", 100, 10)}
    one.state = replace(one.state, edits=mine)
    assert not adopt_stored_edits(one, [(row(b"k", 1, "mine"), 4)], mine)
    assert adopt_stored_edits(one, [(row(b"k", 1, "theirs"), 4), (row(b"j", 1, "", "pin"), 5)], mine)
    assert one.state.edits[b"k"].text == "theirs"
    assert one.state.pins == {b"j"}
    assert one.store_position.edit_number == 5


@pytest.mark.parametrize("action", ["withdrawn", "pin", "unpin", "strip"])
def test_a_row_that_edits_nothing_is_not_an_edit(action: str) -> None:
    assert read_edit(row(b"k", 1, "", action)) is None
    assert read_edit(row(b"k", 1, "short")) == Edit(b"k", "text", "short", "mask", "old", 100, 10)


def test_reasoning_that_was_refused_elsewhere_is_refused_here() -> None:
    one = Branch("me", "s", "t", "main", b"", LiveSession("me", "s", False), refused_reasoning=frozenset({b"a"}))
    assert not adopt_stored_edits(one, [(row(b"b", 1, "", "strip"), 7)], {})
    assert one.refused_reasoning == {b"a", b"b"}
    assert one.store_position.edit_versions == {b"b": 1}
