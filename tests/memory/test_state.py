from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.memory import state

BLOCK = "### STATE\nGoal: go on\nContext: as before\nResolved: one step\nTechnical Anchors: none"


def bodies(text: str) -> list[str]:
    return [block.body for block in state.find(text)]


def test_a_block_at_the_end_is_taken_out_with_the_blank_line_before_it() -> None:
    visible, blocks = state.split("Done.\n\n" + BLOCK)
    assert visible == "Done."
    assert [b.body for b in blocks] == [BLOCK.removeprefix("### STATE\n")]


def test_an_answer_without_a_block_stays_as_it_is() -> None:
    for text in ("", "\n\n", "Done.\n", "# Title\n\ntext\n\n\n"):
        assert state.split(text) == (text, [])


def test_no_more_than_two_newlines_go_with_a_block() -> None:
    assert state.split("Done.\n\n\n\n" + BLOCK)[0] == "Done.\n\n"
    assert state.split("Done.\n" + BLOCK)[0] == "Done."
    assert state.split(BLOCK)[0] == ""
    assert state.split("\n\n" + BLOCK)[0] == ""
    assert state.split("a\r\n\n\n" + BLOCK)[0] == "a\r\n"


@pytest.mark.parametrize(
    "heading", ["### STATE", "### STATE:", "### STATE  ", "### STATE :", "### STATE: \t", "### STATE\r"]
)
def test_spaces_or_a_colon_may_follow_the_heading(heading: str) -> None:
    assert bodies(f"Hi\n\n{heading}\nGoal: x") == ["Goal: x"]


@pytest.mark.parametrize(
    "line",
    [
        "### STATEMENT",
        "#### STATE",
        "## STATE",
        "text ### STATE",
        " ### STATE",
        "### state",
        "###  STATE",
        "###STATE",
        "### STATE of things",
        "### STATE::",
        "> ### STATE",
        "**### STATE**",
        "### STATE" + " " * 80,
    ],
)
def test_a_line_that_is_only_almost_the_heading_is_text(line: str) -> None:
    text = f"Hi\n\n{line}\nGoal: x"
    assert state.split(text) == (text, [])


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
    assert state.split(fenced) == (fenced, [])
    assert state.split(f"{fenced}\n\n{BLOCK}")[0] == fenced


def test_code_in_a_line_opens_no_fence() -> None:
    assert state.split("```x``` is code\n\n" + BLOCK)[0] == "```x``` is code"


def test_a_fence_that_is_never_closed_hides_what_follows() -> None:
    text = "```\ncode\n\n" + BLOCK
    assert state.split(text) == (text, [])


@pytest.mark.parametrize("heading", ["# More", "## More", "### More", "##", "  ## More", "#\tMore"])
def test_a_block_ends_before_the_next_heading_of_level_1_to_3(heading: str) -> None:
    visible, blocks = state.split(f"Hi\n\n### STATE\nGoal: x\n\n{heading}\ntext")
    assert visible == f"Hi\n\n{heading}\ntext"
    assert [b.body for b in blocks] == ["Goal: x"]


@pytest.mark.parametrize("line", ["#### deep", "#hash", "    # code", "text # no", "```\n# comment\n```", "1. # x"])
def test_a_block_does_not_end_before_any_other_line(line: str) -> None:
    assert bodies(f"Hi\n\n### STATE\nGoal: x\n{line}\nend") == [f"Goal: x\n{line}\nend"]


def test_several_blocks_are_found_each_with_its_place() -> None:
    text = "a\n\n### STATE\nfirst\n\n### STATE\nsecond\n\n## On\nb\n\n### STATE:\nthird\n"
    blocks = state.find(text)
    assert [b.body for b in blocks] == ["first", "second", "third"]
    assert [text[b.start : b.start + 9] for b in blocks] == ["### STATE"] * 3
    assert blocks[0].end == blocks[1].start
    assert blocks[2].end == len(text)
    assert state.split(text)[0] == "a\n\n## On\nb"


def test_a_heading_with_nothing_under_it_is_a_block_without_a_body() -> None:
    assert state.split("Hi\n\n### STATE") == ("Hi", [state.Block(4, 13, "")])


PIECES = [
    "### STATE",
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
def test_what_is_seen_and_the_blocks_are_all_there_is(text: str) -> None:
    visible, blocks = state.split(text)
    rest = text
    for block in reversed(blocks):
        assert state.is_heading(text[block.start : block.end].split("\n", maxsplit=1)[0])
        rest = rest[: block.start] + rest[block.end :]
    assert visible.replace("\n", "") == rest.replace("\n", "")
    assert len(rest) - len(visible) <= 2 * len(blocks)


@given(TEXTS)
def test_appending_a_block_to_an_answer_with_balanced_fences_leaves_the_answer(text: str) -> None:
    text = text.replace("```", "").replace("~~~", "")
    whole = f"{text}\n\n{BLOCK}"
    if not state.find(text):
        assert state.split(whole)[0] == text


@pytest.mark.parametrize("piece", ["#", "\n", "`", "~", " ", "### STATE\n", "```\n", "- ", "\r", "### STATE ", "1. "])
def test_reading_is_linear(piece: str) -> None:
    text = piece * (1_000_000 // len(piece)) + "\n### STATE"
    start = time.perf_counter()
    state.split(text)
    assert time.perf_counter() - start < 5


def test_shortening_cuts_at_a_line() -> None:
    body = "\n".join(f"line {n}" for n in range(1000))
    short = state.shorten(body, 100)
    assert len(short) <= 100
    assert body.startswith(short + "\n")
    assert state.shorten(body, len(body)) == body
    assert state.shorten("a\nb", 1) == "a"


def test_a_first_line_over_the_limit_is_cut_in_the_middle() -> None:
    assert state.shorten("x" * 5000) == "x" * 4000


def test_the_words_that_ask_hold_the_heading_and_the_four_fields() -> None:
    block = state.find(state.ask())[0].body
    for field in ("Goal:", "Context:", "Resolved:", "Technical Anchors:"):
        assert field in block


def test_the_guidelines_have_three_rules_and_ask_for_nothing() -> None:
    lines = state.guidelines().splitlines()
    assert [line.split(":")[0] for line in lines[1:]] == ["1. Order", "2. State", "3. Authority"]
    assert state.HEADING not in state.guidelines()


def test_the_anchor_stands_under_its_own_heading() -> None:
    text = state.anchor("Goal: x")
    assert text.startswith("## Global Anchor\n")
    assert bodies(text) == ["Goal: x"]


def test_a_recap_never_holds_the_heading() -> None:
    assert state.HEADING not in state.recap("Goal: x\n```\n### STATE\n#### STATE")
    assert "Goal: x" in state.recap("Goal: x")
