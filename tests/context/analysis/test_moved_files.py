"""Effects of calls on files other than writing."""

from __future__ import annotations

import pytest

from proxy.context.analysis import identifiers, moved_files, shell_commands
from proxy.context.analysis.moved_files import MAX_PATH_CHARS, is_project_file


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("rm -f a.py b.py", ["gone a.py", "gone b.py"]),
        ("cd src && mv a.py b.py", ["gone src/a.py", "placed src/b.py"]),
        ("cd /r; cd lib && rm a.py ../b.py", ["gone /r/lib/a.py", "gone /r/b.py"]),
        ("test -f b.py && mv a.py c.py; ls", ["gone a.py?", "placed c.py?"]),
        ("[ -f b.py ] && rm a.py", ["gone a.py?"]),
        ("grep -q x b.py && rm a.py", ["gone a.py?"]),
        ("make || rm a.py", ["gone a.py?"]),
        ("make; rm a.py", ["gone a.py"]),
        ("git rm --dry-run a.py && git mv -n a.py b.py && mv -n a.py c.py && rm -i a.py", []),
        ("rm -f $DIR/a.py", []),
        ("pushd src && rm a.py && popd && rm a.py", ["gone src/a.py", "gone ~/a.py"]),
        ("cd && rm a.py", ["gone ~/a.py"]),
        ("git clean -nfd", []),
        ("git clean -fd", ["cleaned *"]),
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
        (r"Remove-Item -Path src\a.cs,src\b.cs -Force", [r"gone src\a.cs", r"gone src\b.cs"]),
        (r"Move-Item C:\src\a.cs -Destination C:\lib\a.cs", [r"gone C:\src\a.cs", r"placed C:\lib\a.cs"]),
        (r"del /q C:\src\a.cs", [r"gone C:\src\a.cs"]),
        ("Remove-Item src -Recurse -Include *.cs; Remove-Item a.cs -WhatIf; Remove-Item $old", []),
    ],
)
def test_a_shell_command_is_followed(command: str, told: list[str]) -> None:
    assert [
        f"{one.kind} {one.path}{'' if one.certain else '?'}"
        for one in moved_files.read_shell_changes(shell_commands.parse_command(command).core)
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
def test_a_tool_that_deletes_a_file_is_distinguished_from_one_that_deletes_lines_in_it(
    tool: str, *, told: bool
) -> None:
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
        ("/srv/src", "src/a.py", True),
        ("src", "lib/src/a.py", False),
        ("/tmp/lib", "src/a.py", False),
    ],
)
def test_a_file_is_known_by_less_of_its_path(named: str, path: str, *, means: bool) -> None:
    assert moved_files.matches_path(named, path) == means


def test_a_patch_is_read_wherever_it_is_in_the_arguments() -> None:
    assert moved_files.read_patch_changes(
        '{"input": "*** Begin Patch\\n*** Add File: a b.py\\n+x\\n*** End Patch"}'
    ) == [moved_files.FileChange("created", "a b.py")]
    assert moved_files.read_patch_changes('{"input": "*** Add File: a.py"}') == []


def test_a_shell_goes_where_a_command_only_leads_it() -> None:
    assert moved_files.follow_cd("cd a", "") == "a"
    assert moved_files.follow_cd("cd ..", "a/b") == "a"
    assert moved_files.follow_cd("cd /x", "a") == "/x"
    assert moved_files.follow_cd("cd a && make", "b") == "b"
    assert moved_files.follow_cd("cd $HOME", "b") == ""


@pytest.mark.parametrize(
    ("removed", "path", "gone"),
    [
        ("a.py", "a.py", True),
        ("./src", "src/a.py", True),
        ("src/*", "src/lib/a.py", True),
        ("src/*", "src/.env", False),
        ("*", ".env", False),
        ("*", "a.py", True),
        ("/r/src/a.py", "/r/src/a.py", True),
        ("a.py", "src/a.py", False),
        ("src/a.py", "a.py", False),
        ("src/a.py", "/r/src/a.py", False),
        ("/r/src/a.py", "src/a.py", False),
        ("src", "lib/src/a.py", False),
        ("src", "srcs/a.py", False),
        ("src/*.py", "src/lib/b/a.txt", False),
        ("", "a.py", False),
        (".", "a.py", False),
    ],
)
def test_a_file_is_removed_by_its_own_path_or_a_folder_of_it(removed: str, path: str, *, gone: bool) -> None:
    assert moved_files.removes_path(moved_files.FileChange("gone", removed), path) == gone
    assert not moved_files.removes_path(moved_files.FileChange("gone", removed, certain=False), path)


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/a.pyc", False),
        ("src/*.py", "src/lib/a.py", False),
        ("*", "a.py", True),
        ("*", ".env", False),
        ("a*b*c", "a1b2c/x", True),
        ("a*b*c", "acb", False),
        ("ab*ba", "aba", False),
        ("src/*/b.py", "src", False),
    ],
)
def test_a_star_in_a_removed_path(pattern: str, path: str, fits: bool) -> None:
    assert moved_files.removes_path(moved_files.FileChange("gone", pattern), path) is fits


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*.py", "/r/src/a.py", True),
        ("src/*.py", "/r/src/lib/a.py", True),
        ("rc/*.py", "/r/src/a.py", False),
        ("a*b", "/ab/a/b", True),
        ("ab*ba", "/r/aba", False),
    ],
)
def test_a_star_in_a_path_that_may_mean_a_file(pattern: str, path: str, fits: bool) -> None:
    assert moved_files.matches_path(pattern, path) is fits


def test_many_stars_take_linear_time() -> None:
    # As a pattern of expressions they tried all ways to part the name: with 20 of them for longer than anyone waits.
    change = moved_files.FileChange("gone", "*a" * 200 + "*b")
    for path in ("a" * 1000, "a/" * 500 + "a"):
        assert not moved_files.removes_path(change, path)
        assert not moved_files.matches_path(change.path, path)


def test_a_text_longer_than_any_path_matches_no_path() -> None:
    long = "a/" * 200_000
    assert not moved_files.removes_path(moved_files.FileChange("gone", long), long)
    assert not moved_files.matches_path(long, long + "b")


@pytest.mark.parametrize(
    ("command", "directory"),
    [
        ("cd lib", "/w/lib"),
        ("cd -- ../b", "/b"),
        ("cd 'lib'", "/w/lib"),
        ("cd ~/lib", "~/lib"),
        ("pushd /b", "/b"),
        ("Set-Location -Path D:\\b", "d:/b"),
        ("cd /d D:\\b", "d:/b"),
        ("cd -", ""),
        ("cd", ""),
        ('cd "$HOME/x"', ""),
        ("popd", ""),
        ("cd lib && make", "/w"),
        ("sl-tool x", "/w"),
        ("cdk deploy", "/w"),
    ],
)
def test_a_shell_is_followed_as_far_as_the_command_says_where_it_goes(command: str, directory: str) -> None:
    assert moved_files.follow_cd(command, "/w") == directory


def test_a_name_that_is_too_long_is_not_a_file_of_a_project() -> None:
    assert is_project_file("src/config.py")
    assert not is_project_file("a/" * MAX_PATH_CHARS + "config.py")
