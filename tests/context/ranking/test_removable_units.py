"""Messages that leave together, messages that need others, and the choice under a budget."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.chat import group
from proxy.context.ranking.removable_units import RemovableUnit, find_required, find_units, select_best
from tests.conversations import Json, assistant, make_messages, result, system, user

CALL = [assistant(None, "c"), result("c", "r")]


def find_units_of(talk: Sequence[Json], after_tool: str = "user", *, alternate: bool = False) -> list[RemovableUnit]:
    told = make_messages(*talk)
    return find_units(told, group.split_steps(told), after_tool=after_tool, alternate=alternate)


def describe_units(found: Sequence[RemovableUnit]) -> list[tuple[list[int], int]]:
    return [(list(u.message_indexes), u.required_unit) for u in found]


def test_a_step_is_one_unit() -> None:
    two = [assistant(None, "c1", "c2"), result("c1", "r"), result("c2", "r")]
    assert describe_units(find_units_of([system(), user("a"), *two, user("b")])) == [
        ([0], -1),
        ([1], -1),
        ([2, 3, 4], -1),
        ([5], -1),
    ]


def test_where_no_user_message_may_follow_a_result_a_step_needs_the_answer_between() -> None:
    talk = [user("a"), *CALL, *CALL, assistant("done"), user("b"), *CALL]
    assert [u.required_unit for u in find_units_of(talk)] == [-1] * 6
    assert [u.required_unit for u in find_units_of(talk, "append")] == [-1, 3, 3, -1, -1, -1]


def test_where_the_history_itself_has_a_user_message_after_a_result_nothing_is_needed() -> None:
    assert [
        u.required_unit for u in find_units_of([user("a"), *CALL, user("b"), assistant("c"), user("d")], "append")
    ] == [-1] * 5


def test_where_roles_alternate_a_prompt_and_its_answer_are_one_unit_that_the_steps_between_need() -> None:
    talk = [system(), user("a"), *CALL, assistant("done"), user("b"), *CALL, *CALL]
    assert describe_units(find_units_of(talk, "append", alternate=True)) == [
        ([0], -1), ([1, 4], -1), ([2, 3], 1), ([5], -1), ([6, 7], 3), ([8, 9], 3),
    ]  # fmt: skip


def test_a_run_that_no_answer_closes_leaves_as_a_whole_where_turns_are_insisted_on() -> None:
    talk = [assistant("Welcome"), user("a"), *CALL, user("b"), assistant("c")]
    assert describe_units(find_units_of(talk, alternate=True)) == [([0, 1, 2, 3], -1), ([4], -1), ([5], 1)]


def test_every_message_is_in_one_unit_whatever_the_roles() -> None:
    talk = [system(), assistant("x"), *CALL, user("a"), user("b"), system(), *CALL, assistant("y"), assistant("z")]
    for alternate in (False, True):
        for after_tool in ("append", "user", "none"):
            found = find_units_of(talk, after_tool, alternate=alternate)
            assert sorted(i for u in found for i in u.message_indexes) == list(range(len(talk)))
    assert find_units_of([]) == find_units_of([], alternate=True) == []
    assert describe_units(find_units_of([assistant("x"), *CALL], alternate=True)) == [([0], -1), ([1, 2], -1)]


UNITS = [RemovableUnit((0,)), RemovableUnit((1, 2), 2), RemovableUnit((3,)), RemovableUnit((4,)), RemovableUnit((5,))]


def test_the_units_that_a_unit_needs_stay_with_it() -> None:
    assert find_required(UNITS, [1]) == {1, 2}
    assert find_required(UNITS, []) == set()


def test_units_with_the_best_scores_that_fit_the_budget_stay() -> None:
    tokens, scores = [10] * 6, [0, 50, 0, 5, 20, 30]
    assert select_best(UNITS, tokens, scores, [0], 20, range(5)) == {0, 4}
    assert select_best(UNITS, tokens, scores, [0], 40, range(5)) == {0, 1, 2}  # 50 points bring along what they need
    assert select_best(UNITS, tokens, scores, [0], 39, range(5)) == {0, 4, 3}  # it does not fit, the next ones do
    assert select_best(UNITS, tokens, scores, [0], 50, range(5)) == {0, 1, 2, 4}
    assert select_best(UNITS, tokens, scores, [0], 50, [3]) == {0, 3}


def test_required_units_stay_whatever_their_size() -> None:
    assert select_best(UNITS, [10] * 6, [0] * 6, [1], 5, range(5)) == {1, 2}


def test_among_equals_the_newer_one_stays() -> None:
    assert select_best(UNITS, [10] * 6, [7] * 6, [], 10, range(5)) == {4}
