from __future__ import annotations

import json

import pytest

from proxy.context.analysis.text_actions import MAX_ACTION_CHARS, find_text_call, read_text_call
from tests.conversations import assistant, make_messages, user


def read(text: str) -> tuple[str, dict[str, str]] | None:
    (message,) = make_messages(assistant(text))
    call = read_text_call(message)
    return None if call is None else (call.name, json.loads(call.arguments))


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("THOUGHT: look\n\n```bash\nls -la\n```", "bash", {"command": "ls -la"}),
        ("```\ncat a.py\n```\nand then\n```mswea_bash_command\nmake\n```", "bash", {"command": "make"}),
        ("DISCUSSION\n```\nopen src/a.py 12\n```", "open", {"path": "src/a.py"}),
        ("```\nedit 1:2\nopen(x)\nend_of_edit\n```", "edit", {}),
        (
            (
                "Look:\n<function=str_replace_editor>\n<parameter=command>view</parameter>\n"
                "<parameter=path>/a.py</parameter>\n</function>"
            ),
            "str_replace_editor",
            {"command": "view", "path": "/a.py"},
        ),
        ("<function=bash>\n<parameter=command>ls</parameter>", "bash", {"command": "ls"}),
        ("<execute_bash>\npytest -q\n</execute_bash>", "bash", {"command": "pytest -q"}),
        ("I read it.\n<read_file>\n<path>a.py</path>\n</read_file>", "read_file", {"path": "a.py"}),
        (
            "<execute_command>\n<command>npm test</command>\n</execute_command>",
            "execute_command",
            {"command": "npm test"},
        ),
        (
            "<write_to_file>\n<path>a.html</path>\n<content>\n<b>x</b>\n```\nls\n```\n</content>\n</write_to_file>",
            "write_to_file",
            {"path": "a.html", "content": "<b>x</b>\n```\nls\n```"},
        ),
    ],
)
def test_the_last_action_of_a_text_is_read_as_a_call(text: str, name: str, arguments: dict[str, str]) -> None:
    assert read(text) == (name, arguments)


@pytest.mark.parametrize("text", ["All is done.", "```python\nprint(1)\n```", "</read_file>", "<b>x</b>", "```bash"])
def test_a_text_without_an_action_that_says_what_it_does_is_not_a_call(text: str) -> None:
    assert read(text) is None


def test_an_outcome_belongs_to_the_answer_before_it() -> None:
    messages = make_messages(user("go"), assistant("```bash\nls\n```"), user("<output>"), user("more"))
    assert [found.name if (found := find_text_call(messages, n)) else None for n in range(4)] == [
        None,
        None,
        "bash",
        "bash",
    ]


@pytest.mark.parametrize(
    "piece", ["```\n", "<function=a>", "<read_file>", "</read_file>", "<a_b></a_b>", "<parameter=a>", "<a>", "``` a\n"]
)
def test_long_answers_are_read_in_linear_time(piece: str) -> None:
    """No more than the end of an answer is searched, and no tag is looked for to the end again and again."""
    long = piece * (MAX_ACTION_CHARS // len(piece))
    for text in (long * 50, f"<function=f>{long}", f"<a_b>{long}</a_b>"):
        read(text)
