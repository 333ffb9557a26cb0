"""Row A14: what does not fit is left out group by group, oldest first, and the first prompt is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from proxy.context.branch_state import BranchState
from proxy.context.models import Model
from proxy.context.operator_edits import OperatorDecisions
from proxy.context.pipeline import rewrite
from proxy.context.plan import Plan
from proxy.context.policy import Policy, ScheduleName
from proxy.context.stages.close_window import CloseWindow
from proxy.context.stages.fit_budget import FitBudget
from tests.conversations import INPUTS, PLAIN_MODEL, Json, assistant, make_request, result, system, user

STEP = [assistant(None, "1"), result("1", "r" * 69)]
"""27 + 73 = 100 tokens."""
GROUP = [user("u" * 6), *STEP, assistant("a" * 6)]
"""10 + 100 + 10 = 120 tokens."""
FIT = Policy("fit", stages=(FitBudget(),), ask="never", budget=0.5, low=0.5, remark="")


def fit_prompt(
    values: Sequence[Json], budget: int, policy: Policy = FIT, state: BranchState | None = None, **more: Any
) -> tuple[Plan, list[int]]:
    """The plan under a window of which `budget` is the share that a prompt may fill, and what of `values` goes out."""
    asked = make_request(values)
    model: Model = replace(PLAIN_MODEL, window=2 * budget, **more)
    made = rewrite(asked, state or BranchState(), policy, model, 0.0, INPUTS)
    assert made.refusal is None
    gone = {e.key for e in made.edits.values() if e.action == "gone"}
    left = [n for n, (m, k) in enumerate(zip(asked.messages, made.keys, strict=True)) if m.is_system or k not in gone]
    assert [json.loads(raw) for raw in made.messages or ()] in ([], [values[n] for n in left])
    return made, left


TALK = [system("s" * 6), *GROUP, *GROUP, *GROUP, user("u" * 6)]
"""10 + 3 * 120 + 10 = 380 tokens: groups at 1, 5, 9 and 13."""


@pytest.mark.parametrize(
    ("budget", "left"),
    [
        (380, list(range(14))),
        # One token too many: all of the first group but its prompt leaves, 110 tokens.
        (379, [0, 1, *range(5, 14)]),
        (270, [0, 1, *range(5, 14)]),
        # The second group leaves whole, its prompt too.
        (269, [0, 1, *range(9, 14)]),
        (150, [0, 1, *range(9, 14)]),
        (149, [0, 1, 13]),
        (30, [0, 1, 13]),
    ],
)
def test_groups_leave_whole_and_oldest_first_and_the_first_prompt_stays(budget: int, left: list[int]) -> None:
    made, found = fit_prompt(TALK, budget)
    assert found == left
    assert made.notes == ()
    assert made.after <= budget
    assert {e.stage for e in made.new_edits} <= {"fit_budget"}


def test_a_prompt_that_cannot_be_made_to_fit_is_sent_with_a_note() -> None:
    made, left = fit_prompt(TALK, 28)
    assert left == [0, 1, 13]
    assert [n.kind for n in made.notes] == ["over_budget"]
    assert "2 tokens over the budget of 28" in made.notes[0].text


def test_after_the_groups_old_steps_of_the_active_group_leave_and_the_newest_four_stay_while_they_fit() -> None:
    talk = [*GROUP, user("u" * 6), *STEP * 6]
    # 120 + 10 + 600: without the first group's answer 620, without one step 520, without two 420.
    assert fit_prompt(talk, 620)[1] == [0, *range(4, 17)]
    assert fit_prompt(talk, 619)[1] == [0, 4, *range(7, 17)]
    assert fit_prompt(talk, 520)[1] == [0, 4, *range(7, 17)]
    assert fit_prompt(talk, 519)[1] == [0, 4, *range(9, 17)]
    assert fit_prompt(talk, 420)[1] == [0, 4, *range(9, 17)]
    # Not even four fit: the newest one stays.
    made, left = fit_prompt(talk, 100)
    assert left == [0, 4, 15, 16]
    assert made.notes


def test_all_steps_but_the_last_can_leave_where_none_has_to_stay() -> None:
    talk = [user("u" * 6), *STEP * 3]
    none = replace(FIT, stages=(FitBudget(keep_steps=0),))
    assert fit_prompt(talk, 210, none)[1] == [0, 3, 4, 5, 6]
    assert fit_prompt(talk, 110, none)[1] == [0, 5, 6]
    made, left = fit_prompt(talk, 50, none)
    assert left == [0, 5, 6]
    assert made.notes


def test_groups_that_left_stay_out_and_the_next_follow_when_the_prompt_grows() -> None:
    made, left = fit_prompt(TALK[:10], 150)
    assert left == [0, 1, *range(5, 10)]
    state = BranchState().after_sending(made, 0.0)
    made, left = fit_prompt(TALK, 270, state=state)
    assert (made.new_edits, left) == ((), [0, 1, *range(5, 14)])
    made, left = fit_prompt(TALK, 269, state=state)
    assert (len(made.new_edits), left) == (4, [0, 1, *range(9, 14)])


LOW = replace(FIT, budget=0.5, low=0.25)
"""Over the budget, down to half of it."""


def test_once_over_the_budget_it_is_brought_down_to_the_low_mark() -> None:
    # 380 tokens at 379: down to 189 at most, so that the second group leaves with the first.
    made, left = fit_prompt(TALK, 379, LOW)
    assert left == [0, 1, *range(9, 14)]
    assert made.after == 150
    assert made.notes == ()
    assert fit_prompt(TALK, 380, LOW)[1] == list(range(14))
    # Within the budget but not at the mark, with all out that may go: nothing is said.
    talk = [user("u" * 6), *STEP * 6]
    made, left = fit_prompt(talk, 600, LOW)
    assert (made.after, left, made.notes) == (410, [0, *range(5, 13)], ())


def test_policies_whose_edits_do_not_last_fill_the_whole_budget() -> None:
    assert fit_prompt(TALK, 379, replace(LOW, schedule="always"))[1] == [0, 1, *range(5, 14)]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["when_it_pays", "over_budget"])
@pytest.mark.parametrize("step", [STEP, GROUP])
def test_a_history_that_grows_past_its_budget_is_edited_in_batches(schedule: ScheduleName, step: list[Json]) -> None:
    """A step adds 100 tokens, a group 120; the room between the marks is 1000."""
    policy = replace(FIT, budget=0.8, low=0.6, schedule=schedule)
    state, model = BranchState(), replace(PLAIN_MODEL, window=5_000)
    talk = [user("u" * 6)]
    edited = []
    for n in range(200):
        talk += step
        made = rewrite(
            make_request([*talk, user("on")] if step is GROUP else talk),
            state,
            policy,
            model,
            float(n),
            INPUTS,
        )
        assert made.refusal is None
        assert made.after <= 4_000
        if made.new_edits:
            edited.append(n)
            assert made.after <= 3_000
        elif n > 0:
            assert made.predicted >= made.after - 130  # all that went out before is served
        state = state.after_sending(made, float(n))
    assert len(edited) > 10
    assert all(after - before >= 8 for before, after in pairwise(edited))


def test_a_prune_by_the_operator_goes_to_the_low_mark_once() -> None:
    # 380 tokens, no window: down to 0.6 of them, 228, and not to the low mark of that again.
    state = BranchState(decisions=OperatorDecisions(forced_action="prune"))
    policy = replace(FIT, budget=0.8, low=0.6)
    made = rewrite(make_request(TALK), state, policy, PLAIN_MODEL, 0.0, INPUTS)
    assert made.after == 150
    longer = [*TALK[:9], *TALK[5:9], *TALK[9:]]
    made = rewrite(make_request(longer), state, policy, PLAIN_MODEL, 0.0, INPUTS)
    assert made.after == 270  # of 500: 300 are left, and not 225


def test_roles_alternate_where_the_model_insists() -> None:
    for budget in (379, 269, 149, 30):
        made, left = fit_prompt(TALK, budget, alternate=True)
        roles = [TALK[n]["role"] for n in left]
        assert not any(a == b for a, b in pairwise(roles))
        assert left[:3] == [0, 1, 4]  # the first prompt, and the answer that closed it
        assert made.after <= max(budget, 40)


def test_the_window_that_upstream_named_counts() -> None:
    assert fit_prompt(TALK, 1000, state=BranchState(learned_window=2 * 269))[1] == [0, 1, *range(9, 14)]


def test_an_unknown_window_sets_no_budget() -> None:
    asked = make_request(TALK)
    assert rewrite(asked, BranchState(), FIT, PLAIN_MODEL, 0.0, INPUTS).messages is None


def test_tool_definitions_count_towards_the_budget() -> None:
    asked = make_request(TALK, tools=[1] * 30)
    model = replace(PLAIN_MODEL, window=2 * 380)
    made = rewrite(asked, BranchState(), FIT, model, 0.0, INPUTS)
    assert made.new_edits
    assert made.after == made.before - 110


def test_literal_policies_fit_the_budget_too() -> None:
    rolling = replace(FIT, stages=(CloseWindow(groups=2), FitBudget()), schedule="always")
    assert fit_prompt(TALK, 380, rolling)[1] == [0, 1, *range(9, 14)]
    assert fit_prompt(TALK, 100, rolling)[1] == [0, 1, 13]


@pytest.mark.parametrize("schedule", ["always", "when_it_pays", "over_budget"])
def test_the_remark_where_groups_have_left_counts(schedule: ScheduleName) -> None:
    policy = replace(FIT, remark="\n\n[left]", schedule=schedule)
    for budget in range(160, 380, 10):
        made = rewrite(make_request(TALK), BranchState(), policy, replace(PLAIN_MODEL, window=2 * budget), 0.0, INPUTS)
        assert made.after <= budget
        assert json.loads((made.messages or ())[1])["content"] == "u" * 6 + "\n\n[left]"
