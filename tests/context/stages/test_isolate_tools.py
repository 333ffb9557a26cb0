"""Rows A3, A4: tool traffic goes only to an upstream of the strategy that it was made for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from proxy.context.stages.isolate_tools import IsolateTools, find_family
from tests.conversations import COUNTER, Json, assistant, build_view, make_message, result, system, user

OLD = [
    system(),
    user("a"),
    assistant(None, "1"),
    result("1", "x"),
    assistant("text too", "2", "3"),
    result("2", "y"),
    result("3", "z"),
    assistant("done"),
]
ACTIVE = [user("b"), assistant(None, "1"), result("1", "x")]


def list_actions(strategies: str | Sequence[str], to: str, values: Sequence[Json] = (*OLD, *ACTIVE)) -> dict[int, str]:
    made = [strategies] * len(values) if isinstance(strategies, str) else strategies
    found = list(IsolateTools()(build_view(values, strategy=to, strategies=made)))
    assert len({p.index for p in found}) == len(found)
    return {p.index: p.action for p in found}


@pytest.mark.parametrize("to", ["gemini", "gemini_gca", "anthropic"])
def test_calls_and_results_are_left_out_and_text_stays(to: str) -> None:
    assert list_actions("openai", to) == {2: "gone", 3: "gone", 4: "text_only", 5: "gone", 6: "gone"}


@pytest.mark.parametrize("strategy", ["openai", "gemini", "anthropic", "of_a_kind_unknown"])
def test_tool_traffic_of_the_same_strategy_stays(strategy: str) -> None:
    assert list_actions(strategy, strategy) == {}


def test_gemini_and_gemini_gca_read_each_other() -> None:
    assert find_family("gemini") == find_family("gemini_gca")
    assert list_actions("gemini", "gemini_gca") == {}
    assert list_actions("gemini_gca", "gemini") == {}
    assert list_actions("gemini_gca", "openai") != {}


def test_the_active_group_is_never_isolated() -> None:
    assert list_actions("openai", "gemini", ACTIVE) == {}
    assert max(list_actions("openai", "gemini")) < len(OLD)


def test_only_what_was_made_for_another_is_isolated() -> None:
    made = ["openai"] * 4 + ["gemini"] * (len(OLD) + len(ACTIVE) - 4)
    assert list_actions(made, "gemini") == {2: "gone", 3: "gone"}
    assert list_actions(made, "openai") == {4: "text_only", 5: "gone", 6: "gone"}


def test_a_text_that_stays_weighs_the_message_without_its_calls() -> None:
    thinking = assistant("text too", "2", reasoning_content="because")
    view = build_view([user("a"), thinking, result("2", "y"), user("b")], strategy="gemini", strategies=["openai"] * 4)
    (kept,) = [p for p in IsolateTools()(view) if p.action == "text_only"]
    bare = make_message(assistant("text too", reasoning_content="because"))
    assert kept.after == COUNTER(bare)


def test_the_reason_names_both_strategies() -> None:
    view = build_view(OLD + ACTIVE, strategy="gemini", strategies=["openai"] * len(OLD + ACTIVE))
    assert {p.reason for p in IsolateTools()(view)} == {"tool traffic made for openai, not for gemini"}
    assert IsolateTools.when == "always"
