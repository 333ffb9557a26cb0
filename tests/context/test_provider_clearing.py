"""The results that the provider is asked to clear, and the requests that ask for it."""

from __future__ import annotations

from dataclasses import replace

from proxy.chat.chain import compute_keys
from proxy.context.branch_state import BranchState
from proxy.context.models import Model
from proxy.context.pipeline import rewrite
from proxy.context.plan import Edit, Plan
from proxy.context.policy import Policy
from proxy.context.provider_clearing import KEPT_RESULTS, STAGE, count_cleared
from tests.conversations import INPUTS, Json, assistant, make_request, result, system, user

MODEL = Model(min=0, block=1, r=0.2, w=1.25)
POLICY = Policy("p", schedule="provider", ask="never")


def talk(rounds: int) -> list[Json]:
    values: list[Json] = [system("s"), user("Go.")]
    for n in range(rounds):
        values += [assistant(None, str(n)), result(str(n), f"{n} " + "r" * 2000)]
    return values


def play(rounds: int, model: Model = MODEL, pins: frozenset[bytes] = frozenset()) -> list[Plan]:
    state, plans = BranchState(pins=pins), list[Plan]()
    for n in range(1, rounds + 1):
        plans.append(rewrite(make_request(talk(n)), state, POLICY, model, float(n), INPUTS))
        state = state.after_sending(plans[-1], float(n))
    return plans


def count(plan: Plan) -> int:
    return sum(edit.stage == STAGE for edit in plan.edits.values())


def test_all_but_the_newest_results_are_cleared_together_when_that_pays() -> None:
    plans = play(30)
    counts = [count(plan) for plan in plans]
    batches = [n for n in range(1, 30) if counts[n] > counts[n - 1]]
    assert 2 <= len(batches) <= 10
    assert batches[0] > KEPT_RESULTS + 2, "one result alone is not worth moving the prefix"
    for n in batches:
        assert counts[n] == n + 1 - KEPT_RESULTS
    assert plans[-1].after < plans[-1].before / 2
    always = replace(MODEL, r=0.0)
    assert count(play(30, model=always)[-1]) == 0, "what costs nothing to carry is not cleared"


def test_a_prompt_over_its_budget_is_cleared_at_once() -> None:
    small = replace(MODEL, window=6000, answer=100, r=0.0)
    plans = play(10, model=small)
    first = next(plan for plan in plans if count(plan))
    assert {edit.reason for edit in first.new_edits} == {"the prompt is over its budget"}


def test_a_pinned_result_ends_the_run() -> None:
    keys = compute_keys("", make_request(talk(30)).messages)
    assert count(play(30, pins=frozenset({keys[3]}))[-1]) == 0
    assert count(play(30, pins=frozenset({keys[21]}))[-1]) in range(1, 10)


def test_only_a_run_from_the_oldest_result_on_is_left_to_the_provider() -> None:
    messages = make_request(talk(4)).messages
    keys = compute_keys("", messages)

    def clear(n: int) -> dict[bytes, Edit]:
        return {keys[n]: Edit(keys[n], "text", "c", STAGE, "r", 50, 5)}

    assert count_cleared(messages, keys, {}) == 0
    assert count_cleared(messages, keys, {**clear(3), **clear(5)}) == 2
    assert count_cleared(messages, keys, clear(5)) is None
    gone = {keys[3]: Edit(keys[3], "gone", None, "other", "r", 50, 0)}
    assert count_cleared(messages, keys, {**gone, **clear(5)}) == 1, "the provider never sees what is gone"
