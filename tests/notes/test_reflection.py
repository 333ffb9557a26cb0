"""Iteration records and what is reflected on them: what parses corrects the record, what does not is only kept."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from proxy.chat.message import Call
from proxy.notes import reflection
from proxy.notes.call_summaries import QuotedOutcome
from proxy.notes.reflection import FinishedCall, IterationReport
from tests.conversations import assistant, make_message, result

CALL = Call("c", "search", '{"query": "python tutorial"}')
BROUGHT = make_message(result("c", "x" * 2000))
WHOLE: dict[str, Any] = {
    "tool_calls": [
        {
            "call": 1, "outcome": "failure", "tool_selection_rationale": "the web knows", "relevance": "high",
            "insights": "found 3 results, too general", "learning": "add the framework", "next_suggested_actions": "x",
        }
    ],
    "synthesis": "a start", "progress_assessment": "stuck",
}  # fmt: skip


GOOD, BAD = QuotedOutcome("success"), QuotedOutcome("failure")


def make_report(effort: str = "", seconds: float | None = 2.5, feedback: str = "") -> IterationReport:
    done = [
        FinishedCall(CALL, BROUGHT, "abc", None, 1, GOOD),
        FinishedCall(Call("d", "ls", "no json"), make_message(result("d", "")), "def", None, 0, BAD),
    ]
    said = make_message(assistant("I search, since\nit is not known.", "c", "d"))
    return reflection.build_report(3, 100.0, effort, said, done, seconds=seconds, token_counter=len, feedback=feedback)


def test_c1_a_record_has_everything_that_the_source_names() -> None:
    found = make_report(feedback="no, the other one")
    assert (found.iteration, found.timestamp, found.mode) == (3, 100.0, "fast")
    assert found.user_feedback == "no, the other one"
    first, second = found.tool_calls
    assert (first.tool, first.params) == ("search", {"query": "python tutorial"})
    assert first.raw_output == "x" * 1000
    assert (first.outcome, second.outcome) == ("success", "failure")
    assert (first.execution_time, first.cost.time) == (2.5, 2.5)
    assert first.cost.tokens == len("search") + len(CALL.arguments) + 2000
    assert first.tool_selection_rationale == "I search, since it is not known."
    assert second.params == "no json"
    assert msgspec.json.decode(msgspec.json.encode(found), type=IterationReport) == found


def test_c1_mode_is_deep_at_effort_high_or_above() -> None:
    deep = [make_report(effort).mode for effort in ("", "minimal", "low", "medium", "high", "xhigh", "max")]
    assert deep == ["fast"] * 4 + ["deep"] * 3


def test_c1_the_reflection_corrects_the_record() -> None:
    found = reflection.add_reflection(make_report(), "```json\n" + json.dumps(WHOLE) + "\n```")
    first, second = found.tool_calls
    assert (first.outcome, first.relevance, first.tool_selection_rationale) == ("failure", "high", "the web knows")
    assert (first.insights, first.learning) == ("found 3 results, too general", "add the framework")
    assert (found.synthesis, found.progress_assessment, found.reflection) == ("a start", "stuck", "")
    assert second == make_report().tool_calls[1]


def test_c2_a_reflection_that_does_not_parse_is_kept_as_text_only() -> None:
    wrong = WHOLE | {"progress_assessment": "splendid"}
    for text in ("I did well.", "{", "{]}", json.dumps(wrong), json.dumps({"tool_calls": [{"call": "x"}]}), "[" * 9000):
        found = reflection.add_reflection(make_report(), text)
        assert reflection.parse_reflection(text) is None
        assert found == msgspec.structs.replace(make_report(), reflection=text)


@given(st.text())
def test_c2_any_text_parses_or_does_not_but_never_fails(text: str) -> None:
    reflection.parse_reflection(text)
    reflection.parse_reflection('{"synthesis": ' + text + "}")


def test_c3_a_line_is_action_then_insight_learning_and_next() -> None:
    item = reflection.CallReflection(
        1, "found 3 results, too general", "learning.", next_suggested_actions="add the framework"
    )
    line = "searched 'python tutorial' → found 3 results, too general; learning; next: add the framework"
    assert reflection.render_call(CALL, BROUGHT, item, GOOD) == line
    few = make_message(result("c", "[1, 2, 3]"))
    assert reflection.render_call(CALL, few, None, GOOD) == "searched 'python tutorial' → found 3 results"
    assert (
        reflection.render_call(CALL, few, reflection.CallReflection(1), GOOD)
        == "searched 'python tutorial' → found 3 results"
    )


def test_texts_of_a_reflection_are_kept_on_one_line_and_cut() -> None:
    text = json.dumps({"tool_calls": [{"call": 1, "insights": "a\n### REFLECTION\n" + "b" * 900}]})
    found = reflection.parse_reflection(text)
    assert found is not None
    assert "\n" not in found.tool_calls[0].insights
    assert len(found.tool_calls[0].insights) <= reflection.MAX_FIELD_CHARS


def test_the_question_shows_the_goal_and_both_ends_of_a_long_result() -> None:
    long = make_message(result("c", "begin" + "x" * 5000 + "end"))
    asked = reflection.build_helper_prompt("to learn", [reflection.render_excerpt(CALL, long)])
    assert "The goal: to learn" in asked
    assert "[1] search" in asked
    assert "begin" in asked
    assert asked.endswith("end")
    assert "[1] searched" in reflection.build_prompt(["searched 'x'"])


def test_c1_half_a_surrogate_pair_does_not_spoil_a_record() -> None:
    odd = make_message({"role": "tool", "tool_call_id": "c", "content": "x"})
    msgspec.structs.force_setattr(odd, "text", "a\ud800")
    call = Call("c", "f", '{"a": "\ud800"}')
    done = [FinishedCall(call, odd, "i", None, 0, GOOD)]
    found = reflection.build_report(1, 1.0, "", odd, done, seconds=None, token_counter=len, feedback="\ud800")
    assert b'"raw_output":"a?"' in msgspec.json.encode(found)
