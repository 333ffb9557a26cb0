"""Gemini contents as canonical messages, and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.context.analysis import outcome
from proxy.context.analysis.shell_commands import EDIT_CALL
from proxy.dialects.completions.request import read_message
from proxy.dialects.gemini.contents import (
    convert_part,
    convert_result,
    find_wire_id,
    is_made_by_client,
    make_answer_parts,
    make_assistant_message,
    make_result_part,
)
from proxy.errors import NotManaged


def raw(*parts: Any) -> list[bytes]:
    return [json.dumps(part).encode() for part in parts]


CALL = {"functionCall": {"name": "ls", "args": {"path": "/a"}}}


def test_an_answer_is_one_message_however_its_text_was_cut() -> None:
    whole = make_assistant_message(raw({"text": "Let me look."}, CALL))
    cut = make_assistant_message(raw({"text": "Let me "}, {"text": "look."}, {**CALL, "thoughtSignature": "c2ln"}))
    assert read_message(whole.chat).digest == read_message(cut.chat).digest
    assert b'"wire"' not in whole.chat
    assert b"c2ln" in cut.chat


def test_thoughts_and_signatures_are_not_part_of_the_text() -> None:
    found = make_assistant_message(
        raw({"text": "Hm.", "thought": True}, {"text": "", "thoughtSignature": "x"}, {"text": "Yes."})
    )
    message = read_message(found.chat)
    assert (message.text, message.reasoning, message.media_count) == ("Yes.", "Hm.", 0)
    assert message.digest == read_message(make_assistant_message(raw({"text": "Yes."})).chat).digest


def test_a_call_without_an_id_gets_one_of_its_name_and_arguments() -> None:
    first = make_assistant_message(raw(CALL, CALL, {"functionCall": {"name": "ls", "args": {"path": "/b"}}}))
    ids = [call.id for call in first.calls]
    assert len(set(ids)) == 3
    again = make_assistant_message(raw(CALL))
    assert again.calls[0].id == ids[0]
    spaced = make_assistant_message([b'{"functionCall":{"args":{"path" : "\\u002fa"},"name":"ls"}}'])
    assert spaced.calls[0].id == ids[0]


@pytest.mark.parametrize(
    "made",
    [
        "ls_1795390834428_0",
        "pyd_ai_ee66cf2287574ceebf56a31e4836b088",
        "YjBmZpIQJQtaJR8t",
    ],
    ids=["gemini-cli", "pydantic-ai", "ai-sdk"],
)
def test_an_id_that_the_client_has_made_counts_as_none(made: str) -> None:
    own = {"functionCall": {**CALL["functionCall"], "id": made}}
    answer = make_assistant_message(raw(own))
    assert answer.calls[0].id == make_assistant_message(raw(CALL)).calls[0].id
    assert read_message(answer.chat).digest == read_message(make_assistant_message(raw(CALL)).chat).digest
    assert find_wire_id(answer.chat, answer.calls[0].id) == made, "a result of ours names the call as its answer does"


def test_an_id_that_the_model_has_given_stays() -> None:
    given = {"functionCall": {**CALL["functionCall"], "id": "x7f"}}
    answer = make_assistant_message(raw(given))
    assert answer.calls[0].id == "x7f"
    assert find_wire_id(answer.chat, "x7f") == "x7f"
    assert find_wire_id(make_assistant_message(raw(CALL)).chat, "gemini_1") == ""
    assert not is_made_by_client("ls_1", "ls")
    assert not is_made_by_client("_1795390834428", "")


def test_what_chat_form_cannot_say_counts_and_comes_back() -> None:
    parts = raw({"text": "See"}, {"executableCode": {"code": "1"}}, {"text": "."})
    found = make_assistant_message(parts)
    assert read_message(found.chat).media_count == 1
    assert make_answer_parts(found.chat, is_signed=True) == parts
    assert read_message(found.chat).digest != read_message(make_assistant_message(raw({"text": "See."})).chat).digest


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ({"output": "a\nb"}, "a\nb"),
        ({"error": "no"}, "no"),
        ({"n": 1, "m": 2}, '{"n": 1, "m": 2}'),
        ({"output": ["x"]}, '{"output": ["x"]}'),
        ({}, "{}"),
    ],
)
def test_a_function_response_becomes_the_text_of_a_tool_result(response: Any, text: str) -> None:
    part = raw({"functionResponse": {"name": "ls", "response": response}})[0]
    message = read_message(convert_result(part, "c1"))
    assert (message.role, message.call_id, message.text) == ("tool", "c1", text)


def test_a_result_with_media_is_distinguished_from_one_without() -> None:
    plain = {"name": "ls", "response": {"output": "a"}}
    media = {**plain, "parts": [{"inlineData": {"mimeType": "image/png", "data": "QQ=="}}]}
    one, other = (read_message(convert_result(raw({"functionResponse": made})[0], "c")) for made in (plain, media))
    assert one.text == other.text
    assert (one.media_count, other.media_count) == (0, 1)
    assert one.digest != other.digest


def test_messages_of_the_proxy_become_parts() -> None:
    call = {"id": "gemini_1", "type": "function", "function": {"name": "recall", "arguments": '{"id":"a"}'}}
    chat = json.dumps({"role": "assistant", "content": "Hm.", "tool_calls": [call]}).encode()
    parts = [json.loads(part) for part in make_answer_parts(chat, is_signed=True)]
    assert parts[0] == {"text": "Hm."}
    assert parts[1]["functionCall"] == {"name": "recall", "args": {"id": "a"}}
    assert parts[1]["thoughtSignature"] == "skip_thought_signature_validator"
    assert "thoughtSignature" not in json.loads(make_answer_parts(chat, is_signed=False)[1])
    result = json.loads(make_result_part(b'{"role":"tool","tool_call_id":"x7","content":"text"}', "recall", "x7"))
    assert result == {"functionResponse": {"id": "x7", "name": "recall", "response": {"output": "text"}}}
    result = json.loads(make_result_part(b'{"role":"tool","tool_call_id":"gemini_1","content":""}', "recall", ""))
    assert result == {"functionResponse": {"name": "recall", "response": {"output": "[removed]"}}}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"error": "no such id"}', "no such id"),
        ("[cut]", "[cut]"),
        ('{"error": "a"}, "b": 1', '{"error": "a"}, "b": 1'),
    ],
)
def test_a_call_of_the_proxys_tools_that_failed_is_an_error(text: str, error: str) -> None:
    chat = json.dumps({"role": "tool", "tool_call_id": "x7", "content": text, "is_error": True}).encode()
    part = make_result_part(chat, "recall", "x7")
    assert json.loads(part)["functionResponse"]["response"] == {"error": error}
    assert json.loads(convert_result(part, "x7"))["is_error"] is True


def test_the_wire_of_another_dialect_is_not_sent() -> None:
    chat = b'{"role":"assistant","content":"Hm.","wire":[{"type":"text","text":"Hm."}]}'
    assert make_answer_parts(chat, is_signed=True) == [b'{"text":"Hm."}']
    edited = b'{"role":"assistant","content":"Other.","wire":[{"text":"Hm.","thoughtSignature":"x"}]}'
    with pytest.raises(ValueError, match="differ"):
        make_answer_parts(edited, is_signed=True)


@pytest.mark.parametrize("part", [1, {"functionCall": {"args": {}}}, {"functionCall": {"name": "f", "args": 1}}])
def test_a_part_of_an_unknown_kind_is_not_managed(part: Any) -> None:
    with pytest.raises(NotManaged):
        make_assistant_message(raw(part))


def test_a_part_of_the_users_that_is_not_text_counts_as_media() -> None:
    assert json.loads(convert_part(b'{"text":"a","x":1}')) == {"type": "text", "text": "a"}
    assert json.loads(convert_part(b'{"inlineData":{"data":"QQ=="}}'))["type"] == "gemini"
    with pytest.raises(NotManaged):
        convert_part(b"[]")


@pytest.mark.parametrize(
    ("response", "failed"),
    [
        ({"error": "Nope."}, True),
        ({"output": "Nope."}, False),
        ({"error": "Nope.", "output": "x"}, True),
        ({"output": 'the member "error"'}, False),
    ],
)
def test_the_result_of_a_function_that_failed_says_so(response: dict[str, str], failed: bool) -> None:
    part = raw({"functionResponse": {"name": "replace", "response": response}})[0]
    message = read_message(convert_result(part, "c"))
    assert (outcome.read_outcome(message, EDIT_CALL).verdict == "failed") is failed
