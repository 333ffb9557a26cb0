"""Texts behind the system prompt, and the prediction of the cache with them."""

from __future__ import annotations

from dataclasses import replace

from proxy.context.branch_state import BranchState
from proxy.context.inserts import has_appendable_system, make_system_inserts, make_system_texts
from proxy.context.models import Model
from proxy.context.pipeline import rewrite
from proxy.context.policy import Policy
from proxy.notes.state_block import build_prompt, get_guidelines, render_anchor
from tests.context.agent import load_policy
from tests.conversations import INPUTS, assistant, build_view, make_request, system, user

ROLLING = Policy("rolling", state_place="system", ask="always", schedule="always")


def test_guidelines_state_and_asking_come_in_this_order() -> None:
    values = make_request([system("Be."), user("a")])
    found, asked = make_system_inserts(values, BranchState(states=((b"k", "Goal: x"),)), ROLLING, 0)
    assert asked
    assert [i.text.strip() for i in found] == [get_guidelines(), render_anchor("Goal: x"), build_prompt()]
    assert {i.place for i in found} == {"system"}


def test_without_a_system_prompt_nothing_stands_in_front() -> None:
    assert not has_appendable_system(make_request([user("a")]))
    assert make_system_texts(make_request([user("a")]), BranchState(), ROLLING) == []
    assert (
        make_system_texts(make_request([system("Be."), user("a")]), BranchState(), replace(ROLLING, state_place="tail"))
        == []
    )
    assert (
        make_system_texts(make_request([system("Be."), user("a")]), BranchState(stopped="upstream_reject"), ROLLING)
        == []
    )


def test_texts_at_the_front_do_not_make_the_cache_look_cold() -> None:
    policy = load_policy("rolling/when_it_pays")
    values = [system("Be. " * 2000), user("a")]
    state = BranchState()
    cached = []
    for n in range(3):
        plan = rewrite(make_request(values), state, policy, Model(), float(n), INPUTS)
        seen = build_view(values, state=state, policy=policy, model=Model(), now=float(n))
        cached.append(seen.cached_tokens)
        state = state.after_sending(plan, float(n))
        values = [*values, assistant(f"Answer {n}."), user(f"Question {n}")]
    assert cached[0] == 0
    assert min(cached[1:]) > 1024, "the prompt before, with its guidelines, is served again"
