"""Row A2: the last groups, or the last tokens in whole groups; and the first prompt."""

from __future__ import annotations

import pytest

from proxy.context.branch_state import BranchState
from proxy.context.stages.close_window import CloseWindow
from proxy.context.view import View
from tests.conversations import Json, assistant, build_view, result, system, user

GROUP = [user("u" * 6), assistant(None, "1"), result("1", "r" * 49), assistant("a" * 6)]
"""10 + 27 + 53 + 10 = 100 tokens."""


def talk(groups: int) -> list[Json]:
    return [m for _ in range(groups - 1) for m in GROUP] + [user("u" * 6)]


def list_leaving(view: View, stage: CloseWindow) -> list[int]:
    found = list(stage(view))
    assert all((p.action, p.after, p.stage) == ("gone", 0, "close_window") for p in found)
    return [p.index for p in found]


@pytest.mark.parametrize(("groups", "first"), [(0, 0), (1, 16), (2, 12), (4, 4), (5, 0), (9, 0)])
def test_the_last_groups_stay(groups: int, first: int) -> None:
    assert list_leaving(build_view(talk(5)), CloseWindow(groups=groups)) == list(range(1, first))


@pytest.mark.parametrize(
    ("tokens", "first"),
    [(0, 0), (1, 16), (10, 16), (109, 16), (110, 12), (209, 12), (210, 8), (409, 4), (410, 0), (9999, 0)],
)
def test_whole_groups_stay_while_they_have_at_most_so_many_tokens(tokens: int, first: int) -> None:
    # From the end: 10, then 100 each.
    assert list_leaving(build_view(talk(5)), CloseWindow(tokens=tokens)) == list(range(1, first))


def test_the_narrower_of_the_two_limits_holds() -> None:
    assert list_leaving(build_view(talk(5)), CloseWindow(groups=4, tokens=110)) == list(range(1, 12))
    assert list_leaving(build_view(talk(5)), CloseWindow(groups=2, tokens=9999)) == list(range(1, 12))


def test_the_active_group_always_stays_whole() -> None:
    active = [*talk(3), *GROUP[1:3], *GROUP[1:3]]
    assert list_leaving(build_view(active), CloseWindow(groups=1)) == list(range(1, 8))
    assert list_leaving(build_view(active), CloseWindow(tokens=1)) == list(range(1, 8))
    assert list_leaving(build_view(active[8:]), CloseWindow(groups=1, tokens=1)) == []


def test_user_messages_in_a_row_are_one_group() -> None:
    assert list_leaving(build_view([*GROUP, user("a"), user("b"), *GROUP[1:]]), CloseWindow(groups=1)) == [1, 2, 3]


def test_messages_before_the_first_prompt_leave_and_the_prompt_stays() -> None:
    values = [system(), assistant("Welcome!"), *GROUP, user("b")]
    assert list_leaving(build_view(values), CloseWindow(groups=1)) == [
        0,
        1,
        3,
        4,
        5,
    ]  # the system message is kept by the pipeline


def test_a_proposal_says_which_group_pushed_it_out() -> None:
    found = list(CloseWindow(groups=2)(build_view(talk(5))))
    # Groups begin at 0, 4, 8, 12, 16: the first left when the third began.
    assert {p.since for p in found if p.index < 4} == {8}
    assert {p.since for p in found if 4 <= p.index < 8} == {12}
    assert {p.since for p in found if 8 <= p.index < 12} == {16}
    assert {p.reason for p in found} == {"outside the last 2 groups"}


def test_a_group_that_is_out_already_weighs_nothing() -> None:
    view = build_view(talk(3))
    assert list(view.tokens) == [10, 27, 53, 10] * 2 + [10]
    assert list_leaving(build_view(talk(3), state=BranchState()), CloseWindow(tokens=209)) == [1, 2, 3]
