"""Row D2: who leaves when the prompt is over its budget, and who stays whatever it weighs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from proxy.chat.chain import compute_keys
from proxy.context.branch_state import BranchState
from proxy.context.models import Model
from proxy.context.pipeline import rewrite
from proxy.context.plan import Edit, Plan, RewriteInputs
from proxy.context.policy import Policy, ScheduleName
from proxy.context.stages.drop_unimportant import DropUnimportant
from proxy.context.stages.fit_budget import FitBudget
from proxy.context.view import View
from tests.conversations import (
    COUNTER,
    INPUTS,
    PLAIN_MODEL,
    Json,
    assistant,
    build_view,
    change_view,
    make_request,
    result,
    system,
    user,
)

STAGES = (DropUnimportant(), FitBudget())
EXAMPLE = [system("s" * 6), user("b" * 6), assistant("c" * 6), user("d" * 6), assistant("e" * 6), user("f" * 6)]
"""The source's worked example: 70, 20, 18, 36, 34 and 60 points, ten tokens each."""


def policy(schedule: ScheduleName = "always", stage: DropUnimportant = STAGES[0]) -> Policy:
    return Policy("importance", stages=(stage, STAGES[1]), schedule=schedule, ask="never", budget=0.8)


def budget_view(
    talk: Sequence[Json], budget: int, model: Model = PLAIN_MODEL, schedule: ScheduleName = "always", **more: Any
) -> View:
    """The view of a conversation with a budget of so many tokens."""
    return msgspec.structs.replace(build_view(talk, policy=policy(schedule), model=model, **more), budget=budget)


def list_leaving(view: View, stage: DropUnimportant = STAGES[0]) -> list[int]:
    found = list(stage(view))
    assert all((p.action, p.after, p.stage, p.joint) == ("gone", 0, "drop_unimportant", True) for p in found)
    return [p.index for p in found]


def make_plan(talk: Sequence[Json], window: int, schedule: ScheduleName = "always", **more: Any) -> Plan:
    model = replace(PLAIN_MODEL, window=window, **more)
    return rewrite(make_request(talk), BranchState(), policy(schedule), model, 0.0, INPUTS)


def test_d2_the_worked_example_keeps_system_user2_model2_user3() -> None:
    assert list_leaving(budget_view(EXAMPLE, 40)) == [1, 2]
    assert list_leaving(budget_view(EXAMPLE, 30)) == [1, 2, 4]
    assert list_leaving(budget_view(EXAMPLE, 50)) == [2]


def test_d2_at_the_target_nothing_is_touched_and_the_body_is_the_very_bytes() -> None:
    assert list_leaving(budget_view(EXAMPLE, 60)) == []
    assert list_leaving(budget_view(EXAMPLE, 59)) == [2]
    assert list_leaving(msgspec.structs.replace(budget_view(EXAMPLE, 1), budget=None)) == []
    assert make_plan(EXAMPLE, 75).messages is None  # 80 % of 75 are 60
    over = make_plan(EXAMPLE, 50).messages
    assert over is not None
    assert len(over) == 4


def test_d2_words_decide_where_place_and_role_do_not() -> None:
    calm = [*EXAMPLE[:2], assistant("C" * 6), *EXAMPLE[3:]]
    loud = [*EXAMPLE[:2], assistant("failed"), *EXAMPLE[3:]]
    assert list_leaving(budget_view(calm, 50)) == [2]
    assert list_leaving(budget_view(loud, 50)) == [1]  # 33 points with the word, `b` has 20


def test_d2_steps_stay_whole_and_are_worth_what_their_best_message_is() -> None:
    talk = [user("a" * 6), assistant(None, "c"), result("c", "an error"), user("b" * 6), user("d" * 6)]
    assert list_leaving(budget_view(talk, 68)) == [
        0
    ]  # 10 + 27 + 12 + 10 + 10; the result has 41 points, its call 28, `a` 20
    assert list_leaving(budget_view(talk, 58)) == [1, 2]  # the step does not fit, and `a` does
    assert list_leaving(budget_view([*talk[:1], *talk[1:3] * 2, *talk[3:]], 68)) == [0, 1, 2]


def test_d2_the_newest_message_brings_its_call_along_and_the_last_prompt_stays() -> None:
    talk = [user("a" * 6), assistant("b" * 6), user("c" * 96), assistant(None, "c"), result("c", "x" * 96)]
    assert list_leaving(budget_view(talk, 50)) == [0, 1]


def test_d2_system_and_last_message_over_the_budget_are_kept_and_flagged() -> None:
    talk = [system("s" * 96), user("a"), assistant("b"), user("c" * 96)]
    plan = make_plan(talk, 100)
    assert plan.messages is not None
    assert len(plan.messages) == 2
    assert [n.kind for n in plan.notes if n.kind == "over_budget"] == ["over_budget"]
    assert plan.refusal is None


def test_d2_pinned_and_marked_messages_stay() -> None:
    pinned = [system("s" * 6), user("[pin]!"), *EXAMPLE[2:]]
    assert list_leaving(budget_view(pinned, 40)) == [2, 4]
    view = budget_view(EXAMPLE, 40)
    assert list_leaving(change_view(view, pins=frozenset({view.keys[2]}))) == [1, 4]
    part = {"type": "text", "text": "b" * 6, "cache_control": {"type": "ephemeral"}}
    marked = [EXAMPLE[0], user([part]), *EXAMPLE[2:]]
    assert list_leaving(budget_view(marked, 40)) == [
        3,
        4,
    ]  # with the answer to it: of a group that is over no part can leave


def test_d2_where_no_user_message_may_follow_a_result_the_answer_between_stays_with_it() -> None:
    talk = [user("a"), assistant(None, "c"), result("c", "error"), assistant("b" * 6), user("c" * 6), user("d" * 6)]
    assert list_leaving(budget_view(talk, 70)) == [0]
    assert list_leaving(budget_view(talk, 61)) == [
        1,
        2,
    ]  # 20 for `c` and `d`; the step has 36, and the answer that it needs 10
    assert list_leaving(budget_view(talk, 61, replace(PLAIN_MODEL, after_tool="user"))) == [3]


@pytest.mark.parametrize("schedule", ["always", "over_budget", "when_it_pays"])
def test_d2_turns_are_kept_where_an_upstream_insists_on_them(schedule: ScheduleName) -> None:
    talk = [system()] + [m for n in range(9) for m in (user(f"{n}" * 40), assistant(f"{n}" * 9))] + [user("now")]
    plan = make_plan(talk, 400, schedule, alternate=True)
    assert plan.refusal is None
    assert plan.messages is not None
    assert len(plan.messages) < len(talk)
    assert plan.after <= 320


def test_d2_under_lasting_schedules_room_is_made_for_what_comes() -> None:
    assert list_leaving(budget_view(EXAMPLE, 40, schedule="over_budget")) == [1, 2, 4]  # 75 % of 40
    assert list_leaving(budget_view(EXAMPLE, 40, schedule="over_budget"), DropUnimportant(low=1.0)) == [1, 2]
    plan = make_plan(EXAMPLE, 50, "over_budget")
    assert {e.reason.split(",")[0] for e in plan.new_edits} == {
        "scores 20 of 100",
        "scores 18 of 100",
        "scores 34 of 100",
    }


def test_d2_messages_that_have_left_are_not_weighed_again() -> None:
    view = budget_view(EXAMPLE, 40, schedule="over_budget")
    gone = Edit(view.keys[1], "gone", None, "drop_unimportant", "", 10, 0)
    again = msgspec.structs.replace(view, edits={gone.key: gone}, tokens=[10, 0, 10, 10, 10, 10])
    assert list_leaving(again) == [2, 4]


def test_d2_messages_chosen_together_leave_together() -> None:
    """`over_budget` would stop at its low mark, `when_it_pays` begin in the middle: half of a choice is another one."""
    talk = [system(), *[m for n in range(20) for m in (user(f"{n:03}" * 10), assistant("ok"))], user("now")]
    for schedule in ("over_budget", "when_it_pays"):
        plan = make_plan(talk, 500, schedule)
        view = msgspec.structs.replace(build_view(talk, policy=policy(schedule)), budget=400)
        assert {view.keys.index(e.key) for e in plan.new_edits} == set(list_leaving(view))


def test_d6_a_note_says_what_has_left_when_it_has_become_more() -> None:
    plan = make_plan(EXAMPLE, 50)
    (note,) = [n for n in plan.notes if n.kind == "drop_unimportant"]
    assert note.figures == {"removed": 2, "tokens": 20}
    state = BranchState().after_sending(plan, 0.0)
    model = replace(PLAIN_MODEL, window=50)
    again = rewrite(make_request(EXAMPLE), state, policy(), model, 1.0, INPUTS)
    assert again.messages == plan.messages
    assert not again.notes


def work(count: int) -> int:
    """Calls of functions that planning a prompt of so many messages takes once everything in it is known."""
    rounds = [m for n in range(count // 3) for m in (user(f"{n}"), assistant(None, "c"), result("c", "an error" * 99))]
    asked = make_request([system(), *rounds, user("now")])
    model = replace(PLAIN_MODEL, window=sum(map(COUNTER, asked.messages)) // 2)
    keys = compute_keys("", asked.messages)
    counts: Counter[str] = Counter()

    def plan() -> Plan:
        return rewrite(asked, BranchState(), policy(), model, 0.0, RewriteInputs(COUNTER, keys=keys))

    assert len(plan().messages or ()) < count
    sys.setprofile(lambda _, event, __: counts.update((event,)))
    try:
        plan()
    finally:
        sys.setprofile(None)
    return counts["call"] + counts["c_call"]


def test_d1_planning_is_linear_and_looks_at_no_text_twice() -> None:
    small, large = work(400), work(1600)
    assert large < 4.4 * small
    assert small < 400 * 100  # twenty words would be looked for in each text, were it new, and it be counted
