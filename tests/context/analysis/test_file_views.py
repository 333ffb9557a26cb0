from __future__ import annotations

import json

import pytest

from proxy.chat.message import Call
from proxy.context.analysis.file_views import find_newest_lines, find_spans, make_state_test, read_edit_lines
from proxy.context.branch_state import BranchState
from proxy.context.plan import Edit
from proxy.context.view import View
from tests.conversations import Json, build_view, call_tool, user

BODY = [f"def function_{n}(argument): return {n}00000" for n in range(9)]
OLD, NEW = BODY[4], "def function_4(argument): return 999999"


def history(*more: list[Json]) -> list[Json]:
    """A file is read at 2, a search finds one of its lines at 4, and that line is edited, with an echo, at 6."""
    after = [line if line != OLD else NEW for line in BODY]
    return [
        user("go"),
        *call_tool("read_file", {"path": "a.py"}, "\n".join(BODY)),
        *call_tool("grep", {"pattern": "function_4"}, f"a.py:5:{OLD}"),
        *call_tool("edit_file", {"path": "a.py", "old": OLD, "new": NEW}, "\n".join(after[2:7])),
        *[message for one in more for message in one],
    ]


def stubbed(values: list[Json], *indices: int) -> View:
    keys = build_view(values).keys
    edits = {keys[n]: Edit(keys[n], "text", "stub", "shorten_results", "", 9, 1) for n in indices}
    return build_view(values, state=BranchState(edits=edits))


def test_the_newest_sight_keeps_its_lines_as_long_as_an_untrue_one_stands() -> None:
    values = history()
    kept = {6: frozenset({NEW})}
    assert find_newest_lines(build_view(values), frozenset({6})) == kept
    assert find_newest_lines(build_view(values), frozenset({2, 6})) == kept, "the search is still there"
    assert find_newest_lines(build_view(values), frozenset({2, 4, 6})) == {}
    assert find_newest_lines(stubbed(values, 2, 4), frozenset({6})) == {}
    assert find_newest_lines(build_view(values), frozenset({2})) == {}, "the oldest goes first"


def test_an_older_sight_may_go_where_a_newer_one_stays() -> None:
    values = history(call_tool("read_file", {"path": "a.py"}, f"x\n    12\t  {NEW}"))
    assert find_newest_lines(build_view(values), frozenset({6})) == {}
    assert find_newest_lines(build_view(values), frozenset({8})) == {8: frozenset({NEW})}
    assert find_spans(f"x\n    12\t  {NEW}", frozenset({NEW})) == [(1, 2)]
    assert find_spans(f"a.py:12:  {NEW}\n{OLD}", frozenset({NEW})) == [(0, 1)]


def test_a_stub_that_shows_an_old_line_is_a_sight_as_well() -> None:
    values = history()
    keys = build_view(values).keys
    edits = {keys[n]: Edit(keys[n], "text", f"[shortened]\n{OLD}", "shorten_results", "", 9, 1) for n in (2, 4)}
    assert find_newest_lines(build_view(values, state=BranchState(edits=edits)), frozenset({6})) == {
        6: frozenset({NEW})
    }


def test_only_the_last_of_several_edits_of_a_line_is_current() -> None:
    third = "def function_4(argument): return 111111"
    again = call_tool("edit_file", {"path": "a.py", "old": NEW, "new": third}, f"edited\n{third}")
    values = history(again)
    assert find_newest_lines(build_view(values), frozenset({6, 8})) == {8: frozenset({third})}, (
        "the first read still stands"
    )
    back = call_tool("edit_file", {"path": "a.py", "old": third, "new": OLD}, f"edited\n{OLD}")
    assert find_newest_lines(build_view(history(again, back)), frozenset({6, 8, 10})) == {}, (
        "the first read is true again"
    )


def test_without_edits_nothing_has_to_stay() -> None:
    values = [user("go"), *call_tool("read_file", {"path": "a.py"}, "\n".join(BODY))]
    assert find_newest_lines(build_view(values), frozenset({2})) == {}


def test_only_what_differs_counts_and_only_long_lines() -> None:
    edit = json.dumps(
        {"old_string": f"same long line here\n{OLD}\n}}", "new_string": f"same long line here\n  {NEW}\n]"}
    )
    assert read_edit_lines(Call("1", "Edit", edit)) == ((OLD,), (NEW,))
    assert read_edit_lines(Call("1", "Write", json.dumps({"path": "a", "content": NEW}))) == ((), ())
    assert read_edit_lines(Call("1", "Edit", "no JSON")) == ((), ())
    assert read_edit_lines(Call("1", "Edit", "[1]")) == ((), ())


def test_a_view_is_outdated_once_its_file_was_changed() -> None:
    state = make_state_test(build_view(history()))
    # The file at 2; the search at 4 shows no one file, and the echo at 6 is newer than the edit.
    assert [n for n in range(7) if state(n) == "changed"] == [2]
    again = history(call_tool("edit_file", {"path": "./a.py", "old": NEW, "new": OLD}, OLD))
    assert [n for n in range(9) if make_state_test(build_view(again))(n) == "changed"] == [2, 6]


@pytest.mark.parametrize(("path", "state"), [("web/a.py", "current"), ("/r/a.py", "changed"), ("./a.py", "changed")])
def test_a_file_of_the_same_name_in_another_folder_is_another_file(path: str, state: str) -> None:
    """Tools read relative paths from one folder."""
    arguments = {"path": path, "old": OLD, "new": NEW}
    view = build_view(
        [
            user("go"),
            *call_tool("read_file", {"path": "a.py"}, "\n".join(BODY)),
            *call_tool("edit_file", arguments, NEW),
        ]
    )
    assert make_state_test(view)(2) == state


def test_a_change_of_another_file_and_one_that_failed_leave_a_view_current() -> None:
    arguments = {"path": "a.py", "old": "nothing", "new": NEW}
    values = [user("go"), *call_tool("read_file", {"path": "a.py"}, "\n".join(BODY))]
    for name, text in (("b.py", "edited"), ("a.py", "Error: nothing was not found in a.py")):
        view = build_view([*values, *call_tool("edit_file", {**arguments, "path": name}, text)])
        assert make_state_test(view)(2) == "current"


PATCH = "*** Begin Patch\n*** Update File: src/a.py\n@@\n-old\n+new\n*** End Patch"


@pytest.mark.parametrize(
    ("name", "arguments", "text", "state"),
    [
        ("apply_patch", {"input": PATCH}, "Success. Updated the following files:\nM src/a.py", "changed"),
        ("shell", {"command": ["apply_patch", PATCH]}, "Success. Updated the following files:\nM src/a.py", "changed"),
        ("apply_patch", {"input": PATCH}, "Error: the context was not found in src/a.py", "current"),
        ("bash", {"command": "git checkout src/a.py"}, "Updated 1 path from the index", "changed"),
        ("bash", {"command": "git restore src/b.py"}, "", "current"),
        ("bash", {"command": "git checkout nope.py src/a.py"}, "error: pathspec 'nope.py' did not match", "current"),
        ("bash", {"command": "cp /tmp/a.py src/a.py"}, "", "changed"),
        ("bash", {"command": "git stash"}, "Saved working directory", "current"),
        ("bash", {"command": "rm src/a.py"}, "", "gone"),
        ("bash", {"command": "git mv src/a.py src/b.py"}, "", "gone"),
        ("bash", {"command": "rm -rf src/"}, "", "gone"),
        ("bash", {"command": "rm -rf ./src/*"}, "", "gone"),
        ("bash", {"command": "rm -f lib/src/a.py"}, "", "current"),
        ("bash", {"command": "rm -rf a.py"}, "", "current"),
        ("bash", {"command": "cd /tmp/copy && rm -rf src"}, "", "current"),
        ("bash", {"command": "rm -f /tmp/copy/src/a.py"}, "", "current"),
        ("bash", {"command": "test -f src/b.py && mv src/a.py src/c.py; ls src/a.py"}, "src/a.py", "current"),
        ("bash", {"command": "[ -f src/b.py ] && git rm src/a.py; true"}, "", "current"),
        ("bash", {"command": "true || rm src/a.py"}, "", "current"),
        ("bash", {"command": "git rm -n src/a.py"}, "rm 'src/a.py'", "current"),
        ("bash", {"command": "git mv --dry-run src/a.py src/b.py"}, "", "current"),
        ("bash", {"command": "git apply --check fix.diff"}, "", "current"),
        ("bash", {"command": "patch --dry-run -p1 -i fix.diff"}, "checking file src/a.py", "current"),
        ("edit_file", {"path": "src/a.py", "dryRun": True}, "--- src/a.py\n+++ src/a.py", "current"),
        ("edit_file", {"path": "src/a.py", "options": {"dryRun": True}}, "--- src/a.py\n+++ src/a.py", "current"),
        ("delete_file", {"path": "src/a.py", "dry_run": "true"}, "Would delete src/a.py", "current"),
        ("delete_file", {"path": "src/a.py", "dry_run": False}, "Deleted src/a.py", "gone"),
        ("delete_file", {"path": "src/a.py"}, "Deleted src/a.py", "gone"),
        ("delete_file", {"path": "src/c.py"}, "Deleted src/c.py", "current"),
    ],
)
def test_a_patch_a_shell_command_or_a_deletion_changes_a_view(
    name: str, arguments: dict[str, object], text: str, state: str
) -> None:
    values = [
        user("go"),
        *call_tool("read_file", {"path": "src/a.py"}, "\n".join(BODY)),
        *call_tool(name, arguments, text),
    ]
    assert make_state_test(build_view(values))(2) == state


def test_a_folder_of_the_same_name_elsewhere_is_not_the_file_s() -> None:
    for path in ("tools/build/main.py", "/r/build/main.py"):
        values = [
            user("go"),
            *call_tool("read_file", {"path": path}, "\n".join(BODY)),
            *call_tool("bash", {"command": "rm -rf build"}, ""),
        ]
        assert make_state_test(build_view(values))(2) == "current"


@pytest.mark.parametrize(
    ("earlier", "removal", "state"),
    [
        ("cd lib", "rm src/a.py", "current"),
        ("make && cd lib && make", "rm src/a.py", "current"),
        ("ls lib", "rm src/a.py", "gone"),
        ("echo abcd", "rm src/a.py", "gone"),
    ],
)
def test_a_shell_that_went_elsewhere_may_have_removed_another_file(earlier: str, removal: str, state: str) -> None:
    values = [user("go"), *call_tool("read_file", {"path": "src/a.py"}, "\n".join(BODY))]
    values += [*call_tool("bash", {"command": earlier}, ""), *call_tool("bash", {"command": removal}, "")]
    assert make_state_test(build_view(values))(2) == state


def test_a_path_with_a_drive_is_the_same_in_each_directory() -> None:
    values = [user("go"), *call_tool("read_file", {"path": "C:\\src\\a.cs"}, "\n".join(BODY))]
    values += call_tool("powershell", {"command": "cd C:\\src; dotnet build"}, "")
    removed = call_tool("powershell", {"command": "Remove-Item C:\\src\\a.cs"}, "")
    assert make_state_test(build_view([*values, *removed]))(2) == "gone"
    other = call_tool("powershell", {"command": "cd D:\\old; Remove-Item C:\\src\\a.cs"}, "")
    assert make_state_test(build_view([*values, *other]))(2) == "gone"
    other = call_tool("powershell", {"command": "Remove-Item D:\\src\\a.cs"}, "")
    assert make_state_test(build_view([*values, *other]))(2) == "current"
    written = call_tool("powershell", {"command": "Set-Content -Path C:\\src\\a.cs -Value x"}, "")
    assert make_state_test(build_view([*values, *written]))(2) == "changed"


def test_a_file_that_was_deleted_and_restored_is_there_again() -> None:
    values = [user("go"), *call_tool("read_file", {"path": "src/a.py"}, "\n".join(BODY))]
    for command in ("rm src/a.py", "git checkout src/a.py"):
        values += call_tool("bash", {"command": command}, "")
    assert make_state_test(build_view(values))(2) == "changed"


@pytest.mark.parametrize(
    ("name", "arguments", "text", "state"),
    [
        ("set_cell", {"table": "sales_1", "id": "R1005", "value": "7"}, "1 row changed", "changed"),
        ("set_cell", {"table": "sales_2", "id": "R2005", "value": "7"}, "1 row changed", "current"),
        ("set_cell", {"table": "sales_1", "id": "R1005", "value": "7"}, "Error: no such row", "current"),
        ("query", {"table": "sales_1", "page": "2"}, "R1065 | 12", "current"),
        ("set_owner", {"area": "north", "table": "offers_1"}, "done", "current"),
    ],
)
def test_a_call_that_changes_the_object_of_a_look_up_makes_its_result_old(
    name: str, arguments: dict[str, object], text: str, state: str
) -> None:
    """A shortened result that named its recall alone was recalled, was said to be old, and was asked for again."""
    looked = call_tool("query", {"table": "sales_1", "page": "1", "area": "north"}, "R1005 | 3\nR1006 | 4")
    assert make_state_test(build_view([user("go"), *looked, *call_tool(name, arguments, text)]))(2) == state


@pytest.mark.parametrize(
    ("looked", "changes"),
    [
        (
            {"from": "JFK", "date": "2026-05-01", "limit": "10"},
            {"city": "New York", "date": "2026-05-01", "guests": "10"},
        ),
        ({"email": "ada7@x.io"}, {"to": "ada7@x.io", "subject": "Your trip"}),
        (
            {"tz": "Etc/GMT+5", "at": "09:30", "max": 50},
            {"title": "Trip", "tz": "Etc/GMT+5", "at": "09:30", "seats": 50},
        ),
        ({"owner": "the-team", "repo": "shop"}, {"owner": "the-team", "repo": "shop", "title": "Slow"}),
        ({"year": "2026", "rate": "0.19"}, {"year": "2026", "rate": "0.19"}),
    ],
)
def test_calls_that_share_a_day_a_city_or_a_number_do_not_change_each_other_s_object(
    looked: dict[str, object], changes: dict[str, object]
) -> None:
    values = [user("go"), *call_tool("search_offers", looked, "row 1\nrow 2")]
    assert make_state_test(build_view([*values, *call_tool("book_offer", changes, "Booked: b_9")]))(2) == "current"
    same = {**looked, "order_id": "o_118"}
    values = [user("go"), *call_tool("get_order", same, "row 1\nrow 2")]
    changed = call_tool("update_order", {"id": "o_118", "state": "paid"}, "done")
    assert make_state_test(build_view([*values, *changed]))(2) == "changed"
