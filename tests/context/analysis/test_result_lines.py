"""The lines of a result, and the fields of an object that state an outcome."""

from __future__ import annotations

import json
import re

import pytest

from proxy.chat.message import Call
from proxy.context.analysis import identifiers, outcome, result_lines, shell_commands
from proxy.context.analysis.identifiers import PromptIndex
from proxy.context.plan import ContentKind
from proxy.context.summaries.stub import StubLimits, StubWriter
from tests.conversations import assistant, build_view, make_message, result, user


def test_the_lines_of_a_wrapped_output_are_those_of_the_output() -> None:
    wrapped = json.dumps({"exit_code": 2, "stdout": "one\ntwo", "stderr": "three"})
    given = result_lines.unwrap_result(wrapped)
    assert list(given.lines) == ['{"exit_code":2}', "one", "two", "three"]
    assert (given.code, given.inside, given.is_wrapper, given.failed) == (2, True, True, None)
    assert result_lines.split_lines("plain\ntext") == ["plain", "text"]


@pytest.mark.parametrize(
    ("value", "failed", "is_refusal", "zero_counts"),
    [
        ({"success": True}, False, False, ()),
        ({"success": True, "errors": ["b"]}, None, False, ()),
        ({"ok": False}, True, False, ()),
        ({"statusCode": 503, "body": "x"}, None, True, ()),
        ({"path": "/a", "status": 503}, None, False, ()),
        ({"data": None, "errors": ["no field"]}, None, True, ()),
        ({"data": {"a": 1}, "errors": ["no field"]}, None, False, ()),
        ({"matched": 3, "rows_updated": 0}, None, False, ("rows_updated",)),
        ({"matched": 3, "rows_updated": 2, "created": 0}, None, False, ()),
    ],
)
def test_the_fields_of_an_object_state_an_outcome(
    value: dict[str, object], failed: bool | None, is_refusal: bool, zero_counts: tuple[str, ...]
) -> None:
    given = result_lines.unwrap_result(json.dumps(value))
    assert (given.failed, given.is_refusal, given.zero_counts) == (failed, is_refusal, zero_counts)


@pytest.mark.parametrize("tool", ["edit_file", "set_status", "replace_text"])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", ["applied", "rows_updated", "modifiedCount"])
def test_a_long_result_keeps_the_line_that_nothing_was_done(tool: str, indent: int | None, name: str) -> None:
    told = {
        "path": "src/app.py",
        "note": "x" * 250,
        name: 0,
        "tried": [{"hunk": n, "text": "y" * 20} for n in range(90)],
    }
    call = {"id": "1", "type": "function", "function": {"name": tool, "arguments": "{}"}}
    values = [user("a"), {**assistant(None), "tool_calls": [call]}, result("1", json.dumps(told, indent=indent))]
    view = build_view(values)
    command = shell_commands.parse_call(Call("1", tool, "{}"))
    message = view.messages[2]
    assert outcome.read_outcome(message, command).verdict != "succeeded"
    contents: tuple[ContentKind, ...] = ("other", "view")
    for content in contents:
        text = StubWriter(PromptIndex(view), StubLimits()).write_stub(
            message, identifiers.find_facts(message, None), command=command, content=content
        )
        assert re.search(rf'"{name}": ?0', text), text


@pytest.mark.parametrize("holder", ["result", "data", "response"])
@pytest.mark.parametrize(("code", "verdict"), [(0, "succeeded"), (1, "failed")])
def test_the_output_and_the_code_of_a_command_stand_within_an_answer(holder: str, code: int, verdict: str) -> None:
    text = json.dumps({"status": "completed", holder: {"stdout": "one\ntwo", "stderr": "", "exitCode": code}})
    message = make_message(result("1", text))
    assert outcome.read_outcome(message, shell_commands.parse_command("./build.sh")).verdict == verdict
    assert result_lines.read_lines(message)[-2:] == ["one", "two"]
    # A lone `code` is that of anything.
    other = make_message(result("1", json.dumps({holder: {"stdout": "one\ntwo", "code": code}})))
    assert outcome.read_outcome(other, shell_commands.parse_command("./build.sh")).verdict == "unknown"
