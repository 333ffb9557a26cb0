"""Facts that are continued from a known beginning of a history are those that a new computation finds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from proxy.chat import chain, group
from proxy.chat.message import PrefixCache, Request
from proxy.context import view
from proxy.context.branch_state import BranchState
from proxy.context.pipeline import rewrite
from proxy.context.plan import Edit, Plan
from proxy.context.view import History
from proxy.dialects.completions.request import build_prefix_cache, read_message, read_request
from tests.context.agent import POLICIES, Story, load_policy, stories
from tests.conversations import COUNTER, INPUTS, Json, assistant, encode_json, result, system, user

TALK = [system(), user("a"), assistant("so", "1"), result("1", "x" * 90), assistant("done"), user("b")]


def body(values: list[Json]) -> bytes:
    return encode_json({"model": "m", "messages": values})


def read(values: list[Json], before: Request | None = None) -> Request:
    """The request, as one that goes on from another."""
    front: PrefixCache | None = build_prefix_cache(before) if before is not None else None
    return read_request(body(values), read_message, front)


def build_history_of(asked: Request) -> History:
    return view.build_history(asked, chain.compute_keys("", asked.messages), COUNTER, None)


def list_plan_values(plan: Plan) -> list[object]:
    """All of a plan that can be compared."""
    return [list(v) if f.name == "keys" else v for f in fields(plan) for v in [getattr(plan, f.name)]]


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=10)
@given(story=stories(), again=st.lists(st.booleans(), min_size=1, max_size=5))
def test_a_plan_is_the_same_whether_or_not_the_history_is_known(policy: str, story: Story, again: list[bool]) -> None:
    """Each request goes on from the one before; some are sent again, and by then a longer one of theirs is known."""
    session, now = BranchState(), 0.0
    before: Request | None = None
    for n, stop in enumerate(story.stops):
        now += story.pauses[n % len(story.pauses)]
        asked = read(story.values[:stop], before)
        plan = rewrite(asked, session, load_policy(policy), story.model, now, INPUTS)
        fresh = rewrite(read(story.values[:stop]), session, load_policy(policy), story.model, now, INPUTS)
        assert list_plan_values(plan) == list_plan_values(fresh)
        if before is not None and again[n % len(again)]:
            repeated = rewrite(before, session, load_policy(policy), story.model, now, INPUTS)
            fresh = rewrite(
                read(story.values[: len(before.messages)]),
                session,
                load_policy(policy),
                story.model,
                now,
                INPUTS,
            )
            assert list_plan_values(repeated) == list_plan_values(fresh)
        session = session.after_sending(plan, now)
        state = (plan.keys[-1], f"Goal: {n}") if plan.asks_for_state and story.states[n % len(story.states)] else None
        session = session.after_answer(predicted=plan.predicted, cached=plan.predicted, state=state)
        before = asked


def test_known_facts_are_handed_on_and_extended() -> None:
    first = read(TALK[:4])
    known = build_history_of(first)
    longer = read(TALK, first)
    grown = build_history_of(longer)
    assert longer.memo_values is first.memo_values
    assert grown.original_tokens == [COUNTER(m) for m in longer.messages]
    assert (grown.request_counts, grown.assistant_indexes, grown.last_user_index) == ([0, 0, 1, 1, 2, 2], [2, 4], 5)
    assert len(known.original_tokens) == 4, "what was handed out stays as it is"
    assert build_history_of(longer) is grown


def test_another_history_is_computed_again() -> None:
    first = read(TALK[:4])
    build_history_of(first)
    other = Request(**{f.name: getattr(first, f.name) for f in fields(first)} | {"messages": read(TALK[1:]).messages})
    assert build_history_of(other).assistant_indexes == [1, 3]


def test_edits_in_force_are_applied_once() -> None:
    asked = read(TALK[:4])
    known = build_history_of(asked)
    cut = Edit(known.keys[3], "gone", None, "s", "", 94, 0)
    given = {cut.key: cut}
    one = view.apply_edits(known, given)
    assert (one.edits, one.lossy_edit_count, one.is_complete, one.tokens[3], len(one.marks)) == (given, 1, False, 0, 3)
    assert view.apply_edits(known, given) is one
    longer = view.apply_edits(build_history_of(read(TALK, asked)), given)
    assert longer.edits is one.edits, "so that who has looked at them can tell that they are the same"
    assert (longer.tokens[:4], len(longer.tokens), len(longer.sizes)) == (one.tokens, 6, 5)
    assert view.apply_edits(build_history_of(read(TALK, asked)), dict(given)) is not longer


@given(
    st.lists(st.sampled_from([b"a", b"b"]), max_size=40),
    st.lists(st.sampled_from([b"a", b"b"]), max_size=9),
    st.integers(0, 40),
)
def test_the_common_prefix_of_two_prompts_is_the_longest(one: list[bytes], more: list[bytes], keep: int) -> None:
    other = (*one[:keep], *more)
    alike = view.count_common_marks(tuple(one), other)
    assert tuple(one[:alike]) == other[:alike]
    assert alike in (len(one), len(other)) or one[alike] != other[alike]


def test_groups_of_a_spliced_prompt_do_not_replace_those_of_the_clients_prompt() -> None:
    one = read(TALK)
    keys = chain.compute_keys("", one.messages)
    mine = group.split_request_groups(one, keys)
    assert view.build_history(one, keys, COUNTER, None).groups is mine
    messages, woven_keys = (*one.messages[:3], *one.messages), [*keys[:3], *keys]
    spliced = replace(one, messages=messages, is_spliced=True)
    assert view.build_history(spliced, woven_keys, COUNTER, None).groups == group.split_groups(messages, woven_keys)
    assert one.read_memo(group.GROUPS_MEMO, (keys[0], None)) == (len(one.messages), mine)
