"""Changes of a Gemini body: what is asked for, and no other byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.dialects.completions.request import read_message, replace_arguments, replace_images, replace_text
from proxy.dialects.gemini.request import GeminiRequest, read_gemini_request
from proxy.dialects.gemini.rules import find_added_violations, find_violations
from proxy.dialects.gemini.write import write_body
from proxy.dialects.written_history import OutgoingMessage
from tests.dialects.gemini.drawn import bodies

Json = dict[str, Any]
TOOL = b'{"type":"function","function":{"name":"recall","description":"Read.","parameters":{"type":"object",'
TOOL += b'"properties":{"strict":{"type":"string"}},"additionalProperties":false}}}'
NOTE = b'{"role":"user","content":"Note."}'
PROMPT: Json = {"role": "user", "parts": [{"text": "Go."}]}
CALLS: Json = {
    "role": "model",
    "parts": [
        {"functionCall": {"name": "a", "args": {}, "id": "c1"}, "thoughtSignature": "c2ln"},
        {"functionCall": {"name": "b", "args": {}}},
    ],
}
RESULTS: Json = {
    "role": "user",
    "parts": [
        {"functionResponse": {"name": "a", "id": "c1", "response": {"output": "long text"}, "x": 1.50}},
        {"inlineData": {"mimeType": "image/png", "data": "QQ=="}},
        {"functionResponse": {"name": "b", "response": {"n": 1, "m": 2}}},
    ],
}


def read(*contents: Json, **more: Any) -> GeminiRequest:
    return read_gemini_request(json.dumps({"contents": list(contents), **more}).encode())


def plan(request: GeminiRequest) -> list[OutgoingMessage]:
    return [(n, unit.chat) for n, unit in enumerate(request.units)]


def hide(n: int) -> list[OutgoingMessage]:
    """A hidden round: a call of ours that the model has made, and its result."""
    own = f"own{n}"
    call = {"id": own, "type": "function", "function": {"name": "recall", "arguments": "{}"}}
    part = {"functionCall": {"id": own, "name": "recall", "args": {}}, "thoughtSignature": "b3du"}
    chat = {"role": "assistant", "content": "Hm.", "tool_calls": [call], "wire": [{"text": "Hm."}, part]}
    result = {"role": "tool", "tool_call_id": own, "content": "Found."}
    return [(None, json.dumps(one).encode()) for one in (chat, result)]


@settings(max_examples=30)
@given(bodies())
def test_a_plan_without_changes_is_the_same_bytes(body: bytes) -> None:
    request = read_gemini_request(body)
    assert request.write(plan(request)) == body
    grown = [*plan(request), (None, NOTE)]
    assert request.write(grown) == request.write(grown)


@settings(max_examples=30)
@given(bodies(), st.data())
def test_text_edits_touch_nothing_else(body: bytes, data: Any) -> None:
    request = read_gemini_request(body)
    own = plan(request)
    messages = [read_message(raw) for _, raw in own]
    editable = [n for n, m in enumerate(messages) if m.role in ("tool", "user") and m.text]
    chosen = data.draw(st.sets(st.sampled_from(editable))) if editable else set()
    edited = [(n, replace_text(raw, f"stub {n}") if n in chosen else raw) for n, raw in own]
    made = request.write(edited)
    again = read_gemini_request(made)
    assert len(again.units) == len(own)
    for n, unit in enumerate(again.units):
        if n in chosen:
            assert read_message(unit.chat).text.replace("[removed]", "") == f"stub {n}"
        else:
            assert unit.chat == own[n][1]
    before, after = json.loads(body), json.loads(made)
    assert {k: v for k, v in before.items() if k != "contents"} == {k: v for k, v in after.items() if k != "contents"}
    for one, other in zip(before["contents"], after["contents"], strict=True):
        assert one.get("role") == other.get("role")
        if one.get("role") == "model":
            assert one == other
    assert find_violations(made) == []


@settings(max_examples=30)
@given(bodies(), st.data())
def test_steps_that_leave_take_their_contents_and_no_others(body: bytes, data: Any) -> None:
    request = read_gemini_request(body)
    own = plan(request)
    messages = [read_message(raw) for _, raw in own]
    answers = [n for n, m in enumerate(messages) if m.role == "assistant"]
    gone = data.draw(st.sets(st.sampled_from(answers))) if answers else set()
    left: list[OutgoingMessage] = []
    dropping = False
    for n, (_, raw) in enumerate(own):
        dropping = n in gone or (dropping and messages[n].is_result)
        if not dropping:
            left.append((n, raw))
    made = request.write(left)
    # With older turns gone, an answer of the newest turn may lack a signature no more and no less than before.
    assert find_added_violations(made, body) == []
    assert [unit.chat for unit in read_gemini_request(made).units] == [raw for _, raw in left]


@settings(max_examples=30)
@given(bodies(), st.data())
def test_inserts_stand_where_the_wire_wants_them_and_everything_else_stays(body: bytes, data: Any) -> None:
    request = read_gemini_request(body)
    made: list[OutgoingMessage] = []
    messages = [read_message(raw) for _, raw in plan(request)]
    for n, (source, raw) in enumerate(plan(request)):
        if messages[n].role == "assistant" and data.draw(st.booleans()):
            made += hide(n)
        made.append((source, raw))
    made.append((None, NOTE))
    sent = request.write(made)
    assert find_violations(sent) == []
    again = [read_message(unit.chat) for unit in read_gemini_request(sent).units]
    theirs = [m.digest for m in again if "own" not in str(m.call_id) and not any("own" in c.id for c in m.calls)]
    assert theirs[: len(messages) - 1] == [m.digest for m in messages][: len(messages) - 1]
    assert again[-1].text.endswith("Note.")


@pytest.mark.slow
@settings(max_examples=200)
@given(bodies(), st.data())
def test_properties_of_gemini_edits_hold_for_many_generated_bodies(body: bytes, data: Any) -> None:
    for check in (
        test_text_edits_touch_nothing_else,
        test_steps_that_leave_take_their_contents_and_no_others,
        test_inserts_stand_where_the_wire_wants_them_and_everything_else_stays,
    ):
        check.hypothesis.inner_test(body, data)  # type: ignore[attr-defined]


def test_a_result_changes_at_its_text_alone() -> None:
    request = read(PROMPT, CALLS, RESULTS)
    own = plan(request)
    assert [read_message(raw).call_id for _, raw in own][2] == "c1"
    edited = [(n, replace_text(raw, "short") if n in (2, 3) else raw) for n, raw in own]
    wanted = json.loads(request.body)
    wanted["contents"][2]["parts"][0]["functionResponse"]["response"]["output"] = "short"
    wanted["contents"][2]["parts"][2]["functionResponse"]["response"] = {"output": "short"}
    made = request.write(edited)
    assert json.loads(made) == wanted
    assert made == request.body.replace(b"long text", b"short").replace(b'{"n": 1, "m": 2}', b'{"output":"short"}')


def test_a_hidden_call_in_an_answer_joins_the_clients_results_in_the_order_of_calls() -> None:
    request = read(PROMPT, CALLS, RESULTS)
    own = plan(request)
    call = {"id": "own", "type": "function", "function": {"name": "recall", "arguments": "{}"}}
    parts = [CALLS["parts"][0], {"functionCall": {"name": "recall", "args": {}, "id": "own"}}, CALLS["parts"][1]]
    answer = json.loads(own[1][1])
    answer["tool_calls"].insert(1, call)
    result = (None, b'{"role":"tool","tool_call_id":"own","content":"Found."}')
    answer["wire"] = parts
    made = request.write([own[0], (None, json.dumps(answer).encode()), own[2], result, own[3], own[4]])
    contents = json.loads(made)["contents"]
    assert contents[1]["parts"] == parts
    named = [part["functionResponse"]["name"] for part in contents[2]["parts"] if "functionResponse" in part]
    assert named == ["a", "recall", "b"]
    assert find_violations(made) == []


def test_results_of_the_proxys_tools_come_before_the_clients_first_too() -> None:
    request = read(PROMPT, {"role": "model", "parts": [CALLS["parts"][0]]}, {"parts": [RESULTS["parts"][0]]})
    own = plan(request)
    answer = json.loads(own[1][1])
    own_call = {"id": "own", "type": "function", "function": {"name": "recall", "arguments": "{}"}}
    answer["tool_calls"].insert(0, own_call)
    answer["wire"] = [{"functionCall": {"name": "recall", "args": {}, "id": "own"}, "thoughtSignature": "x"}]
    answer["wire"].append({"functionCall": CALLS["parts"][0]["functionCall"]})
    result = (None, b'{"role":"tool","tool_call_id":"own","content":"Found."}')
    made = json.loads(request.write([own[0], (None, json.dumps(answer).encode()), result, own[2]]))
    assert [part["functionResponse"]["name"] for part in made["contents"][2]["parts"]] == ["recall", "a"]


def test_the_system_instruction_only_grows() -> None:
    appended = b'{"role":"system","content":[{"type":"text","text":"Be kind."},{"type":"text","text":"More."}]}'
    request = read(PROMPT, systemInstruction={"role": "user", "parts": [{"text": "Be kind."}]})
    made = json.loads(request.write([(0, appended), *plan(request)[1:]]))
    assert made["systemInstruction"] == {"role": "user", "parts": [{"text": "Be kind."}, {"text": "More."}]}
    bare = read(PROMPT)
    made = json.loads(bare.write([(None, b'{"role":"system","content":"New."}'), *plan(bare)]))
    assert made["systemInstruction"] == {"parts": [{"text": "New."}]}
    text = read(PROMPT, system_instruction="Be kind.")
    made = json.loads(text.write([(0, b'{"role":"system","content":"Be kind.\\nMore."}'), *plan(text)[1:]]))
    assert made["system_instruction"] == "Be kind.\nMore."
    for system in (request, text):
        with pytest.raises(ValueError, match=r"edited|removed"):
            system.write([(0, b'{"role":"system","content":"Else."}'), *plan(system)[1:]])
        with pytest.raises(ValueError, match="removed"):
            system.write(plan(system)[1:])


def test_tools_are_declared_in_the_clients_own_form() -> None:
    declared = [{"name": "f", "parametersJsonSchema": {"type": "object"}}]
    request = read(PROMPT, tools=[{"functionDeclarations": declared}, {"urlContext": {}}])
    made = json.loads(request.write(plan(request), tools=TOOL))["tools"]
    schema = {"type": "object", "properties": {"strict": {"type": "string"}}, "additionalProperties": False}
    own = {"name": "recall", "description": "Read.", "parametersJsonSchema": schema}
    assert made == [{"functionDeclarations": [*declared, own]}, {"urlContext": {}}]
    older = read(PROMPT, tools=[{"function_declarations": [{"name": "f", "parameters": {"type": "OBJECT"}}]}])
    made = json.loads(older.write(plan(older), tools=TOOL))["tools"][0]["function_declarations"][1]
    assert made["parameters"] == {"type": "object", "properties": {"strict": {"type": "string"}}}
    without: list[Json] = [{}, {"tools": [{"googleSearch": {}}]}]
    for tools in without:
        with pytest.raises(ValueError, match=r"tools|functions"):
            read(PROMPT, **tools).write([(0, read(PROMPT).units[0].chat)], tools=TOOL)


@pytest.mark.parametrize(
    "change",
    [
        lambda own: [own[0], (1, b'{"role":"assistant","content":"Other."}'), *own[2:]],
        lambda own: [own[1], own[0], *own[2:]],
        lambda own: [own[0], (1, own[2][1]), *own[2:]],
        lambda own: [*own, (None, b'{"role":"tool","tool_call_id":"nobody","content":"x"}')],
        lambda own: [*own, (None, b'{"role":"system","content":"x"}')],
        lambda own: [*own[:4], (4, b'{"role":"user","content":[]}')],
        lambda _: [],
    ],
)
def test_a_change_that_may_not_be_made_is_refused(change: Any) -> None:
    request = read(PROMPT, CALLS, RESULTS)
    with pytest.raises(ValueError, match=r"\w"):
        request.write(change(plan(request)))


def test_a_count_is_written_inside_its_request() -> None:
    body = json.dumps({"generateContentRequest": {"model": "models/g", "contents": [PROMPT]}}).encode()
    request = read_gemini_request(body)
    made = json.loads(request.write([(0, request.units[0].chat), (None, NOTE)]))
    assert made["generateContentRequest"]["contents"][0]["parts"] == [{"text": "Go."}, {"text": "Note."}]
    assert write_body(body, request.members, request.units, plan(request), b"") == body


def test_calls_get_other_arguments_where_nothing_is_signed() -> None:
    calls: Json = {"role": "model", "parts": [{"text": "So."}, {"functionCall": {"name": "a", "args": {"x": 1}}}]}
    results: Json = {"role": "user", "parts": [{"functionResponse": {"name": "a", "response": {"output": "fine"}}}]}
    request = read(PROMPT, calls, results)
    made = plan(request)
    made[1] = (1, replace_arguments(made[1][1], ['{"x": 2}']))
    parts = [{"text": "So."}, {"functionCall": {"name": "a", "args": {"x": 2}}}]
    assert json.loads(request.write(made))["contents"] == [PROMPT, {**calls, "parts": parts}, results]
    signed = read(PROMPT, CALLS, RESULTS)
    changed = [(n, replace_arguments(raw, ['{"x": 2}', None]) if n == 1 else raw) for n, raw in plan(signed)]
    with pytest.raises(ValueError, match="differ"):
        signed.write(changed)


SHOT: Json = {"inlineData": {"mimeType": "image/png", "data": "QQ=="}}
SOUND: Json = {"inlineData": {"mimeType": "audio/wav", "data": "QQ=="}}


@pytest.mark.parametrize(
    ("response", "parts", "wanted_response", "wanted_parts"),
    [
        ({"output": "done"}, [SHOT], {"output": "done\n[gone]"}, None),
        ({"url": "u"}, [SHOT], {"url": "u", "left_out": "[gone]"}, None),
        ({"url": "u", "n": 1.50}, [SHOT], {"url": "u", "n": 1.50, "left_out": "[gone]"}, None),
        ({"url": "u", "n": 1}, [SHOT, SOUND, SHOT], {"url": "u", "n": 1, "left_out": "[gone]\n[gone]"}, [SOUND]),
    ],
)
def test_a_result_loses_its_images_and_says_so(
    response: Json, parts: list[Json], wanted_response: Json, wanted_parts: list[Json] | None
) -> None:
    answer = {"functionResponse": {"name": "a", "id": "c1", "response": response, "parts": parts, "x": 1.50}}
    request = read(PROMPT, CALLS, {"role": "user", "parts": [answer, RESULTS["parts"][2]]})
    edited = [(n, replace_images(raw, "[gone]") if n == 2 else raw) for n, raw in plan(request)]
    wanted = json.loads(request.body)
    changed = wanted["contents"][2]["parts"][0]["functionResponse"]
    changed["response"] = wanted_response
    if wanted_parts is None:
        del changed["parts"]
    else:
        changed["parts"] = wanted_parts
    assert json.loads(request.write(edited)) == wanted


def test_a_result_that_refers_to_its_images_keeps_them() -> None:
    named: Json = {"inlineData": {**SHOT["inlineData"], "displayName": "shot.png"}}
    answer = {"name": "a", "id": "c1", "response": {"image": {"$ref": "shot.png"}}, "parts": [named]}
    request = read(PROMPT, CALLS, {"role": "user", "parts": [{"functionResponse": answer}, RESULTS["parts"][2]]})
    with pytest.raises(ValueError, match="without an image"):
        replace_images(plan(request)[2][1], "[gone]")
