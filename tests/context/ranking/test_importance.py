"""Row D1: the source's worked example, and each part of a score by itself."""

from __future__ import annotations

import pytest

from proxy.context.ranking.importance import (
    DEFAULT_WEIGHTS,
    ERROR_WORDS,
    OPERATION_WORDS,
    ImportanceWeights,
    make_scorer,
    score_message,
    score_messages,
)
from tests.conversations import Json, assistant, make_message, make_messages, result, system, user

EXAMPLE = (system("a"), user("b"), assistant("c"), user("d"), assistant("e"), user("f"))


def alone(value: Json, weights: ImportanceWeights = DEFAULT_WEIGHTS) -> float:
    """The score of a message without recency."""
    return make_scorer(weights)(make_message(value))


def test_d1_the_sources_worked_example() -> None:
    assert score_messages(make_messages(*EXAMPLE)) == [70, 20, 18, 36, 34, 60]


def test_d1_a_message_by_its_place_scores_as_in_its_history() -> None:
    told = make_messages(*EXAMPLE)
    assert [score_message(told[0], 0, 5)] + [score_message(m, n, 5) for n, m in enumerate(told[1:])] == score_messages(
        told
    )
    assert score_message(told[1], 0, 1) == 60  # the only message is the last one


@pytest.mark.parametrize(
    ("role", "points"),
    [("system", 30), ("developer", 30), ("user", 20), ("assistant", 10), ("tool", 10), ("function", 10)],
)
def test_d1_importance_points_depend_on_the_role(role: str, points: float) -> None:
    assert alone({"role": role, "content": "x"}) == points


def test_d1_recency_counts_from_0_among_what_is_not_a_system_message() -> None:
    told = make_messages(user("a"), system("b"), user("c"), system("d"), user("e"), user("f"))
    assert score_messages(told) == [20, 70, 30, 70, 40, 60]


@pytest.mark.parametrize("word", ERROR_WORDS)
def test_d1_an_error_word_counts_15_once_in_any_case(word: str) -> None:
    assert alone(user(f"Some{word.upper()}s, and {word}")) == 35


@pytest.mark.parametrize("word", OPERATION_WORDS)
def test_d1_an_operation_word_counts_10_once_in_any_case(word: str) -> None:
    assert alone(user(f"{word.title()} {word} {word.upper()}")) == 30


def test_d1_words_count_25_at_most_and_a_call_is_an_operation_without_words() -> None:
    assert alone(user("tool error")) == 45
    assert alone(assistant(None, "c1")) == 20
    assert alone(assistant("The tool has an error", "c1")) == 35
    assert alone(result("c1", "TypeError: x")) == 25
    assert alone(user("tool error"), ImportanceWeights(keywords=12)) == 32


def test_d1_length_counts_5_from_1000_characters() -> None:
    assert [alone(user("x" * n)) for n in (0, 999, 1000, 5000)] == [20, 20, 25, 25]
    assert alone(assistant("x" * 990, "c1")) == 20
    assert alone(assistant("x" * 992, "c1")) == 25  # the arguments of the call have 8


def test_d1_the_highest_score_is_100() -> None:
    assert score_messages(make_messages(system("error tool" + "x" * 1000))) == [100]


def test_d1_weights_and_words_are_settings() -> None:
    weights = ImportanceWeights(
        recency=10, role_user=1, error=2, operation=3, length=4, long=5, errors=("Oops",), operations=()
    )
    assert score_messages(make_messages(user("oops"), user("error"), user("tools are gone")), weights) == [
        3,
        1 + 10 / 3 + 4,
        15,
    ]


def test_a_message_is_looked_at_once() -> None:
    told = make_messages(*EXAMPLE)
    score_messages(told)
    assert all(make_scorer(ImportanceWeights()) in m.derived_values for m in told)
    assert make_scorer(ImportanceWeights()) is make_scorer(DEFAULT_WEIGHTS)


def test_no_messages_have_no_scores() -> None:
    assert score_messages([]) == []
