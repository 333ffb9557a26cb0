"""One reading of how a call ended: a wrong success is the worst answer, and unknown is the default."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.chat.message import Call
from proxy.context.analysis import outcome, output_wrappers, result_lines, shell_commands
from proxy.context.analysis.outcome_lines import HEAD_LINES, TAIL_LINES
from proxy.context.analysis.runners import RUNNERS
from proxy.context.analysis.shell_commands import TOOL_RUN, ShellCommand
from proxy.dialects.completions.request import read_message
from tests.context.analysis.runs import DOTS, GREEN, OFF, RED, RUNS, Run, read_text_outcome, xml


def how(run: Run) -> ShellCommand:
    return shell_commands.parse_command(run.command) if run.command else TOOL_RUN


def list_kept_lines(run: Run) -> str:
    message = read_message(json.dumps({"role": "tool", "tool_call_id": "1", "content": run.output}).encode())
    rows = result_lines.read_lines(message)
    return "\n".join(rows[n] for n in outcome.read_outcome(message, how(run)).kept_lines)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.runner}: {run.command} -> {run.verdict}")
def test_a_run_is_read_as_it_ended(run: Run) -> None:
    assert read_text_outcome(run.output, how(run)).verdict == run.verdict


@pytest.mark.parametrize("run", [run for run in RUNS if run.must], ids=lambda run: f"{run.runner}: {run.command}")
def test_lines_that_tell_the_outcome_of_a_run_stay(run: Run) -> None:
    stays = list_kept_lines(run)
    plain = stays.replace(RED, "").replace(GREEN, "").replace(OFF, "")
    assert [part for part in run.must if part not in plain] == []


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.runner}: {run.command}")
def test_the_kept_lines_of_an_outcome_are_few(run: Run) -> None:
    assert len(list_kept_lines(run).splitlines()) <= 1 + 3 + 4 + 3 * 8


FAILURES = [run for run in RUNS if run.verdict == "failed" and read_text_outcome(run.output, how(run)).summary_lines]
SUMMARIES = [
    "======= 2 failed, 198 passed in 4.31s =======", "FAILED (failures=1)", "--- FAIL: TestResume (0.01s)", "FAIL",
    "error: could not compile `app` (lib) due to 1 previous error", "test result: FAILED. 1 passed; 1 failed",
    "npm ERR! Test failed.  See above for more details.", "Tests:       1 failed, 31 passed, 32 total", "  1 failing",
    "make: *** [all] Segmentation fault", "BUILD FAILED in 4s", "[INFO] BUILD FAILURE", "Found 2 errors.",
    "src/a.ts(1,2): error TS2322: no", "a.c:1:2: error: no", "ninja: build stopped: subcommand failed.",
    "-- Configuring incomplete, errors occurred!", "ERROR: failed to solve: no", "CONFLICT (content): in a.py",
    "900 passed, 3 warnings, 2 errors in 3.21s", "1 passed, 1 error in 0.19s",
    "ERROR: Coverage failure: total of 71 is less than fail-under=90", "vet: exit status 1",
    "1 out of 1 hunk FAILED -- saving rejects to a.py.rej", " 1 fail", "FAILED | 3 passed | 1 failed (5ms)",
    "py312: FAIL code 1", "  evaluation failed :( (1.20 seconds)", "nox > Session tests failed.", "  1 failed",
    "2 passed; 0 skipped; 1 failed.", "\u2502 Error: Unsupported argument", "Found 3 errors (2 fixed, 1 remaining).",
]  # fmt: skip
SUCCESSES = [
    "198 passed in 4.12s",
    "OK",
    "ok  \tpkg\t0.1s",
    "PASS",
    "All checks passed!",
    "BUILD SUCCESSFUL in 1s",
    "done",
]
ERRORS = [
    "psycopg2.OperationalError: could not connect", "Traceback (most recent call last):", "KeyError: 'id'",
    "mypy: can't read file 'app'", "a/x.go:41:2: unreachable code", "AssertionError [ERR_ASSERTION]: 1 == 2",
    "app/main.py:3:8: F401 unused", "bash: flake9: command not found", "ls: cannot access 'x'", "error: no such task",
    "fatal: not a git repository",  # which a test of pytest may print above its total
]  # fmt: skip
COMMANDS = ["pytest -q", "make test | tail -3", "make a; make b", "cargo test || true", "go test ./... && echo ok", ""]


@given(
    st.sampled_from(SUMMARIES),
    st.lists(st.sampled_from([*SUCCESSES, "", "some output", DOTS, "x" * 500]), max_size=6),
    st.lists(st.sampled_from([*SUCCESSES, "", "some output"]), max_size=6),
    st.sampled_from(COMMANDS),
    st.sampled_from([None, 0, 1, 124]),
    st.sampled_from(["", RED]),
    st.sampled_from(["", "    ", "[test] ", "web-1  | "]),
)
def test_no_output_with_a_failure_summary_is_ever_a_success(
    summary: str, before: list[str], after: list[str], command: str, code: int | None, colour: str, front: str
) -> None:
    line = f"{front}{colour}{summary}{OFF if colour else ''}"
    text = "\n".join([*before, line, *after])
    wrapped = text if code is None else xml(code, text)
    for given_text in (wrapped, json.dumps({"exit_code": code or 0, "output": text})):
        read = read_text_outcome(given_text, shell_commands.parse_command(command) if command else TOOL_RUN)
        assert read.verdict != "succeeded"


@given(
    st.sampled_from(ERRORS),
    st.lists(st.sampled_from([*SUCCESSES, "", "some output", DOTS]), max_size=6),
    st.lists(st.sampled_from([*SUCCESSES, "", "some output"]), max_size=6),
    st.sampled_from(["./ci.sh", "make test", "flake8 app; pytest -q", "npm test | tail", "for d in a; do x; done", ""]),
)
def test_no_script_that_printed_an_error_is_a_success_without_a_code_that_proves_it(
    error: str, before: list[str], after: list[str], command: str
) -> None:
    text = "\n".join([*before, error, *after])
    assert (
        read_text_outcome(text, shell_commands.parse_command(command) if command else TOOL_RUN).verdict != "succeeded"
    )


@given(
    st.lists(st.sampled_from([*SUCCESSES, "some output"]), max_size=6), st.sampled_from([";", "\n", "||", " | cat;"])
)
def test_the_success_of_one_command_proves_nothing_of_the_others(told: list[str], operator: str) -> None:
    command = shell_commands.parse_command(f"./check {operator} pytest -q")
    for text in ("\n".join(told), xml(0, "\n".join(told))):
        assert read_text_outcome(text, command).verdict != "succeeded"


@given(st.text(), st.sampled_from(COMMANDS))
def test_any_text_has_one_of_the_three_verdicts(text: str, command: str) -> None:
    read = read_text_outcome(text, shell_commands.parse_command(command))
    assert read.verdict in ("succeeded", "failed", "unknown")
    assert list(read.kept_lines) == sorted(set(read.kept_lines))


@given(
    st.lists(st.sampled_from(["ok", "success", "passed", "done", "works", "all good", "finished", "PASSED", "tests"]))
)
def test_words_alone_never_make_a_success(words: list[str]) -> None:
    assert read_text_outcome(" ".join(words), shell_commands.parse_command("./check.sh")).verdict != "succeeded"


def test_every_runner_that_is_named_has_a_failure_in_the_corpus() -> None:
    named = "pytest unittest go cargo npm jest mocha vitest tsc gcc clang make cmake maven gradle ruff mypy eslint git"
    missing = {*named.split(), "docker"} - {run.runner for run in RUNS if run.verdict == "failed"}
    assert missing == set()
    assert len(RUNNERS) > 15


@pytest.mark.parametrize(
    ("name", "arguments", "text", "verdict"),
    [
        ("Edit", '{"file_path": "a.py"}', "Error: old string not found in file", "failed"),
        ("Edit", '{"file_path": "a.py"}', "<tool_use_error>String to replace not found.</tool_use_error>", "failed"),
        ("Edit", "{}", "Error: no match for the old string. The file is:\n" + "x = 1\n" * 200, "failed"),
        ("Edit", '{"file_path": "a.py"}', "The user doesn't want to proceed with this tool use.", "failed"),
        ("Edit", '{"file_path": "a.py"}', "The file a.py has been updated.\n1\traise E('not found')", "unknown"),
        ("Read", '{"file_path": "a.py"}', "1\tclass MyError(Exception):\n2\t    pass\n" + "3\tx\n" * 200, "unknown"),
        ("Edit", "{}", "No changes were made: old_string occurs 3 times in a.py" + "\nx = 1" * 60, "failed"),
        ("edit_file", "{}", '{"status":"error","applied":0,"reason":"the hunk is not in a.py"}', "failed"),
        ("edit_file", "{}", '{"status":"ok","applied":2}', "unknown"),
        ("get_job", "{}", '{"id":3,"status":"failed"}', "unknown"),
        ("edit_file", "{}", "Applied 0 of 2 edits successfully" + "\n- x = 1" * 60, "failed"),
        ("edit_file", "{}", "Applied 2 of 2 edits" + "\n- x = 1" * 60, "unknown"),
        ("Write", "{}", "EACCES: permission denied, open '/etc/hosts'" + "\n    at open (node:fs)" * 60, "failed"),
        ("str_replace_editor", "{}", f"No replacement was performed, old_str `{'x' * 400}` did not appear", "failed"),
        ("edit", "{}", "Your proposed edit has introduced new syntax error(s)." + "\nx = 1" * 90, "failed"),
        ("edit", "{}", "Linter error: the edit was reverted" + "\nx = 1" * 90, "failed"),
        ("edit", "{}", "0 replacements made" + "\nx = 1" * 90, "failed"),
        ("edit", "{}", "10 replacements made" + "\nx = 1" * 90, "unknown"),
        ("edit", "{}", "The edit could not be applied." + "\nx = 1" * 90, "failed"),
        ("edit", "{}", "The string to replace was not found in a.py" + "\nx = 1" * 90, "failed"),
        ("apply_patch", "{}", "patching file a.py\n1 out of 1 hunk FAILED -- saving rejects", "failed"),
        ("edit", "{}", "The file a.py has been edited. Not found: nothing." + "\nx = 1" * 90, "unknown"),
        ("edit", "{}", "The edit was applied\nNo changes were made to b.py", "unknown"),
        ("edit", "{}", "Successfully applied 0 edits to a.py", "failed"),
        ("edit_file", "{}", '{"applied": 0}', "failed"),
        ("edit_file", "{}", '{"status":"ok","applied":0,"path":"a.py"}', "failed"),
        ("edit_file", "{}", '{"success": true, "edits_applied": 0}', "failed"),
        ("edit_file", "{}", '{"applied": 0, "dry_run": true}', "unknown"),
        ("edit_file", "{}", '{"matched": 0, "applied": 2}', "unknown"),
        ("update_rows", "{}", '{"updated": 0}', "unknown"),
        ("set_status", "{}", '{"updated": 0, "matched": 0}', "unknown"),
        ("set_status", "{}", '{"success": true, "result": {"modifiedCount": 0, "matchedCount": 0}}', "unknown"),
        ("set_status", "{}", '{"success": true, "modifiedCount": 3, "upserted": 0}', "succeeded"),
        ("set_status", "{}", '{"exit_code": 0, "modified": 0}', "unknown"),
        ("search", "{}", '{"success": true, "matches": 0}', "succeeded"),
        ("get_user", "{}", '{"error": "user not found"}', "failed"),
        ("get_user", "{}", '{"success": true, "id": 3}', "succeeded"),
        ("get_user", "{}", '{"success": false}', "failed"),
        ("send", "{}", '{"result": {"success": false, "reason": "full"}}', "failed"),
        ("send", "{}", '{"result": {"success": true}, "errors": []}', "unknown"),
        ("send", "{}", '{"success": true, "sent": 3, "failed": 2}', "unknown"),
        ("send", "{}", '{"ok": true, "errors": [{"to": "b", "message": "full"}]}', "unknown"),
        ("send", "{}", '{"ok": true, "failed": 0, "errors": []}', "succeeded"),
        ("send", "{}", '{"jsonrpc": "2.0", "id": 1, "result": {"content": [], "isError": true}}', "failed"),
        ("send", "{}", '{"jsonrpc": "2.0", "id": 1, "result": {"content": [], "isError": false}}', "unknown"),
        ("graphql", "{}", '{"data": {"a": null}, "errors": [{"message": "not allowed", "path": ["a"]}]}', "failed"),
        ("graphql", "{}", '{"data": {"a": 0}, "errors": [{"message": "no field b"}]}', "unknown"),
        ("fetch", "{}", "HTTP 403 Forbidden", "failed"),
        ("fetch", "{}", "HTTP/1.1 500 Internal Server Error\ncontent-type: text/html", "failed"),
        ("fetch", "{}", "404: Not Found", "failed"),
        ("delete", "{}", "410 Gone: the event has been deleted", "failed"),
        ("fetch", "{}", "HTTP/1.1 201 Created", "unknown"),
        ("count", "{}", "404 conflicts", "unknown"),
        ("run_query", "{}", "canceling statement due to statement timeout", "failed"),
        ("call_aws", "{}", "An error occurred (Throttling) when calling the ListX operation: Rate exceeded", "failed"),
        ("graphql", "{}", '{"data": null, "errors": [{"message": "no field a"}]}', "failed"),
        ("graphql", "{}", '{"data": {"a": 1}, "errors": [{"message": "no field b"}]}', "unknown"),
        ("http", "{}", '{"status": 200, "body": {"errors": ["no title"]}}', "failed"),
        ("http", "{}", '{"statusCode": 503, "body": "Service Unavailable"}', "failed"),
        ("http", "{}", '{"status": 200, "headers": {}, "body": "404 Not Found"}', "unknown"),
        ("get_log", "{}", '{"path": "/a", "status": 503, "ms": 30}', "unknown"),
        ("lint", "{}", '{"file": "a.py", "errors": ["unused"]}', "unknown"),
        ("get_logs", "{}", "2026-01-02T03:04:05Z WARN login failed for u1", "unknown"),
        ("get_logs", "{}", "E0612 10:00:00.000000       1 a.go:1] failed to list pods", "unknown"),
        ("get_user", "{}", '{"name": "Failed State", "note": "errors denied"}', "unknown"),
        ("search", "{}", "Tool call timed out.", "failed"),
        ("Read", "{}", "Error handling in Go is explicit.\n" + "text\n" * 300, "unknown"),
        ("read_pdf", "{}", "Error analysis\n\nThe rate was 3 %.", "unknown"),
        ("task", "{}", "Failed tests: 0. The report is attached.", "unknown"),
        ("task", "{}", "Failed tests: 2. The report is attached.", "failed"),
        ("run_sql", "{}", "id | error\n 1 | access denied\n(1 row)", "unknown"),
        ("run_sql", "{}", '[{"error": "timed out", "n": 3}]', "unknown"),
        ("create_event", "{}", "Created event 55, two guests failed to be notified", "unknown"),
        ("create_event", "{}", "The event failed to be created", "failed"),
        ("get_job", "{}", '{"id": 3, "status": "error", "error": "out of memory"}', "unknown"),
        ("get_job", "{}", '{"status": "error", "error": "no such job"}', "failed"),
    ],
)  # fmt: skip
def test_other_tools_fail_where_their_result_is_a_message_of_failure(
    name: str, arguments: str, text: str, verdict: str
) -> None:
    assert read_text_outcome(text, shell_commands.parse_call(Call("1", name, arguments))).verdict == verdict


def test_the_exit_code_is_reported_with_the_line_that_shows_it() -> None:
    read = read_text_outcome("Exit code 2\nboom", shell_commands.parse_command("./run"))
    assert (read.exit_code, read.code_lines, read.first_line) == (2, (0,), 1)


def test_the_first_line_that_says_something_is_not_a_wrapper() -> None:
    assert read_text_outcome(xml(0, "hello there"), shell_commands.parse_command("./run")).first_line == 2
    assert read_text_outcome('{\n  "name": "x"\n}').first_line == 1
    assert read_text_outcome('[\n  {\n    "id": 4821\n  }\n]').first_line == 2


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("Observation:\n300 files", 1),
        ("OBSERVATION\n300 files", 1),
        ("## Observation: [\n300 files", 1),
        ("Observation: 300 files\nand more", 0),
        ("Observation:\nExecution logs:\n300 files\nLast output from code snippet:\nNone", 2),
        ("EXECUTION RESULT of [ls -l src]:\n300 files", 1),
        ("[read_file for 'a.py'] Result:\n300 files", 1),
        ("Tool output: <returncode>0</returncode>\n300 files", 1),
        ("Observations of the night: 300 files", 0),
        ("### Page state\n- Page URL: https://a.example/b", 1),
        ("### Ran Playwright code\n```js\nawait page.goto('https://a.example/b');\n```\n### Page", 2),
        ("# Page states of the cache\n300 files", 0),
    ],
)
def test_the_label_of_an_observation_is_a_wrapper(text: str, first: int) -> None:
    assert read_text_outcome(text).first_line == first
    assert output_wrappers.find_first_line(text) == text.splitlines()[first]


def test_a_label_hides_no_failure() -> None:
    assert read_text_outcome("Observation: Error: old string not found in file").verdict == "failed"
    assert (
        read_text_outcome(
            "Observation: 2 failed, 198 passed in 3.1s", shell_commands.parse_command("pytest -q")
        ).verdict
        == "failed"
    )


def test_an_output_without_content_opens_with_its_first_line() -> None:
    assert output_wrappers.find_first_line("\n{\n}\n") == "{"
    assert output_wrappers.find_first_line(" \n") == ""


def test_a_reading_is_made_once_for_a_message_and_its_command() -> None:
    message = read_message(json.dumps({"role": "tool", "tool_call_id": "1", "content": "2 failed in 1s"}).encode())
    command = shell_commands.parse_command("pytest")
    assert outcome.read_outcome(message, command) is outcome.read_outcome(
        message, shell_commands.parse_command("pytest")
    )
    assert outcome.read_outcome(message).verdict == "unknown" or outcome.read_outcome(
        message
    ) is not outcome.read_outcome(message, command)


@pytest.mark.parametrize(
    "text",
    [
        "FAIL x.go\n" * 200_000,
        "x" * 3_000_000,
        "error: " + "a: " * 500_000,
        "\n".join(["<a>" * 300_000, "not found"]),
        "make: *** no\n" + " " * 2_000_000 + "\nok",
        "0 fail\n" * 200_000,
        "3 passed (2s)\nTimeout: 0\n0 failures, 0 errors.\n" * 50_000,
        ("+" * 390 + " lines truncated\n") * 5_000,
        "{\n" * 1_500_000,
        ("Test Suites: " + " " * 380 + "ok\n") * 2_500,
    ],
    ids=[
        "many lines",
        "one line",
        "colons",
        "tags",
        "blanks",
        "successes",
        "pairs of lines",
        "cuts",
        "brackets",
        "a gap",
    ],
)
def test_a_huge_result_is_read_with_little_work(text: str) -> None:
    """By processor time, with room for a busy machine: every line looked at by every pattern took ten times as long."""
    began = time.process_time()
    assert read_text_outcome(text, shell_commands.parse_command("go test ./...")).verdict != "succeeded"
    assert time.process_time() - began < 2


def test_a_result_with_more_lines_than_are_read_is_never_a_success() -> None:
    for count, verdict in ((100, "succeeded"), (HEAD_LINES + TAIL_LINES, "unknown")):
        text = "\n".join(["a line"] * count + ["=== 3 passed in 1.0s ==="])
        assert read_text_outcome(text, shell_commands.parse_command("pytest")).verdict == verdict
