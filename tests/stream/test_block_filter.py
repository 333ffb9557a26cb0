from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.notes import state_block
from proxy.stream.block_filter import BlockFilter, remove_blocks
from proxy.stream.completions_patch import replace_texts

PIECES = [
    "### STATE", "\n", "\n\n", "```", "~~~", "````", "#", "##", "## x", "- ", "1. ", " ", "  ", "a", ":", "\r", "\t",
    "Goal: x", "    ", "#### STATE", "### STATEMENT", "\n### STATE\n", "\n```\n", "\n## Next\n", " " * 43, "`" * 43,
    "STATE", "ü😀", "\n## State:\nGoal: x\nContext: y", "\n### Goal\n", "\nContext: x", "\n\nThis is it.",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)

N = "Goal: x\nContext: y"
SAMPLES = [
    f"Done.\n\n### STATE\n{N}\n",
    f"Done.\n\n\n\n  **## State:**\n{N}\n\n",
    f"a\n\n\n\n### STATE:\n{N}\n\n## More\n\ntext\n",
    f"a\n\n### STATE\n{N}\n### Goal\nx\n# Goals of it",
    "a\n\n### STATE\n### Goal\nx\n\n### Context:\ny\n\n",
    f"```py\n### STATE\n# no\n```\n\n### STATE \r\n{N}\n```\n# in it\n```\n#### deep\n\n### State\n{N}\n",
    "1. ```sh\n   ls\n   ```\n\n### STATE\nG\n  ##\n x",
    "### STATEMENT\n#### STATE\ntext ### STATE\n ### STATE\n### STAT",
    "### STATE",
    "a\n\n### STATE\n#",
    "a\n\n###",
    "\n\n\n",
    f"a ``` b\n~~~ x ~~~\n~~~\n\n### STATE\n{N}",
    f"a\n\n### STATE\n{N}\n\n### STATE",
    f"a\n\n### STATE\n{N}\n\nThat is all of it.",
    f"ü😀\n\n### STATE\n{N}ü😀\n",
    f"```\n{' ' * 43}```\n### STATE\n{N}",
    f"```\n{' ' * 42}```\n### STATE\n{N}",
    f"````md\n```\n### STATE\n{N}\n```\n",
]


def filtered(pieces: list[str], *, cut: bool = False) -> tuple[str, list[str]]:
    held = BlockFilter()
    out = "".join([held.feed(piece) for piece in pieces])
    return out + held.end(cut=cut), held.blocks


def expected(text: str, *, cut: bool = False) -> tuple[str, list[str]]:
    visible, blocks = state_block.split_blocks(text, is_cut_off=cut)
    return visible, [block.body for block in blocks]


@pytest.mark.parametrize("text", SAMPLES)
def test_the_filter_gives_what_split_gives_whole_by_character_and_cut_anywhere(text: str) -> None:
    assert filtered([text]) == expected(text)
    assert filtered(list(text)) == expected(text)
    assert filtered(list(text), cut=True) == expected(text, cut=True)
    for cut in range(len(text) + 1):
        assert filtered([text[:cut], text[cut:]]) == expected(text), cut
        assert filtered([text[:cut]]) == expected(text[:cut])
        assert filtered([text[:cut]], cut=True) == expected(text[:cut], cut=True)
        for other in range(cut, len(text) + 1):
            assert filtered([text[:cut], text[cut:other], text[other:]]) == expected(text), (cut, other)


def test_a_fence_is_closed_by_one_as_long_and_no_shorter_one() -> None:
    quoted = f"````md\n```\n### STATE\n{N}\n```\n"
    assert filtered(list(quoted)) == (quoted, [])
    assert filtered([*quoted, "````", "\n", f"### STATE\n{N}"]) == (f"{quoted}````", [N])


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
    held = BlockFilter()
    seen = ""
    for position, character in enumerate(text):
        seen += held.feed(character)
        withheld, blocks = state_block.split_blocks(text[: position + 1])
        heading = any(state_block.find_heading(line) for line in text[: position + 1].split("\n"))
        if not blocks and not heading:
            rest = withheld[len(seen) :]
            gap = rest[: len(rest) - len(rest.lstrip("\n"))]
            assert seen + rest == withheld
            assert len(gap) <= 2
            assert state_block.may_be_heading(rest[len(gap) :])


def test_text_goes_at_once_up_to_the_end_of_its_line() -> None:
    held = BlockFilter()
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
    held = BlockFilter()
    assert held.feed("a\n\n### ST") == "a"
    assert held.flush() == "\n\n### ST"
    assert held.feed("ATE\nb") == "ATE\nb"
    held = BlockFilter()
    assert held.feed("a\n\n### STATE") == "a"
    assert held.flush() == ""
    assert held.feed("MENT") == "\n\n### STATEMENT"
    held = BlockFilter()
    assert held.feed("a\n") == "a"
    assert held.flush() == "\n"
    assert held.flush() == ""
    assert held.feed(f"### STATE\n{N}") == ""
    assert held.flush() == ""
    assert held.end() == ""
    assert held.blocks == [N]


def test_text_that_is_not_a_block_is_sent_before_a_call_and_a_block_never_is() -> None:
    held = BlockFilter()
    assert held.feed("a\n\n### STATE\nidle\n") == "a"
    assert held.flush(before_calls=True) == "\n\n### STATE\nidle"
    assert held.feed("more") == "\nmore"
    assert held.end() == ""
    held = BlockFilter()
    assert held.feed(f"a\n\n### STATE\n{N}") == "a"
    assert held.flush(before_calls=True) == ""
    assert held.end() == ""
    assert held.blocks == [N]


def test_the_end_may_be_told_twice_and_what_follows_it_is_text() -> None:
    held = BlockFilter()
    assert held.feed(f"a\n\n### STATE\n{N}") == "a"
    assert held.end() == held.end() == ""
    assert held.feed("more of it\n") == "more of it"
    assert held.feed("## On") == "\n## On"
    assert held.end() == ""
    assert held.blocks == [N]


@pytest.mark.timed
@pytest.mark.parametrize(
    "piece", ["#", "\n", "`", "~", " ", "### STATE\n", "```\n", "- ", "\r", "### STATE ", "1. ", "a", "#\n", "\n#"]
)
@pytest.mark.parametrize("step", [1, 1000, 1 << 30])
def test_filtering_blocks_takes_linear_time_and_bounded_memory(piece: str, step: int) -> None:
    text = piece * (400_000 // len(piece))
    held = BlockFilter()
    start = time.thread_time()
    for at in range(0, len(text), step):
        held.feed(text[at : at + step])
        assert len(held._head) <= state_block.MAX_HEADING_CHARS + step
        assert held._held_chars <= state_block.MAX_BLOCK_CHARS + step
    held.end()
    assert time.thread_time() - start < 5


@pytest.mark.parametrize("start", ["### STATE\nGoal: x\nContext: y\n", "### STATE\nGoal: x\nContext: "])
@pytest.mark.parametrize("piece", ["x" * 100_000, "line\n" * 20_000, "x" * 300_000 + "\n\n\n"])
def test_an_endless_block_is_held_only_up_to_the_bound(start: str, piece: str) -> None:
    held = BlockFilter()
    seen = held.feed(start)
    for _ in range(20):
        seen += held.feed(piece)
        assert held._held_chars <= state_block.MAX_BLOCK_CHARS + len(piece)
    assert seen + held.end() == start + piece * 20
    assert held.blocks == []


def body(*texts: str | None) -> bytes:
    choices = [
        {"index": n, "message": {"role": "assistant", "content": text, "x": 1.50}, "finish_reason": "stop"}
        for n, text in enumerate(texts)
    ]
    return json.dumps({"id": "c", "choices": choices, "usage": {"z": 1e5}}, indent=1).encode()


def remove_state(raw: bytes) -> tuple[bytes, list[str]]:
    visible, blocks = remove_blocks(raw)
    return visible, [block.body for block in blocks]


def test_a_body_changes_in_its_text_only() -> None:
    raw = body("Dün.\n\n### STATE\nGoal: ü\nContext: y")
    visible, blocks = remove_state(raw)
    assert blocks == ["Goal: ü\nContext: y"]
    assert visible == raw.replace(b'"D\\u00fcn.\\n\\n### STATE\\nGoal: \\u00fc\\nContext: y"', '"Dün."'.encode())


def test_all_choices_are_cleared_and_the_first_ones_blocks_given() -> None:
    visible, blocks = remove_state(body(f"a\n\n### STATE\n{N}1", "b", f"c\n\n### STATE\n{N}3"))
    assert [choice["message"]["content"] for choice in json.loads(visible)["choices"]] == ["a", "b", "c"]
    assert blocks == [N + "1"]


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
    assert remove_state(raw) == (raw, [])


@pytest.mark.parametrize(
    "raw",
    [
        b'{"choices":[{"message":{"content":"x","content":"a\\n\\n### State\\nGoal: x\\nContext: y"}}]}',
        b'{"choices":[{"index":null,"message":{"content":"a\\n\\n### State\\nGoal: x\\nContext: y"}}],"x":NaN}',
        b'{"choices":[{"index":0,"message":{"content":"a\\n\\n### State\\nGoal: x\\nContext: y","y":"\\ud83d"}}]}',
    ],
)
def test_a_body_that_cannot_be_cut_is_rewritten(raw: bytes) -> None:
    visible, blocks = remove_state(raw)
    assert json.loads(visible)["choices"][0]["message"]["content"] == "a"
    assert blocks == [N]


@pytest.mark.parametrize("odd", ["1", "NaN"])
def test_the_beginning_of_a_block_is_removed_from_a_body_that_was_cut_off(odd: str) -> None:
    raw = body("a\n\n### STATE\nGoal: to").replace(b"1.5", odd.encode())
    assert remove_state(raw) == (raw, [])
    visible, blocks = remove_state(raw.replace(b'"stop"', b'"length"'))
    assert json.loads(visible)["choices"][0]["message"]["content"] == "a"
    assert blocks == ["Goal: to"]


@given(TEXTS)
def test_a_body_and_a_stream_lose_the_same(text: str) -> None:
    visible, blocks = remove_state(body(text))
    assert (json.loads(visible)["choices"][0]["message"]["content"], blocks) == filtered([text])


def test_texts_of_several_choices_are_replaced_in_place() -> None:
    raw = b'{"choices": [ {"delta":{"content":"a"}} , {"delta":{"x":1,"content":"bb"}} ],"y":2.0}'
    assert (
        replace_texts(raw, "delta", {0: "long", 1: ""})
        == b'{"choices": [ {"delta":{"content":"long"}} , {"delta":{"x":1,"content":""}} ],"y":2.0}'
    )
