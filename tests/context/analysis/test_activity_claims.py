"""The claims of the record on new files and open items: nothing is told that no tool has said."""

from __future__ import annotations

import time

import pytest

from tests.context.analysis.test_activity import render_record


def test_a_file_is_created_only_where_the_tool_says_that_it_is_new() -> None:
    assert render_record(
        ("write_cell", {"file": "s.xlsx", "cell": "A1"}, "ok"),
        ("write_file", {"path": "Dockerfile"}, "Successfully wrote to Dockerfile"),
        ("write_file", {"path": "a.py"}, "Datei a.py wurde erstellt"),
        ("create_file", {"path": "b.py"}, "ok"),
    ) == ["Edited: Dockerfile; s.xlsx", "Created: b.py; a.py"]


def test_an_item_with_a_status_that_is_not_known_is_not_reported_as_open() -> None:
    items = [("a", "In progress"), ("b", "booked"), ("c", "erledigt"), ("d", "not-started"), ("e", "")]
    todos = [{"content": name, "status": status} for name, status in items]
    assert render_record(("TodoWrite", {"todos": [*todos, {"content": "f"}]}, "ok")) == ["Open: a; d; e; f"]


def test_of_a_long_list_the_next_items_are_listed_with_how_many_follow() -> None:
    todos = [{"content": f"step {n}", "status": "in_progress" if n == 1 else "pending"} for n in range(1, 13)]
    assert render_record(("TodoWrite", {"todos": todos}, "ok")) == [
        "Open: step 1; step 2; step 3; step 4; step 5; step 6; step 7; step 8; 4 more"
    ]


def test_a_drive_of_windows_has_one_name() -> None:
    made = ("create_file", {"filePath": "c:\\src\\a.cs"}, "The file was created.")
    removed = ("run_in_terminal", {"command": "del C:\\src\\a.cs"}, "")
    assert render_record(made) == ["Created: c:\\src\\a.cs"]
    assert render_record(made, removed) == ["Commands: `del C:\\src\\a.cs`"]


def test_a_file_whose_last_change_was_undone_is_not_reported_as_created() -> None:
    undone = ("undo_edit", {"path": "x.py"}, "Last edit of x.py was undone.")
    assert render_record(("create_file", {"path": "x.py"}, "File created: x.py"), undone) == []
    other = ("create_file", {"path": "y.py"}, "File created: y.py")
    assert render_record(other, undone) == ["Created: y.py"]


def test_a_test_that_passed_after_one_that_failed_is_not_an_error() -> None:
    bats = "1..3\nok 1 a\nnot ok 2 b\n# (in test file test/x.bats, line 3)\nok 3 c"
    errors = 'Last errors: "# (in test file test/x.bats, line 3)"; "not ok 2 b"'
    assert render_record(("bash", {"command": "bats test/"}, bats)) == ["Commands: `bats test/` failed", errors]
    go = "--- FAIL: TestA (0.02s)\n--- PASS: TestB (0.00s)\nFAIL"
    assert render_record(("bash", {"command": "go test -v ."}, go))[1] == 'Last errors: "--- FAIL: TestA (0.02s)"'


@pytest.mark.parametrize("of_word", ["a", "_", "/a", "1"])
def test_results_of_one_long_word_are_read_in_little_time(of_word: str) -> None:
    calls = [("Edit", {"file_path": f"{n}.py", "old": "x"}, of_word * 3000) for n in range(200)]
    began = time.thread_time()
    render_record(*calls)
    assert time.thread_time() - began < 2


@pytest.mark.parametrize(
    "command",
    [
        'Set-Content -Path a.py -Value "x"',
        '(Get-Content a.py) -replace "1","2" | Set-Content a.py',
        '"x" | Out-File -FilePath a.py',
        """python -c "open('a.py', 'w').write('x')" """,
        "python3 - <<EOF\nfrom pathlib import Path\nPath('a.py').write_text('x')\nEOF",
        "git restore a.py",
        "cargo fmt",
        "gofmt -w .",
        "unzip -o new.zip",
        "tar xzf new.tgz",
    ],
)
def test_a_success_is_outdated_by_each_way_to_write_files(command: str) -> None:
    tested = [("read_file", {"path": "/w/a.py"}, "x = 1"), ("bash", {"command": "pytest -q"}, "3 passed in 0.1s")]
    assert "`pytest -q` ok, files changed since" in render_record(*tested, ("bash", {"command": command}, ""))[-1]


@pytest.mark.parametrize(
    "command",
    [
        "Set-Content -Path other.txt -Value x",
        """python -c "print(open('a.py').read())" """,
        """python -c "open('out.json', 'w').write('x')" """,
        "unzip -l new.zip",
        "tar tzf new.tgz",
        "cargo fmt --check",
    ],
)
def test_a_success_is_not_outdated_by_other_files_and_by_what_only_reads(command: str) -> None:
    tested = [("read_file", {"path": "/w/a.py"}, "x = 1"), ("bash", {"command": "pytest -q"}, "3 passed in 0.1s")]
    assert "changed since" not in render_record(*tested, ("bash", {"command": command}, ""))[-1]


@pytest.mark.parametrize(
    "command",
    [
        "jq .a=1 tsconfig.json > t.json && mv t.json tsconfig.json",
        "curl -fsSL https://example.com/a.py -o a.py",
        "wget -qO a.py https://example.com/a.py",
        "git rm -q b.py",
        "git mv b.py c.py",
        "python manage.py makemigrations shop",
        "echo 'x = 1' >> b.py",
        """python - <<'EOF'\np = 'b.py'\ns = open(p).read()\nopen(p, 'w').write(s)\nEOF""",
        """python -c "import shutil; shutil.copy('b.py', 'a.py')" """,
    ],
)
def test_a_success_is_outdated_by_commands_that_write_sources(command: str) -> None:
    tested = [("read_file", {"path": "/w/a.py"}, "x = 1"), ("bash", {"command": "pytest -q"}, "3 passed in 0.1s")]
    assert "`pytest -q` ok, files changed since" in render_record(*tested, ("bash", {"command": command}, ""))[-1]


@pytest.mark.parametrize("command", ["cat > b.py <<'EOF'\nx = 1\nEOF", "cp a.tpl b.py", "rm b.py"])
def test_a_source_that_a_shell_has_shown_or_written_is_there_before(command: str) -> None:
    tested = ("bash", {"command": "pytest -q"}, "3 passed in 0.1s")
    changed = ("bash", {"command": command}, "")
    assert "changed since" not in render_record(tested, changed)[-1]
    shown = ("bash", {"command": "cat b.py"}, "x = 0")
    assert "`pytest -q` ok, files changed since" in render_record(shown, tested, changed)[-1]
    if not command.startswith("rm"):
        assert "`pytest -q` ok, files changed since" in render_record(tested, changed, changed)[-1]


@pytest.mark.parametrize(
    "command", ["node gen.js", "make gen", "npm run codegen", "./tools/sync.sh", "python fix_it.py"]
)
def test_a_script_whose_name_says_that_it_writes_may_have_outdated_a_success(command: str) -> None:
    tested = ("bash", {"command": "pytest -q"}, "3 passed in 0.1s")
    assert (
        "`pytest -q` ok, files may have changed since" in render_record(tested, ("bash", {"command": command}, ""))[-1]
    )


@pytest.mark.parametrize(
    "command",
    ["python test_fix.py", "node reproduce.js", "make lint", "/opt/build/app", "python -c 'print(generate())'"],
)
def test_a_script_of_another_name_is_not_reported_as_one_that_writes(command: str) -> None:
    tested = ("bash", {"command": "pytest -q"}, "3 passed in 0.1s")
    assert "changed since" not in render_record(tested, ("bash", {"command": command}, ""))[-1]


@pytest.mark.parametrize(
    ("command", "text", "changes"),
    [
        ("git pull", "Already up to date.", False),
        ("git pull", "Updating 1..2\nFast-forward\n a.py | 2 +-", True),
        ("git checkout main", "Already on 'main'\nM\ta.py", False),
        ("git checkout a.py", "Updated 0 paths from the index", False),
        ("git checkout a.py", "Updated 1 path from the index", True),
        ("git stash", "No local changes to save", False),
        ("git clean -fd", "Removing a.py", True),
        ("git clean -fd", "", False),
    ],
)
def test_git_says_whether_it_has_changed_a_file(command: str, text: str, *, changes: bool) -> None:
    tested = ("bash", {"command": "pytest -q"}, "3 passed in 0.1s")
    told = render_record(tested, ("bash", {"command": command}, text))[-1]
    assert ("`pytest -q` ok, files changed since" in told) is changes


def test_a_command_that_its_own_limit_ended_is_told_to_have_timed_out() -> None:
    served = ("bash", {"command": "timeout 5 npm start"}, "Listening on :3000\n\nExit code: 124")
    assert render_record(served) == ["Commands: `timeout 5 npm start` timed out (124)"]
    ended = "bash tool terminated command after exceeding timeout 120000 ms"
    hung = ("bash", {"command": "pytest -q"}, f"=== 60 passed in 11.02s ===\n{ended}")
    told, error = render_record(hung)
    assert told == "Commands: `pytest -q` timed out"
    assert "exceeding timeout" in error


def test_a_code_that_is_an_answer_is_not_reported_as_a_failure() -> None:
    copied = ("cmd", {"command": "robocopy src dst /MIR"}, "   Files :  14  14  0\n\nExit code: 1")
    assert render_record(copied) == ["Commands: `robocopy src dst /MIR`"]
    denied = ("cmd", {"command": "robocopy src dst /MIR"}, "Access is denied.\n\nExit code: 8")
    assert render_record(denied)[0] == "Commands: `robocopy src dst /MIR` failed (8)"


PATCH = "*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n*** Update File: b.py\n@@\n-x\n+y\n*** End Patch"


def test_a_patch_of_two_files_of_which_one_failed_changed_it_is_not_known_which() -> None:
    assert render_record(("apply_patch", {"input": PATCH}, "Applied a.py. Failed b.py: context not found")) == []
    done = "Success. Updated the following files:\nM a.py\nM b.py"
    assert render_record(("apply_patch", {"input": PATCH}, done)) == ["Edited: b.py; a.py"]


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("create_issue", {"title": "Slow", "file": "a.py"}, "Created #12"),
        ("update_status", {"path": "/orders/12"}, "updated"),
        ("kubectl_apply", {"filename": "a.yaml"}, "deployment.apps/web created"),
    ],
)
def test_a_tool_that_changes_something_else_has_changed_no_file(
    name: str, arguments: dict[str, str], text: str
) -> None:
    assert render_record((name, arguments, text)) == []
