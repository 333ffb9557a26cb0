from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from proxy.chat import chain
from proxy.context.branch_state import BranchState
from proxy.context.plan import Edit
from proxy.context.policy import Policy
from proxy.context.view import View, compute_mark
from tests.conversations import (
    COUNTER,
    PLAIN_MODEL,
    Json,
    assistant,
    build_view,
    make_messages,
    result,
    system,
    user,
)

OPENING = [system("s" * 6), user("u" * 16), assistant(None, "1"), result("1", "r" * 96)]
TALK = [*OPENING, assistant("a" * 26), user("v" * 6)]
SIZES = [10, 20, 27, 100, 30, 10]
KEYS = chain.compute_keys("", make_messages(*TALK))
GONE = Edit(KEYS[3], "gone", None, "s", "", 100, 0)
SHORT = Edit(KEYS[3], "text", "r", "s", "", 100, 5)


def state_after_sending(values: Sequence[Json], *edits: Edit, at: float = 100.0) -> BranchState:
    """The session after these messages, so edited, went out."""
    table = {e.key: e for e in edits}
    talk = make_messages(*values)
    marks = [
        compute_mark(m, e)
        for m, k in zip(talk, chain.compute_keys("", talk), strict=True)
        if (e := table.get(k)) != GONE
    ]
    return BranchState(edits=table, sent_marks=tuple(marks), sent_sizes=(), sent_at=at)


def cached(values: Sequence[Json], state: BranchState, *, now: float = 101.0, **more: Any) -> int:
    return build_view(values, state=state, now=now, **more).cached_tokens


def test_sizes_are_those_of_the_messages_as_received_and_as_sent() -> None:
    view = build_view(TALK, state=BranchState(edits={SHORT.key: SHORT}))
    assert list(view.original_tokens) == SIZES
    assert list(view.tokens) == [10, 20, 27, 5, 30, 10]
    assert view.edits == {SHORT.key: SHORT}


def test_edits_of_messages_that_are_not_here_are_left_out() -> None:
    other = Edit(b"x" * 16, "gone", None, "s", "", 9, 0)
    assert build_view(TALK, state=BranchState(edits={other.key: other, GONE.key: GONE})).edits == {GONE.key: GONE}


def test_literal_policies_begin_from_the_clients_own_history() -> None:
    view = build_view(TALK, state=BranchState(edits={GONE.key: GONE}), policy=Policy("p", schedule="always"))
    assert (view.edits, list(view.tokens), view.literal) == ({}, SIZES, True)


def test_requests_are_counted_by_the_assistants_messages() -> None:
    assert list(build_view(TALK).request_counts) == [0, 0, 1, 1, 2, 2]


def test_the_active_group_is_the_last() -> None:
    view = build_view(TALK)
    assert view.active_start == 5
    assert build_view(TALK[:4]).active_start == 0


def test_the_budget_is_a_share_of_the_window_or_of_what_upstream_named() -> None:
    small = replace(PLAIN_MODEL, window=1000)
    assert build_view(TALK).budget is None
    assert build_view(TALK, model=small).budget == 800
    assert build_view(TALK, model=small, policy=Policy("p", budget=0.5)).budget == 500
    assert build_view(TALK, model=small, state=BranchState(learned_window=300)).budget == 240
    assert build_view(TALK, state=BranchState(learned_window=300)).budget == 240


def test_observations_count_as_results() -> None:
    talk = [user("fix"), assistant("ls"), user("OBS a"), assistant(None, "1"), result("1", "x")]
    policy = Policy("p", observation=re.compile("^OBS"))
    assert list(build_view(talk, policy=policy).is_result) == [False, False, True, False, True]
    assert list(build_view(talk).is_result) == [False, False, False, False, True]


def test_the_cache_holds_the_common_front_with_the_last_prompt() -> None:
    assert cached(TALK, state_after_sending(TALK[:4])) == sum(SIZES[:4])
    assert cached(TALK, state_after_sending(TALK)) == sum(SIZES)
    assert cached(TALK[:4], state_after_sending(TALK)) == sum(SIZES[:4])
    changed = [*TALK[:1], user("another"), *TALK[2:]]
    assert cached(changed, state_after_sending(TALK)) == SIZES[0]


def test_the_tools_precede_the_cached_messages() -> None:
    assert cached(TALK, state_after_sending(TALK[:4]), tools=[1]) == len("[1]") + sum(SIZES[:4])


def test_the_predicted_cache_counts_edited_messages_as_sent() -> None:
    assert cached(TALK, state_after_sending(TALK[:4], SHORT)) == 10 + 20 + 27 + 5
    assert cached(TALK, state_after_sending(TALK[:5], GONE)) == 10 + 20 + 27 + 30


def test_an_edit_that_was_not_sent_ends_the_cached_front() -> None:
    plain = state_after_sending(TALK[:4])
    assert cached(TALK, msgspec.structs.replace(plain, edits={SHORT.key: SHORT})) == 10 + 20 + 27
    assert cached(TALK, msgspec.structs.replace(state_after_sending(TALK[:4], SHORT), edits={})) == 10 + 20 + 27


def test_a_cache_is_cold_after_its_time_and_where_nothing_was_sent() -> None:
    assert cached(TALK, state_after_sending(TALK), now=100 + PLAIN_MODEL.ttl_s) == sum(SIZES)
    assert cached(TALK, state_after_sending(TALK), now=100.1 + PLAIN_MODEL.ttl_s) == 0
    assert cached(TALK, BranchState()) == 0


def test_models_without_a_cache_and_prompts_too_short_for_it_have_nothing_cached() -> None:
    assert cached(TALK, state_after_sending(TALK), model=replace(PLAIN_MODEL, cache="none")) == 0
    assert cached(TALK, state_after_sending(TALK[:4]), model=replace(PLAIN_MODEL, min=sum(SIZES[:4]))) == sum(SIZES[:4])
    assert cached(TALK, state_after_sending(TALK[:4]), model=replace(PLAIN_MODEL, min=sum(SIZES[:4]) + 1)) == 0


def test_after_a_restart_all_up_to_the_last_answer_counts_as_cached() -> None:
    assert cached(TALK, BranchState(sent_at=100.0)) == sum(SIZES[:4])
    assert cached(TALK, BranchState(sent_at=100.0, edits={SHORT.key: SHORT})) == 10 + 20 + 27 + 5
    assert cached(TALK, BranchState(sent_at=100.0), now=1000.0) == 0


def test_a_view_is_the_same_for_the_same_input() -> None:
    one, other = build_view(TALK), build_view(TALK)
    fields = [f for f in View.__struct_fields__ if f not in ("messages", "request", "history", "edited_history")]
    assert [getattr(one, f) for f in fields] == [getattr(other, f) for f in fields]
    assert one.inputs.token_counter is COUNTER
