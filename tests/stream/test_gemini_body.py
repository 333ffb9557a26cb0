"""Answers of Gemini in one body lose the same parts as the stream of the same answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.notes.state_block import HEADING
from proxy.stream.completions_body import may_call
from proxy.stream.gemini_answer import GeminiAnswer
from proxy.stream.gemini_body import join_rounds, read_round, remove_blocks
from tests.stream.gemini_rounds import (
    HIDDEN,
    Json,
    call,
    chunks,
    own_call,
    read,
    run,
    shapes,
    text,
    think,
    to_events,
)
from tests.stream.round_relays import read_canonical

STATE = "### STATE\nGoal: ship it\nContext: all\nNext: go"
NOTED = f"Reading on.\n\n{STATE}"
OTHER = "### REFLECTION\nIt went well."


def make(*parts: Json, is_list: bool = False, **more: Any) -> bytes:
    """A body; a list has one response for each part."""
    responses = chunks(*parts, together=not is_list, **more)
    return json.dumps(responses if is_list else responses[0], indent=1).encode()


def parse(body: bytes) -> Json:
    value = json.loads(body)
    return read(to_events(value if isinstance(value, list) else [value]))


@pytest.mark.parametrize("is_list", [True, False])
def test_state_blocks_are_removed_from_a_gemini_body(is_list: bool) -> None:
    body = make(think(), text(NOTED), call("a"), is_list=is_list)
    made, found = remove_blocks(body, (HEADING,))
    assert json.loads(made).__class__ is json.loads(body).__class__
    assert shapes(parse(made)) == ["Let me see.", "Reading on.", "a"]
    assert [(one.heading, one.body) for one in found] == [(HEADING, STATE.removeprefix("### STATE\n"))]
    plain = make(text("### STATE of the art"), is_list=is_list)
    assert remove_blocks(plain, (HEADING,)) == (plain, [])
    assert remove_blocks(b"nothing of STATE", (HEADING,)) == (b"nothing of STATE", [])


def test_blocks_under_other_headings_are_distinguished() -> None:
    made, found = remove_blocks(make(text(f"Well.\n\n{OTHER}\n\n{STATE}")), (HEADING, "### REFLECTION"))
    assert shapes(parse(made)) == ["Well."]
    assert sorted(one.heading for one in found) == ["### REFLECTION", HEADING]


@pytest.mark.parametrize("is_list", [True, False])
def test_a_round_tells_its_hidden_calls(is_list: bool) -> None:
    found = read_round(make(text("Hm."), own_call("o"), is_list=is_list), HIDDEN)
    assert (found.goes_on, found.shown_calls, [one.id for one in found.hidden_calls]) == (True, 0, ["o"])
    assert read_canonical(found.message) == ("assistant", "Hm.", ["o"])
    assert found.usage is not None
    mixed = read_round(make(own_call("o"), call("a"), is_list=is_list), HIDDEN)
    assert (mixed.goes_on, mixed.shown_calls, len(mixed.hidden_calls)) == (False, 1, 1)
    assert may_call(make(own_call("o")), HIDDEN)
    assert not may_call(make(call("a")), HIDDEN)


@pytest.mark.parametrize("is_list", [True, False])
def test_rounds_become_one_body_as_they_become_one_stream(is_list: bool) -> None:
    rounds: list[list[Json]] = [[text("Hm."), own_call("o")], [think(), text("So."), own_call("p"), call("a")]]
    bodies = [make(*parts, number=n, is_list=is_list) for n, parts in enumerate(rounds, 1)]
    made = join_rounds(bodies, HIDDEN)
    streamed, _ = run([to_events(chunks(*parts, number=n)) for n, parts in enumerate(rounds, 1)], hidden_tools=HIDDEN)
    found, wanted = parse(made), read(streamed)
    assert shapes(found) == shapes(wanted) == ["Hm.", "Let me see.", "So.", "a"]
    assert found["usage"] == wanted["usage"]
    assert set(found["ids"]) == {("r1", "gemini-1")}
    assert found["reasons"] == ["STOP"]
    assert GeminiAnswer.from_body(made).text == "Hm.So."


def test_a_body_without_hidden_calls_is_itself() -> None:
    for is_list in (True, False):
        body = make(text("x"), call("a"), is_list=is_list)
        assert join_rounds([body], HIDDEN) == body
    assert join_rounds([b"nothing"], HIDDEN) == b"nothing"


def test_an_answer_that_must_end_ends_without_the_hidden_calls() -> None:
    for is_list in (True, False):
        made = join_rounds([make(text("Hm."), own_call("o"), is_list=is_list)], HIDDEN)
        assert shapes(parse(made)) == ["Hm."]
        assert parse(made)["reasons"] == ["STOP"]
