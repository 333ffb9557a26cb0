"""Withholding blocks under several headings: the same grammar, and only what was asked for is taken out."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.notes import reflection, state_block
from proxy.stream.answer_relay import RelayOptions
from proxy.stream.block_filter import BlockFilter, remove_blocks
from proxy.stream.completions_relay import CompletionsRelay
from tests.stream.completions_streams import DONE, make_chunk, read_text

BOTH = (state_block.HEADING, reflection.HEADING)
ALONE = (reflection.HEADING,)
BLOCK = '### REFLECTION\n{"synthesis": "x"}'
PIECES = [
    "### STATE", "### REFLECTION", "### RE", "FLECTION", "\n", "\n\n", "```", "#", "## x", " ", "a", ":", "\r",
    "####", " #", "### REFLECTIONS", "\n### REFLECTION\n", "\n### STATE\n", "\n```json\n", '{"a": 1}', "### S",
    "\nGoal: x\nContext: y", "\n## Goal\n## Context\n",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


def filtered(pieces: list[str], headings: tuple[str, ...]) -> tuple[str, list[str], list[str]]:
    held = BlockFilter(headings)
    out = "".join([held.feed(piece) for piece in pieces])
    return out + held.end(), held.blocks, held.other_blocks


def expected(text: str, headings: tuple[str, ...]) -> tuple[str, list[str], list[str]]:
    visible, blocks = state_block.split_blocks(text, headings)
    mine = [block.body for block in blocks if block.heading == state_block.HEADING]
    return visible, mine, [block.body for block in blocks if block.heading != state_block.HEADING]


@settings(max_examples=400)
@example("\n### REFLECTION\n #### STATE", [18], ALONE)  # " #" begins a heading of any level
@example("\n### STATE\nGoal: x\nContext: y\n #### z", [38], BOTH)
@given(TEXTS, st.lists(st.integers(0, 200), max_size=8), st.sampled_from([BOTH, ALONE, state_block.HEADINGS]))
def test_c2_the_filter_is_split_at_any_cut_for_every_set_of_headings(
    text: str, cuts: list[int], headings: tuple[str, ...]
) -> None:
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    assert filtered([text[a:b] for a, b in pairwise(edges)], headings) == expected(text, headings)
    assert filtered(list(text), headings) == expected(text, headings)


def test_c2_two_blocks_follow_each_other_and_are_distinguished() -> None:
    note = "Goal: x\nContext: y"
    text = f"Done.\n\n### STATE\n{note}\n\n{BLOCK}"
    assert expected(text, BOTH) == ("Done.", [note], ['{"synthesis": "x"}'])
    assert expected(f"Done.\n\n{BLOCK}\n\n### State\n{note}", BOTH) == ("Done.", [note], ['{"synthesis": "x"}'])
    shown = f"Done.\n\n### STATE\n{note}\n\n## Next\nmore"
    assert expected(text + "\n\n## Next\nmore", BOTH) == (shown, [], ['{"synthesis": "x"}'])
    visible, blocks, others = expected(text + "\n\n## Next\nmore", ALONE)
    assert visible == shown
    assert (blocks, others) == ([], ['{"synthesis": "x"}'])


def test_c2_a_block_that_was_not_asked_for_is_the_clients() -> None:
    assert expected("a\n\n" + BLOCK, state_block.HEADINGS) == ("a\n\n" + BLOCK, [], [])
    held = BlockFilter()
    assert held.feed("a\n### R") == "a\n### R"


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_c2_a_stream_never_shows_the_block_though_calls_follow_it(size: int) -> None:
    text = "I look.\n\n" + BLOCK
    call = {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
    stream = [make_chunk({"content": text[at : at + size]}) for at in range(0, len(text), size)]
    relay = CompletionsRelay(RelayOptions(withheld=ALONE))
    out = b"".join(relay.feed(one) for one in [*stream, make_chunk(call), make_chunk({}, finish="tool_calls"), DONE])
    out += relay.end()
    assert read_text(out) == "I look."
    assert b"REFLECTION" not in out
    assert b'"tool_calls"' in out
    assert (relay.blocks, relay.other_blocks) == ([], ['{"synthesis": "x"}'])


def test_c2_a_whole_body_loses_the_blocks_and_no_other_byte() -> None:
    body = json.dumps(
        {"x": 1.0, "choices": [{"index": 0, "message": {"content": "a\n\n" + BLOCK, "y": None}}]}
    ).encode()
    visible, blocks = remove_blocks(body, ALONE)
    assert visible == body.replace(json.dumps("a\n\n" + BLOCK).encode(), b'"a"')
    assert [(block.heading, block.body) for block in blocks] == [(reflection.HEADING, '{"synthesis": "x"}')]
    assert remove_blocks(body) == (body, [])
    odd = body.replace(b'"x": 1.0', b'"x": NaN')
    visible, blocks = remove_blocks(odd, ALONE)
    assert (json.loads(visible)["choices"][0]["message"]["content"], len(blocks)) == ("a", 1)
