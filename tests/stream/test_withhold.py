from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.memory import state
from proxy.stream.splice import with_texts
from proxy.stream.withhold import BODY_MAX, StateFilter, without_state

PIECES = [
    "### STATE", "\n", "\n\n", "```", "~~~", "````", "#", "##", "## x", "- ", "1. ", " ", "  ", "a", ":", "\r", "\t",
    "Goal: x", "    ", "#### STATE", "### STATEMENT", "\n### STATE\n", "\n```\n", "\n## Next\n", " " * 43, "`" * 43,
    "STATE", "ü😀",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)

SAMPLES = [
    "Done.\n\n### STATE\nGoal: x\nContext: y\n",
    "a\n\n\n\n### STATE:\nG\n\n## More\n\ntext\n",
    "```py\n### STATE\n# no\n```\n\n### STATE \r\nG\n```\n# in it\n```\n#### deep\n\n### STATE\nsecond\n# T\nb",
    "1. ```sh\n   ls\n   ```\n\n### STATE\nG\n  ##\n x",
    "### STATEMENT\n#### STATE\ntext ### STATE\n ### STATE\n### STAT",
    "### STATE",
    "a\n\n### STATE\n#",
    "a\n\n###",
    "\n\n\n",
    "a ``` b\n~~~ x ~~~\n~~~\n\n### STATE\nG",
    "a\n\n### STATE\nx\n\n### STATE",
    "ü😀\n\n### STATE\nü😀\n",
    "```\n" + " " * 43 + "```\n### STATE\nG",
    "```\n" + " " * 42 + "```\n### STATE\nG",
]


def filtered(pieces: list[str]) -> tuple[str, list[str]]:
    held = StateFilter()
    out = "".join([held.feed(piece) for piece in pieces])
    return out + held.end(), held.blocks


def expected(text: str) -> tuple[str, list[str]]:
    visible, blocks = state.split(text)
    return visible, [block.body for block in blocks]


@pytest.mark.parametrize("text", SAMPLES)
def test_the_filter_gives_what_split_gives_whole_by_character_and_cut_anywhere(text: str) -> None:
    assert filtered([text]) == expected(text)
    assert filtered(list(text)) == expected(text)
    for cut in range(len(text) + 1):
        assert filtered([text[:cut], text[cut:]]) == expected(text), cut
        for other in range(cut, len(text) + 1):
            assert filtered([text[:cut], text[cut:other], text[other:]]) == expected(text), (cut, other)


@settings(max_examples=600)
@given(TEXTS, st.lists(st.integers(0, 200), max_size=8))
@example(" " * 42 + "```\n### STATE\n", [])
def test_the_filter_is_split_at_any_cut(text: str, cuts: list[int]) -> None:
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    assert filtered([text[a:b] for a, b in pairwise(edges)]) == expected(text)
    assert filtered(list(text)) == expected(text)


@settings(max_examples=300)
@given(TEXTS)
def test_nothing_is_held_that_could_not_belong_to_a_block(text: str) -> None:
    """At every character: whatever is held is a gap, the beginning of a heading, or both."""
    held = StateFilter()
    seen = ""
    for position, character in enumerate(text):
        seen += held.feed(character)
        withheld, blocks = state.split(text[: position + 1])
        if not blocks:
            rest = withheld[len(seen) :]
            gap = rest[: len(rest) - len(rest.lstrip("\n"))]
            assert seen + rest == withheld
            assert len(gap) <= 2
            assert state.may_be_heading(rest[len(gap) :])


def test_text_goes_at_once_up_to_the_end_of_its_line() -> None:
    held = StateFilter()
    assert held.feed("Hello") == "Hello"
    assert held.feed(" you.\n") == " you."
    assert held.feed("\n") == ""
    assert held.feed("\n") == "\n"
    assert held.feed("###") == ""
    assert held.feed(" S") == ""
    assert held.feed("o\n") == "\n\n### So"
    assert held.feed("-") == "\n-"
    assert held.feed("\n```\n\n\n#") == "\n```\n\n\n#"


def test_a_flush_lets_go_what_is_held_but_never_a_whole_heading() -> None:
    held = StateFilter()
    assert held.feed("a\n\n### ST") == "a"
    assert held.flush() == "\n\n### ST"
    assert held.feed("ATE\nb") == "ATE\nb"
    held = StateFilter()
    assert held.feed("a\n\n### STATE") == "a"
    assert held.flush() == ""
    assert held.feed("MENT") == "\n\n### STATEMENT"
    held = StateFilter()
    assert held.feed("a\n") == "a"
    assert held.flush() == "\n"
    assert held.flush() == ""
    assert held.feed("### STATE\nG") == ""
    assert held.flush() == ""
    assert held.end() == ""
    assert held.blocks == ["G"]


def test_the_end_may_be_told_twice_and_a_block_stays_a_block() -> None:
    held = StateFilter()
    assert held.feed("a\n\n### STATE\nG") == "a"
    assert held.end() == held.end() == ""
    assert held.feed("more of it\n") == ""
    assert held.feed("## On") == "## On"
    assert held.end() == ""
    assert held.blocks == ["G"]


@pytest.mark.parametrize(
    "piece", ["#", "\n", "`", "~", " ", "### STATE\n", "```\n", "- ", "\r", "### STATE ", "1. ", "a", "#\n", "\n#"]
)
@pytest.mark.parametrize("step", [1, 1000, 1 << 30])
def test_the_work_is_linear(piece: str, step: int) -> None:
    text = piece * (400_000 // len(piece))
    held = StateFilter()
    start = time.perf_counter()
    for at in range(0, len(text), step):
        held.feed(text[at : at + step])
        assert len(held._head) <= state.HEADING_MAX + step
    held.end()
    assert time.perf_counter() - start < 5


def test_of_an_endless_block_no_more_is_kept_than_is_bounded() -> None:
    held = StateFilter()
    held.feed("### STATE\n")
    for _ in range(40):
        assert held.feed("x" * 100_000) == ""
    assert held.end() == ""
    assert len(held.blocks[0]) == BODY_MAX


def body(*texts: str | None) -> bytes:
    choices = [
        {"index": n, "message": {"role": "assistant", "content": text, "x": 1.50}, "finish_reason": "stop"}
        for n, text in enumerate(texts)
    ]
    return json.dumps({"id": "c", "choices": choices, "usage": {"z": 1e5}}, indent=1).encode()


def test_a_body_changes_in_its_text_only() -> None:
    raw = body("Dün.\n\n### STATE\nGoal: ü")
    visible, blocks = without_state(raw)
    assert blocks == ["Goal: ü"]
    assert visible == raw.replace(b'"D\\u00fcn.\\n\\n### STATE\\nGoal: \\u00fc"', '"Dün."'.encode())


def test_all_choices_are_cleared_and_the_first_ones_blocks_given() -> None:
    visible, blocks = without_state(body("a\n\n### STATE\n1", "b", "c\n\n### STATE\n3"))
    assert [choice["message"]["content"] for choice in json.loads(visible)["choices"]] == ["a", "b", "c"]
    assert blocks == ["1"]


@pytest.mark.parametrize(
    "raw",
    [
        body("STATE of things"),
        body(None),
        b"",
        b"<html>### STATE",
        b'{"choices":3,"x":"STATE"}',
        b'{"choices":[{"message":"### STATE"}]}',
        b'{"choices":[{"message":{"content":["### STATE"]}}]}',
        b"[" * 100_000 + b"STATE",
    ],
)
def test_a_body_without_blocks_is_the_same_body(raw: bytes) -> None:
    assert without_state(raw) == (raw, [])


@pytest.mark.parametrize(
    "raw",
    [
        b'{"choices":[{"message":{"content":"x","content":"a\\n\\n### STATE\\nG"}}]}',
        b'{"choices":[{"index":null,"message":{"content":"a\\n\\n### STATE\\nG"}}],"x":NaN}',
        b'{"choices":[{"index":0,"message":{"content":"a\\n\\n### STATE\\nG","y":"\\ud83d"}}]}',
    ],
)
def test_a_body_that_cannot_be_cut_is_written_anew(raw: bytes) -> None:
    visible, blocks = without_state(raw)
    assert json.loads(visible)["choices"][0]["message"]["content"] == "a"
    assert blocks == ["G"]


@given(TEXTS)
def test_a_body_and_a_stream_lose_the_same(text: str) -> None:
    visible, blocks = without_state(body(text))
    assert (json.loads(visible)["choices"][0]["message"]["content"], blocks) == filtered([text])


def test_texts_of_several_choices_are_replaced_in_place() -> None:
    raw = b'{"choices": [ {"delta":{"content":"a"}} , {"delta":{"x":1,"content":"bb"}} ],"y":2.0}'
    assert (
        with_texts(raw, "delta", {0: "long", 1: ""})
        == b'{"choices": [ {"delta":{"content":"long"}} , {"delta":{"x":1,"content":""}} ],"y":2.0}'
    )
