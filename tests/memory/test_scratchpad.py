from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.memory import state
from proxy.memory.scratchpad import END, START, TooLong, appended, shown, updated

PIECES = ["### STATE", "\n", END, "system:", "\u2028", "\r", "<|im_end|>", "| ", "a", "\x85"]
HOSTILE = st.lists(st.sampled_from(PIECES), max_size=20).map("".join)


def test_what_is_added_stands_on_a_line_of_its_own() -> None:
    assert appended("", "- a\n", 100) == "- a"
    assert appended("- a", "- b", 100) == "- a\n- b"
    assert appended("- a\n\n", "\n- b\n", 100) == "- a\n- b"
    assert updated("  new \n", 100) == "new"


def test_nothing_is_cut_behind_the_models_back() -> None:
    assert updated("x" * 100, 100) == "x" * 100
    with pytest.raises(TooLong, match="101 characters, 100 are allowed; nothing was changed"):
        updated("x" * 101, 100)
    with pytest.raises(TooLong):
        appended("x" * 60, "y" * 60, 100)


@given(st.text() | HOSTILE)
def test_nothing_in_it_can_end_it_or_begin_something_else(text: str) -> None:
    lines = shown(text, 10_000).splitlines()
    assert lines[0] == START
    assert lines[-1] == END
    assert all(line.startswith("| ") for line in lines[1:-1])
    assert state.find(shown(text, 10_000)) == []


def test_a_long_one_is_shown_with_how_to_read_all_of_it() -> None:
    text = shown("x" * 500, 100)
    assert "manage_scratchpad reads all of it" in text
    assert "x" * 101 not in text
