"""Properties of `hierarchical` with small budgets and old messages, under every schedule: see agent.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.chat.message import Request
from proxy.context.branch_state import BranchState
from proxy.context.pipeline import rewrite
from proxy.context.plan import Edit, RewriteInputs
from proxy.context.policy import Policy, with_schedule
from proxy.context.stages.compress_levels import CompressLevels
from tests.context.agent import Story, Turn, load_policy, stories
from tests.context.test_pipeline_properties import read_sent_messages, stand, unpaired
from tests.conversations import COUNTER, make_next_request

pytestmark = pytest.mark.slow

TIGHT: dict[str, Any] = {
    "total": 3000, "session": 400, "working": 900, "block": 3, "recent": 1, "verbose": 1000, "summary_chars": 300,
    "brief_chars": 150, "told_chars": 100, "least_words": 1, "same_task": 0.9, "session_s": 100, "working_s": 40,
}  # fmt: skip


def tight(schedule: Any) -> Policy:
    policy = load_policy("hierarchical")
    stages = tuple(replace(s, **TIGHT) if isinstance(s, CompressLevels) else s for s in policy.stages)
    return with_schedule(replace(policy, stages=stages), schedule)


def play(story: Story, policy: Policy, pins: list[int], each: float) -> list[Turn]:
    """As `Story.play`, with messages `each` seconds apart, and some of them pinned."""
    turns: list[Turn] = []
    state = BranchState()
    asked: Request | None = None
    for n, stop in enumerate(story.stops):
        values = story.values[:stop]
        asked = make_next_request(asked, values, tools=[{"type": "function", "function": {"name": "run"}}])
        times = [each * k for k in range(len(values))]
        plan = rewrite(asked, state, policy, story.model, times[-1] + 1, RewriteInputs(COUNTER, times=times))
        turns.append(Turn(values, asked, state, plan, times[-1] + 1))
        keys = {plan.keys[p % len(values)] for p in pins} if n == 0 else set()
        state = msgspec.structs.replace(state.after_sending(plan, times[-1] + 1), pins=state.pins | keys)
        state = state.after_answer(predicted=plan.predicted, cached=plan.predicted, state=None)
    return turns


def assert_valid_and_no_pair_parted(turn: Turn) -> None:
    assert turn.plan.refusal is None, turn.plan.notes
    assert unpaired(read_sent_messages(turn)) == []
    head = COUNTER.count_tools(turn.request.tools)
    own = sum(n == -1 for n, _ in turn.plan.placed_inserts)
    assert abs(turn.plan.after - head - sum(map(COUNTER, read_sent_messages(turn)))) <= 6 * own


def assert_pinned_messages_go_out_as_they_came(turn: Turn) -> None:
    inserted = {n for n, _ in turn.plan.placed_inserts}
    for n, (came, goes) in enumerate(zip(turn.request.messages, stand(turn), strict=True)):
        edit = turn.plan.edits.get(turn.plan.keys[n])
        if turn.plan.keys[n] in turn.state.pins and not came.is_system and n not in inserted:
            assert goes is not None
            assert goes.raw == came.raw or (edit is not None and edit.action == "append")


def _stood(turn: Turn, edit: Edit) -> int:
    """Tokens of the message before the edit: with what had been written at its end."""
    held = turn.state.edits.get(edit.key)
    return max(edit.before, held.after if held is not None else 0)


def assert_nothing_leaves_without_a_reason_and_no_summary_is_longer(turn: Turn, schedule: str) -> None:
    """Messages never leave without the summary that stands for them."""
    for edit in turn.plan.edits.values():
        assert edit.reason
        if edit.text and edit.text.startswith("[summary of "):
            assert edit.action == "text"
            assert edit.after <= _stood(turn, edit) or schedule == "always"


@pytest.mark.parametrize("schedule", ["always", "over_budget", "when_it_pays"])
@settings(max_examples=50)
@given(story=stories(), pins=st.lists(st.integers(0, 50), max_size=2), each=st.sampled_from([0.0, 5.0, 30.0]))
def test_e4_e7_plans_are_valid_pins_stay_and_what_is_gone_has_its_reason(
    schedule: str, story: Story, pins: list[int], each: float
) -> None:
    for turn in play(story, tight(schedule), pins, each):
        assert_valid_and_no_pair_parted(turn)
        assert_pinned_messages_go_out_as_they_came(turn)
        assert_nothing_leaves_without_a_reason_and_no_summary_is_longer(turn, schedule)
