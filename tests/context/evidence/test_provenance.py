from __future__ import annotations

import json

import pytest

from proxy.context.evidence.provenance import provenance
from tests.conversations import Json, assistant, call, messages, result, user


def history(*steps: tuple[str, Json, str]) -> list[Json]:
    """One call a step: tool, arguments, result; the n-th result stands at 2n."""
    made: list[Json] = [user("go")]
    for name, arguments, text in steps:
        made += [{**assistant(None), "tool_calls": [call("c", name, json.dumps(arguments))]}, result("c", text)]
    return made


READ = ("Read", {"file_path": "/r/src/a.py"}, "     1\tx = 1")
EDIT = ("Edit", {"file_path": "/r/src/a.py", "old_string": "1", "new_string": "2"}, "     1\tx = 2")
OTHER = ("Edit", {"file_path": "/r/src/b.py"}, "done")
FAILED = ("Edit", {"file_path": "/r/src/a.py"}, "Error: old string not found in file")
SED = ("bash", {"command": "cd /r && sed -i 's/1/2/' src/a.py"}, "")
GREP = ("Grep", {"pattern": "x"}, "src/a.py:1:x = 1")
USER = ("get_user", {"user_id": "u_17"}, '{"tier": "gold"}')
TIER = ("set_tier", {"user_id": "u_17", "tier": "silver"}, "ok")


def told(*steps: tuple[str, Json, str]) -> str:
    return provenance(messages(*history(*steps)), 2).told()


@pytest.mark.parametrize(
    ("steps", "end"),
    [
        ((READ,), "1 step ago; no call has changed it since"),
        ((READ, OTHER, FAILED), "3 steps ago; no call has changed it since"),
        ((READ, EDIT), "2 steps ago; edited once since: read it again for its present text"),
        ((READ, EDIT, SED, EDIT), "4 steps ago; edited 3 times since: read it again for its present text"),
        ((GREP, READ), "2 steps ago"),
        ((GREP, EDIT), "2 steps ago; changed once since: ask again for what is there now"),
        ((USER, TIER, TIER), "3 steps ago; changed 2 times since: ask again for what is there now"),
        ((USER, ("set_tier", {"user_id": "u_18"}, "ok")), "2 steps ago"),
    ],
)
def test_a_result_is_told_with_its_age_and_what_has_changed_it(
    steps: tuple[tuple[str, Json, str], ...], end: str
) -> None:
    arguments = json.dumps(steps[0][1])
    assert told(*steps) == f"the result of {steps[0][0]} {arguments}, {end}"


def test_an_edit_is_no_older_than_the_edits_after_it() -> None:
    seen = provenance(messages(*history(READ, EDIT, EDIT)), 4)
    assert (seen.steps, seen.edits, seen.file) == (2, 1, True)


def test_what_is_told_has_no_brackets_and_stays_short() -> None:
    found = told(("query", {"rows": ["[x]\n" * 40]}, "r"))
    assert "[" not in found
    assert "]" not in found
    assert "\n" not in found
    assert len(found) < 140


def test_a_message_that_is_no_result_has_an_age_alone() -> None:
    assert provenance(messages(*history(READ, EDIT)), 0).told() == "3 steps ago"
