"""The policy `progressive` (rows B): the source's numbers, every schedule, every model."""

from __future__ import annotations

import json
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from proxy.context import validate
from proxy.context.branch_state import BranchState
from proxy.context.injections import BUILT_IN_INJECTIONS
from proxy.context.injections.count_down import CountDown
from proxy.context.injections.report_progress import ReportProgress
from proxy.context.injections.warn_of_loops import WarnOfLoops
from proxy.context.models import Model, read_models
from proxy.context.pipeline import rewrite
from proxy.context.policy import Policy, apply_model_settings, check_models, read_policy, with_schedule
from proxy.context.stages import BUILT_IN_STAGES
from proxy.context.stages.window_by_iteration import WindowByIteration
from proxy.dialects.completions.request import read_request, write_request
from proxy.errors import ConfigError
from tests.context.agent import Story, stories
from tests.context.research import list_sent_messages, list_sent_texts, load_progressive, make_iterations, make_plan
from tests.conversations import INPUTS, PLAIN_MODEL, make_request

SCHEDULES = ("always", "over_budget", "when_it_pays")
EARLY = {"moderate": 2, "aggressive": 3, "emergency": 5, "since": 1, "max_iterations": 6}
"""Boundaries that drawn conversations reach."""


def early(schedule: str, **more: Any) -> Policy:
    policy = apply_model_settings(load_progressive(), Model(own={"progressive": {**EARLY, **more}}))
    return with_schedule(policy, schedule)  # type: ignore[arg-type]  # one of the three


def test_b3_b4_b8_the_policy_that_we_ship_is_the_source_literally() -> None:
    policy = load_progressive()
    assert (policy.schedule, policy.ask, policy.literal) == ("always", "never", True)
    assert policy.stages[1] == WindowByIteration(10, 15, 20, 2, 2, 3, 8000)
    assert policy.injections == (ReportProgress(5, 30), WarnOfLoops(), CountDown(15, 20, 30, "firm"))


def test_b3_notes_are_at_the_tail_and_never_in_the_system_prompt() -> None:
    for n in (5, 12, 16, 22):
        made = make_plan(make_iterations(n, before=2))
        assert {i.place for _, i in made.placed_inserts} == {"tail"}
        found = list_sent_texts(make_iterations(n, before=2))
        assert found[0] == "Be exact."
        assert found[-1].startswith(f"result {n - 1}\n\n[PROGRESS: Iteration {n}/30 | {n} tools used | 0 pages read]")
    assert list_sent_texts(make_iterations(16))[-1].endswith("\n\n[14 iterations left. Complete your answer.]")
    assert list_sent_texts(make_iterations(22))[-1].endswith("\n\n[EMERGENCY: 8 iterations remaining. Synthesize NOW.]")


@pytest.mark.parametrize(("after_tool", "roles"), [("append", "tool"), ("user", "user"), ("none", "tool")])
def test_b3_notes_go_where_the_upstream_takes_them(after_tool: str, roles: str) -> None:
    found = list_sent_messages(make_iterations(22), model=Model(after_tool=after_tool))  # type: ignore[arg-type]  # one of the three
    assert found[-1].role == roles
    assert ("EMERGENCY" in found[-1].text) == (after_tool != "none")


def test_b2_the_request_says_how_many_iterations_there_may_be() -> None:
    assert "Iteration 7/12" in list_sent_texts(make_iterations(7), options={"max-iterations": "12"})[-1]
    assert "[3 iterations left." in list_sent_texts(make_iterations(17), options={"max-iterations": "20"})[-1]


def test_b7_a_model_has_boundaries_and_urgency_of_its_own() -> None:
    table = {"small": {"progressive": {"aggressive": 4, "max_iterations": 8, "urgency": "gentle", "pages": "search"}}}
    (small,) = read_models(table)
    found = list_sent_texts(make_iterations(5), model=replace(small, min=0))[-1]
    assert "[PROGRESS: Iteration 5/8 | 5 tools used | 5 pages read]" in found
    assert found.endswith("[3 iterations left. Please begin to bring your answer together.]")
    assert "iterations left" not in list_sent_texts(make_iterations(5))[-1]
    assert apply_model_settings(load_progressive(), PLAIN_MODEL) is load_progressive()


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"progressive": {"moderat": 3}}, 'models."m".progressive.moderat'),
        ({"progressive": {"moderate": "3"}}, 'models."m".progressive.moderate'),
        ({"progressive": {"urgency": "loud"}}, "urgency"),
        ({"progresive": {"moderate": 3}}, 'models."m".progresive'),
    ],
)
def test_b7_a_setting_that_no_stage_or_injection_has_is_refused_at_the_start(table: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_models({"progressive": load_progressive()}, read_models({"m": table}))
    assert caught.value.key == key
    check_models(
        {"progressive": load_progressive()}, read_models({"m": {"progressive": {"moderate": 3, "window": 9000}}})
    )


def test_b6_a_note_that_went_out_is_remembered() -> None:
    values = make_iterations(0)
    for n in range(3):
        values.append({"role": "assistant", "content": f"I need to plan {n}"})
        values.append({"role": "user", "content": "Go on."})
    first = make_plan(values, tools=True)
    assert [i.source for _, i in first.placed_inserts] == ["warn_of_loops"]
    then = BranchState().after_sending(first, 0.0)
    assert then.note_counts == {"theme_loop": 3}
    assert make_plan(values, state=then, tools=True).placed_inserts == ()


def test_b3_other_schedules_make_the_same_window_when_it_is_time() -> None:
    """Over budget: as much as is needed. When it pays: in batches, which stay as they are."""
    model = replace(PLAIN_MODEL, window=4000)
    long = make_iterations(24, before=3)
    for message in long:
        if message["role"] == "tool":
            message["content"] += "x" * 200
    assert len(
        list_sent_messages(
            long, with_schedule(load_progressive(), "over_budget"), model=replace(PLAIN_MODEL, window=400_000)
        )
    ) == len(long)
    assert len(list_sent_messages(long, with_schedule(load_progressive(), "over_budget"), model=model)) < len(long)
    cold = list_sent_messages(long, with_schedule(load_progressive(), "when_it_pays"))
    assert [m.text for m in cold] == list_sent_texts(long)


def test_b3_when_it_pays_repeats_its_edits_byte_for_byte() -> None:
    policy = with_schedule(load_progressive(), "when_it_pays")
    state = BranchState()
    before: dict[bytes, Any] = {}
    batches = 0
    for n in range(30):
        made = make_plan(make_iterations(n, before=3), policy, state)
        assert all(made.edits[k] == edit for k, edit in before.items())
        batches += bool(made.new_edits)
        before = dict(made.edits)
        state = state.after_sending(made, float(n))
    assert before
    assert batches < 15


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=25)
@given(story=stories())
def test_every_plan_is_valid_under_every_schedule(schedule: str, story: Story) -> None:
    for turn in story.play(early(schedule)):
        assert turn.plan.refusal is None, turn.plan.notes
        sent = read_request(write_request(turn.request, turn.plan.messages)).messages
        mine = {m.form: m for m in turn.request.messages}
        strict = Model(alternate=story.model.alternate, after_tool=story.model.after_tool)
        broken = validate._find_violations(
            [validate.PlannedMessage(mine.get(m.form, m), m.text, bool(m.calls)) for m in sent], strict
        )
        before = validate._find_violations(
            [validate.PlannedMessage(m, m.text, bool(m.calls)) for m in turn.request.messages], strict
        )
        assert set(broken) <= set(before)
        assert [m.text for m in sent if m.is_system] == [m.text for m in turn.request.messages if m.is_system]


def _long(count: int) -> list[dict[str, Any]]:
    """So many messages of 2,000 characters on one prompt."""
    body = "a line of a tool's output that is about as long as such lines are: /path/to/file.py\n" * 24
    values = make_iterations(count // 2)
    for message in values:
        if message["role"] == "tool":
            message["content"] += body
    return values


@pytest.mark.timed
def test_planning_of_progressive_takes_linear_time() -> None:
    """4 ms of processor time for 400 messages and 800 KB with warm caches (with room for a slower machine)."""
    took = {}
    for count in (400, 4000):
        asked = make_request(_long(count))
        rewrite(asked, BranchState(), load_progressive(), PLAIN_MODEL, 0.0, INPUTS)
        best = 9.0
        for _ in range(5):
            began = time.process_time()
            rewrite(asked, BranchState(), load_progressive(), PLAIN_MODEL, 0.0, INPUTS)
            best = min(best, time.process_time() - began)
        took[count] = best
    print(f"progressive: {took[400] * 1000:.1f} ms for 400 messages, {took[4000] * 1000:.1f} ms for 4,000")
    assert took[400] < 0.012
    assert took[4000] < 30 * took[400]


def test_a_copy_of_the_policy_under_another_name_can_be_made() -> None:
    table = tomllib.loads((Path(__file__).parents[2] / "config/policies/progressive.toml").read_text())
    mine = read_policy(json.loads(json.dumps({**table, "name": "mine"})), BUILT_IN_STAGES, BUILT_IN_INJECTIONS)
    assert mine.injections == load_progressive().injections
