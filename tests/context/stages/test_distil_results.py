"""Older calls in a line each: at the tail, or where their results stand; what a helper is asked about them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.context.branch_state import BranchState
from proxy.context.injections.reflect import HEADING, Reflect
from proxy.context.plan import Edit, Plan
from proxy.context.policy import Policy
from proxy.context.stages.distil_results import DistilResults
from proxy.errors import ConfigError
from tests.context.agent import Story, load_policy, stories
from tests.context.research import list_sent_texts, make_plan, make_step
from tests.context.test_pipeline_properties import read_sent_messages, unpaired
from tests.conversations import PLAIN_MODEL, Json, assistant, system, user

GOAL = "learn how flask production logging is set up"


def make_searches(count: int = 8) -> list[Json]:
    """A prompt and so many searches on it."""
    values = [system("Be exact."), user(GOAL)]
    for n in range(count):
        values += make_step("search", f"page {n} " + "x" * 200, f"let me see {n}", f"c{n}", query=f"topic {n}")
    return values


def reflective(place: str = "tail", schedule: str = "always", **more: Any) -> Policy:
    """The policy with other settings in both tables."""
    policy = load_policy("reflective")
    stages = [replace(s, place=place, **more) if isinstance(s, DistilResults) else s for s in policy.stages]
    injections = [replace(v, **more) if isinstance(v, Reflect) else v for v in policy.injections]
    return replace(policy, stages=tuple(stages), injections=tuple(injections), schedule=schedule)  # type: ignore[arg-type]


def lines(text: str) -> list[str]:
    """The lines of what is told at the tail."""
    return [line for line in text.partition(HEADING)[2].splitlines() if line]


def test_c3_older_steps_leave_and_are_listed_at_the_tail() -> None:
    found = list_sent_texts(make_searches(), reflective())
    assert found[:4] == ["Be exact.", GOAL, "let me see 3", "page 3 " + "x" * 200]
    assert len(found) == 2 + 10
    told = lines(found[-1])
    assert [line[:21] for line in told] == ["- searched 'topic 0' ", "- searched 'topic 1' ", "- searched 'topic 2' "]
    assert told[0].startswith("- searched 'topic 0' → page 0 xxx")


def test_c3_the_line_can_take_the_place_of_the_result() -> None:
    found = list_sent_texts(make_searches(), reflective("result"))
    assert len(found) == 2 + 16
    assert found[3].startswith("searched 'topic 0' → page 0 xxx")
    assert found[9] == "page 3 " + "x" * 200
    assert HEADING not in found[-1]


def test_c3_the_line_is_there_too_where_the_tail_takes_no_text() -> None:
    found = list_sent_texts(make_searches(), reflective(), model=replace(PLAIN_MODEL, after_tool="none"))
    assert found[3].startswith("searched 'topic 0' → page 0 xxx")


def test_c3_a_result_that_is_shorter_than_its_line_stays() -> None:
    values = [user(GOAL)]
    for n in range(8):
        values += make_step("search", f"ok {n}", None, f"c{n}", query=f"topic {n}")
    assert make_plan(values, reflective("result")).messages is None


def answers(made: Plan, *said: Json) -> dict[str, str]:
    """The helper's answers to the asks of a plan, oldest first."""
    asks = list(reversed(made.asks))
    return {ask.id: json.dumps(one) for ask, one in zip(asks, said, strict=False)}


def test_c2_a_helper_is_asked_about_the_newest_batches_and_now_for_those_that_are_old() -> None:
    made = make_plan(make_searches(), reflective(reflect="helper"))
    assert [(ask.kind, ask.urgent) for ask in made.asks] == [("reflection", n > 0) for n in range(4)]
    assert "page 7" in made.asks[0].prompt
    assert GOAL in made.asks[0].prompt
    known = dict.fromkeys((ask.id for ask in made.asks), "no json")
    assert not make_plan(make_searches(), reflective(reflect="helper"), BranchState(helper_answers=known)).asks
    values = [*make_searches(), assistant("done"), user("and now?")]
    assert all(ask.urgent for ask in make_plan(values, reflective(reflect="helper")).asks)


def test_c2_nobody_is_asked_where_reflection_is_off_or_inline() -> None:
    assert not make_plan(make_searches(), reflective()).asks
    assert not make_plan(make_searches(), reflective(reflect="inline")).asks
    assert make_plan(make_searches(), reflective(), options={"reflect": "helper"}).asks


def test_c2_c3_the_answer_takes_the_place_of_the_deterministic_line() -> None:
    policy = reflective(reflect="helper")
    said = {"tool_calls": [{"call": 1, "insights": "too general", "relevance": "high", "learning": "add a framework"}]}
    early = make_plan(make_searches(1), policy)
    known = answers(early, said)
    told = lines(list_sent_texts(make_searches(), policy, state=BranchState(helper_answers=known))[-1])
    assert told[0] == "- searched 'topic 0' → too general; add a framework"
    assert told[1].startswith("- searched 'topic 1' → page 1")


def test_c5_a_batch_is_asked_about_at_once() -> None:
    policy = reflective(reflect="helper", reflect_batch=3)
    assert not make_plan(make_searches(2), policy).asks
    (ask,) = make_plan(make_searches(3), policy).asks
    assert len(ask.message_keys) == 3
    assert "[3] search" in ask.prompt
    items = [{"call": n, "insights": f"insight {n}"} for n in (1, 2, 3, 4)]
    told = lines(
        list_sent_texts(
            make_searches(), policy, state=BranchState(helper_answers={ask.id: json.dumps({"tool_calls": items})})
        )[-1]
    )
    assert told == [f"- searched 'topic {n}' → insight {n + 1}" for n in range(3)]


def test_c3_under_other_schedules_an_edit_stays_as_it_was_made() -> None:
    policy = reflective("result", "when_it_pays")
    state, first = BranchState(), dict[bytes, Edit]()
    for n in range(1, 30):
        made = make_plan(make_searches(n), policy, state)
        assert made.refusal is None
        assert {k: made.edits[k] for k in first} == first
        first = dict(made.edits)
        state = state.after_sending(made, 0.0)
    assert first


@pytest.mark.slow
@pytest.mark.parametrize("place", ["tail", "result"])
@pytest.mark.parametrize("schedule", ["always", "over_budget", "when_it_pays"])
@settings(max_examples=12)
@given(story=stories(), mode=st.sampled_from(["inline", "helper"]), batch=st.sampled_from([1, 2, 3]))
def test_c2_c3_every_plan_is_valid_whoever_reflects(
    place: str, schedule: str, story: Story, mode: str, batch: int
) -> None:
    for turn in story.play(reflective(place, schedule, reflect=mode, reflect_batch=batch)):
        assert turn.plan.refusal is None, turn.plan.notes
        out = read_sent_messages(turn)
        assert unpaired(out) == []
        assert sum("### REFLECTION" in m.text for m in out) <= (mode == "inline")
        assert len(turn.plan.asks) <= 4 * (mode == "helper")


def test_a_place_that_is_none_is_an_error() -> None:
    with pytest.raises(ConfigError, match="tail or result"):
        DistilResults(place="head")
