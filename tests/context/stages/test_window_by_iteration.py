"""Rows B3 and B8: what stays at which iteration."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from proxy.context.policy import Policy
from proxy.context.stages.window_by_iteration import WindowByIteration
from tests.context.research import list_sent_texts, make_iterations, make_old_exchange, make_step
from tests.conversations import PLAIN_MODEL, Json, assistant, build_view, result, system, user

PLAIN_POLICY = Policy("p", stages=(WindowByIteration(),), schedule="always", ask="never")


def list_remaining_texts(values: list[Json], stage: WindowByIteration | None = None, **more: object) -> list[str]:
    return list_sent_texts(values, replace(PLAIN_POLICY, stages=(stage or WindowByIteration(),)), **more)


def facts(begin: int, end: int) -> list[str]:
    return [text for n in range(begin, end) for text in (f"looking at {n}", f"result {n}")]


@pytest.mark.parametrize("iterations", [0, 1, 9])
def test_b3_before_the_tenth_iteration_all_stays(iterations: int) -> None:
    values = make_iterations(iterations, before=5, every=3)
    assert list_remaining_texts(values) == list_sent_texts(values, Policy("p"))


@pytest.mark.parametrize("iterations", [10, 11, 14])
def test_b3_from_10_to_14_two_exchanges_all_results_and_two_thoughts_stay(iterations: int) -> None:
    talk = [t for n in (3, 4) for t in (f"old question {n}", f"old answer {n}")]
    values = make_iterations(iterations, before=5)
    assert list_remaining_texts(values) == ["Be exact.", *talk, "the question", *facts(0, iterations)]


def test_b3_from_10_to_14_thoughts_without_calls_leave_but_for_the_last_two() -> None:
    values = [
        *make_iterations(0),
        *(assistant(f"thought {n}") for n in range(8)),
        *make_step("search", "found", "I look"),
    ]
    values += [assistant("thought 8"), *make_step("search", "more", None, "c2")]
    assert list_remaining_texts(values) == ["Be exact.", "the question", "I look", "found", "thought 8", "", "more"]


def test_b3_old_results_stay_with_their_calls() -> None:
    values = make_iterations(12, before=4, tools=True)
    found = list_remaining_texts(values)
    assert [f"old result {n}" in found for n in range(4)] == [True] * 4
    # The answer that parts a result from the next prompt stays, where a prompt follows.
    assert [t for t in found if t.startswith("old q")] == ["old question 2", "old question 3"]
    assert [t for t in found if t.startswith("old a")] == ["old answer 1", "old answer 2", "old answer 3"]


@pytest.mark.parametrize("iterations", [15, 17, 19])
def test_b3_from_15_to_19_results_and_the_prompt_stay(iterations: int) -> None:
    values = make_iterations(iterations, before=3)
    assert list_remaining_texts(values) == ["Be exact.", "the question", *facts(0, iterations)]


def test_b3_from_15_to_19_thoughts_without_calls_leave() -> None:
    found = list_remaining_texts(make_iterations(18, every=3))
    assert not [t for t in found if t.startswith("thought")][:-1]
    assert [t for t in found if t.startswith("result")] == [f"result {n}" for n in range(18) if n % 3 != 2]


@pytest.mark.parametrize("iterations", [20, 21, 35])
def test_b3_from_20_on_the_last_three_results_stay(iterations: int) -> None:
    values = make_iterations(iterations, before=3, tools=True)
    assert list_remaining_texts(values) == ["Be exact.", "the question", *facts(iterations - 3, iterations)]


def test_b3_a_step_with_a_result_that_stays_is_whole() -> None:
    values = make_iterations(19)
    values += [assistant("Four at once", "a", "b", "c", "d"), *(result(c, f"of {c}") for c in "abcd")]
    assert list_remaining_texts(values) == ["Be exact.", "the question", "Four at once", "of a", "of b", "of c", "of d"]


def test_b3_reasoning_stays_with_the_call_that_it_led_to() -> None:
    values = make_iterations(19)
    thinking = {**make_step("search", "found")[0], "reasoning_content": "because"}
    view = build_view([*values, thinking, result("c1", "found")])
    gone = {p.index for p in WindowByIteration()(view)}
    assert view.messages[-2].reasoning == "because"
    assert gone == set(range(2, len(view.messages) - 6))


def test_b3_agents_without_tool_calls_keep_each_observation_with_what_was_said_before_it() -> None:
    values = [system(), user("fix it")]
    for n in range(22):
        values += [assistant(f"run {n}"), user(f"OBS {n}")]
    policy = replace(PLAIN_POLICY, observation=re.compile("^OBS"))
    last = [t for n in (19, 20, 21) for t in (f"run {n}", f"OBS {n}")]
    for model in (PLAIN_MODEL, replace(PLAIN_MODEL, alternate=True)):
        assert list_sent_texts(values, policy, model=model) == ["Be brief.", "fix it", *last]


def test_b3_user_messages_in_a_row_are_one_prompt() -> None:
    values = [system(), user("a"), user("b"), *make_iterations(16)[2:]]
    assert list_remaining_texts(values)[:3] == ["Be brief.", "a", "b"]


def test_b3_the_boundaries_are_settings() -> None:
    stage = WindowByIteration(moderate=2, aggressive=3, emergency=4, exchanges=1, thoughts=1, results=1)
    assert "old question 0" in list_remaining_texts(make_iterations(1, before=2), stage)
    assert list_remaining_texts(make_iterations(2, before=2), stage)[:3] == [
        "Be exact.",
        "old question 1",
        "old answer 1",
    ]
    assert list_remaining_texts(make_iterations(3, before=2), stage) == ["Be exact.", "the question", *facts(0, 3)]
    assert list_remaining_texts(make_iterations(4, before=2), stage) == ["Be exact.", "the question", *facts(3, 4)]


def test_b7_a_boundary_that_is_moved_before_the_others_goes_first() -> None:
    found = list_remaining_texts(make_iterations(4, before=2), WindowByIteration(emergency=3, results=1))
    assert found == ["Be exact.", "the question", *facts(3, 4)]
    assert list_remaining_texts(make_iterations(4, before=2), WindowByIteration(aggressive=3)) == [
        "Be exact.",
        "the question",
        *facts(0, 4),
    ]


def test_b8_max_tokens_limits_conversation_and_thoughts_and_never_results() -> None:
    values = [system(), *make_old_exchange(0), user("u" * 500), assistant("a" * 500), *make_iterations(10)[1:]]
    assert len(list_remaining_texts(values)) == 1 + 4 + 1 + 20
    assert len(list_remaining_texts(values, WindowByIteration(max_tokens=500))) == 1 + 1 + 20
    assert len(list_remaining_texts(values, WindowByIteration(max_tokens=0))) == 1 + 4 + 1 + 20
    assert WindowByIteration().max_tokens == 8000
    long = [m for n in range(12) for m in make_step("search", "r" * 9000, None, f"c{n}", q=n)]
    assert len(list_remaining_texts([system(), user("a"), *long])) == 26


def test_a_proposal_says_with_which_message_it_became_possible() -> None:
    view = build_view(make_iterations(22, before=3))
    since = {p.index: p.since for p in WindowByIteration()(view)}
    at = {n: 8 + 2 * (n - 1) for n in range(1, 23)}  # the assistant message of each iteration
    assert (since[1], since[2]) == (at[10], at[10])  # outside the last two exchanges
    assert (since[3], since[6]) == (at[15], at[15])
    assert since[at[1]] == since[at[1] + 1] == at[20]  # three newer results were there before
    assert since[at[19]] == since[at[19] + 1] == at[22] + 1  # the third newer result came last
    assert all(p.after == 0 and p.action == "gone" for p in WindowByIteration()(view))


def test_thoughts_became_possible_when_two_newer_ones_were_there() -> None:
    values = [system(), user("a"), *(assistant(f"thought {n}") for n in range(12))]
    since = {p.index: p.since for p in WindowByIteration()(build_view(values))}
    assert since == {n: max(11, n + 2) for n in range(2, 12)}
