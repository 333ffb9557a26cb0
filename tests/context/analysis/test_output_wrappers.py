"""Wrappers that agents' tools write around an output: exit code and state are found, and labels are no content."""

from __future__ import annotations

import json
import time

import pytest

from proxy.chat.message import Message
from proxy.context.analysis import outcome, output_wrappers, result_lines, shell_commands
from proxy.context.analysis.outcome import ToolOutcome
from proxy.context.analysis.output_wrappers import has_content
from proxy.context.analysis.shell_commands import EDIT_CALL, ShellCommand
from proxy.dialects.completions.request import read_message
from proxy.dialects.messages.blocks import convert_message
from tests.context.analysis.runs import read_text_outcome

SCRIPT = shell_commands.parse_command("python etl.py")
LONG = "\n".join([*(f"line {n} of the log" for n in range(30)), "Wrote 3 files."])
GEMINI = "Error: (none)\nExit Code: {code}\nSignal: (none)\nBackground PIDs: (none)\nProcess Group PGID: 4242"
FORMS = {
    "gemini": "Command: python etl.py\nDirectory: (root)\nOutput: {output}\n" + GEMINI,
    "gemini, two streams": "Command: x\nDirectory: (root)\nStdout: {output}\nStderr: (empty)\n" + GEMINI,
    "codex": "Exit code: {code}\nWall time: 1.2 seconds\nTotal output lines: 900\nOutput:\n{output}",
    "codex, sessions": "Chunk ID: a1b2\nWall time: 0.05 seconds\nProcess exited with code {code}\n"
    "Original token count: 12\nOutput:\n{output}",
    "openhands": "{output}\n[The command completed with exit code {code}.]\n[Current working directory: /w]\n"
    "[Python interpreter: /usr/bin/python]",
    "a task of claude code": "<retrieval_status>success</retrieval_status>\n\n<task_id>b1</task_id>\n\n"
    "<task_type>local_bash</task_type>\n\n<status>completed</status>\n\n<exit_code>{code}</exit_code>\n\n"
    "<output>\n{output}\n</output>",
    "roo": "Command executed in terminal within working directory '/w'. Exit code: {code}\nOutput:\n{output}",
    "copilot": "{output}\n<exited with exit code {code}>",
    "an object": '{{"output": "x", "exit_code": {code}}}',
}


def read(text: str, command: ShellCommand = SCRIPT) -> ToolOutcome:
    return read_text_outcome(text, command)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("code", "output", "verdict"),
    [(1, LONG, "failed"), (0, LONG, "succeeded"), (1, "4 passed in 0.1s", "failed"), (2, "", "failed")],
)
def test_the_exit_code_is_found_after_labels(form: str, code: int, output: str, verdict: str) -> None:
    found = read(FORMS[form].format(code=code, output=output))
    assert (found.verdict, found.exit_code) == (verdict, code)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "an object"])
def test_the_code_and_the_end_of_the_output_stay_and_labels_do_not(form: str) -> None:
    text = FORMS[form].format(code=1, output=LONG)
    lines = result_lines.split_lines(text)
    kept = [lines[n] for n in read(text).kept_lines]
    assert kept[-1] == "Wrote 3 files." or "1" in kept[-1]
    assert "Wrote 3 files." in kept
    assert not any(label in "\n".join(kept) for label in ("PGID", "Python interpreter", "task_id", "Original token"))


@pytest.mark.parametrize("first", ["Error: Exit code 1", 'Command "python etl.py" failed with exit code 1.'])
def test_a_sentence_with_the_code_is_its_line(first: str) -> None:
    assert read(f"{first}\n4 passed in 0.1s").verdict == "failed"


@pytest.mark.parametrize(
    "text",
    [
        "{}\n\n<bash_metadata>\nbash tool terminated command after exceeding timeout 120000 ms\n</bash_metadata>",
        "Command was automatically cancelled because it exceeded the timeout of 5 minutes.\n{}",
        "{}\n(timeout: 120s exceeded, process killed)",
    ],
)
def test_a_timeout_that_the_tool_reports_is_a_failure(text: str) -> None:
    found = read(text.format("4 passed in 0.1s"), shell_commands.parse_command("pytest -q"))
    assert (found.verdict, found.timed_out) == ("failed", True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}\n\n<bash_metadata>\nUser aborted the command\n</bash_metadata>", "User aborted"),
        ("{}\n<error>Command was aborted before completion</error>", "aborted"),
        ("{}\n[Request interrupted by user]", "interrupted"),
        ("{}\n[The command has no new output after 30 seconds. You may wait longer]", "no new output"),
        ("Wall time: 10.0 seconds\nProcess running with session ID 44\nOutput:\n{}", "session ID 44"),
        ("Command is still running in the user's terminal.\nHere's the output so far:\n{}", "still running"),
        ("<status>running</status>\n\n<stdout>\n{}\n</stdout>", "running"),
        ("<status>killed</status>\n\n<stdout>\n{}\n</stdout>", "killed"),
    ],
)
def test_the_output_of_a_command_without_its_end_proves_no_success(text: str, told: str) -> None:
    told_text = text.format("one\n" * 9 + "4 passed in 0.1s")
    found = read(told_text, shell_commands.parse_command("pytest -q"))
    assert found.verdict == "unknown"
    assert told in "\n".join(told_text.splitlines()[n] for n in found.kept_lines)


def test_a_failure_is_one_also_before_the_command_ends() -> None:
    text = "Process running with session ID 44\nOutput:\n1 failed, 3 passed in 0.1s"
    assert read(text, shell_commands.parse_command("pytest")).verdict == "failed"


@pytest.mark.parametrize(("line", "content"), [("Directory: (root)", False), ("Directory of names", True)])
def test_a_label_is_not_content(line: str, content: bool) -> None:
    assert has_content(line) is content


def result_of_messages(text: str, *, is_error: bool) -> Message:
    block = {"type": "tool_result", "tool_use_id": "t1", "is_error": is_error, "content": text}
    wire = convert_message(json.dumps({"role": "user", "content": [block]}).encode())
    return read_message(wire.units[0].chat)


@pytest.mark.parametrize(
    ("command", "text", "verdict"),
    [
        ("pytest -q", "4 passed in 0.1s", "failed"),
        ("./deploy.sh", "all done", "failed"),
        ("cat a.txt", "EISDIR", "failed"),
        ("grep foo a.txt", "", "unknown"),
    ],
)
def test_a_result_that_the_client_marks_as_an_error_has_failed(command: str, text: str, verdict: str) -> None:
    parsed = shell_commands.parse_command(command)
    assert outcome.read_outcome(result_of_messages(text, is_error=True), parsed).verdict == verdict


def test_the_mark_alone_makes_an_edit_fail_and_its_absence_proves_nothing() -> None:
    assert outcome.read_outcome(result_of_messages("Nope.", is_error=True), EDIT_CALL).verdict == "failed"
    assert outcome.read_outcome(result_of_messages("Fine.", is_error=False), EDIT_CALL).verdict == "unknown"


@pytest.mark.parametrize("behind", [" ", "\t", "1", "1 "])
def test_text_after_a_timeout_is_read_in_linear_time(behind: str) -> None:
    line = "timed out:" + behind * 1_500 + "\0"
    began = time.thread_time()
    for _ in range(100):
        output_wrappers.is_timeout(line)
    assert time.thread_time() - began < 1


def test_behind_thousands_of_blank_lines_no_exit_code_is_looked_for() -> None:
    few, many = [""] * 100, [""] * 7_000
    assert output_wrappers.find_exit_codes([*few, "exit code: 1", *few], is_shown=False) == [(1, 100)]
    assert output_wrappers.find_exit_codes([*many, "exit code: 1", *many], is_shown=False) == []


@pytest.mark.parametrize(
    ("line", "content"),
    [("130\t  );", False), ("7\u2192}", False), ("12|", False), ("12\tx", True), ("12", True)],
)
def test_a_numbered_line_without_a_word_is_not_content(line: str, content: bool) -> None:
    assert has_content(line) is content


@pytest.mark.parametrize(
    "note",
    [
        "(no output)", "[No output]", "(Bash completed with no output)", "Tool ran without output or errors", "(empty)",
        "Your command ran successfully and did not produce any output.", "Output: (empty)",
    ],
)  # fmt: skip
def test_a_note_that_there_is_no_output_is_no_content(note: str) -> None:
    assert not has_content(output_wrappers.strip_line(note))
    found = read(f"{note}\n\nCommand exited with code 3", shell_commands.parse_command("./check.sh"))
    assert (found.verdict, found.exit_code, found.failure_lines, found.first_line) == ("failed", 3, (), None)


@pytest.mark.parametrize("line", ["no output file was written", "error: no output device", "empty", "Nothing to do"])
def test_a_line_that_says_more_is_content(line: str) -> None:
    assert has_content(line)
