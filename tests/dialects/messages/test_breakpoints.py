"""Breakpoints in a Messages body: how many, where, with which lifetime, and what stays as it came."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.dialects.base import NO_BREAKPOINTS, NO_MARKS, Breakpoints, ClientMarks
from proxy.dialects.messages.breakpoints import add_breakpoints, read_client_marks
from proxy.dialects.messages.request import read_messages_request
from tests.strict_messages import refuse

Json = dict[str, Any]
SHORT: Json = {"type": "ephemeral"}
LONG: Json = {"type": "ephemeral", "ttl": "1h"}
END = Breakpoints(has_tail=True)


def talk(steps: int, width: int = 1, **members: Any) -> Json:
    """A tool loop with some parallel calls in each step."""
    messages: list[Json] = [{"role": "user", "content": "Go."}]
    for n in range(steps):
        ids = [f"t{n}_{k}" for k in range(width)]
        thought: Json = {"type": "thinking", "thinking": "", "signature": "abc"}
        calls = [{"type": "tool_use", "id": one, "name": "read", "input": {}} for one in ids]
        messages.append({"role": "assistant", "content": [thought, *calls]})
        results = [{"type": "tool_result", "tool_use_id": one, "content": "found"} for one in ids]
        messages.append({"role": "user", "content": results})
    return {"model": "claude", "max_tokens": 9, "system": "Be careful.", "messages": messages, **members}


def mark(body: Json, wanted: Breakpoints) -> Json:
    made: Json = json.loads(add_breakpoints(json.dumps(body).encode(), wanted))
    assert list(refuse(made)) == []
    assert drop_marks(made) == drop_marks(body), "nothing but marks was added"
    return made


def drop_marks(value: Any) -> Any:
    """A body without marks, and with each text as a list of one block."""
    if isinstance(value, list):
        return [drop_marks(one) for one in value]
    if not isinstance(value, dict):
        return value
    made = {name: drop_marks(one) for name, one in value.items() if name != "cache_control"}
    for name in ("system", "content"):
        if isinstance(made.get(name), str) and "tool_use_id" not in made:
            made[name] = [{"type": "text", "text": made[name]}]
    return made


def find_marks(body: Json) -> list[tuple[str, str | None]]:
    """(place, lifetime) of each mark."""
    found = []
    for name in ("tools", "system"):
        value = body.get(name)
        for n, block in enumerate(value if isinstance(value, list) else ()):
            if "cache_control" in block:
                found.append((f"{name}.{n}", block["cache_control"].get("ttl")))
    for n, message in enumerate(body["messages"]):
        content = message["content"]
        for k, block in enumerate(content if isinstance(content, list) else ()):
            if "cache_control" in block:
                found.append((f"{n}.{k}", block["cache_control"].get("ttl")))
    return found


def test_the_end_of_the_prompt_and_of_the_system_prompt_are_marked() -> None:
    assert find_marks(mark(talk(0), END)) == [("system.0", None), ("0.0", None)]
    assert find_marks(mark(talk(3), END)) == [("system.0", None), ("6.0", None)]
    tools = [{"name": "a", "input_schema": {}}, {"name": "b", "input_schema": {}}]
    assert find_marks(mark(talk(1, tools=tools, system=[]), END)) == [("tools.1", None), ("2.0", None)]


def test_nothing_wanted_and_nothing_to_read_change_nothing() -> None:
    body = json.dumps(talk(2)).encode()
    assert add_breakpoints(body, NO_BREAKPOINTS) is body
    with pytest.raises(ValueError, match="members"):
        add_breakpoints(b"{", END)


def test_a_boundary_is_marked_before_the_answer_that_follows_it() -> None:
    made = mark(talk(4), Breakpoints(has_tail=True, answers=(2, 1)))
    assert find_marks(made) == [("system.0", None), ("2.0", None), ("4.0", None), ("8.0", None)]
    assert find_marks(mark(talk(4), Breakpoints(answers=(9,)))) == [("system.0", None)]


def test_the_clients_marks_stay_and_leave_room_for_few() -> None:
    body = talk(6, system=[{"type": "text", "text": "a", "cache_control": SHORT}])
    body["messages"][12]["content"][0]["cache_control"] = SHORT
    body["messages"][10]["content"][0]["cache_control"] = SHORT
    made = mark(body, Breakpoints(has_tail=True, answers=(3, 2)))
    assert [place for place, _ in find_marks(made)] == ["system.0", "6.0", "10.0", "12.0"]
    made["messages"][4]["content"][0]["cache_control"] = SHORT
    del made["messages"][6]["content"][0]["cache_control"]
    full = json.dumps(made).encode()
    assert add_breakpoints(full, Breakpoints(answers=(3,))) is full


def test_a_client_that_marks_its_system_prompt_alone_gets_the_end_of_the_prompt() -> None:
    made = mark(talk(1, system=[{"type": "text", "text": "a", "cache_control": LONG}]), END)
    assert find_marks(made) == [("system.0", "1h"), ("2.0", "1h")]


def test_the_automatic_mark_counts_as_the_end_of_the_prompt() -> None:
    made = mark(talk(4, cache_control=LONG), Breakpoints(has_tail=True, answers=(2,)))
    assert find_marks(made) == [("4.0", "1h")]


def test_a_mark_has_the_lifetime_of_the_clients_next_one() -> None:
    body = talk(4, system=[{"type": "text", "text": "a", "cache_control": LONG}])
    body["messages"][8]["content"][0]["cache_control"] = SHORT
    assert find_marks(mark(body, Breakpoints(answers=(2,))))[1] == ("4.0", None)
    body["messages"][8]["content"][0]["cache_control"] = LONG
    assert find_marks(mark(body, Breakpoints(answers=(2,))))[1] == ("4.0", "1h")


def test_the_end_of_the_last_prompt_is_marked_where_an_entry_would_not_be_found_again() -> None:
    assert len(find_marks(mark(talk(2, width=8), END))) == 2
    assert [place for place, _ in find_marks(mark(talk(2, width=12), END))] == ["system.0", "2.11", "4.11"]


def test_no_mark_stands_on_thinking_or_on_an_empty_text() -> None:
    body = talk(0, system="")
    body["messages"] = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "tool_reference", "name": "x"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "s"}]},
        {"role": "user", "content": [{"type": "unknown"}]},
    ]
    made = json.loads(add_breakpoints(json.dumps(body).encode(), Breakpoints(has_tail=True, answers=(0,))))
    assert find_marks(made) == [("0.0", None)]


def test_a_system_message_in_the_conversation_is_left_alone() -> None:
    body = talk(1)
    body["messages"].append({"role": "system", "content": "Be quick."})
    assert find_marks(mark(body, END)) == [("system.0", None), ("2.0", None)]


def test_marks_of_a_client_are_read() -> None:
    def find(body: Json) -> ClientMarks:
        request = read_messages_request(json.dumps(body).encode())
        return read_client_marks(request.body, request.members, request.places, request.first_mark)

    assert find(talk(2)) == NO_MARKS
    body = talk(2, system=[{"type": "text", "text": "a", "cache_control": LONG}])
    assert find(body) == ClientMarks("1h", in_history=False)
    body["messages"][2]["content"][0]["cache_control"] = SHORT
    assert find(body) == ClientMarks("5m", in_history=True)
    body["messages"][4]["content"] = [{"type": "text", "text": 'about "cache_control"'}]
    assert find(body) == ClientMarks("5m", in_history=True), "a text is no mark"
    assert find(talk(1, cache_control=LONG)) == ClientMarks("1h", in_history=True)
    assert find(talk(1, cache_control=None)) == NO_MARKS


LIVES = st.sampled_from([None, SHORT])


@settings(max_examples=40)
@given(st.integers(0, 8), st.integers(1, 25), st.lists(LIVES, max_size=12), st.lists(st.integers(0, 9), max_size=3))
def test_any_marks_of_the_clients_leave_a_body_that_is_taken(
    steps: int, width: int, lives: list[Json | None], answers: list[int]
) -> None:
    body = talk(steps, width)
    blocks = [block for one in body["messages"][1:] for block in one["content"] if block["type"] != "thinking"]
    count = 0
    for block, life in zip(blocks, lives, strict=False):
        if life is not None and count < 4:
            block["cache_control"] = life
            count += 1
    before = find_marks(body)
    made = mark(body, Breakpoints(has_tail=True, answers=tuple(answers)))
    assert set(before) <= set(find_marks(made))
    assert len(find_marks(made)) <= 4
    again = json.dumps(body).encode()
    assert add_breakpoints(again, END) == add_breakpoints(again, END)
