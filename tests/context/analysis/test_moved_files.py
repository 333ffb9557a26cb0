"""What calls do to files beside writing them."""

from __future__ import annotations

import pytest

from proxy.context.analysis import identifiers, moved_files, shell_commands


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("rm -f a.py b.py", ["gone a.py", "gone b.py"]),
        ("cd src && mv a.py b.py", ["gone a.py", "placed b.py"]),
        ("cp a.py b.py", ["placed b.py"]),
        ("patch -p1 < a.diff", ["placed *"]),
        ("git rm --cached a.py", []),
        ("git rm a.py", ["gone a.py"]),
        ("git checkout a.py", ["undone a.py"]),
        ("git checkout main", ["placed *"]),
        ("git checkout -b fix.it", []),
        ("git checkout -b fix.it main", ["placed *"]),
        ("git checkout .", ["undone ."]),
        ("git restore --staged a.py", []),
        ("git reset --hard HEAD~1", ["undone *"]),
        ("git reset HEAD a.py", []),
        ("git stash", ["undone *"]),
        ("git stash pop", ["placed *"]),
        ("git stash list", []),
        ("pytest -q", []),
        ("echo 'rm a.py'", []),
        ("grep rm a.py && make rm", []),
    ],
)
def test_a_shell_command_is_followed(command: str, told: list[str]) -> None:
    assert [
        f"{one.kind} {one.path}" for one in moved_files.read_shell_changes(shell_commands.parse_command(command).core)
    ] == told


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        ("delete_file", True),
        ("remove", True),
        ("moveFile", True),
        ("delete_lines", False),
        ("remove_import", False),
        ("edit_file", False),
    ],
)
def test_a_tool_that_deletes_a_file_is_told_from_one_that_deletes_lines_of_it(tool: str, *, told: bool) -> None:
    found = moved_files.read_tool_changes(identifiers.split_tool_name(tool), {"path": "a.py"})
    assert found == ([moved_files.FileChange("gone", "a.py")] if told else [])


@pytest.mark.parametrize(
    ("named", "path", "means"),
    [
        ("a.py", "src/a.py", True),
        ("/srv/src/a.py", "src/a.py", True),
        ("./src/a.py", "src/a.py", True),
        ("src", "src/a.py", True),
        ("src/", "/srv/src/a.py", True),
        ("*.py", "src/a.py", True),
        (".", "src/a.py", True),
        ("ba.py", "src/a.py", False),
        ("lib/a.py", "src/a.py", False),
        ("*.md", "src/a.py", False),
    ],
)
def test_a_file_is_known_by_less_of_its_path(named: str, path: str, *, means: bool) -> None:
    assert moved_files.matches_path(named, path) == means


def test_a_patch_is_read_wherever_it_stands_in_the_arguments() -> None:
    assert moved_files.read_patch_changes(
        '{"input": "*** Begin Patch\\n*** Add File: a b.py\\n+x\\n*** End Patch"}'
    ) == [moved_files.FileChange("created", "a b.py")]
    assert moved_files.read_patch_changes('{"input": "*** Add File: a.py"}') == []


def test_a_shell_goes_where_a_command_only_leads_it() -> None:
    assert moved_files.follow_cd("cd a", "") == "a"
    assert moved_files.follow_cd("cd ..", "a/b") == "a"
    assert moved_files.follow_cd("cd /x", "a") == "/x"
    assert moved_files.follow_cd("cd a && make", "b") == "b"
    assert moved_files.follow_cd("cd $HOME", "b") == "b"
