"""Costs of `when_it_pays` over whole conversations, compared with the best choice in hindsight."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from proxy.context.branch_state import BranchState
from proxy.context.models import Model
from proxy.context.pipeline import rewrite
from proxy.context.plan import Plan, Proposal, RewriteInputs
from proxy.context.policy import Policy
from proxy.context.stage import Stage, When
from proxy.context.view import View
from tests.conversations import COUNTER, PLAIN_MODEL, Json, assistant, make_request, result, user


@dataclass(frozen=True, slots=True)
class Mask(Stage):
    """Results older than the newest ones become a word."""

    keep: int = 3
    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        results = [n for n, is_result in enumerate(view.is_result) if is_result]
        for at, n in enumerate(results[: max(0, len(results) - self.keep)]):
            if view.find_edit(n) is None:
                yield Proposal(n, "text", "mask", "old", 8, "gone", results[at + self.keep])


ONLINE = Policy("online", stages=(Mask(),), schedule="when_it_pays", ask="never")
ALL_NOW = replace(ONLINE, schedule="over_budget", budget=1.0)
"""With a window of 2 tokens every prompt is over the budget: all that is old is masked at once."""


def grow(seed: int) -> list[list[Json]]:
    """The histories of a conversation's requests, each the beginning of the next: 15 to 30 rounds of any size."""
    draw = random.Random(seed)
    values: list[Json] = [user("u" * draw.choice([20, 2000, 8000]))]
    found = [list(values)]
    for _ in range(draw.randint(15, 30)):
        values += [assistant("t" * draw.randint(0, 200), "1"), result("1", "r" * int(draw.lognormvariate(6, 1.5)))]
        if draw.random() < 0.1:
            values += [assistant("ok"), user("next")]
        found.append(list(values))
    return found


def paid(plan: Plan, before: Plan | None, model: Model) -> float:
    """The cost of a prompt, with the tokens cached that it really shares with the one before."""
    same = 0
    for mine, theirs, size in zip(plan.marks, before.marks if before else (), plan.sizes, strict=False):
        if mine != theirs:
            break
        same += size
    return model.compute_cost(plan.after, same)


def cost(histories: list[list[Json]], model: Model, *, at: int | None = None, online: bool = False) -> float:
    """The whole conversation: online; or all that is old masked at request `at`, and nothing else (None: never)."""
    state, total = BranchState(), 0.0
    before: Plan | None = None
    for n, values in enumerate(histories):
        policy, limits = (ONLINE, model) if online else (ALL_NOW, replace(model, window=2))
        asked = make_request(values)
        plan = rewrite(asked, state, policy, limits, float(n), RewriteInputs(COUNTER, frozen=not online and n != at))
        total += paid(plan, before, model)
        state = state.after_sending(plan, float(n))
        before = plan
    return total


@pytest.mark.slow
@pytest.mark.parametrize(("w", "r"), [(1.25, 0.1), (1.0, 0.5), (1.0, 0.1)])
def test_the_whole_conversation_costs_at_most_twice_the_best_single_edit_in_hindsight(w: float, r: float) -> None:
    """Compared: the price of all prompts of a conversation in units of an input token, uncached tokens at w and cached
    ones (the front that a prompt really shares with the one before) at r, the cache never cold. On one side
    `when_it_pays`; on the other the cheapest of doing nothing and of masking all that is old at one request, whichever
    is best once the whole conversation is known. Never more than twice that, and in sum less than doing nothing."""
    model = replace(PLAIN_MODEL, w=w, r=r)
    worst = 0.0
    ours = nothing = 0.0
    for seed in range(8):
        histories = grow(seed)
        mine, idle = cost(histories, model, online=True), cost(histories, model)
        best = min(idle, *(cost(histories, model, at=n) for n in range(4, len(histories), 3)))
        worst = max(worst, mine / best)
        ours, nothing = ours + mine, nothing + idle
    assert worst <= 2
    assert ours < nothing


def test_a_conversation_that_ends_before_it_pays_costs_what_it_would_have_cost() -> None:
    histories = grow(1)[:4]
    assert cost(histories, PLAIN_MODEL, online=True) == cost(histories, PLAIN_MODEL)
