"""What the agent has touched, read off its own calls."""

from __future__ import annotations

import json

import pytest

from proxy.chat.message import Call
from proxy.context.evidence.ledger import Ledger, record
from tests.context.evidence.runs import RUNS, Run
from tests.conversations import Json, assistant, call, look, result, user


def noted(*calls: tuple[str, Json, str | None]) -> list[str]:
    ledger = Ledger()
    for name, arguments, text in calls:
        ledger.note(Call("1", name, json.dumps(arguments)), text)
    return ledger.lines()


def test_files_are_told_by_what_was_done_to_them_the_newest_first() -> None:
    assert noted(
        ("Read", {"file_path": "a.py"}, "x"),
        ("read_file", {"path": "b.py"}, "x"),
        ("Edit", {"file_path": "a.py", "old": "x"}, "done"),
        ("create_file", {"path": "c.py"}, "done"),
    ) == ["Edited: a.py", "Created: c.py", "Read: b.py"]


def test_commands_are_told_with_how_they_ended_and_those_that_failed_first() -> None:
    assert noted(
        ("bash", {"command": "make test"}, "exit code: 2"),
        ("bash", {"command": "ls"}, "a\nb"),
        ("bash", {"command": "python x.py"}, "Traceback (most recent call last):\nKeyError: 'a'"),
        ("bash", {"command": "make lint"}, "<returncode>0</returncode>"),
        ("bash", {"command": "./deploy"}, "all went well, ok"),
    ) == [
        "Commands: `python x.py` failed; `make test` failed (2); `./deploy`; `make lint` ok; `ls`",
        "Last errors: KeyError: 'a'",
    ]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.runner}: {run.command}")
def test_t1_no_run_is_told_to_have_ended_as_it_did_not(run: Run) -> None:
    if not run.command:
        return
    (told, *_) = noted(("bash", {"command": run.command}, run.output))
    ended = told.rpartition("` ")[2] if "` " in told else ""
    assert (ended == "ok") == (run.verdict == "succeeded")
    assert ended.startswith("failed") == (run.verdict == "failed")


def test_t1_five_runs_that_failed_are_told_to_have_failed() -> None:
    (told, *_) = noted(
        ("bash", {"command": "pytest -q"}, "tests ...\n2 failed, 198 passed"),
        ("bash", {"command": "make build"}, "cc -c a.c\nmake: *** Segmentation fault"),
        ("bash", {"command": "cargo build"}, "error: could not compile `app`"),
        ("bash", {"command": "npm test"}, "ok 1\nnpm ERR! Test failed"),
        ("bash", {"command": "go test ./..."}, "--- FAIL: TestResume (0.0s)\n    a_test.go:1: want 4\nok  \tapp\t0.1s"),
    )
    assert told.count("failed") == 5
    assert " ok" not in told


def test_t2_an_edit_that_failed_is_no_edit() -> None:
    assert noted(
        ("Edit", {"file_path": "a.py"}, "Error: old string not found in file"),
        ("Edit", {"file_path": "b.py"}, "The file b.py has been updated."),
        ("Write", {"file_path": "c.py"}, "Permission denied"),
    ) == ["Edited: b.py", "Last errors: Permission denied; Error: old string not found in file"]


def test_t2_lines_of_source_are_no_errors() -> None:
    source = "\n".join(f"{n}\t    raise ValueError('x {n}')" for n in range(1, 30)) + "\n30\tclass MyError(Exception):"
    assert noted(
        ("Read", {"file_path": "a.py"}, source),
        ("Grep", {"pattern": "Error"}, "a.py:3: raise ValueError('x')\nb.py: fatal: error"),
        ("bash", {"command": "cat a.py | head -30"}, source),
        ("bash", {"command": "grep -rn FAILED src"}, "src/a.py:1: FAILED = 'error: failed'"),
    ) == ["Read: a.py", "Commands: `grep -rn FAILED src`; `cat a.py | head -30`"]


def test_t3_what_failed_is_not_pushed_out_by_commands_that_look() -> None:
    looks = [("bash", {"command": f"ls {n}"}, "a\nb") for n in range(6)]
    (told, *_) = noted(("bash", {"command": "pytest -q"}, "=== 1 failed in 0.1s ==="), *looks)
    assert told.startswith("Commands: `pytest -q` failed; `ls 5`")


def test_t3_what_has_succeeded_since_is_not_told_as_failed() -> None:
    assert noted(
        ("bash", {"command": "make test 2>&1 | tail -5"}, "E   assert 1 == 2\n=== 1 failed in 0.1s ==="),
        ("bash", {"command": "make test"}, "=== 1 passed in 0.1s ==="),
    ) == ["Commands: `make test` ok"]
    assert (
        noted(
            ("bash", {"command": "make test"}, "=== 1 failed in 0.1s ==="),
            ("bash", {"command": "make test"}, "interrupted by something"),
        )[0]
        == "Commands: `make test` failed"
    )


def test_open_items_are_those_of_the_last_list() -> None:
    todos = [{"content": "one", "status": "completed"}, {"content": "two", "status": "pending"}]
    assert noted(("TodoWrite", {"todos": todos}, "ok")) == ["Open: two"]


def test_arguments_that_are_no_json_object_tell_nothing() -> None:
    ledger = Ledger()
    for arguments in ("", "[]", "{", '"x"'):
        ledger.note(Call("1", "read", arguments), None)
    assert ledger.lines() == []


def test_only_what_has_left_is_recorded() -> None:
    values: list[Json] = [user("a")]
    for n in range(3):
        values += [{**assistant(None), "tool_calls": [call("1", "read", f'{{"path": "{n}.py"}}')]}, result("1", "text")]
    view = look(values)
    assert record(view.messages, [n == 2 for n in range(len(values))]).lines() == ["Read: 0.py"]
