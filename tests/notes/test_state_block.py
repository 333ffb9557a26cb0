from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.notes import state_block

NOTE = "Goal: go on\nContext: as before\nResolved: one step\nTechnical Anchors: none"
BLOCK = "### STATE\n" + NOTE


def bodies(text: str) -> list[str]:
    return [block.body for block in state_block.find_blocks(text)]


def test_a_block_at_the_end_is_taken_out_with_the_blank_line_before_it() -> None:
    visible, blocks = state_block.split_blocks("Done.\n\n" + BLOCK)
    assert visible == "Done."
    assert [b.body for b in blocks] == [BLOCK.removeprefix("### STATE\n")]


def test_an_answer_without_a_block_stays_as_it_is() -> None:
    for text in ("", "\n\n", "Done.\n", "# Title\n\ntext\n\n\n"):
        assert state_block.split_blocks(text) == (text, [])


def test_no_more_than_two_newlines_go_with_a_block() -> None:
    assert state_block.split_blocks("Done.\n\n\n\n" + BLOCK)[0] == "Done.\n\n"
    assert state_block.split_blocks("Done.\n" + BLOCK)[0] == "Done."
    assert state_block.split_blocks(BLOCK)[0] == ""
    assert state_block.split_blocks("\n\n" + BLOCK)[0] == ""
    assert state_block.split_blocks("a\r\n\n\n" + BLOCK)[0] == "a\r\n"


@pytest.mark.parametrize(
    "heading", ["### STATE", "### STATE:", "### STATE  ", "### STATE :", "### STATE: \t", "### STATE\r"]
)
def test_spaces_or_a_colon_may_follow_the_heading(heading: str) -> None:
    assert bodies(f"Hi\n\n{heading}\n{NOTE}") == [NOTE]


@pytest.mark.parametrize(
    "heading",
    [
        "### State", "## STATE", "# state:", "**### STATE**", "  ### STATE", "   **## State:**", "### **STATE**",
        "### **State**:", "###\tSTATE", "### STATE**", "### state :**\r",
    ],
)  # fmt: skip
def test_the_forms_of_the_heading_that_models_write_are_read(heading: str) -> None:
    assert state_block.split_blocks(f"Hi\n\n{heading}\n{NOTE}") == (
        "Hi",
        [state_block.NoteBlock(4, 5 + len(heading) + len(NOTE), NOTE)],
    )
    for end in range(len(heading) + 1):
        assert state_block.may_be_heading(heading[:end]), heading[:end]


@pytest.mark.parametrize(
    "line",
    [
        "### STATEMENT",
        "#### STATE",
        "text ### STATE",
        "    ### STATE",
        "###  STATE",
        "###STATE",
        "STATE",
        "**STATE**",
        "\t### STATE",
        "### \u017fTATE",
        "### STATE of things",
        "### STATE::",
        "> ### STATE",
        "### STATE" + " " * 80,
    ],
)
def test_a_line_that_is_only_almost_the_heading_is_text(line: str) -> None:
    text = f"Hi\n\n{line}\n{NOTE}"
    assert state_block.split_blocks(text) == (text, [])
    assert not state_block.may_be_heading(line)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("```", "```"),
        ("```md", "```"),
        ("~~~", "~~~"),
        ("````", "````"),
        ("````\n```", "````"),
        ("```\n~~~", "```"),
        ("  ```", "```"),
        ("1. ```sh", "   ```"),
        ("- ~~~", "  ~~~"),
        ("```\n```not closed", "```"),
    ],
)
def test_a_heading_in_a_code_fence_is_text(before: str, after: str) -> None:
    fenced = f"Like this:\n\n{before}\n{BLOCK}\n{after}"
    assert state_block.split_blocks(fenced) == (fenced, [])
    assert state_block.split_blocks(f"{fenced}\n\n{BLOCK}")[0] == fenced


def test_code_in_a_line_opens_no_fence() -> None:
    assert state_block.split_blocks("```x``` is code\n\n" + BLOCK)[0] == "```x``` is code"


def test_a_fence_that_is_never_closed_hides_what_follows() -> None:
    text = "```\ncode\n\n" + BLOCK
    assert state_block.split_blocks(text) == (text, [])


@pytest.mark.parametrize(
    "heading", ["# More", "## More", "### More", "##", "  ## More", "#\tMore", "### Goals of it", "## Contexts"]
)
def test_a_block_that_a_heading_of_level_1_to_3_follows_is_text(heading: str) -> None:
    text = f"Hi\n\n{BLOCK}\n\n{heading}\ntext"
    assert state_block.split_blocks(text) == (text, [])


@pytest.mark.parametrize("line", ["#### deep", "#hash", "    # code", "text # no", "```\n# comment\n```", "1. # x"])
def test_a_block_does_not_end_before_any_other_line(line: str) -> None:
    assert bodies(f"Hi\n\n{BLOCK}\n{line}\nend") == [f"{NOTE}\n{line}\nend"]


@pytest.mark.parametrize(
    "note",
    [
        "Goal: x\nContext: y",
        "**Goal:** x\n**Technical Anchors:** y",
        "**Goal**: x\n\n**Resolved**: y\n\nall of it",
        "- Goal: x\n- Context: y",
        "* **Goal:** x\n1. resolved: y",
        "### Goal\nto be done\n\n### Context\n\nIt is so.\n\nAnd so it stays.\n\n### Technical Anchors\na.py",
        "#### Goal:\nx\n#### Resolved:\ny",
        "## **Goal**\nx\n## Technical anchors: y",
        "**Goal**\nx\n\n**Context**\ny\n\nThat is how it is now.",
        "Goal: x\n\nIt is a long one, in sentences.\n\nTechnical Anchors: a.py\n\nsrc/b.py:12 fails with KeyError.",
        "Goal: x\nTechnical Anchors:\n\nThe parser is in a.py.",
        "Goal: x\nContext: y\n\nNext: run the tests.",
        "Goal\uff1a\u4fee\u590d\nContext\uff1a\u5982\u524d",
    ],
)
def test_a_note_is_read_in_the_forms_that_models_write(note: str) -> None:
    text = f"Done.\n\n### STATE\n\n{note}\n"
    visible, blocks = state_block.split_blocks(text)
    assert visible == "Done."
    assert [block.body for block in blocks] == [note]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "idle\nrunning",
        "Goal: x",
        "Goal: x\nGoal: y",
        "The goal: x, in this context: y",
        "Goal: x\n\n## Other\nContext: y",
        "Goal: x\nContext: y\n\nThat is all that stands in it.",
        "- Goal: x\n- Context: y\n\nShall I go on\nwith the next one?",
        "Goal: x\nContext: y\n\n\u8fd9\u5c31\u662f\u5168\u90e8\u5185\u5bb9\u3002",
        "\u76ee\u6807: x\n\u72b6\u6001: y",
    ],
)
def test_text_that_is_not_a_final_state_block_reaches_the_client_whole(body: str) -> None:
    text = f"It reads:\n\n### STATE\n{body}"
    assert state_block.split_blocks(text) == (text, [])
    assert state_block.split_blocks(text + "\n\n\n") == (text + "\n\n\n", [])


def test_only_the_last_of_several_blocks_counts() -> None:
    text = f"a\n\n### STATE\nfirst\n\n{BLOCK}\n\n## On\nb\n\n{BLOCK}x\n"
    assert state_block.split_blocks(text) == (
        text[: -len(BLOCK) - 4],
        [state_block.NoteBlock(len(text) - len(BLOCK) - 2, len(text), NOTE + "x")],
    )


@pytest.mark.parametrize("part", ["", "Go", "Goal: to mend", "- **Goal:** x", "### Goal\nx", NOTE])
def test_the_beginning_of_a_block_counts_in_an_answer_that_was_cut_off(part: str) -> None:
    assert state_block.split_blocks("Hi\n\n### STATE\n" + part, is_cut_off=True)[0] == "Hi"
    assert state_block.split_blocks(f"Hi\n\n### STATE\n{part}\n\n## On\n", is_cut_off=True)[1] == []


def test_other_text_of_an_answer_that_was_cut_off_stays() -> None:
    text = "Hi\n\n### STATE\nidle, run"
    assert state_block.split_blocks(text, is_cut_off=True) == (text, [])


def test_a_text_that_is_too_long_is_not_a_block() -> None:
    text = f"Hi\n\n{BLOCK}" + "x" * state_block.MAX_BLOCK_CHARS
    assert state_block.split_blocks(text) == (text, [])
    assert state_block.split_blocks(f"{text}\n\n{BLOCK}")[0] == text


PIECES = [
    "### STATE",
    "## State",
    "\nContext: y",
    "\n### Goal",
    "\n",
    "\n\n",
    "```",
    "~~~",
    "#",
    "## x",
    "- ",
    "1. ",
    " ",
    "a",
    ":",
    "\r",
    "\t",
    "Goal: x",
    "    ",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@given(TEXTS)
def test_visible_text_and_blocks_add_up_to_the_whole_text(text: str) -> None:
    visible, blocks = state_block.split_blocks(text)
    rest = text
    for block in reversed(blocks):
        assert state_block.find_heading(text[block.start : block.end].split("\n", maxsplit=1)[0]) is not None
        rest = rest[: block.start] + rest[block.end :]
    assert visible.replace("\n", "") == rest.replace("\n", "")
    assert len(rest) - len(visible) <= 2 * len(blocks)


@given(TEXTS)
def test_appending_a_block_to_an_answer_with_balanced_fences_leaves_the_answer(text: str) -> None:
    text = text.replace("```", "").replace("~~~", "")
    assert state_block.split_blocks(f"{text}\n\n{BLOCK}")[0] == text


@pytest.mark.timed
@pytest.mark.parametrize("piece", ["#", "\n", "`", "~", " ", "### STATE\n", "```\n", "- ", "\r", "### STATE ", "1. "])
def test_finding_state_blocks_takes_linear_time(piece: str) -> None:
    text = piece * (1_000_000 // len(piece)) + "\n### STATE\nGoal" + piece * (1_000_000 // len(piece))
    start = time.thread_time()
    state_block.split_blocks(text)
    assert time.thread_time() - start < 5


def test_shortening_cuts_at_a_line() -> None:
    body = "\n".join(f"line {n}" for n in range(1000))
    short = state_block.shorten_body(body, 100)
    assert len(short) <= 100
    assert body.startswith(short + "\n")
    assert state_block.shorten_body(body, len(body)) == body
    assert state_block.shorten_body("a\nb", 1) == "a"


def test_a_first_line_over_the_limit_is_cut_in_the_middle() -> None:
    assert state_block.shorten_body("x" * 5000) == "x" * 4000


def test_the_words_that_ask_hold_the_heading_and_the_four_fields() -> None:
    assert state_block.find_blocks(state_block.build_prompt()) == [], "quoted, with what follows, it is no note"
    block = state_block.find_blocks(state_block.build_prompt().rpartition("\n\n")[0])[0].body
    for field in ("Goal:", "Context:", "Resolved:", "Technical Anchors:"):
        assert field in block


def test_the_guidelines_have_three_rules_and_ask_for_nothing() -> None:
    lines = state_block.get_guidelines().splitlines()
    assert [line.split(":")[0] for line in lines[1:]] == ["1. Order", "2. State", "3. Authority"]
    assert state_block.HEADING not in state_block.get_guidelines()


def test_the_anchor_stands_under_its_own_heading() -> None:
    text = state_block.render_anchor("Goal: x")
    assert text.startswith("## Global Anchor\n")
    assert text.endswith("### STATE\nGoal: x")


def test_a_recap_never_holds_the_heading() -> None:
    assert state_block.HEADING not in state_block.render_recap("Goal: x\n```\n### STATE\n#### STATE")
    assert "Goal: x" in state_block.render_recap("Goal: x")


def test_the_guidelines_do_not_claim_that_the_model_wrote_the_anchor() -> None:
    """An operator may have."""
    assert "your own" not in state_block.get_guidelines()


def test_a_recap_claims_neither_that_the_model_wrote_it_nor_that_something_has_left() -> None:
    told = state_block.render_recap("Goal: x")
    assert "you wrote" not in told
    assert "may be shortened or left out" in told
