"""Changes are written on their spans: what is not changed keeps its bytes, and the wire's order of blocks holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.completions.request import (
    append_text,
    extend_text,
    read_message,
    replace_arguments,
    replace_images,
    replace_text,
)
from proxy.dialects.messages.request import MessagesRequest, read_messages_request
from proxy.dialects.messages.rules import find_added_violations, find_violations
from proxy.dialects.written_history import OutgoingMessage
from tests.dialects.messages.drawn import bodies

THINKING = {"type": "thinking", "thinking": "", "signature": "sig"}
NOTE = b'{"role":"user","content":"Note."}'
OURS = {"type": "tool_use", "id": "toolu_own", "name": "recall", "input": {}}
OUR_RESULT = b'{"role":"tool","tool_call_id":"toolu_own","content":"found"}'
RESULT_BLOCK = {"type": "tool_result", "tool_use_id": "toolu_own", "content": "found"}
TEXT = {"type": "text", "text": "Also."}


def _call(name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "read", "input": {"p": 1}}


def _result(name: str, content: Any = "out") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": content}


def _read(*messages: tuple[str, Any], **more: Any) -> MessagesRequest:
    made = [{"role": role, "content": content} for role, content in messages]
    return read_messages_request(json.dumps({"model": "m", "max_tokens": 9, "messages": made, **more}).encode())


def _plan(request: MessagesRequest) -> list[OutgoingMessage]:
    return [(n, unit.chat) for n, (_, unit) in enumerate(request.units)]


def _write(request: MessagesRequest, plan: list[OutgoingMessage], tools: bytes = b"") -> Any:
    return json.loads(request.write(plan, tools=tools))


def _wire(body: Any) -> list[tuple[str, Any]]:
    return [(m["role"], m["content"]) for m in body["messages"]]


STEP = (
    ("user", "Do."),
    ("assistant", [THINKING, _call("a"), _call("b")]),
    ("user", [_result("a"), _result("b"), TEXT]),
)


def test_a_result_gets_another_text_and_keeps_all_else() -> None:
    mark = {"type": "ephemeral"}
    request = _read(*STEP[:2], ("user", [{**_result("a"), "is_error": True, "cache_control": mark}, _result("b")]))
    plan = _plan(request)
    plan[2] = (2, replace_text(plan[2][1], 'sh"ort é'))
    made = request.write(plan)
    assert made == request.body.replace(b'"out"', 'sh\\"ort é'.encode().join([b'"', b'"']), 1)
    assert _write(request, plan)["messages"][2]["content"][0]["cache_control"] == mark


def test_the_blocks_of_a_result_stay_in_number_and_its_images_stay() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "u"}}
    texts = [{"type": "text", "text": one} for one in ("one", "two", "three")]
    request = _read(*STEP[:2], ("user", [_result("a", [texts[0], image, texts[1], texts[2]]), _result("b")]))
    plan = _plan(request)
    plan[2] = (2, append_text(replace_text(plan[2][1], "stub"), "tail"))
    content = _write(request, plan)["messages"][2]["content"][0]["content"]
    assert [one.get("text", "image") for one in content] == ["stub", "image", "tail", "[removed]"]
    without_image = json.loads(plan[2][1])
    without_image["content"] = [texts[0]]
    plan[2] = (2, json.dumps(without_image).encode())
    with pytest.raises(ValueError, match="no text"):
        request.write(plan)


def test_a_marked_part_keeps_its_place_and_its_mark() -> None:
    parts: list[Any] = [
        {"type": "text", "text": "one"},
        {"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}},
    ]
    request = _read(*STEP[:2], ("user", [_result("a", parts), _result("b")]))
    plan = _plan(request)
    plan[2] = (2, replace_text(plan[2][1], "stub"))
    content = _write(request, plan)["messages"][2]["content"][0]["content"]
    assert content == [{"type": "text", "text": "[removed]"}, {**parts[1], "text": "stub"}]


def test_an_empty_text_gets_a_stand_in() -> None:
    request = _read(*STEP)
    plan = _plan(request)
    plan[0], plan[2] = (0, replace_text(plan[0][1], "")), (2, replace_text(plan[2][1], " "))
    body = _write(request, plan)
    assert body["messages"][0]["content"] == "[removed]"
    assert body["messages"][2]["content"][0]["content"] == "[removed]"


def test_a_result_without_content_can_get_one() -> None:
    request = _read(*STEP[:2], ("user", [{"type": "tool_result", "tool_use_id": "a"}, _result("b")]))
    plan = _plan(request)
    plan[2] = (2, replace_text(plan[2][1], "nothing came"))
    assert _write(request, plan)["messages"][2]["content"][0] == _result("a", "nothing came")


def test_texts_of_a_user_message_change_leave_and_come() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    request = _read(("user", parts), ("assistant", "Yes."), ("user", "Go."))
    plan = _plan(request)
    plan[0] = (0, append_text(replace_text(plan[0][1], "short"), "end"))
    plan[2] = (2, append_text(plan[2][1], " on."))
    body = _write(request, plan)
    assert [one["text"] for one in body["messages"][0]["content"]] == ["short", "end"]
    assert body["messages"][2]["content"] == "Go. on."


def test_a_user_message_that_is_erased_is_one_text() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "u"}}
    request = _read(("user", [TEXT, image]), ("assistant", "Yes."), ("user", "Go."))
    plan = _plan(request)
    plan[0] = (0, b'{"role":"user","content":"erased"}')
    assert _write(request, plan)["messages"][0]["content"] == [{"type": "text", "text": "erased"}]


def test_whole_steps_leave_and_other_blocks_of_their_message_stay() -> None:
    request = _read(*STEP, ("assistant", "Done."), ("user", "Next."))
    plan = [one for one in _plan(request) if one[0] not in (1, 2, 3)]
    assert _wire(_write(request, plan)) == [
        ("user", "Do."),
        ("user", [TEXT]),
        ("assistant", "Done."),
        ("user", "Next."),
    ]
    plan = [one for one in plan if one[0] != 4]
    assert _wire(_write(request, plan)) == [("user", "Do."), ("assistant", "Done."), ("user", "Next.")]


def test_text_of_the_proxy_follows_the_last_users_blocks() -> None:
    request = _read(*STEP)
    note = {"type": "text", "text": "Note."}
    assert _wire(_write(request, [*_plan(request), (None, NOTE)]))[2][1] == [_result("a"), _result("b"), TEXT, note]
    plain = _read(("user", "Do."))
    made = plain.write([*_plan(plain), (None, NOTE)])
    assert b'[{"type":"text","text":"Do."},{"type":"text","text":"Note."}]' in made


def test_text_after_a_system_message_is_a_block_whether_the_client_writes_a_string_or_a_list() -> None:
    marked = {"type": "text", "text": "Do it.", "cache_control": {"type": "ephemeral"}}
    made = []
    for content in ("Do it.", [marked]):
        request = _read(("user", "Go."), ("system", content))
        (first, (_, chat)) = _plan(request)
        made.append(_wire(_write(request, [first, (1, append_text(chat, " [Note]"))]))[1][1])
    note = {"type": "text", "text": " [Note]"}
    assert made == [[{"type": "text", "text": "Do it."}, note], [marked, note]]


def test_text_added_for_good_is_one_text_with_the_users_whether_the_client_writes_a_string_or_a_list() -> None:
    marked = {"type": "text", "text": "Do it.", "cache_control": {"type": "ephemeral"}}
    made = []
    for content in ("Do it.", [marked]):
        request = _read(("user", content))
        ((_, chat),) = _plan(request)
        made.append(_wire(_write(request, [(0, extend_text(chat, " [Note]"))]))[0][1])
    assert made == ["Do it. [Note]", [{**marked, "text": "Do it. [Note]"}]]


def test_text_after_a_system_message_joins_it() -> None:
    request = _read(("user", "Do."), ("system", "Reminder."))
    assert _wire(_write(request, [*_plan(request), (None, NOTE)]))[1] == (
        "system",
        [{"type": "text", "text": "Reminder."}, {"type": "text", "text": "Note."}],
    )


def test_a_system_message_of_the_proxy_can_be_for_one_turn() -> None:
    request = _read(("user", "Do."))
    own = b'{"role":"system","clear_at":"next_user_message","content":"Note."}'
    made = _write(request, [*_plan(request), (None, own)])["messages"]
    assert made[1] == {
        "role": "system",
        "content": [{"type": "text", "text": "Note."}],
        "clear_at": "next_user_message",
    }


def test_a_hidden_round_becomes_an_answer_and_a_message_with_its_results() -> None:
    request = _read(("user", "Do."), ("assistant", [THINKING, {**THINKING, "signature": "s2"}, TEXT]), ("user", "And?"))
    first = json.dumps(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "toolu_own", "type": "function", "function": {"name": "recall", "arguments": "{}"}}],
            "wire": [THINKING, OURS],
        }
    ).encode()
    last = json.dumps(
        {"role": "assistant", "content": "Also.", "wire": [{**THINKING, "signature": "s2"}, TEXT]}
    ).encode()
    plan = _plan(request)
    for answer in ((None, last), (1, last)):
        made = _write(request, [plan[0], (None, first), (None, OUR_RESULT), answer, plan[2]])
        assert _wire(made) == [
            ("user", "Do."),
            ("assistant", [THINKING, OURS]),
            ("user", [RESULT_BLOCK]),
            ("assistant", [{**THINKING, "signature": "s2"}, TEXT]),
            ("user", "And?"),
        ]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_results_of_the_proxy_join_the_clients_in_the_order_of_calls(place: int) -> None:
    request = _read(*STEP)
    calls = [_call("a"), _call("b")]
    calls.insert(place, OURS)
    mixed = json.dumps(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": one["id"],
                    "type": "function",
                    "function": {"name": one["name"], "arguments": json.dumps(one["input"])},
                }
                for one in calls
            ],
            "wire": [THINKING, *calls],
        }
    ).encode()
    plan = _plan(request)
    results: list[OutgoingMessage] = [plan[2], plan[3]]
    results.insert(place, (None, OUR_RESULT))
    made = _wire(_write(request, [plan[0], (None, mixed), *results, plan[4]]))
    wanted = [_result("a"), _result("b")]
    wanted.insert(place, RESULT_BLOCK)
    assert made == [("user", "Do."), ("assistant", [THINKING, *calls]), ("user", [*wanted, TEXT])]


def test_a_result_of_the_proxy_never_follows_text() -> None:
    request = _read(*STEP)
    made = _wire(_write(request, [*_plan(request), (None, OUR_RESULT)]))
    assert made[2][1] == [_result("a"), _result("b"), RESULT_BLOCK, TEXT]


def test_a_result_without_a_message_to_join_gets_its_own() -> None:
    request = _read(("user", "Do."), ("assistant", [_call("a")]), ("user", "Stop."))
    plan = _plan(request)
    made = _wire(_write(request, [plan[0], plan[1], (None, OUR_RESULT), plan[2]]))
    assert made[2:] == [("user", [RESULT_BLOCK]), ("user", "Stop.")]


def test_system_text_is_appended_and_never_changed() -> None:
    for system, wanted in (
        ("You.", "You. More."),
        ([{"type": "text", "text": "You."}], [{"type": "text", "text": "You."}, {"type": "text", "text": " More."}]),
    ):
        request = _read(("user", "Do."), system=system)
        plan = _plan(request)
        longer: list[OutgoingMessage] = [(0, append_text(plan[0][1], " More.")), plan[1]]
        assert _write(request, longer)["system"] == wanted
        for changed in (plan[1:], [(0, replace_text(plan[0][1], "I.")), plan[1]]):
            with pytest.raises(ValueError, match="system"):
                request.write(changed)


def test_a_system_prompt_of_the_proxy_is_added_where_none_was_or_after_the_clients() -> None:
    own: OutgoingMessage = (None, b'{"role":"system","content":"Ours."}')
    block = {"type": "text", "text": "Ours."}
    for system, wanted in (
        (None, [block]),
        ([], [block]),
        ("You.", [{"type": "text", "text": "You."}, block]),
        ([TEXT], [TEXT, block]),
    ):
        request = _read(("user", "Do."), **({} if system is None else {"system": system}))
        plan = _plan(request)
        made = _write(request, [*plan[:-1], own, plan[-1]])
        assert (made["system"], len(made["messages"])) == (wanted, 1)


def test_tools_are_added_after_the_clients() -> None:
    request = _read(("user", "Do."))
    function = {"name": "recall", "description": "Finds.", "parameters": {"type": "object", "properties": {}}}
    tools = json.dumps({"type": "function", "function": function}).encode()
    own = {"name": "recall", "description": "Finds.", "input_schema": {"type": "object", "properties": {}}}
    theirs = {"name": "read", "input_schema": {"type": "object"}}
    for members, wanted in (
        ({}, [own]),
        ({"tools": None}, [own]),
        ({"tools": []}, [own]),
        ({"tools": [theirs]}, [theirs, own]),
    ):
        request = _read(("user", "Do."), **members)
        assert _write(request, _plan(request), tools)["tools"] == wanted
    with pytest.raises(ValueError, match="function"):
        request.write(_plan(request), tools=b'{"type":"custom","custom":{"name":"x"}}')


def test_changes_that_may_not_be_made_are_refused() -> None:
    request = _read(*STEP)
    plan = _plan(request)
    answer = json.loads(plan[1][1])
    for n, new, why in (
        (1, json.dumps({**answer, "content": "Else."}).encode(), "differ"),
        (1, b'{"role":"assistant","content":"Else."}', "never edited"),
        (2, plan[2][1].replace(b'"a"', b'"z"'), "another call"),
        (0, plan[0][1].replace(b'"user"', b'"system"'), "another role"),
        (0, b'{"role":"user","content":null}', "something else"),
    ):
        with pytest.raises(ValueError, match=why):
            request.write([(k, new if k == n else raw) for k, raw in plan])
    for order in ([plan[1], plan[0]], [plan[0], plan[0]], []):
        with pytest.raises(ValueError, match=r"out of order|nothing of the history is left"):
            request.write(order)


def test_calls_get_other_arguments_where_nothing_is_signed() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    blocks = [{"type": "text", "text": "So."}, _call("a"), {**_call("b"), **mark}]
    request = _read(("user", "Do."), ("assistant", blocks), ("user", [_result("a"), _result("b")]))
    plan = _plan(request)
    plan[1] = (1, replace_arguments(plan[1][1], [None, '{"p": 2}']))
    made = _write(request, plan)["messages"]
    assert made[1]["content"] == [*blocks[:2], {**blocks[2], "input": {"p": 2}}]
    assert (made[0], made[2]) == (json.loads(request.body)["messages"][0], json.loads(request.body)["messages"][2])
    plan[1] = (1, replace_arguments(_plan(request)[1][1], ["[]", None]))
    with pytest.raises(ValueError, match="no object"):
        request.write(plan)
    signed = _read(*STEP)
    changed = [(n, replace_arguments(raw, ["{}", None]) if n == 1 else raw) for n, raw in _plan(signed)]
    with pytest.raises(ValueError, match="differ"):
        signed.write(changed)


def test_an_answer_can_be_erased_on_purpose() -> None:
    request = _read(*STEP)
    plan = _plan(request)
    erased = json.loads(plan[1][1])
    erased.pop("wire")
    for call in erased["tool_calls"]:
        call["function"]["arguments"] = "{}"
    plan[1] = (1, json.dumps({**erased, "content": "erased", "wire": None}).encode())
    made = _write(request, plan)["messages"][1]["content"]
    assert made == [{"type": "text", "text": "erased"}, {**_call("a"), "input": {}}, {**_call("b"), "input": {}}]


@given(bodies(), st.data())
def test_text_edits_touch_nothing_else(body: bytes, data: Any) -> None:
    request = read_messages_request(body)
    plan = _plan(request)
    messages = [read_message(raw) for _, raw in plan]
    editable = [n for n, m in enumerate(messages) if m.role in ("tool", "user") and m.text]
    chosen = data.draw(st.sets(st.sampled_from(editable))) if editable else set()
    edited = [(n, replace_text(raw, f"stub {n}") if n in chosen else raw) for n, raw in plan]
    made = request.write(edited)
    again = read_messages_request(made)
    assert request.write(edited) == made
    before, after = json.loads(body), json.loads(made)
    assert {k: v for k, v in before.items() if k != "messages"} == {k: v for k, v in after.items() if k != "messages"}
    assert len(again.units) == len(plan)
    for n, (_, unit) in enumerate(again.units):
        if n in chosen:
            # Text parts of a result begin on lines of their own, those without content too.
            assert read_message(unit.chat).text.replace("[removed]", "").rstrip("\n") == f"stub {n}"
        else:
            assert unit.chat == plan[n][1]
    assert made.startswith(body[: request.members["messages"][0]])
    assert find_violations(made) == []


@given(bodies(), st.data())
def test_steps_that_leave_take_their_messages_and_no_others(body: bytes, data: Any) -> None:
    request = read_messages_request(body)
    plan = _plan(request)
    messages = [read_message(raw) for _, raw in plan]
    answers = [n for n, m in enumerate(messages) if m.role == "assistant"]
    gone = data.draw(st.sets(st.sampled_from(answers))) if answers else set()
    left: list[OutgoingMessage] = []
    dropping = False
    for n, (_, raw) in enumerate(plan):
        dropping = n in gone or (dropping and messages[n].is_result)
        if not dropping:
            left.append((n, raw))
    made = request.write(left)
    again = read_messages_request(made)
    # A system message may lose the answer that it stood before. Then the plan is not sent.
    assert {line.split()[0] for line in find_added_violations(made, body)} <= {"M6"}
    assert [unit.chat for _, unit in again.units] == [raw for _, raw in left]


@given(bodies(), st.data())
def test_inserts_stand_where_the_wire_wants_them_and_everything_else_stays(body: bytes, data: Any) -> None:
    request = read_messages_request(body)
    plan = _plan(request)
    messages = [read_message(raw) for _, raw in plan]
    made: list[OutgoingMessage] = []
    for n, (source, raw) in enumerate(plan):
        if messages[n].role == "assistant" and data.draw(st.booleans()):
            call = json.dumps({**OURS, "id": f"toolu_own_{n}"}).encode()
            hidden = b'{"role":"assistant","content":"Hm.","tool_calls":[%b],"wire":[{"type":"text","text":"Hm."},%b]}'
            chat_call = b'{"id":"toolu_own_%d","type":"function","function":{"name":"recall","arguments":"{}"}}' % n
            made += [(None, hidden % (chat_call, call)), (None, OUR_RESULT.replace(b"own", b"own_%d" % n))]
        made.append((source, raw))
    made.append((None, NOTE))
    sent = request.write(made)
    assert find_violations(sent) == []
    again = read_messages_request(sent)
    ours = [read_message(unit.chat) for _, unit in again.units]
    theirs = [m.digest for m in ours if "own" not in str(m.call_id) and not any("own" in c.id for c in m.calls)]
    assert theirs[:-1] == [m.digest for m in messages][: len(theirs) - 1]
    assert ours[-1].text.endswith("Note.")


def test_a_note_after_a_message_without_blocks_is_not_lost() -> None:
    request = _read(("user", "Do."), ("assistant", "Done."), ("user", []))
    assert _wire(_write(request, [*_plan(request), (None, NOTE)]))[-1] == ("user", [{"type": "text", "text": "Note."}])


def test_a_remark_takes_the_place_of_an_image_with_its_mark() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "u"}}
    marked = {**image, "cache_control": {"type": "ephemeral"}}
    request = _read(*STEP[:2], ("user", [_result("a", [TEXT, image, marked]), _result("b", [image])]))
    plan = _plan(request)
    plan[2], plan[3] = ((n, replace_images(plan[n][1], "[gone]")) for n in (2, 3))
    remark = {"type": "text", "text": "[gone]"}
    wanted = json.loads(request.body)
    wanted["messages"][2]["content"][0]["content"] = [TEXT, remark, {**remark, "cache_control": {"type": "ephemeral"}}]
    wanted["messages"][2]["content"][1]["content"] = [remark]
    assert _write(request, plan) == wanted
