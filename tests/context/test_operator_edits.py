"""A decision of the operator acts at once, in every policy, and changes nothing that it does not name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from proxy.chat import chain
from proxy.context.branch_state import BranchState
from proxy.context.operator_edits import OperatorDecisions, OperatorNote, allow_rewrite, apply_to_policy
from proxy.context.pipeline import rewrite
from proxy.context.plan import Edit, Plan
from proxy.context.policy import Policy
from proxy.context.stages.close_window import CloseWindow
from tests.context.agent import POLICIES, TALK, list_sent_texts, load_policy
from tests.conversations import INPUTS, PLAIN_MODEL, Json, assistant, make_messages, make_request, result, user

KEYS = chain.compute_keys("", make_messages(*TALK))


def plan(
    policy: str | Policy, operator_decisions: OperatorDecisions | None, talk: list[Json] = TALK, **more: Any
) -> Plan:
    state = BranchState(decisions=operator_decisions, **more)
    chosen = load_policy(policy) if isinstance(policy, str) else policy
    return rewrite(make_request(talk), state, chosen, PLAIN_MODEL, 0.0, INPUTS)


@pytest.mark.parametrize("policy", [*POLICIES, "progressive"])
def test_restored_messages_are_whole_in_every_policy(policy: str) -> None:
    gone = {k: Edit(k, "gone", None, "close_window", "", 9, 0) for k in KEYS[1:5]}
    restored = OperatorDecisions(restored=frozenset(KEYS[1:5]))
    made = plan(policy, restored, edits=gone, pins=restored.restored)
    assert list_sent_texts(made)[1:5] == [m["content"] for m in TALK[1:5]]
    assert not any(k in made.edits for k in KEYS[1:5])


def test_the_operators_window_takes_the_place_of_the_policys() -> None:
    narrow = replace(load_policy("rolling"), stages=(CloseWindow(groups=1),), ask="never")
    assert len(list_sent_texts(plan(narrow, None))) == 3  # with the first prompt
    assert len(list_sent_texts(plan(narrow, OperatorDecisions(window=2)))) == 6
    assert len(list_sent_texts(plan(narrow, OperatorDecisions(window=0)))) == 10
    assert len(list_sent_texts(plan(narrow, OperatorDecisions(window=-1)))) == 3


def test_a_wider_window_brings_back_what_a_narrow_one_removed() -> None:
    first = plan("thrifty", OperatorDecisions(window=1))
    assert len(list_sent_texts(first)) == 2
    again = plan("thrifty", OperatorDecisions(window=3), edits=first.edits)
    assert len(list_sent_texts(again)) == 10
    assert again.edits == {}


def test_the_window_keeps_pinned_messages() -> None:
    out = list_sent_texts(plan("thrifty", OperatorDecisions(window=1), pins=frozenset(KEYS[1:5])))
    assert "one?" in out
    assert "two" not in out


@pytest.mark.parametrize("policy", ["thrifty", "rolling"])
def test_a_note_is_shown_once_and_leaves_when_it_is_withdrawn(policy: str) -> None:
    note = OperatorNote("n1", "Use tabs.")
    first = plan(policy, OperatorDecisions(notes=(note,)))
    assert (list_sent_texts(first)[-1] or "").endswith("three\n\n[Operator's note n1] Use tabs.")
    talk = [*TALK, assistant("ok"), user("four")]
    second = plan(policy, OperatorDecisions(notes=(note,)), talk, edits=first.edits)
    kept_at = len(talk) - 1 if policy == "rolling" else len(TALK) - 1  # a literal policy writes its texts anew
    assert [n for n, text in enumerate(list_sent_texts(second, talk)) if "Use tabs" in (text or "")] == [kept_at]
    third = plan(policy, OperatorDecisions(withdrawn_notes=("n1",)), talk, edits=second.edits)
    assert not any("Use tabs" in (text or "") for text in list_sent_texts(third, talk))


def test_policies_that_change_nothing_carry_out_only_the_operators_decisions() -> None:
    quiet = Policy("passthrough", mode="passthrough", ask="never")
    assert allow_rewrite(quiet, None) is quiet
    assert allow_rewrite(quiet, OperatorDecisions(setting_overrides={"urgency": "off"})) is quiet
    assert allow_rewrite(quiet, OperatorDecisions(dropped={b"k": "out"})).mode == "rewrite"
    watching = replace(load_policy("thrifty"), mode="observe")
    assert allow_rewrite(watching, OperatorDecisions(window=1)).stages == ()


def test_settings_reach_the_stages_and_injections_that_have_them() -> None:
    injections = apply_to_policy(
        load_policy("progressive"), OperatorDecisions(setting_overrides={"max_iterations": 99, "urgency": "off"})
    ).injections
    assert {v.max_iterations for v in injections if hasattr(v, "max_iterations")} == {99}
    assert {v.urgency for v in injections if hasattr(v, "urgency")} == {"off"}


LINES = "\n".join(f"line {n} of it" for n in range(900))


def test_prune_now_makes_room_where_the_budget_would_not() -> None:
    long = [*TALK[:3], result("1", LINES), *TALK[4:]]
    assert plan("thrifty/over_budget", None, long).edits == {}
    made = plan("thrifty/over_budget", OperatorDecisions(forced_action="prune"), long)
    assert made.after <= 0.6 * made.before


def test_compress_now_makes_every_proposed_edit() -> None:
    long = [*TALK[:3], result("1", LINES), *TALK[4:]]
    assert plan("thrifty/over_budget", OperatorDecisions(), long).edits == {}
    assert plan("thrifty/over_budget", OperatorDecisions(forced_action="compress"), long).edits


def test_with_cache_breakpoints_a_note_stays_where_it_was_put() -> None:
    marked = replace(PLAIN_MODEL, cache="breakpoint")
    operator_decisions = OperatorDecisions(notes=(OperatorNote("n1", "Use tabs."),))
    made = rewrite(
        make_request(TALK), BranchState(decisions=operator_decisions), load_policy("thrifty"), marked, 0.0, INPUTS
    )
    assert made.edits[KEYS[-1]].stage == "operator"
    assert made.placed_inserts == ()
