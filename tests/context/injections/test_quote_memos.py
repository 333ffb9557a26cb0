"""Memos at the tail (A13): quoted data with date and source, once a conversation where edits last."""

from __future__ import annotations

import pytest

from proxy.chat import chain
from proxy.context.branch_state import BranchState
from proxy.context.injections.quote_memos import QuoteMemos
from proxy.context.models import Model
from proxy.context.pipeline import rewrite
from proxy.context.plan import Edit, Insert, Plan, RewriteInputs
from proxy.context.policy import Policy
from proxy.context.view import View
from proxy.notes.memo_matching import START, Memo, render_memos
from tests.context.agent import load_policy
from tests.conversations import COUNTER, PLAIN_MODEL, Json, assistant, build_view, make_request, result, system, user

MEMOS = tuple(
    Memo(f"m{n}", f"finding number {n}: the deploy key lives in vault {n}", ("deploy",), f"s{n}", 9e8, 1e9 + n * 86_400)
    for n in range(3)
)


def list_memo_inserts(view: View, share: float = 0.1) -> list[Insert]:
    return list(QuoteMemos(share)(view))


def plan_of(values: list[Json], state: BranchState, memos: tuple[Memo, ...], name: str = "thrifty") -> Plan:
    plan = rewrite(
        make_request(values), state, load_policy(name), PLAIN_MODEL, 1.0, RewriteInputs(COUNTER, memos=memos)
    )
    assert plan.refusal is None
    return plan


def test_a13_memos_are_quoted_with_date_and_source_at_the_tail() -> None:
    (insert,) = list_memo_inserts(build_view([user("a")], memos=MEMOS))
    assert (insert.place, insert.persistent, insert.text) == ("tail", True, "\n\n" + render_memos(MEMOS))
    assert '"saved": "2001-09-09"' in insert.text
    assert '"session": "s0"' in insert.text
    (literal,) = list_memo_inserts(build_view([user("a")], memos=MEMOS, policy=Policy("test", schedule="always")))
    assert not literal.persistent
    assert list_memo_inserts(build_view([user("a")])) == []


def test_a13_one_is_quoted_once_a_conversation_and_a_changed_one_again() -> None:
    values: list[Json] = [system("s"), user("a")]
    first = plan_of(values, BranchState(), MEMOS[:1])
    state = BranchState().after_sending(first, 0.0)
    values += [assistant(None, "1"), result("1", "x")]
    second = plan_of(values, state, MEMOS[:1])
    assert second.messages is not None
    assert second.messages[:2] == first.messages, "the prefix stays byte for byte"
    assert START.encode() not in second.messages[-1]
    third = plan_of(values, state, MEMOS[:2])
    assert third.messages is not None
    assert b"m1" in third.messages[-1]
    assert b"m0" not in third.messages[-1]
    changed = Memo("m0", "finding number 0 was wrong: it lives in the safe", (), "s9", 9e8, 2e9)
    assert b"the safe" in (plan_of(values, state, (changed,)).messages or [b""])[-1]


def test_a13_those_that_do_not_fit_the_budget_are_left_out_from_the_last_on() -> None:
    size = len("\n\n" + render_memos(MEMOS[:2]))
    model = Model("m", window=int(size * 10 / 0.8) + 13)
    (insert,) = list_memo_inserts(build_view([user("a")], memos=MEMOS, model=model))
    assert insert.text == "\n\n" + render_memos(MEMOS[:2])
    assert list_memo_inserts(build_view([user("a")], memos=MEMOS, model=Model("m", window=100))) == []
    full = build_view([user("a" * (size * 10 - 40))], memos=MEMOS, model=model)
    assert list_memo_inserts(full) == [], "the prompt itself has taken the room"


def test_a13_never_in_a_system_message_and_never_where_the_tail_takes_no_text() -> None:
    for name in ("rolling", "thrifty"):
        messages = plan_of([system("s"), user("a")], BranchState(), MEMOS, name).messages
        assert messages is not None
        assert START.encode() not in messages[0]
        assert START.encode() in messages[-1]
    values = [system("s"), user("a"), assistant(None, "1"), result("1", "x")]
    nowhere = Model("m", after_tool="none")
    plan = rewrite(
        make_request(values), BranchState(), load_policy("thrifty"), nowhere, 1.0, RewriteInputs(COUNTER, memos=MEMOS)
    )
    assert plan.messages is None


@pytest.mark.parametrize("name", ["rolling", "thrifty"])
def test_a9_the_layers_are_in_order_and_only_guidelines_and_state_are_in_the_system_message(name: str) -> None:
    """System prompt, guidelines, Global Anchor, scratchpad, memos: those after the anchor at the tail."""
    values = [system("s"), user("a"), assistant(None, "1"), result("1", "x" * 9000), assistant("b"), user("c")]
    keys = chain.compute_keys("", make_request(values).messages)
    cut = Edit(keys[3], "text", "[shortened: 1 of 9000 characters]\nx", "shorten_results", "stale", 9004, 40)
    state = BranchState(edits={keys[3]: cut}, states=((keys[4], "Goal: to see the order"),))
    plan = rewrite(
        make_request(values),
        state,
        load_policy(name),
        PLAIN_MODEL,
        1.0,
        RewriteInputs(COUNTER, scratchpad="- pad", memos=MEMOS[:1]),
    )
    assert plan.refusal is None
    assert plan.messages is not None
    text = b"\n".join(plan.messages).decode()
    places = [text.index(layer) for layer in ("Goal: to see the order", "| - pad", "finding number 0")]
    assert places == sorted(places)
    first, last = plan.messages[0].decode(), plan.messages[-1].decode()
    assert ("Goal: to see the order" in first) is (name == "rolling")
    assert ("How to read this conversation" in first) is (name == "rolling")
    assert "| - pad" in last
    assert "finding number 0" in last
