"""The kind of content of each result: by the tool's name, by the command, and by line numbers."""

from __future__ import annotations

import json

import pytest

from proxy.context.analysis.result_kinds import classify_call, find_results, has_line_numbers, is_path_listing
from tests.conversations import assistant, build_view, call_tool, result, user


def test_tools_are_told_by_the_words_of_their_names_and_shells_by_the_command() -> None:
    kinds = {
        "read_file": "view", "Edit": "view", "strReplaceEditor": "view", "NotebookEdit": "view",
        "grep": "other", "listFiles": "other", "TodoWrite": "other", "WebSearch": "other",
        "get_weather": "unknown", "Task": "unknown",
    }  # fmt: skip
    assert {name: classify_call(name, "{}") for name in kinds} == kinds
    commands = {
        "cat a.py": "view",
        "cd /x && sed -n 1,9p a": "view",
        "git diff": "view",
        "make": "other",
        "ls": "other",
        "Get-Content a.py": "view",
        "$i=1; gc a.py | % { $i }": "view",
        "@'\nGet-Content a.py\n'@ | powershell -Command -": "view",
        'bash -lc "cat a.py"': "view",
        "Get-ChildItem -Recurse": "other",
    }
    assert {c: classify_call("bash", json.dumps({"command": c})) for c in commands} == commands
    assert classify_call("bash", '{"command": "cat > a <<EOF"}') == "other", "a heredoc writes"
    assert classify_call("shell", '{"workdir": "/x", "command": ["bash", "-lc", "cat a.py"]}') == "view"
    assert classify_call("fetch_sheet", "{}", frozenset({"fetch_sheet"})) == "view", "named in the settings"


def test_an_unknown_tool_that_shows_line_numbers_shows_a_file() -> None:
    text = "\n".join(f"{n}\tdef function_{n}(): pass" for n in range(40))
    view = build_view([user("a"), *call_tool("mcp_thing", {}, text)])
    assert [content for _, content, _ in find_results(view)] == ["view"]
    report = build_view([user("a"), *call_tool("mcp_thing", {}, "a report\n" * 40)])
    assert [content for _, content, _ in find_results(report)] == ["unknown"]
    assert has_line_numbers(view.messages[2])
    assert not has_line_numbers(view.messages[0])


@pytest.mark.parametrize(
    "text",
    [
        "src/a.py\nsrc/b.py\nsrc/c.py\nsrc/d.py",  # too few
        "\n".join(f"src/a.py:{n}: def found(): return {n}" for n in range(40)),
        "\n".join(["src/a.py"] * 7 + ["2 files were changed"] * 3),
    ],
)
def test_hits_of_a_search_and_other_texts_with_paths_are_no_list_of_paths(text: str) -> None:
    view = build_view([user("a"), assistant(None), result("1", text)])
    assert not is_path_listing(view.messages[2])
