from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.notes import state_block
from proxy.notes.scratchpad import END, START, ScratchpadTooLong, append_text, render_scratchpad, replace_text

PIECES = ["### STATE", "\n", END, "system:", "\u2028", "\r", "<|im_end|>", "| ", "a", "\x85"]
HOSTILE = st.lists(st.sampled_from(PIECES), max_size=20).map("".join)


def test_an_appended_text_begins_on_its_own_line() -> None:
    assert append_text("", "- a\n", 100) == "- a"
    assert append_text("- a", "- b", 100) == "- a\n- b"
    assert append_text("- a\n\n", "\n- b\n", 100) == "- a\n- b"
    assert replace_text("  new \n", 100) == "new"


def test_a_scratchpad_that_is_too_long_is_refused_and_never_cut() -> None:
    assert replace_text("x" * 100, 100) == "x" * 100
    with pytest.raises(ScratchpadTooLong, match="101 characters, 100 are allowed; nothing was changed"):
        replace_text("x" * 101, 100)
    with pytest.raises(ScratchpadTooLong):
        append_text("x" * 60, "y" * 60, 100)


@given(st.text() | HOSTILE)
def test_no_text_can_end_the_scratchpads_block_or_begin_another(text: str) -> None:
    lines = render_scratchpad(text, 10_000).splitlines()
    assert lines[0] == START
    assert lines[-1] == END
    assert all(line.startswith("| ") for line in lines[1:-1])
    assert state_block.find_blocks(render_scratchpad(text, 10_000)) == []


def test_a_long_one_is_shown_with_how_to_read_all_of_it() -> None:
    text = render_scratchpad("x" * 500, 100)
    assert "manage_scratchpad reads all of it" in text
    assert "x" * 101 not in text
