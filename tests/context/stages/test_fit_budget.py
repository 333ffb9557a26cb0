"""Row A14: what the stage offers, in its order. How far the pipeline goes is in test_pipeline_budget.py."""

from __future__ import annotations

from dataclasses import replace

from proxy.context.stages.fit_budget import FitBudget
from proxy.context.view import View
from tests.conversations import PLAIN_MODEL, assistant, build_view, result, system, user

STEP = [assistant(None, "1"), result("1", "x")]
TURNS = replace(PLAIN_MODEL, alternate=True)


def list_offered(view: View, keep_steps: int = 4) -> list[int]:
    found = list(FitBudget(keep_steps)(view))
    assert all((p.action, p.after, p.stage) == ("gone", 0, "fit_budget") for p in found)
    return [p.index for p in found]


def test_the_oldest_groups_are_offered_first_and_the_first_prompt_is_not() -> None:
    talk = [system(), user("a"), *STEP, assistant("b"), user("c"), *STEP, user("d"), *STEP]
    assert list_offered(build_view(talk)) == [2, 3, 4, 5, 6, 7]


def test_a_first_prompt_of_two_messages_and_a_greeting_before_it_stay() -> None:
    talk = [assistant("Welcome!"), user("a"), user("b"), assistant("c"), user("d")]
    assert list_offered(build_view(talk)) == [3]


def test_old_steps_of_the_active_group_come_last_and_the_newest_stay() -> None:
    talk = [user("a"), assistant("b"), user("c"), *STEP * 6]
    assert list_offered(build_view(talk), 4) == [1, 3, 4, 5, 6]
    assert list_offered(build_view(talk), 0) == [1, *range(3, 15)]
    assert list_offered(build_view(talk), 9) == [1]


def test_where_there_is_one_group_its_prompt_stays() -> None:
    assert list_offered(build_view([user("a"), *STEP * 6]), 4) == [1, 2, 3, 4]


def test_where_roles_alternate_the_answer_to_the_first_prompt_stays_too() -> None:
    talk = [user("a"), *STEP, assistant("b"), user("c"), assistant("d"), user("e")]
    assert list_offered(build_view(talk, model=TURNS)) == [1, 2, 4, 5]


def test_without_such_an_answer_the_first_prompt_leaves_with_its_group() -> None:
    talk = [system(), user("a"), *STEP, user("c"), assistant("d"), user("e")]
    assert list_offered(build_view(talk, model=TURNS)) == [1, 2, 3, 4, 5]
    assert list_offered(build_view(talk)) == [2, 3, 4, 5]


def test_fit_budget_is_the_last_resort() -> None:
    assert FitBudget.when == "last"
