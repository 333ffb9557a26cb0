"""Batches of calls with their results, which keep their names and are ranked by the goal."""

from __future__ import annotations

import json

import pytest

from proxy.chat import chain, group
from proxy.chat.chain import compute_keys
from proxy.chat.message import Call
from proxy.context.analysis import call_batches
from proxy.context.analysis.call_batches import ReflectionSettings, read_call_outcome
from proxy.context.plan import Ask
from proxy.errors import ConfigError
from proxy.notes import reflection
from proxy.notes.call_summaries import QuotedOutcome
from tests.context.research import make_step
from tests.conversations import Json, assistant, make_message, make_messages, result, user


def batched(values: list[Json], **more: object) -> list[call_batches.CallBatch]:
    read = make_messages(*values)
    return call_batches.find_batches(read, compute_keys("", read), group.split_steps(read), ReflectionSettings(**more))  # type: ignore[arg-type]


def test_calls_are_paired_by_id_else_by_place() -> None:
    read = make_messages(assistant("", "a", "b"), result("b", "of b"), result("zzz", "of a"))
    found = call_batches.find_answered_calls(read, group.split_steps(read)[0])
    assert [(one.call.id, read[one.result_index].text) for one in found] == [("b", "of b"), ("a", "of a")]


def test_c5_low_stakes_calls_are_in_no_batch() -> None:
    values = [user("x"), *make_step("think", "ok"), *make_step("search", "found"), *make_step("sleep", "ok")]
    assert [one.call.name for batch in batched(values) for one in batch.calls] == ["search"]
    assert [one.call.name for batch in batched(values, low_stakes=("search",)) for one in batch.calls] == [
        "think",
        "sleep",
    ]


def test_c5_batches_keep_their_names_while_the_conversation_grows() -> None:
    values = [user("x")]
    seen: list[str] = []
    for n in range(7):
        values += make_step("search", f"found {n}")
        found = [batch.ask_id for batch in batched(values, reflect_batch=3)]
        assert len(found) == (n + 1) // 3
        assert found[: len(seen)] == seen
        seen = found
    read = make_messages(*values)
    keys = chain.compute_keys("", read)
    assert seen[0] == Ask("reflection", "", (keys[2], keys[4], keys[6])).id


def test_c3_the_goal_is_the_states_else_the_last_user_message() -> None:
    read = make_messages(user("first"), assistant("x"), user("second"), user("output"))
    assert call_batches.find_goal("Context: c\nGoal: to win\nx", read) == "to win"
    assert call_batches.find_goal("Context: c", read) == "output"
    assert call_batches.find_goal(None, read, [False, False, False, True]) == "second"
    assert call_batches.find_goal(None, ()) == ""


def test_c3_calls_are_ranked_by_the_words_of_the_goal() -> None:
    values = [
        *make_step("search", "nothing of it"),
        *make_step("search", "flask logging setup"),
        *make_step("search", "flask is old"),
    ]
    read = make_messages(*values)
    found = [one for s in group.split_steps(read) for one in call_batches.find_answered_calls(read, s)]
    ranks = call_batches.rank_calls("configure flask logging", read, found)
    assert ranks[:2] == ["low", "high"]
    assert ranks[2] == "medium"


def test_settings_that_are_wrong_are_named() -> None:
    with pytest.raises(ConfigError, match="inline"):
        ReflectionSettings(reflect="sometimes")
    with pytest.raises(ConfigError, match="1 or more"):
        ReflectionSettings(reflect_batch=0)
    assert ReflectionSettings().read_mode({"reflect": "Inline"}) == "inline"
    assert ReflectionSettings(reflect="helper").read_mode({"reflect": "what"}) == "helper"


@pytest.mark.parametrize(
    ("name", "command", "text", "how"),
    [
        ("search", "", "all fine", "success"),
        ("search", "", "the word error in the middle of a text is none", "success"),
        ("search", "", "  \n ", "unknown"),
        ("search", "", "No results found.", "success"),
        ("dock", "", "Goal reached", "success"),
        ("dock", "", "Action aborted: path blocked", "unknown"),
        ("grip", "", "GRIPPER FAULT: overcurrent", "unknown"),
        ("send_mail", "", '{"sent": 1, "failed": 1}', "unknown"),
        ("send_mail", "", '{"sent": 2, "failed": 0, "errors": []}', "success"),
        ("send_mail", "", "Nachricht konnte nicht zugestellt werden", "unknown"),
        ("send_mail", "", "\u0641\u0634\u0644 \u0627\u0644\u0625\u0631\u0633\u0627\u0644", "unknown"),
        ("delete_row", "", '{"deleted": 0}', "unknown"),
        ("report", "", "The tests could not be run.\n" * 20, "success"),
        ("search", "", "Tool call timed out.", "timeout"),
        ("search", "", "Error: no such table", "error"),
        ("bash", "make", "<returncode>124</returncode>", "timeout"),
        ("bash", "make", "<returncode>1</returncode>\nfailed", "failure"),
        ("bash", "pytest -q", "2 failed, 198 passed", "failure"),
        ("bash", "pytest -q", "198 passed in 4.1s", "success"),
        ("bash", "make", "exit code: 0", "success"),
        ("bash", "make | tail", "exit code: 0", "unknown"),
        ("bash", "make", "cc -c a.c", "unknown"),
        ("bash", "python a.py", "line\nTraceback (most recent call last):\n  File\nKeyError: 'a'", "error"),
        ("bash", "cat x", "cat: x: No such file or directory", "error"),
    ],
)
def test_c1_the_outcome_in_a_record_is_the_one_reading_of_it(name: str, command: str, text: str, how: str) -> None:
    call = Call("1", name, json.dumps({"command": command} if command else {"query": "x"}))
    assert read_call_outcome(call, make_message(result("1", text))).outcome == how


def test_c3_the_line_of_a_record_is_the_one_that_says_how_it_ended() -> None:
    call = Call("1", "bash", '{"command": "pytest -q"}')
    long = "\n".join(["<returncode>1</returncode>", *["x"] * 50, "E   assert 1 == 2", "=== 1 failed in 0.1s ==="])
    assert read_call_outcome(call, make_message(result("1", long))).quoted_line == "E   assert 1 == 2"
    assert (
        read_call_outcome(call, make_message(result("1", "start\n=== 3 passed in 0.1s ==="))).quoted_line
        == "=== 3 passed in 0.1s ==="
    )


def test_the_line_on_a_call_is_the_first_one_that_says_something() -> None:
    def read(name: str, text: str) -> str:
        call = Call("1", name, '{"q": "x"}')
        message = make_message(result("1", text))
        return reflection.render_call(call, message, None, read_call_outcome(call, message))

    opened = read("browser_click", "### Ran Playwright code\n```js\nawait page.click('#a');\n```")
    assert opened == "called browser_click 'x' \u2192 await page.click('#a'); (4 lines)"
    coloured = read("execute_cell", "\x1b[0;31m-------\x1b[0m\n\x1b[1mdone\x1b[0m 7\n")
    assert coloured == "ran x \u2192 done 7 (2 lines)"
    assert read("find", '{"output": "a\\nb"}') == 'searched \'x\' \u2192 {"output": "a\\nb"}'


def test_c3_a_record_of_a_command_that_still_runs_says_so() -> None:
    running = "<status>running</status>\n\n<stdout>\n198 passed in 11.0s\n</stdout>"
    read = read_call_outcome(Call("1", "BashOutput", '{"bash_id": "b1"}'), make_message(result("1", running)))
    assert read == QuotedOutcome("unknown", "<status>running</status>")
