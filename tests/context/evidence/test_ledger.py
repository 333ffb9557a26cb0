"""What the agent has touched, read off its own calls."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from proxy.chat.message import Call
from proxy.context.evidence.ledger import Ledger, record
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


def test_commands_are_told_with_how_they_ended() -> None:
    assert noted(
        ("bash", {"command": "make test"}, "exit code: 2"),
        ("bash", {"command": "ls"}, "a\nb"),
        ("bash", {"command": "python x.py"}, "Traceback ...\nKeyError: 'a'"),
        ("bash", {"command": "make test"}, "<returncode>0</returncode>"),
    ) == ["Commands: `make test` ok; `python x.py` failed; `ls` ok", "Last errors: KeyError: 'a'"]


@given(
    st.lists(
        st.sampled_from([*"aſ1_ \n\r", "Error", "xException", "FAILED", "panic", "EXIT CODE", ": ", "returncode>"])
    )
)
def test_how_a_command_ended_is_what_a_search_of_all_of_it_finds(pieces: list[str]) -> None:
    text = "".join(pieces)
    lines = re.findall(r"^.*(?:\b[A-Za-z]*(?:Error|Exception)\b|\bFAILED\b|\bfatal\b|\bpanic\b).*$", text, re.MULTILINE)
    code = re.search(r"(?:exit code|returncode>?|exit status)[:=\s]*(\d+)", text, re.IGNORECASE)
    failed = f"failed ({code[1]})" if code and code[1] != "0" else "failed" if lines and not code else "ok"
    ledger = Ledger()
    ledger.note(Call("1", "bash", '{"command": "run"}'), text)
    assert ledger.commands == {"run": failed}
    shown = [" ".join(line.split()) for line in lines[-2:]]
    shown = [line if len(line) <= 80 else line[:77] + "..." for line in shown]
    assert list(ledger.errors) == list(dict.fromkeys(reversed(shown)))[::-1]


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
