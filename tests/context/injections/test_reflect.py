"""Ranked reflections on earlier calls, the request for a reflection, and the recovery prompt when nothing moves."""

from __future__ import annotations

import json
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.chat.chain import compute_keys
from proxy.context.analysis import call_batches
from proxy.context.branch_state import BranchState
from proxy.context.injections import BUILT_IN_INJECTIONS
from proxy.context.injections.reflect import HEADING, Reflect, count_stuck_iterations
from proxy.context.pipeline import rewrite
from proxy.context.policy import read_policy
from proxy.context.stages import BUILT_IN_STAGES
from tests.context.agent import load_policy
from tests.context.research import list_sent_texts, make_plan, make_step
from tests.context.stages.test_distil_results import GOAL, lines, make_searches, reflective
from tests.conversations import INPUTS, PLAIN_MODEL, Json, assistant, build_view, make_request, system, user


def reflected(values: list[Json], *said: dict[str, Any] | str) -> BranchState:
    """A session in which the first calls were reflected on so."""
    read = make_request(values).messages
    found = build_view(values)
    named = call_batches.find_batches(read, compute_keys("", read), found.steps, Reflect())
    texts_of = [one if isinstance(one, str) else json.dumps(one) for one in said]
    return BranchState(helper_answers={batch.ask_id: text for batch, text in zip(named, texts_of, strict=False)})


def item(relevance: str, insight: str) -> dict[str, Any]:
    return {"tool_calls": [{"call": 1, "insights": insight, "relevance": relevance}]}


def test_c3_lines_are_ranked_and_in_order_within_a_rank() -> None:
    state = reflected(make_searches(9), item("low", "A"), item("high", "B"), item("medium", "C"), item("high", "D"))
    told = lines(list_sent_texts(make_searches(9), reflective(), state=state)[-1])
    assert [line[-1] for line in told] == ["B", "D", "C", "A"]


def test_c3_low_ranks_leave_first_and_of_them_the_oldest() -> None:
    state = reflected(make_searches(9), item("low", "A"), item("high", "B"), item("low", "C"), item("high", "D"))
    found = list_sent_texts(make_searches(9), with_tokens(len(HEADING) + 80), state=state)[-1]
    whole = lines(list_sent_texts(make_searches(9), reflective(), state=state)[-1])
    assert [line[-1] for line in whole] == ["B", "D", "A", "C"]
    *kept, omitted = lines(found)
    assert [line[-1] for line in kept] == ["B", "D", "C"]
    assert omitted == "[... 1 more calls are not in this list]"
    assert lines(list_sent_texts(make_searches(9), with_tokens(10), state=state)[-1]) == []


def with_tokens(tokens: int) -> Any:
    policy = reflective()
    injections = tuple(replace(v, tokens=tokens) if isinstance(v, Reflect) else v for v in policy.injections)
    return replace(policy, injections=injections)


def test_c3_without_reflections_calls_are_ranked_by_the_goal() -> None:
    values = [system("Be exact."), user(GOAL)]
    values += make_step("search", "python basics for all", None, "a", query="python tutorial")
    values += make_step("search", "setup of flask production logging", None, "b", query="flask production logging")
    for n in range(5):
        values += make_step("search", f"other {n}", None, f"c{n}", query=f"x {n}")
    told = lines(list_sent_texts(values, reflective())[-1])
    assert told == [
        "- searched 'flask production logging' → setup of flask production logging",
        "- searched 'python tutorial' → python basics for all",
    ]
    with_decisions = BranchState(states=((b"k", "Goal: python basics"),))
    assert lines(list_sent_texts(values, reflective(), state=with_decisions)[-1])[0].startswith(
        "- searched 'python tutorial'"
    )


def test_c3_results_removed_by_a_window_or_truncation_are_listed_too() -> None:
    rolling = load_policy("rolling")
    values: list[Json] = [system()]
    for n in range(7):
        values += [
            user(f"prompt {n}"),
            *make_step("read_file", f"file {n}\n" + "y" * 500, path=f"f{n}.py"),
            assistant("ok"),
        ]
    values.append(user("and?"))
    found = list_sent_texts(values, replace(rolling, injections=(Reflect(),)))[-1]
    assert [line.split(" → ")[0] for line in lines(found)] == [f"- read f{n}.py" for n in range(7)]


def test_c2_inline_the_model_is_asked_about_the_newest_calls_once() -> None:
    found = list_sent_texts(make_searches(2), reflective(reflect="inline"))[-1]
    assert found.count("### REFLECTION") == 1
    assert "[1] searched 'topic 1'" in found
    assert "topic 0" not in found
    state = reflected(make_searches(2), "", "said")
    assert "REFLECTION" not in list_sent_texts(make_searches(2), reflective(reflect="inline"), state=state)[-1]
    later = [*make_searches(2), assistant("done"), user("more")]
    assert "REFLECTION" not in list_sent_texts(later, reflective(reflect="inline"))[-1]
    told = [*make_searches(2), user("no, the other")]
    assert "REFLECTION" in list_sent_texts(told, reflective(reflect="inline"))[-1]


def test_c2_a_reflection_is_not_asked_for_where_it_would_break_the_answers_format() -> None:
    asked = make_request(make_searches(2), response_format={"type": "json_object"})
    made = rewrite(asked, BranchState(), reflective(reflect="inline"), PLAIN_MODEL, 0.0, INPUTS)
    assert made.placed_inserts == ()


def test_c5_calls_of_low_stakes_are_not_asked_about() -> None:
    values = [user(GOAL), *make_step("think", "ok", None, "a")]
    assert "REFLECTION" not in list_sent_texts(values, reflective(reflect="inline"))[-1]
    assert "REFLECTION" in list_sent_texts(values, reflective(reflect="inline", low_stakes=()))[-1]


def moving(*said: str) -> list[dict[str, Any]]:
    return [{"progress_assessment": one} for one in said]


def test_c4_three_iterations_without_progress_bring_a_recovery_prompt_once() -> None:
    policy = reflective(reflect="inline")

    def told(*said: str, before: dict[str, int] | None = None) -> bool:
        state = msgspec.structs.replace(reflected(make_searches(8), *moving(*said)), note_counts=before or {})
        return "[RECOVERY:" in list_sent_texts(make_searches(8), policy, state=state)[-1]

    assert told("advancing", "stuck", "regressing", "stuck")
    assert not told("stuck", "stuck", "stuck", "advancing")
    assert not told("stuck", "stuck")
    assert not told("stuck", "stuck", "stuck", "stuck", before={"recovery": 3})
    assert told(*["stuck"] * 6, before={"recovery": 3})
    made = make_plan(make_searches(8), policy, reflected(make_searches(8), *moving(*["stuck"] * 3)))
    assert ("recovery", 3) in [insert.note_count for _, insert in made.placed_inserts]


def test_c4_iterations_that_were_not_assessed_do_not_count() -> None:
    assert count_stuck_iterations([]) == (0, 0)
    assert count_stuck_iterations(["stuck", "advancing", "regressing", "stuck"]) == (2, 3)


def test_c4_with_reflection_off_the_loop_rules_serve() -> None:
    values = [user(GOAL)]
    for n in range(3):
        values += make_step("search", "the same", None, f"c{n}", query="x")
    assert "[LOOP: search was called 3 times" in list_sent_texts(values, reflective())[-1]
    state = reflected(values, *moving("advancing"))
    assert "[LOOP" not in list_sent_texts(values, reflective(), state=state)[-1]
    off = reflective()
    injections = tuple(replace(v, stuck=0) if isinstance(v, Reflect) else v for v in off.injections)
    assert make_plan(values, replace(off, injections=injections)).messages is None


def test_c4_a_policy_that_warns_of_loops_itself_does_so_by_its_own_settings() -> None:
    table = tomllib.loads((Path(__file__).parents[3] / "config" / "policies" / "reflective.toml").read_text())
    values = [user(GOAL)]
    for n in range(3):
        values += make_step("search", "the same", None, f"c{n}", query="x")
    for own, wanted in (
        ({"urgency": "gentle"}, "[Note: search was called 3 times"),
        ({"repeats": 4}, None),
        ({"kinds": ["same_call"], "texts": [{"kind": "same_call", "urgency": "firm", "text": "Stop <RUN>"}]}, "Stop 3"),
    ):
        policy = read_policy(
            {**table, "injections": [*table["injections"], {"use": "warn_of_loops", **own}]},
            BUILT_IN_STAGES,
            BUILT_IN_INJECTIONS,
        )
        made = make_plan(values, policy)
        told = "" if made.messages is None else list_sent_texts(values, policy)[-1]
        assert "[LOOP" not in told, own
        assert wanted is None or told.count(wanted) == 1, told


def _long(count: int) -> list[Json]:
    """A conversation with 2 KB a message."""
    values: list[Json] = [system(), user(GOAL)]
    for n in range(count // 2 - 1):
        body = "\n".join(f"{n} {i} def name_{n}_{i}(logging): return '/path/{n}/{i}.py'" for i in range(70))
        values += make_step("read_file", body, f"look at {n}", f"c{n}", path=f"src/f{n}.py")
    return values


@pytest.mark.timed
@pytest.mark.parametrize("reflect", ["off", "inline"])
def test_planning_of_reflective_takes_linear_time(reflect: str) -> None:
    """4 ms of processor time for 400 messages and 800 KB with warm caches (with room for a slower machine)."""
    took = {}
    for count in (400, 4000):
        values = _long(count)
        asked = make_request(values)
        said = [item("high" if n % 3 else "low", f"insight {n}") for n in range(count // 2)]
        state = reflected(values, *said) if reflect == "inline" else BranchState()
        policy = reflective(reflect=reflect)
        best = 9.0
        for _ in range(6):
            began = time.process_time()
            rewrite(asked, state, policy, PLAIN_MODEL, 0.0, INPUTS)
            best = min(best, time.process_time() - began)
        took[count] = best
    print(f"reflective {reflect}: {took[400] * 1000:.1f} ms for 400 messages, {took[4000] * 1000:.1f} ms for 4,000")
    assert took[400] < 0.012
    assert took[4000] < 30 * took[400]


def test_the_policy_file_says_once_who_reflects_and_it_holds_for_both() -> None:
    text = (Path(__file__).parents[3] / "config/policies/reflective.toml").read_text()
    assert text.count('\nreflect = "off"') == 1
    table = tomllib.loads(text.replace('reflect = "off"', 'reflect = "helper"'))
    policy = read_policy(table, BUILT_IN_STAGES, BUILT_IN_INJECTIONS)
    assert [p.reflect for p in (*policy.stages, *policy.injections) if hasattr(p, "reflect")] == ["helper", "helper"]


def test_the_earlier_one_of_equal_calls_says_that_it_was_called_again() -> None:
    values: list[Json] = [system(), user("make the tests pass")]
    for n, ended in enumerate(("1 failed in 0.1s", "3 passed in 0.1s")):
        values += make_step("bash", ended, None, f"t{n}", command="pytest -q")
        values += make_step("read_file", f"file {n}", None, f"r{n}", path=f"{n}.py")
    for n in range(5):
        values += make_step("search", f"other {n}", None, f"c{n}", query=f"x {n}")
    told = {line.partition("; id")[0]: line for line in lines(list_sent_texts(values, reflective())[-1])}
    again = {line: "; called again since" in whole for line, whole in told.items()}
    assert [said for line, said in again.items() if "1 failed" in line] == [True]
    assert [said for line, said in again.items() if "1 failed" not in line] == [False] * 3
