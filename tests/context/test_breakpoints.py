"""Caches that end at explicit breakpoints, and caches in units: what a model's cache rule changes (G1)."""

from __future__ import annotations

from dataclasses import replace

from proxy.context.branch_state import BranchState
from proxy.context.models import Model
from proxy.context.pipeline import rewrite
from proxy.context.policy import Policy
from tests.conversations import INPUTS, Json, assistant, look, request, result, system, user

ANY = Model(min=0, block=1)
ENDS = replace(ANY, cache="breakpoint")
MARK: Json = {"cache_control": {"type": "ephemeral"}}
ASKING = Policy("p", ask="always")


def talk(rounds: int, **marked: Json) -> list[Json]:
    values: list[Json] = [{**system("s" * 100), **marked}, user("a" * 50)]
    for n in range(rounds):
        values += [assistant(None, str(n)), result(str(n), "r" * 200)]
    return values


def sent(values: list[Json], model: Model, policy: Policy) -> BranchState:
    plan = rewrite(request(values), BranchState(), policy, model, 0.0, INPUTS)
    return BranchState().after_sending(plan, 0.0)


def test_g1_a_prompt_that_only_grew_is_found_whole_under_every_rule() -> None:
    never = Policy("p", ask="never")
    for model in (ANY, ENDS):
        view = look(talk(3), session=sent(talk(2), model, never), policy=never, model=model, now=1.0)
        assert view.cached_tokens == sum(view.tokens[:6])


def test_g1_behind_an_edit_only_what_the_client_marked_is_found_again_where_a_cache_ends_at_breakpoints() -> None:
    never = Policy("p", ask="never")
    plain = look(talk(3), session=sent(talk(2), ENDS, never), policy=never, model=ENDS, now=1.0)
    assert plain.count_served_tokens()[3] == 0, "no breakpoint in front of the edit"
    marked = look(talk(3, **MARK), session=sent(talk(2, **MARK), ENDS, never), policy=never, model=ENDS, now=1.0)
    assert marked.count_served_tokens()[3] == marked.tokens[0], "the system prompt is marked"
    free = look(talk(3), session=sent(talk(2), ANY, never), policy=never, model=ANY, now=1.0)
    assert free.count_served_tokens()[3] == sum(free.tokens[:3])


def test_g1_an_edit_of_a_message_that_was_never_sent_costs_nothing_that_is_cached() -> None:
    never = Policy("p", ask="never")
    for model in (ANY, ENDS):
        view = look(talk(3), session=sent(talk(2), model, never), policy=never, model=model, now=1.0)
        assert view.count_served_tokens()[6:] == [view.cached_tokens] * 2
    cold = look(talk(3), policy=never, model=ENDS, now=1.0)
    assert set(cold.count_served_tokens()) == {0}


def test_g1_a_text_that_leaves_again_is_not_put_behind_a_breakpoint() -> None:
    assert rewrite(request(talk(1)), BranchState(), ASKING, ANY, 0.0, INPUTS).asks_for_state
    plan = rewrite(request(talk(1)), BranchState(), ASKING, ENDS, 0.0, INPUTS)
    assert not plan.asks_for_state
    assert plan.messages is None


def test_g1_cached_tokens_are_predicted_in_whole_units() -> None:
    never = Policy("p", ask="never")
    units = replace(ANY, cache="units", block=64)
    plan = rewrite(request(talk(3)), sent(talk(2), units, never), never, units, 1.0, INPUTS)
    assert plan.predicted > 0
    assert plan.predicted % 64 == 0
