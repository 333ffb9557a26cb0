"""Messages that the operator has taken out are not planned, in any policy, and no message that must stay leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from proxy.chat import chain
from proxy.context.apply_decisions import remove_dropped_messages
from proxy.context.branch_state import BranchState
from proxy.context.operator_edits import OperatorDecisions, OperatorNote
from proxy.context.pipeline import rewrite
from proxy.context.plan import Edit, Plan, RewriteInputs
from proxy.context.policy import Policy
from tests.context.agent import POLICIES, TALK, list_sent_texts, load_policy
from tests.conversations import COUNTER, INPUTS, PLAIN_MODEL, Json, assistant, make_messages, make_request, result, user

NOTHING = Policy("nothing", ask="never")
KEYS = chain.compute_keys("", make_messages(*TALK))


def plan(
    policy: str | Policy, operator_decisions: OperatorDecisions | None, talk: list[Json] = TALK, **more: Any
) -> Plan:
    state = BranchState(decisions=operator_decisions, **more)
    chosen = load_policy(policy) if isinstance(policy, str) else policy
    came = make_request(talk)
    left = remove_dropped_messages(came, state, chosen, PLAIN_MODEL, INPUTS)
    made = rewrite(left.request, left.state, chosen, PLAIN_MODEL, 0.0, RewriteInputs(COUNTER, keys=left.keys))
    return left.complete_plan(made)


def dropped(*numbers: int) -> OperatorDecisions:
    return OperatorDecisions(dropped={KEYS[n]: "dropped by the operator" for n in numbers})


@pytest.mark.parametrize("policy", [*POLICIES, "progressive"])
def test_dropped_messages_are_out_in_every_policy(policy: str) -> None:
    out = list_sent_texts(plan(policy, dropped(1, 2, 3, 4)))
    assert not any("one?" in (text or "") or "first first" in (text or "") for text in out)
    assert any("done two" in (text or "") for text in out)


def test_half_a_step_never_leaves() -> None:
    assert list_sent_texts(plan("thrifty", dropped(3))) == [m["content"] for m in TALK]


def test_the_last_user_message_and_system_messages_stay() -> None:
    everything = OperatorDecisions(dropped=dict.fromkeys([chain.derive_root_key(""), *KEYS], "all"))
    assert list_sent_texts(plan(NOTHING, everything)) == [TALK[0]["content"], "three"]


def test_a_mark_in_the_text_does_not_keep_what_the_operator_drops() -> None:
    talk = [user("[pin] one"), assistant("done"), user("two")]
    operator_decisions = OperatorDecisions(
        dropped=dict.fromkeys(chain.compute_keys("", make_messages(*talk))[:2], "dropped")
    )
    assert list_sent_texts(plan(NOTHING, operator_decisions, talk), talk) == ["two"]


def test_an_edit_after_a_drop_costs_nothing() -> None:
    model = replace(PLAIN_MODEL, cache="prefix", r=0.1, w=1.0, ttl_s=1000, min=0)
    talk = [*TALK[:7], result("2", "second " * 200), *TALK[8:9], *(user(f"more {n} " * 500) for n in range(9))]
    keys = chain.compute_keys("", make_messages(*talk))
    seen = {"sent_marks": tuple(m.form for m in make_messages(*talk)), "sent_at": 0.0}

    def edits(operator_decisions: OperatorDecisions) -> set[bytes]:
        state = BranchState(decisions=operator_decisions, **seen)  # type: ignore[arg-type]
        left = remove_dropped_messages(make_request(talk), state, load_policy("thrifty"), model, INPUTS)
        made = rewrite(
            left.request, left.state, load_policy("thrifty"), model, 1.0, RewriteInputs(COUNTER, keys=left.keys)
        )
        return set(left.complete_plan(made).edits)

    assert keys[7] not in edits(OperatorDecisions())
    assert keys[7] in edits(OperatorDecisions(dropped=dict.fromkeys(keys[1:5], "dropped")))


def test_the_record_says_what_is_out_and_why() -> None:
    made = plan("rolling", dropped(5, 6, 7, 8))
    assert [made.edits[k].reason for k in KEYS[5:9]] == ["dropped by the operator"] * 4
    assert set(KEYS[5:9]) <= {edit.key for edit in made.new_edits}
    assert made.before == plan("rolling", None).before
    assert made.keys == KEYS
    again = plan("rolling", dropped(5, 6, 7, 8), edits=made.edits)
    assert again.new_edits == ()


def test_places_of_inserts_are_those_of_the_request_that_came() -> None:
    operator_decisions = replace(dropped(1, 2, 3, 4), notes=(OperatorNote("n1", "Use tabs."),))
    rolling = replace(load_policy("rolling"), stages=(), ask="never")
    assert [n for n, _ in plan(rolling, operator_decisions).placed_inserts] == [9]


def test_a_prompt_never_follows_a_tool_result_that_was_answered() -> None:
    assert list_sent_texts(plan(NOTHING, dropped(8))) == [m["content"] for m in TALK]


def test_hidden_rounds_leave_with_the_answer_that_they_led_to() -> None:
    talk = [*TALK[:2], assistant(None, "ours"), result("ours", "hidden"), *TALK[2:]]
    keys = chain.compute_keys("", make_messages(*talk))
    operator_decisions = OperatorDecisions(dropped=dict.fromkeys([*keys[4:6], *keys[6:7]], "dropped"))
    inputs = msgspec.structs.replace(INPUTS, hidden_keys=keys[2:4])
    left = remove_dropped_messages(
        make_request(talk), BranchState(decisions=operator_decisions), NOTHING, PLAIN_MODEL, inputs
    )
    assert sorted(left.removed_edits) == [2, 3, 4, 5, 6]


def test_a_plan_that_is_refused_still_leaves_out_what_the_operator_took() -> None:
    left = remove_dropped_messages(
        make_request(TALK), BranchState(decisions=dropped(1, 2, 3, 4)), NOTHING, PLAIN_MODEL, INPUTS
    )
    made = rewrite(left.request, left.state, NOTHING, PLAIN_MODEL, 0.0, RewriteInputs(COUNTER, keys=left.keys))
    done = left.complete_plan(msgspec.structs.replace(made, refusal="W6", messages=None))
    assert len(list_sent_texts(done)) == 6


def test_a_reference_to_what_is_out_is_taken_back() -> None:
    other = chain.public_id(KEYS[3])
    edit = Edit(KEYS[7], "text", f"[9 lines: as lines 1-9 of result {other}]", "refer_repeats", "", 99, 9)
    assert plan(NOTHING, None, edits={KEYS[7]: edit}).edits
    assert KEYS[7] not in plan(NOTHING, dropped(1, 2, 3, 4), edits={KEYS[7]: edit}).edits


def test_an_order_that_the_client_has_already_is_none_to_keep() -> None:
    broken_off = [user("one?"), assistant(None, "1"), result("1", "r"), user("two?"), assistant("ok"), user("three?")]
    keys = chain.compute_keys("", make_messages(*broken_off))
    out = list_sent_texts(
        plan(NOTHING, OperatorDecisions(dropped=dict.fromkeys(keys[3:5], "dropped")), broken_off), broken_off
    )
    assert out == ["one?", None, "r", "three?"]
    strict = replace(PLAIN_MODEL, alternate=True)
    twice = [user("one?"), assistant("ok"), user("two?"), user("and?"), assistant("ok"), user("three?")]
    keys = chain.compute_keys("", make_messages(*twice))
    for model, gone in ((strict, [2, 4]), (PLAIN_MODEL, [2, 4])):
        operator_decisions = OperatorDecisions(dropped=dict.fromkeys([keys[n] for n in gone], "dropped"))
        left = remove_dropped_messages(
            make_request(twice), BranchState(decisions=operator_decisions), NOTHING, model, INPUTS
        )
        assert sorted(left.removed_edits) == gone
    in_turn = [user("one?"), assistant("ok"), user("two?"), assistant("ok"), user("three?")]
    keys = chain.compute_keys("", make_messages(*in_turn))
    operator_decisions = OperatorDecisions(dropped={keys[2]: "dropped"})
    assert not remove_dropped_messages(
        make_request(in_turn), BranchState(decisions=operator_decisions), NOTHING, strict, INPUTS
    ).removed_edits
