"""Texts in the arguments of calls that stand in no file any more, and those that still may."""

from __future__ import annotations

import time

import pytest

from proxy.context.analysis.dead_arguments import DeadText, find_dead_texts
from proxy.context.view import View
from tests.conversations import Json, build_view, call_tool, user

OK = "The file has been updated."


def edit(old: str, new: str, path: str = "a.py", text: str = OK) -> list[Json]:
    return call_tool("Edit", {"file_path": path, "old_string": old, "new_string": new}, text)


def write(content: str, path: str = "a.py") -> list[Json]:
    return call_tool("Write", {"file_path": path, "content": content})


def history(*steps: list[Json]) -> View:
    """The steps behind a prompt: the call of step n is message 2n + 1."""
    return build_view([user("go"), *(one for step in steps for one in step)])


def dead(*steps: list[Json]) -> list[tuple[int, str, str]]:
    """(the index of the message, the name of the argument, the reason) of each dead text."""
    found = find_dead_texts(history(*steps))
    return [(n, str(text.path[-1]), text.reason) for n, texts in sorted(found.items()) for text in texts]


def test_the_text_that_an_edit_replaced_is_dead_and_its_new_text_is_not() -> None:
    assert dead(edit("one", "two")) == [(1, "old_string", "replaced")]


def test_an_edit_that_failed_proves_nothing() -> None:
    error = "<tool_use_error>String to replace not found in file.</tool_use_error>"
    assert dead(edit("one", "two", text=error), edit("uno", "two", text=f"Error: {error}")) == []


def test_a_written_text_is_dead_once_all_of_it_was_replaced() -> None:
    assert dead(edit("one", "two"), edit("x two y", "three")) == [
        (1, "old_string", "replaced"),
        (1, "new_string", "overwritten"),
        (3, "old_string", "replaced"),
    ]
    assert dead(edit("one", "two and more"), edit("two", "three")) == [
        (1, "old_string", "replaced"),
        (3, "old_string", "replaced"),
    ], "a part of it still stands in the file"


def test_a_file_that_is_written_again_has_none_of_its_earlier_texts() -> None:
    assert dead(write("one"), edit("one", "two"), write("three")) == [
        (1, "content", "overwritten"),
        (3, "old_string", "replaced"),
        (3, "new_string", "overwritten"),
    ]
    assert dead(write("one"), write("two", path="b.py")) == [], "another file"
    assert dead(write("one", path="/repo/a.py"), write("two", path="a.py")) == [], "perhaps another file"


def test_several_edits_in_one_call_are_reported_by_their_places() -> None:
    edits = [{"old_string": "one", "new_string": "two"}, {"old_string": "two", "new_string": "three"}]
    found = find_dead_texts(history(call_tool("MultiEdit", {"file_path": "a.py", "edits": edits})))
    assert found == {
        1: (
            DeadText(0, ("edits", 0, "old_string"), 2, "replaced"),
            DeadText(0, ("edits", 1, "old_string"), 2, "replaced"),
            DeadText(0, ("edits", 0, "new_string"), 2, "overwritten"),
        )
    }


def test_arguments_of_tools_that_write_no_file_are_never_dead() -> None:
    shown = {"command": "view", "path": "a.py", "content": "x"}
    assert dead(call_tool("Read", {"file_path": "a.py", "old_string": "one"}), call_tool("send_mail", shown)) == []
    assert dead(call_tool("Bash", {"command": "cat > a.py", "old_string": "one"})) == []
    assert dead(call_tool("Edit", {"file_path": "a.py", "old_string": "", "new_string": "two"})) == []
    assert dead(call_tool("Edit", {"old_string": "one", "new_string": "two"})) == [], "no file is named"


def test_a_longer_history_gives_what_the_whole_one_gives() -> None:
    steps = [write("one"), edit("one", "two"), edit("x two", "three"), write("four")]
    values = [user("go"), *(one for step in steps for one in step)]
    whole = find_dead_texts(build_view(values))
    for cut in range(1, len(values)):
        first = build_view(values[:cut])
        find_dead_texts(first)
        later = build_view(values)
        later.history.memo_values.update(first.history.memo_values)
        assert find_dead_texts(later) == whole


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[Request interrupted by user for tool use]",
        "Waiting for approval",
        "Edit proposed; it is pending review by the user.",
        "File has been modified since read, either by the user or by a linter. Read it again before you write it.",
        "Found 3 matches of the string to replace, but replace_all is false.",
        "Nothing was changed.",
        "Plan mode is active. You MUST NOT make any edits.",
        "You haven't granted the permission to write to /w/a.py yet.",
        "1/2 edits applied",
        "File already exists: a.py",
    ],
)
def test_an_edit_that_does_not_say_that_it_was_made_proves_nothing(text: str) -> None:
    assert dead(edit("one", "two", text=text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "The file /w/not/plan.md has been edited. Here is a part of it:\n1\ttwo",
        "Successfully modified file: /w/a.py (1 replacements).",
        '{"success": true, "error": null}',
        "ok",
        "@@ -1 +1 @@\n-one\n+two and all the others",
    ],
)
def test_an_edit_is_made_where_its_result_says_so_or_shows_the_new_text(text: str) -> None:
    assert dead(edit("one", "two and all the others", text=text)) == [(1, "old_string", "replaced")]


@pytest.mark.parametrize(
    "more", [{"mode": "append"}, {"append": True}, {"offset": 9}, {"start_line": 3, "end_line": 4}]
)
def test_a_part_that_is_written_leaves_the_rest_of_the_file(more: Json) -> None:
    assert dead(write("one"), call_tool("Write", {"file_path": "a.py", "content": "two", **more})) == []
    whole = call_tool("Write", {"file_path": "a.py", "content": "two", "mode": "overwrite", "append": False})
    assert dead(write("one"), whole) == [(1, "content", "overwritten")]


def test_a_text_that_may_be_elsewhere_is_not_dead() -> None:
    assert dead(write("one", path="src/a.py"), write("two", path="a.py")) == [], "another folder"
    assert dead(write("one"), call_tool("Bash", {"command": "mv a.py b.py"}, ""), write("two")) == []
    assert dead(write("one"), call_tool("move_file", {"from": "a.py", "to": "b.py"}), write("two")) == []
    assert dead(edit("A", "one"), edit("B", "one"), edit("x one", "y")) == [
        (1, "old_string", "replaced"),
        (3, "old_string", "replaced"),
        (5, "old_string", "replaced"),
    ], "it was written at two places"
    noted = {"path": "n", "content": "one"}
    assert dead(call_tool("save_note", noted), call_tool("save_note", {**noted, "content": "two"})) == []


def test_an_edit_that_was_only_tried_proves_nothing() -> None:
    tried = {"path": "a.py", "edits": [{"oldText": "one", "newText": "two"}], "dryRun": True}
    assert dead(call_tool("edit_file", tried, "The file has been updated.")) == []


@pytest.mark.parametrize("of_word", ["a", "an", "_", "/", "1.", "\\"])
def test_results_of_one_long_word_are_read_in_little_time(of_word: str) -> None:
    view = history(*[edit(f"old {n}", f"new {n}", text=of_word * 200) for n in range(200)])
    began = time.thread_time()
    assert find_dead_texts(view) == {}
    assert time.thread_time() - began < 2
