"""Rows E2 and E3: what belongs to which level, and what it is worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from proxy.context.policy import Policy, compile_patterns
from proxy.context.ranking.memory_levels import (
    Level,
    PriorityWeights,
    StepLayout,
    build_layout,
    compile_pattern,
    compile_rules,
    compute_priorities,
    compute_priority,
    find_task,
)
from proxy.context.stages.compress_levels import CompressLevels
from proxy.context.view import View
from tests.conversations import Json, assistant, build_view, change_view, result, system, user

STAGE = CompressLevels(verbose=100, recent=1)
P, S, W, V = Level.PERMANENT, Level.SESSION, Level.WORKING, Level.VOLATILE


def call(name: str, n: int, said: str | None = None) -> Json:
    made = [{"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": f'{{"n": {n}}}'}}]
    return {"role": "assistant", "content": said, "tool_calls": made}


def step(n: int, text: str = "fine", name: str = "run", said: str | None = None) -> list[Json]:
    return [call(name, n, said), result(f"c{n}", text)]


def lay_out(
    values: Sequence[Json], block: int = 10, stage: CompressLevels = STAGE, **more: Any
) -> tuple[View, StepLayout]:
    view = build_view(values, **more)
    rules = compile_rules(stage.rules, stage.decisions, stage.exploring, stage.dead_ends, stage.verbose, stage.recent)
    return view, build_layout(view, rules, block)


@pytest.mark.parametrize(
    ("minutes", "references", "relevance", "marked", "expected"),
    [
        (0, 1, 1, True, 100),
        (10, 0, 0.5, False, 23),
        (5, 0.5, 0.8, False, 47),
        (30, 0, 0, False, 1),
        (None, 1, 1, True, 50),
    ],
)
def test_e3_priority_on_the_numbers_of_the_table(
    minutes: float | None, references: float, relevance: float, marked: bool, expected: int
) -> None:
    assert compute_priority(minutes, references, relevance, marked) == expected


def test_e3_the_weights_are_settings_and_a_priority_stays_of_100() -> None:
    only = PriorityWeights(recency=0, references=0, relevance=0, mark=7)
    assert (compute_priority(0, 1, 1, True, only), compute_priority(0, 1, 1, False, only)) == (100, 0)
    double = PriorityWeights(recency=0.6, references=0.4, relevance=0.8, mark=0.2)
    assert [compute_priority(10, 0, 0.5, False, w) for w in (PriorityWeights(), double)] == [23, 23]
    view, layout = lay_out([user("tokenizer"), *step(1, "tokenizer"), *step(2, "other"), *step(3)])
    view = change_view(view, times=[0.0] * len(view.messages), now=6e5)
    assert compute_priorities(view, layout, PriorityWeights(relevance=0))[1] == 0


def test_e3_a_clock_that_went_back_counts_as_now() -> None:
    assert compute_priority(-5, 0, 0, False) == compute_priority(0, 0, 0, False) == 30


def test_e2_every_step_has_its_level() -> None:
    values = [
        system(),
        user("first prompt"),
        *step(1, "x" * 150),
        *step(2, said="I decided to use sqlite"),
        *step(3, name="grep"),
        *step(4, "No matches found"),
        *step(5, ""),
        *step(6),
        assistant("The bug was in the parser, fixed"),
        user("rule: answer in French"),
        user("second prompt"),
        *step(7),
        *step(8, "y" * 150),
    ]
    _, layout = lay_out(values)
    assert list(layout.kinds) == ["system", "prompt", *["work"] * 6, "answer", "prompt", "prompt", "work", "work"]
    assert list(layout.levels) == [P, P, V, S, V, V, V, W, S, P, W, W, W]
    assert [i for i, fixed in enumerate(layout.is_fixed) if fixed] == [0, 1, 9, 10, 12]


def test_e2_rules_of_the_settings_decide_on_the_level() -> None:
    values = [user("a"), *step(1, name="peek"), user("Ground truth: x"), user("b"), *step(2), *step(3)]
    stage = CompressLevels(exploring=("^peek$",), rules=("^ground truth",), recent=1)
    _, layout = lay_out(values, stage=stage)
    assert [layout.levels[i] for i in (1, 2)] == [V, P]
    _, layout = lay_out(values, stage=CompressLevels(exploring=(), rules=(), dead_ends=(), decisions=(), recent=1))
    assert [layout.levels[i] for i in (1, 2)] == [W, W]


def test_e2_a_pinned_message_is_permanent_with_all_of_its_step() -> None:
    values = [user("a"), *step(1), *step(2), user("b"), *step(3), *step(4)]
    view = build_view(values)
    view = change_view(view, pins=frozenset({view.keys[2]}))
    rules = compile_rules((), (), (), (), 100, 1)
    layout = build_layout(view, rules, 10)
    assert layout.levels[1] is P
    assert layout.blocks_by_group[0][0].steps == (2,)


def test_blocks_are_counted_from_the_groups_first_step_and_never_shift() -> None:
    values = [user("a"), *(m for n in range(5) for m in step(n)), assistant("done"), user("b")]
    more = [*values, *(m for n in range(5, 10) for m in step(n))]
    _, before = lay_out(values, 2)
    _, after = lay_out(more, 2)
    assert [b.steps for b in before.blocks] == [(1, 2), (3, 4), (5,)]
    assert [b.steps for b in after.blocks[:3]] == [(1, 2), (3, 4), (5,)]
    assert [b.steps for b in after.blocks[3:]] == [(8, 9), (10, 11), ()]
    assert [b.is_complete for b in after.blocks] == [True, True, True, True, True, False]
    assert (after.prompts, list(after.answers)) == ([(0,), (7,)], [6, None])


def test_a_block_is_complete_once_none_of_it_is_new() -> None:
    values = [user("a"), *(m for n in range(4) for m in step(n))]
    assert [b.is_complete for b in lay_out(values, 2)[1].blocks] == [True, False]
    assert [b.is_complete for b in lay_out(values, 4)[1].blocks] == [False]


def test_observations_in_user_messages_are_work() -> None:
    policy = Policy("p", observation=compile_patterns(["^Output:"]))
    values = [user("a"), assistant("ls"), user("Output: x"), assistant("done"), user("b")]
    view, layout = lay_out(values, policy=policy)
    assert list(layout.kinds) == ["prompt", "answer", "work", "answer", "prompt"]
    found = find_task(view)
    assert found is not None
    assert found.text == "b"


def test_e3_age_references_and_relevance_decide_the_priority() -> None:
    values = [
        user("fix the tokenizer in src/lexer.py"),
        *step(1, "weather report"),
        *step(2, "tokenizer of src/lexer.py fails"),
        *step(3, "see src/lexer.py"),
        *step(4),
    ]
    view, layout = lay_out(values)
    assert set(compute_priorities(view, layout)) == {50}
    view = change_view(view, times=[0.0] * len(view.messages), now=600.0)
    found = compute_priorities(view, layout)
    assert found[2] > found[3] > found[1]
    later = compute_priorities(replace(view, now=6000.0), layout)
    assert all(b <= a for a, b in zip(found, later, strict=True))


def test_e3_vectors_replace_words_where_they_are_given() -> None:
    view, layout = lay_out([user("tokenizer"), *step(1, "tokenizer"), *step(2, "other"), *step(3)])
    view = change_view(view, times=[0.0] * len(view.messages), now=6e5)
    assert compute_priorities(view, layout)[1] == 40
    near = {view.messages[4].form: 0.75, view.messages[2].form: 9.0, view.messages[6].form: -1.0}
    assert compute_priorities(change_view(view, relevance=near), layout) == [0, 40, 30, 0]


def test_e3_an_explicit_mark_counts_a_tenth() -> None:
    view, layout = lay_out([user("[pin] zzz"), *step(1), user("next"), *step(2)])
    view = change_view(view, times=[0.0] * len(view.messages), now=6e9)
    assert compute_priorities(view, layout)[0] == 10


def test_patterns_ignore_case_and_no_pattern_matches_nothing() -> None:
    found = compile_pattern(("^a", "b$"))
    assert found is not None
    assert found.search("A x")
    assert found.search("x B")
    assert compile_pattern(()) is None


def test_the_same_settings_give_the_same_rules() -> None:
    """Results of the rules are remembered with the messages, by the rules themselves."""
    assert compile_rules(("a",), (), (), (), 1, 2) is compile_rules(("a",), (), (), (), 1, 2)
    assert compile_rules(("a",), (), (), (), 1, 2) != compile_rules(("b",), (), (), (), 1, 2)
