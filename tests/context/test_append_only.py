"""`append_only`: the schedule for reasoning that is bound to its prompt. What was sent once is sent again unchanged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.context.branch_state import BranchState
from proxy.context.pipeline import rewrite
from proxy.context.plan import RewriteInputs
from proxy.context.policy import Policy
from proxy.context.stages.refer_repeats import ReferRepeats
from proxy.context.stages.shorten_results import ShortenResults
from tests.context.agent import POLICIES, load_policy
from tests.conversations import COUNTER, PLAIN_MODEL, Json, assistant, make_request, result, system, user

LISTING = "\n".join(f"{n}\tdef function_{n}(): return {n}" for n in range(1, 200))


def talk(rounds: int) -> list[Json]:
    """An agent that reads the same file again and again."""
    made = [system(), user("Find the fault")]
    for n in range(rounds):
        made += [assistant(f"step {n}", f"call_{n}"), result(f"call_{n}", LISTING + f"\n{n}")]
    return made


@pytest.mark.parametrize("name", [one for one in POLICIES if not load_policy(one).literal])
def test_each_prompt_begins_with_the_prompt_before_it(name: str) -> None:
    policy = replace(load_policy(name), schedule="append_only")
    state, saved = BranchState(), 0
    before: tuple[bytes, ...] = ()
    for rounds in range(1, 30):
        values = talk(rounds)
        asked = make_request(values)
        inputs = RewriteInputs(COUNTER, offered_tools=frozenset(policy.tools), sent_count=max(len(values) - 2, 0))
        plan = rewrite(asked, state, policy, replace(PLAIN_MODEL, window=60_000), float(rounds), inputs)
        assert plan.refusal is None
        sent = plan.messages or tuple(m.raw for m in asked.messages)
        assert sent[: len(before)] == before
        assert len(sent) == len(values), "nothing leaves"
        assert plan.sources == tuple(range(len(values)))
        before, saved = sent, saved + plan.before - plan.after
        state = state.after_sending(plan, float(rounds)).after_answer(
            predicted=plan.predicted, cached=plan.predicted, state=None
        )
    if name == "thrifty":
        assert saved > 0, "repeats are referred to in the request that first carries them"


def test_a_first_request_of_a_long_history_leaves_the_messages_that_were_sent_elsewhere() -> None:
    values = talk(12)
    policy = Policy("p", stages=(ShortenResults(), ReferRepeats()), schedule="append_only")
    plan = rewrite(
        make_request(values), BranchState(), policy, PLAIN_MODEL, 0.0, RewriteInputs(COUNTER, sent_count=len(values))
    )
    assert plan.messages is None
    free = rewrite(make_request(values), BranchState(), policy, PLAIN_MODEL, 0.0, RewriteInputs(COUNTER))
    assert free.new_edits, "the same history could be edited if it was never sent"
