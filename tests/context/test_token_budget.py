from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.context.fit import TokenBudget, compute_token_budget, count_answer_tokens, find_limit, find_window
from proxy.context.models import Model
from proxy.context.policy import Policy
from proxy.context.stages.compress_levels import CompressLevels
from tests.conversations import PLAIN_MODEL, make_request, user

POLICY = Policy("test")
MODEL = replace(PLAIN_MODEL, window=100_000)


@pytest.mark.parametrize(
    ("asked", "budget", "limit"),
    [
        ({}, 80_000, 95_904),
        ({"max_tokens": 10_000}, 80_000, 90_000),
        ({"max_tokens": 40_000}, 60_000, 60_000),
        ({"max_completion_tokens": 30_000, "max_tokens": 1}, 70_000, 70_000),
        ({"max_tokens": 90_000}, 25_000, 10_000),
        ({"max_tokens": 200_000}, 25_000, -100_000),
        ({"max_tokens": "many"}, 80_000, 95_904),
        ({"max_tokens": True}, 80_000, 95_904),
    ],
)
def test_the_answer_has_room_in_a_window_that_holds_both(asked: dict[str, object], budget: int, limit: int) -> None:
    """B6."""
    assert compute_token_budget(make_request([user("u")], **asked), POLICY, MODEL) == TokenBudget(budget, limit)


def test_a_window_for_the_prompt_alone_is_the_prompts() -> None:
    apart = replace(MODEL, answer_apart=True)
    assert compute_token_budget(make_request([user("u")], max_tokens=90_000), POLICY, apart) == TokenBudget(
        80_000, 100_000
    )


def test_no_window_is_no_room_and_the_one_that_the_upstream_names_counts() -> None:
    asked = make_request([user("u")])
    assert compute_token_budget(asked, POLICY, PLAIN_MODEL) is None
    assert compute_token_budget(asked, POLICY, PLAIN_MODEL, 10_000) == TokenBudget(8_000, 8_000)
    assert compute_token_budget(asked, POLICY, MODEL, 10_000) == TokenBudget(8_000, 8_000)


def test_a_usual_answer_is_the_models_and_a_fifth_of_a_small_window_at_most() -> None:
    asked = make_request([user("u")])
    assert count_answer_tokens(asked, replace(MODEL, answer=9_000), 100_000) == 9_000
    assert count_answer_tokens(asked, replace(MODEL, answer=9_000, max_output=2_000), 100_000) == 2_000
    assert count_answer_tokens(asked, MODEL, 8_000) == 1_600


def test_d3_a_models_window_is_the_policys_own_figure_then_the_models_then_the_policys() -> None:
    policy = Policy("importance", window=100_000)
    assert find_window(policy, Model(window=5, own={"importance": {"window": 3}})) == 3
    assert find_window(policy, Model(window=5, own={"other": {"window": 3}})) == 5
    assert find_window(policy, Model()) == 100_000
    assert find_window(Policy("thrifty"), Model()) is None


def test_the_window_that_an_upstream_names_counts_but_for_a_smaller_one_of_the_policys_own() -> None:
    plain, model = Policy("test"), Model("m", window=100_000)
    assert find_window(plain, model, 8_000) == 8_000
    assert find_window(plain, Model("m"), 8_000) == 8_000
    own = Model("m", window=100_000, own={"test": {"window": 16_000}})
    assert find_window(plain, own, 200_000) == 16_000
    assert find_window(plain, own, 8_000) == 8_000


def test_a_prompt_is_measured_by_the_policys_own_budget_where_that_is_less_than_the_window() -> None:
    levels = Policy("test", stages=(CompressLevels(total=16_000),))
    assert levels.own_budget == 16_000
    assert find_limit(levels, Model("m")) == 16_000
    assert find_limit(levels, Model("m", window=9_000)) == 9_000
    assert find_limit(Policy("test", stages=(CompressLevels(total="model"),)), Model("m", window=9_000)) == 9_000
    assert find_limit(Policy("test"), Model("m")) is None
