"""Caches that end at explicit breakpoints, and caches in units: what a model's cache rule changes (G1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from proxy.chat.chain import compute_keys
from proxy.context.branch_state import BranchState
from proxy.context.breakpoints import choose_breakpoints, find_boundary
from proxy.context.models import Model
from proxy.context.pipeline import rewrite
from proxy.context.plan import Edit, Plan
from proxy.context.policy import Policy
from proxy.context.render import render_plain
from proxy.dialects.base import NO_BREAKPOINTS, Breakpoints
from tests.conversations import INPUTS, Json, assistant, build_view, make_request, result, system, user

ANY = Model(min=0, block=1)
ENDS = replace(ANY, cache="breakpoint")
MARK: Json = {"cache_control": {"type": "ephemeral"}}
ASKING = Policy("p", ask="always")


def talk(rounds: int, **marked: Json) -> list[Json]:
    values: list[Json] = [{**system("s" * 100), **marked}, user("a" * 50)]
    for n in range(rounds):
        values += [assistant(None, str(n)), result(str(n), "r" * 200)]
    return values


def state_after_sending(values: list[Json], model: Model, policy: Policy) -> BranchState:
    plan = rewrite(make_request(values), BranchState(), policy, model, 0.0, INPUTS)
    return BranchState().after_sending(plan, 0.0)


def test_g1_a_prompt_that_only_grew_is_found_whole_under_every_rule() -> None:
    never = Policy("p", ask="never")
    for model in (ANY, ENDS):
        view = build_view(talk(3), state=state_after_sending(talk(2), model, never), policy=never, model=model, now=1.0)
        assert view.cached_tokens == sum(view.tokens[:6])


def test_g1_with_breakpoints_only_what_the_client_marked_is_a_cache_hit_after_an_edit() -> None:
    never = Policy("p", ask="never")
    plain = build_view(talk(3), state=state_after_sending(talk(2), ENDS, never), policy=never, model=ENDS, now=1.0)
    assert plain.count_served_tokens()[3] == 0, "no breakpoint in front of the edit"
    marked = build_view(
        talk(3, **MARK), state=state_after_sending(talk(2, **MARK), ENDS, never), policy=never, model=ENDS, now=1.0
    )
    assert marked.count_served_tokens()[3] == marked.tokens[0], "the system prompt is marked"
    free = build_view(talk(3), state=state_after_sending(talk(2), ANY, never), policy=never, model=ANY, now=1.0)
    assert free.count_served_tokens()[3] == sum(free.tokens[:3])


def test_g1_an_edit_of_a_message_that_was_never_sent_costs_nothing_that_is_cached() -> None:
    never = Policy("p", ask="never")
    for model in (ANY, ENDS):
        view = build_view(talk(3), state=state_after_sending(talk(2), model, never), policy=never, model=model, now=1.0)
        assert view.count_served_tokens()[6:] == [view.cached_tokens] * 2
    cold = build_view(talk(3), policy=never, model=ENDS, now=1.0)
    assert set(cold.count_served_tokens()) == {0}


def test_g1_a_text_that_leaves_again_is_not_put_after_a_breakpoint() -> None:
    assert rewrite(make_request(talk(1)), BranchState(), ASKING, ANY, 0.0, INPUTS).asks_for_state
    plan = rewrite(make_request(talk(1)), BranchState(), ASKING, ENDS, 0.0, INPUTS)
    assert not plan.asks_for_state
    assert plan.messages is None


def test_g1_cached_tokens_are_predicted_in_whole_units() -> None:
    never = Policy("p", ask="never")
    units = replace(ANY, cache="units", block=64)
    plan = rewrite(make_request(talk(3)), state_after_sending(talk(2), units, never), never, units, 1.0, INPUTS)
    assert plan.predicted > 0
    assert plan.predicted % 64 == 0


# Breakpoints of the proxy's.

OURS = replace(ANY, cache="breakpoint", breakpoint_field="cache_control", ttl_s=300.0)
NEVER = Policy("p", ask="never")
TOOLS: Json = {"tools": [{"type": "function", "function": {"name": "read"}}]}


def plan_with(values: list[Json], model: Model, state: BranchState, now: float = 1.0, **more: Any) -> Plan:
    return rewrite(make_request(values, **more), state, NEVER, model, now, INPUTS)


def test_the_end_of_a_prompt_is_wanted_where_another_request_is_likely() -> None:
    assert plan_with(talk(1), OURS, BranchState(), **TOOLS).breakpoints == Breakpoints(has_tail=True)
    assert plan_with(talk(1), OURS, BranchState()).breakpoints == NO_BREAKPOINTS, "perhaps nobody goes on"
    state = state_after_sending(talk(1), OURS, NEVER)
    assert plan_with(talk(2), OURS, state, 100.0).breakpoints.has_tail
    assert not plan_with(talk(2), OURS, state, 400.0).breakpoints.has_tail, "people answer when the cache is cold"


def test_no_breakpoint_is_wanted_where_it_would_not_be_taken() -> None:
    for model in (ANY, ENDS, replace(OURS, min=10_000)):
        plan = plan_with(talk(1), model, BranchState(), **TOOLS)
        assert plan.breakpoints == NO_BREAKPOINTS
        assert plan.breakpoint_positions == frozenset()


def test_the_boundary_is_the_end_of_the_newest_batch_and_stays_there() -> None:
    values = talk(6)
    keys = compute_keys("", make_request(values).messages)
    shortened = [Edit(keys[n], "text", "short", "s", "r", 50, 5) for n in (3, 5)]
    before = state_after_sending(values[:12], OURS, NEVER)
    seen = build_view(values, state=before, policy=NEVER, model=OURS, now=1.0)
    assert find_boundary(seen, before, shortened) == keys[5]
    assert find_boundary(seen, msgspec.structs.replace(before, boundary=keys[5]), []) == keys[5]
    fresh = [Edit(keys[13], "text", "short", "s", "r", 50, 5)]
    assert find_boundary(seen, before, fresh) == b"", "never sent before, so it moves nothing"
    added = [Edit(keys[5], "append", "more", "s", "r", 50, 55)]
    assert find_boundary(seen, before, added) == b""


def test_the_last_boundary_is_read_once_more_when_a_batch_sets_the_next_one() -> None:
    values = talk(6)
    keys = compute_keys("", make_request(values).messages)
    state = msgspec.structs.replace(state_after_sending(values[:12], OURS, NEVER), boundary=keys[5])
    plan = plan_with(values, OURS, state, **TOOLS)
    assert plan.breakpoints.answers == (2,)
    assert plan.breakpoint_positions == {0, 5}
    seen = build_view(values, state=state, policy=NEVER, model=OURS, now=1.0)
    made = render_plain(seen.messages, seen.keys, {}, seen.original_tokens)
    deeper = [Edit(keys[n], "text", "short", "s", "r", 50, 5) for n in (7, 9)]
    assert choose_breakpoints(seen, state, made, deeper, keys[9], 1000).answers == (2, 4)
    earlier = [Edit(keys[n], "text", "short", "s", "r", 50, 5) for n in (3, 9)]
    assert choose_breakpoints(seen, state, made, earlier, keys[9], 1000).answers == (4,)


def test_a_breakpoint_of_the_proxy_is_hit_again_after_an_edit() -> None:
    plan = plan_with(talk(2), OURS, BranchState(), **TOOLS)
    state = BranchState().after_sending(
        msgspec.structs.replace(plan, breakpoint_positions=frozenset({3})), 0.0, has_breakpoints=True
    )
    seen = build_view(talk(3), state=state, policy=NEVER, model=OURS, now=1.0)
    assert seen.count_served_tokens()[5] == seen.prefix_tokens + sum(seen.tokens[:4])
    assert seen.count_served_tokens()[3] == 0
    none = BranchState().after_sending(msgspec.structs.replace(plan, breakpoint_positions=frozenset({3})), 0.0)
    assert build_view(talk(3), state=none, policy=NEVER, model=OURS, now=1.0).count_served_tokens()[5] == 0


def test_a_mark_that_the_client_moves_breaks_no_prefix() -> None:
    first = [*talk(1), user([{"type": "text", "text": "Go on.", **MARK}])]
    second = [*talk(1), user("Go on."), assistant("Done."), user([{"type": "text", "text": "More.", **MARK}])]
    state = state_after_sending(first, ENDS, NEVER)
    seen = build_view(second, state=state, policy=NEVER, model=ENDS, now=1.0)
    assert seen.cached_tokens == sum(seen.tokens[:5])
    moved = [*talk(1), user("Go on!"), assistant("Done."), user([{"type": "text", "text": "More.", **MARK}])]
    assert build_view(moved, state=state, policy=NEVER, model=ENDS, now=1.0).cached_tokens == 0
