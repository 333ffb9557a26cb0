"""Row D4: what is older than the last messages becomes one sentence, or what a helper model says of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from proxy.context.branch_state import BranchState
from proxy.context.models import Model
from proxy.context.pipeline import rewrite
from proxy.context.plan import Ask, Plan
from proxy.context.plan_events import make_events
from proxy.context.policy import Policy, ScheduleName
from proxy.context.stages.fit_budget import FitBudget
from proxy.context.stages.summarize_old import SummarizeOld
from proxy.context.summaries.summary import HEADING
from proxy.context.view import View
from proxy.dialects.completions.request import read_message
from proxy.errors import ConfigError
from tests.conversations import INPUTS, PLAIN_MODEL, Json, assistant, build_view, make_request, result, system, user

STAGE = SummarizeOld(only_over=False)
SENTENCE = "Previous 50 turns: 25 user messages, 25 model responses, 10 tool calls"
OLD = [m for n in range(25) for m in (
    [user(f"question {n}"), assistant(f"answer {n}", "c"), result("c", "found")] if n < 10
    else [user(f"question {n}"), assistant(f"answer {n}")]
)]  # fmt: skip
NEW = [m for n in range(5) for m in (user(f"new {n}"), assistant(f"so {n}"))]
TALK = [system(), *OLD, *NEW, user("now")]


def policy(stage: SummarizeOld = STAGE, schedule: ScheduleName = "always") -> Policy:
    return Policy("summarize", stages=(stage, FitBudget()), schedule=schedule, ask="never")


def make_plan(
    talk: Sequence[Json],
    stage: SummarizeOld = STAGE,
    schedule: ScheduleName = "always",
    state: BranchState | None = None,
    model: Model = PLAIN_MODEL,
) -> Plan:
    return rewrite(make_request(talk), state or BranchState(), policy(stage, schedule), model, 0.0, INPUTS)


def out(plan: Plan) -> list[tuple[str, str]]:
    """Role and text of each message that goes out."""
    assert plan.refusal is None
    assert plan.messages is not None
    return [(m.role, m.text) for m in map(read_message, plan.messages)]


def counted(text: str) -> int:
    """Number of messages that the sentences in a text stand for: each call has one result."""
    found = re.findall(r"Previous (\d+) turns: \d+ user messages, \d+ model responses, (\d+) tool calls", text)
    return sum(int(turns) + int(calls) for turns, calls in found)


def list_asks(talk: Sequence[Json], stage: SummarizeOld = STAGE, **more: Any) -> tuple[View, list[Ask]]:
    view = build_view(talk, policy=policy(stage), **more)
    return view, list(stage.asks(view))


def test_d4_old_messages_become_the_sources_sentence_after_the_first_user_message_that_stays() -> None:
    told = out(make_plan([system(), *OLD, *NEW[:-1]], SummarizeOld(keep=9, only_over=False)))
    assert told == [
        ("system", "Be brief."), ("user", "new 0\n\n" + SENTENCE), *((m["role"], m["content"]) for m in NEW[1:-1]),
    ]  # fmt: skip


def test_d4_the_prompt_that_the_last_messages_belong_to_stays_and_bears_it() -> None:
    told = out(make_plan(TALK))
    assert told[1] == ("user", "new 0\n\n" + SENTENCE)
    assert [t for _, t in told[2:]] == [*(m["content"] for m in NEW[1:]), "now"]
    steps = [m for n in range(12) for m in (assistant(None, "c"), result("c", f"result {n} of the call"))]
    agent = out(make_plan([user("do it"), *steps]))
    assert agent[0] == ("user", "do it\n\nPrevious 7 turns: 0 user messages, 7 model responses, 7 tool calls")
    assert len(agent) == 11


def test_d4_a_call_and_its_results_are_summarized_together() -> None:
    calls = [assistant(None, "a", "b"), result("a", "x" * 90), result("b", "x" * 90)]
    told = out(make_plan([user("go"), *calls * 4], SummarizeOld(keep=4, only_over=False)))
    assert [r for r, _ in told] == ["user", *["assistant", "tool", "tool"] * 2]


@pytest.mark.parametrize("talk", [[], [assistant("Welcome!")], [assistant("a", "c"), result("c", "r")] * 9])
def test_d4_without_old_messages_or_a_place_for_the_summary_everything_stays(talk: list[Json]) -> None:
    assert make_plan([*talk, user(None)]).messages is None
    assert make_plan([*talk, user("now")], SummarizeOld(keep=100, only_over=False)).messages is None


def test_d4_a_sentence_no_shorter_than_what_it_is_of_leaves_the_messages() -> None:
    assert make_plan([user("hello"), assistant("hi"), *NEW, user("now")]).messages is None
    assert make_plan([user("hello" * 20), assistant("hi"), *NEW, user("now")]).messages is not None


def test_d4_pinned_messages_stay_and_so_does_what_they_need() -> None:
    first = user("first " * 30)
    talk = [system("Be."), first, assistant(None, "c"), result("c", "r"), assistant("done"), *NEW, user("now")]
    view = build_view(talk, policy=policy())
    pinned = BranchState(pins=frozenset({view.keys[3]}))
    told = out(make_plan(talk, state=pinned))
    sentence = "Previous 1 turns: 1 user messages, 0 model responses, 0 tool calls"
    assert [t for _, t in told[1:5]] == ["", "r", "done", "new 0\n\n" + sentence]
    told = out(make_plan(talk[1:], state=BranchState(pins=frozenset({build_view(talk[1:], policy=policy()).keys[2]}))))
    assert [t for _, t in told[:4]] == ["first " * 30, "", "r", "done"], "no assistant message begins a prompt"


def test_d4_by_default_it_acts_only_over_the_budget() -> None:
    size = build_view(TALK).total
    at = replace(PLAIN_MODEL, window=-(-size * 10 // 8))
    assert make_plan(TALK, SummarizeOld(), model=at).messages is None
    assert make_plan(TALK, SummarizeOld(), model=replace(PLAIN_MODEL, window=size)).messages is not None
    assert make_plan(TALK, SummarizeOld()).messages is None


def test_d4_asks_come_in_batches_of_whole_steps_each_with_an_id_that_stays() -> None:
    view, asks = list_asks(TALK)
    assert [len(a.message_keys) for a in asks] == [
        21,
        20,
        20,
    ]  # seven rounds of three; then pairs, the last prompt among them
    assert {a.kind for a in asks} == {"summary"}
    assert all(a.max_chars > 0 and "question" in a.prompt for a in asks)
    _, more = list_asks([*TALK, assistant("more"), user("and"), assistant("more"), user("on")])
    assert [a.id for a in more[: len(asks)]] == [a.id for a in asks]
    assert all(k in view.keys for a in asks for k in a.message_keys)


def test_d4_a_helper_is_asked_ahead_of_the_budget_and_not_before() -> None:
    size = build_view(TALK).total
    stage = SummarizeOld(ahead=0.5)
    for window, wanted in ((size, True), (2 * size, True), (4 * size, False)):
        _, asks = list_asks(TALK, stage, model=replace(PLAIN_MODEL, window=window))
        assert bool(asks) is wanted


def test_d4_answers_that_are_there_are_used_and_the_rest_is_counted() -> None:
    _, asks = list_asks(TALK)
    state = BranchState(helper_answers={asks[0].id: " They talked of the first things. "})
    plan = make_plan(TALK, state=state)
    text = out(plan)[1][1]
    assert text.startswith(f"new 0\n\n{HEADING}\nThey talked of the first things.\n\nPrevious "), (
        "not the user's own words"
    )
    told = int(text.rpartition("Previous ")[2].split()[0])
    assert told == 50 - 14  # twenty messages and one to end the step: seven questions, seven answers, seven results
    assert [a.id for a in plan.asks] == [a.id for a in asks[1:]]


@pytest.mark.parametrize("answer", ["", "  \n", "x" * 100_000])
def test_d4_an_answer_that_is_empty_or_too_long_is_not_used(answer: str) -> None:
    _, asks = list_asks(TALK)
    plan = make_plan(TALK, state=BranchState(helper_answers={a.id: answer for a in asks}))
    assert out(plan)[1][1] == "new 0\n\n" + SENTENCE


def test_d6_the_event_says_what_was_replaced_and_by_what() -> None:
    (found,) = make_events(make_plan(TALK))
    assert found.name == "context:summarized"
    assert found.payload == {"summarized": 60, "kept": 12, "summary": SENTENCE}


@pytest.mark.parametrize("schedule", ["over_budget", "when_it_pays"])
def test_d4_where_edits_last_the_summary_is_written_on_and_moves_with_its_bearer(schedule: ScheduleName) -> None:
    stage = SummarizeOld(keep=4)
    model = replace(PLAIN_MODEL, window=2_000)
    talk, state, borne = [system()], BranchState(), set()
    for n in range(40):
        talk.append(user(f"question {n} " + "x" * 60))
        plan = make_plan(talk, stage, schedule, state, model)
        assert plan.refusal is None
        assert plan.after <= 1_600
        sent = [read_message(raw).text for raw in plan.messages or ()]
        summaries = [t for t in sent if "Previous " in t]
        assert len(summaries) <= 1
        if summaries:
            borne.add(summaries[0][:12])
            assert counted(summaries[0]) == len(talk) - len(sent)
        state = state.after_sending(plan, float(n))
        talk += [assistant(None, f"c{n}"), result(f"c{n}", "y" * 60), assistant(f"answer {n}")]
    assert len(borne) > 1


def test_d4_one_long_task_is_summed_up_again_and_again_after_its_prompt() -> None:
    stage, model = SummarizeOld(keep=4), replace(PLAIN_MODEL, window=2_000)
    talk, state, told = [user("do it all")], BranchState(), ""
    for n in range(60):
        talk += [assistant(None, f"c{n}"), result(f"c{n}", "y" * 60)]
        plan = make_plan(talk, stage, "over_budget", state, model)
        assert plan.refusal is None
        text = read_message(plan.messages[0]).text if plan.messages else "do it all"
        assert text.startswith(told or "do it all")
        told = text
        state = state.after_sending(plan, float(n))
        left = len(talk) - len(plan.messages or talk)
        assert counted(told) == left
    assert told.count("Previous ") > 1


def test_d4_the_prompt_is_a_setting_and_is_not_blank() -> None:
    _, asks = list_asks(TALK, replace(STAGE, summary_prompt="Fasse zusammen."))
    assert asks
    assert all(ask.prompt.startswith("Fasse zusammen.\n\n[") for ask in asks)
    with pytest.raises(ConfigError, match=r"stages\.summarize_old\.summary_prompt"):
        SummarizeOld(summary_prompt=" ")
