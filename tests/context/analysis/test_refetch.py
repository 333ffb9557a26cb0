from __future__ import annotations

import json

import pytest

from proxy.chat.chain import public_id
from proxy.chat.message import Call
from proxy.context.analysis.refetch import (
    MAX_SEARCHED_CHARS,
    Refetch,
    ResultSource,
    find_refetches,
    find_source,
    has_same_file,
    is_same_file,
    pair_results,
)
from proxy.context.analysis.shell_commands import parse_command
from tests.conversations import Json, assistant, build_view, call, make_messages, result, user


def shell(command: str) -> ResultSource:
    return find_source(Call("1", "bash", json.dumps({"command": command})))


def tool(name: str, **arguments: object) -> ResultSource:
    return find_source(Call("1", name, json.dumps(arguments)))


def history(*steps: tuple[str, Json]) -> list[Json]:
    """One call a step, each with a result."""
    made: list[Json] = [user("go")]
    for name, arguments in steps:
        made.append({**assistant(None), "tool_calls": [call("c", name, json.dumps(arguments))]})
        made.append(result("c", f"result {len(made)}"))
    return made


@pytest.mark.parametrize(
    "piece",
    [
        "sed ", "sed -i ", "perl -", "cd a && ", '\\"', '\\" ', '\'"\\"', "> ", "<<A ", "<<A\n", "$(", "a | ",
        "@'\n", "@'\n'@ | pwsh ", "% {", "$a = ", "; sc ", "bash -l ",
    ],
)  # fmt: skip
def test_long_commands_are_read_in_linear_time(piece: str) -> None:
    """With a search to the end at each piece it would take minutes to hours, with the interpreter locked."""
    long = piece * (600_000 // len(piece))
    for command in (long, f'"{long}', f"{long})"):
        assert shell(command).action != "shows"
        assert parse_command(command).kind in ("run", "look")
    for command in (long[:20_000], f'"{long[:19_999]}', f"{long[:19_999]})"):
        assert parse_command(command).kind in ("run", "look")


def test_quoted_text_is_not_part_of_a_command() -> None:
    assert shell(f"echo '{'x' * 1_000_000}' > a.txt").path == "a.txt"
    assert shell(f"echo {'x' * MAX_SEARCHED_CHARS} > a.txt").action == "runs"
    assert shell('grep "a \\\n > b" c.py').action == "looks", "a line that goes on inside quotes"


READ, EDIT, LOOK = ("Read", {"file_path": "/r/a.py"}), ("Edit", {"file_path": "/r/a.py"}), ("get_user", {"id": "u1"})


@pytest.mark.parametrize(
    ("command", "action", "path"),
    [
        ("cat a/b.py", "shows", "a/b.py"),
        ("cd /testbed && sed -n '10,20p' src/./b.py", "shows", "/testbed/src/b.py"),
        ("cd /testbed/src && cat ../b.py", "shows", "/testbed/b.py"),
        ("cat b.py | head -30", "shows", "b.py"),
        ("head -n 20 b.py 2>/dev/null", "shows", "b.py"),
        ("cat a.py b.py", "looks", ""),
        ("grep -rn 'x > y; rm -rf' src | wc -l", "looks", ""),
        ("git -C /x log --oneline", "runs", ""),
        ("git diff HEAD", "looks", ""),
        ("git commit -am x", "runs", ""),
        ("find . -name '*.py' -delete", "runs", ""),
        ("cat > b.py << 'EOF'\nimport os\nEOF", "writes", "b.py"),
        ("cd /t && sed -i 's/a/b/' c.py", "writes", "/t/c.py"),
        ("echo hi >> notes.txt", "writes", "notes.txt"),
        ("pytest -q 2>&1 | tail -5", "runs", ""),
        ("python - <<'EOF'\nprint(1)\nEOF", "runs", ""),
        ("echo $(rm x)", "runs", ""),
        ('cat "a/b.py"', "shows", "a/b.py"),
        ("bash -lc \"sed -n '1,9p' a.py\"", "shows", "a.py"),
        ("Get-Content -Raw app\\core\\config.py", "shows", "app/core/config.py"),
        ("Get-Content -Path 'a.py' -TotalCount 100 | Select-Object -First 50", "shows", "a.py"),
        ("$i=1; Get-Content a.py | ForEach-Object { '{0,4}: {1}' -f $i, $_; $i++ }", "shows", "a.py"),
        ("@'\n$i=1; Get-Content a.py | % { \"$i $_\"; $i++ }\n'@ | powershell -NoProfile -Command -", "shows", "a.py"),
        ('powershell.exe -NoProfile -ExecutionPolicy Bypass -Command "Get-Content a.py"', "shows", "a.py"),
        ("Get-Content a.py; Get-Content b.py", "looks", ""),
        ("Get-Content a.py | ForEach-Object { Remove-Item $_ }; Remove-Item a.py", "runs", ""),
        ("(Get-Content a.py) -replace 'x','y' | Set-Content a.py", "writes", "a.py"),
        ("@'\nit's > x\n'@ | Set-Content -Encoding UTF8 -Path .gitignore", "writes", ".gitignore"),
        ("", "runs", ""),
    ],
)
def test_a_shell_command_is_read_by_what_it_does(command: str, action: str, path: str) -> None:
    found = shell(command)
    assert (found.action, found.path) == (action, path)


@pytest.mark.parametrize(
    ("found", "action", "path"),
    [
        (tool("read_file", path="a.py", offset=3), "shows", "a.py"),
        (tool("Edit", file_path="/r/a.py"), "writes", "/r/a.py"),
        (tool("str_replace_editor", path="a.py"), "writes", "a.py"),
        (tool("Grep", pattern="x", path="/r"), "looks", ""),
        (tool("get_user_details", user_id="u"), "looks", ""),
        (tool("cancel_reservation", id="r"), "writes", ""),
        (tool("run_tests", path="a.py"), "runs", ""),
        (tool("check_status", job="1"), "runs", ""),
        (tool("recall", id=" abcdefghij "), "recalls", "abcdefghij"),
        (tool("shell", command=["bash", "-lc", "cat a.py"]), "shows", "a.py"),
        (tool("shell", command=["powershell.exe", "-Command", "Get-Content a.py"]), "shows", "a.py"),
        (tool("execute-tool", tool_name="get_text_file", params={"path": "/a.csv"}), "shows", "/a.csv"),
        (find_source(Call("1", "think", "no JSON")), "other", ""),
    ],
)
def test_a_tool_is_read_by_the_words_of_its_name(found: ResultSource, action: str, path: str) -> None:
    assert (found.action, found.path) == (action, path)


def test_equal_arguments_are_one_call_however_they_are_written() -> None:
    one = find_source(Call("1", "get", '{"a":1,"b":2}'))
    assert one == find_source(Call("2", "get", '{"b": 2, "a": 1}'))


def test_a_repeated_look_up_is_reported_with_its_newest_earlier_result() -> None:
    view = build_view(history(LOOK, READ, LOOK, LOOK))
    assert find_refetches(view) == {6: Refetch("repeat", 6, 2, 2, 0), 8: Refetch("repeat", 8, 6, 1, 0)}


def test_another_range_of_a_file_is_a_reread_and_edits_between_are_counted() -> None:
    part = ("Read", {"file_path": "/r/a.py", "offset": 9})
    view = build_view(history(READ, EDIT, EDIT, part, READ))
    assert find_refetches(view) == {8: Refetch("reread", 8, 2, 3, 2), 10: Refetch("repeat", 10, 2, 4, 2)}


def test_a_recall_is_described_by_the_id_of_the_message() -> None:
    name = public_id(build_view(history(READ)).keys[2])
    view = build_view(history(READ, LOOK, ("recall", {"id": name})))
    assert find_refetches(view) == {6: Refetch("recall", 6, 2, 2, 0)}


def test_runs_and_changes_are_never_fetched_again() -> None:
    run, book = ("bash", {"command": "pytest -q"}), ("book_flight", {"id": 1})
    assert find_refetches(build_view(history(run, run, book, book, EDIT, EDIT))) == {}


def test_a_result_belongs_to_the_nearest_call_of_its_id() -> None:
    values = make_messages(*history(LOOK, READ))
    assert [(n, found.name) for n, found in pair_results(values)] == [(2, "get_user"), (4, "Read")]
    assert [(n, found.name) for n, found in pair_results(values, 4)] == [(4, "Read")]
    assert list(pair_results(values, len(values) + 3)) == [], "messages were removed since they were counted"


def test_a_relative_path_is_the_end_of_an_absolute_one() -> None:
    assert is_same_file("/r/src/a.py", "src/a.py")
    assert not is_same_file("/r/src/a.py", "/src/a.py")
    assert not is_same_file("xsrc/a.py", "src/a.py")


def test_relative_paths_of_tools_begin_at_one_folder_and_those_of_a_shell_anywhere() -> None:
    read = tool("read_file", path="src/a.py")
    assert not has_same_file(tool("edit_file", path="a.py"), read)
    assert has_same_file(tool("edit_file", path="/r/src/a.py"), read)
    assert has_same_file(shell("sed -i s/x/y/ a.py"), read)
    view = build_view(history(("read_file", {"path": "README.md"}), ("read_file", {"path": "web/README.md"})))
    assert find_refetches(view) == {}


@pytest.mark.parametrize("name", ["file_path", "filePath", "path", "absolute_path", "TargetFile", "relative_path"])
def test_the_file_is_found_under_the_name_that_an_agent_gives_its_argument(name: str) -> None:
    read, edit = (
        tool("read", **{name: "/r/a.py"}),
        tool("edit", **{name: "/r/a.py", "oldString": "x", "newString": "y"}),
    )
    assert (read.action, read.path) == ("shows", "/r/a.py")
    assert (edit.action, edit.path) == ("writes", "/r/a.py")


def test_text_for_a_running_command_writes_no_file() -> None:
    assert tool("write_stdin", session_id=44, chars="").action == "runs"
