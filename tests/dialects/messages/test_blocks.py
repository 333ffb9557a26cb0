"""A wire message has one canonical form, which reads like a chat message and gives the wire's blocks back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.chat import json_spans
from proxy.chat.message import Message
from proxy.dialects import spans
from proxy.dialects.completions.request import read_message
from proxy.dialects.messages.blocks import (
    convert_message,
    make_answer_blocks,
    make_assistant_message,
    make_result_block,
)
from proxy.errors import NotManaged

THINKING = {"type": "thinking", "thinking": "Let me see.", "signature": "c2ln"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a"}}


def _convert(role: str, content: Any) -> list[Message]:
    raw = json.dumps({"role": role, "content": content}).encode()
    return [read_message(unit.chat) for unit in convert_message(raw).units]


def _answer(*blocks: Any) -> tuple[Message, str | None, bytes]:
    unit = make_assistant_message([json.dumps(one).encode() for one in blocks])
    return read_message(unit.chat), unit.bound, unit.chat


def test_results_become_tool_messages_and_other_blocks_one_user_message_after_them() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "AA=="}}
    results = [
        {"type": "tool_result", "tool_use_id": "a", "content": "one"},
        {
            "type": "tool_result",
            "tool_use_id": "b",
            "content": [{"type": "text", "text": "two"}, image],
            "is_error": True,
        },
        {"type": "tool_result", "tool_use_id": "c"},
    ]
    found = _convert("user", [*results, {"type": "text", "text": "Remember."}, image])
    assert [(m.role, m.call_id, m.text, m.media_count) for m in found] == [
        ("tool", "a", "one", 0),
        ("tool", "b", "two", 1),
        ("tool", "c", "", 0),
        ("user", None, "Remember.", 1),
    ]
    raw = json.dumps({"role": "user", "content": results}).encode()
    assert [unit.blocks for unit in convert_message(raw).units] == [(0,), (1,), (2,)]


def test_a_string_and_one_text_block_have_one_digest() -> None:
    for role in ("user", "assistant", "system"):
        (one,), (other,) = _convert(role, "Hi."), _convert(role, [{"type": "text", "text": "Hi."}])
        assert one.digest == other.digest
    marked = [{"type": "text", "text": "Hi.", "cache_control": {"type": "ephemeral"}}]
    assert _convert("user", "Hi.")[0].digest == _convert("user", marked)[0].digest
    assert _convert("user", marked)[0].has_cache_mark


def test_an_answer_reads_as_text_calls_and_reasoning_and_names_its_tokens() -> None:
    redacted = {"type": "redacted_thinking", "data": "cmVk"}
    message, bound, chat = _answer(THINKING, redacted, {"type": "text", "text": "Reading."}, CALL)
    assert (message.text, message.reasoning, bound) == ("Reading.", "Let me see.", "c2ln cmVk")
    assert [(call.id, call.name, json.loads(call.arguments)) for call in message.calls] == [
        ("toolu_1", "read", {"path": "a"})
    ]
    assert json.loads(chat)["wire"] == [THINKING, redacted, {"type": "text", "text": "Reading."}, CALL]
    assert json.loads(make_answer_blocks(chat)) == json.loads(chat)["wire"]


def test_signatures_thinking_marks_and_nulls_do_not_count_for_the_digest_and_opaque_blocks_do() -> None:
    text = {"type": "text", "text": "Well."}
    plain = _answer(text, CALL)[0].digest
    assert _answer(THINKING, text, CALL)[0].digest == plain
    assert (
        _answer({**text, "citations": None}, {**CALL, "caller": None, "cache_control": {"type": "x"}})[0].digest
        == plain
    )
    assert _answer(text, {**CALL, "input": {"path": "b"}})[0].digest != plain
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": 1}}
    assert _answer(text, search, CALL)[0].digest != plain
    assert _answer(text, {**search, "caller": None}, CALL)[0].digest == _answer(text, search, CALL)[0].digest


def test_what_chat_form_can_say_bears_no_second_copy() -> None:
    blocks: list[Any]
    for blocks in ([{"type": "text", "text": "Well."}], [{"type": "text", "text": "x"}, CALL], [CALL]):
        chat = _answer(*blocks)[2]
        assert json_spans.read_value(chat, "wire") is None
        assert json.loads(make_answer_blocks(chat)) == blocks
    for blocks in ([CALL, {"type": "text", "text": "x"}], [{"type": "text", "text": "x", "citations": []}]):
        assert json.loads(make_answer_blocks(_answer(*blocks)[2])) == blocks


def test_an_edited_answer_gives_no_blocks_unless_it_is_to_be_written_from_chat_form() -> None:
    chat = _answer(THINKING, {"type": "text", "text": "Well."}, CALL)[2]
    edited = json_spans.set_member(chat, "content", b'"Ill."')
    with pytest.raises(ValueError, match="differ"):
        make_answer_blocks(edited)
    plain = make_answer_blocks(json_spans.set_member(edited, "wire", b"null"))
    assert json.loads(plain) == [{"type": "text", "text": "Ill."}, CALL]


def test_messages_of_the_proxy_become_blocks() -> None:
    result = make_result_block(b'{"role":"tool","tool_call_id":"a","content":"x"}')
    assert result == b'{"type":"tool_result","tool_use_id":"a","content":"x"}'


@pytest.mark.parametrize(
    "raw",
    [
        b"[]",
        b'{"role":"user"}',
        b'{"role":"tool","content":"x"}',
        b'{"role":"user","content":null}',
        b'{"role":"user","content":[{"text":"x"}]}',
        b'{"role":"user","content":["x"]}',
        b'{"role":"user","content":[{"type":"tool_result"}]}',
        b'{"role":"assistant","content":[{"type":"tool_use","id":"a"}]}',
        b'{"role":"assistant","content":[1]}',
        b'{"role":"user","role":"user","content":"x"}',
    ],
)
def test_a_message_that_is_not_understood_is_not_managed(raw: bytes) -> None:
    with pytest.raises(NotManaged):
        convert_message(raw)


def test_the_same_message_gives_the_same_bytes_and_spaces_of_the_client_stay_in_its_parts() -> None:
    raw = b'{"role":"user","content":[ {"type" : "text", "text":"\\u00e9"} ]}'
    (unit,) = convert_message(raw).units
    assert unit.chat == b'{"role":"user","content":[{"type" : "text", "text":"\\u00e9"}]}'
    assert convert_message(raw) == convert_message(raw)
    assert spans.read_any(unit.chat)["content"][0]["text"] == "é"


@pytest.mark.parametrize(
    "wire",
    [
        b'[{"type":"message","role":"assistant","content":[]}]',
        b'[{"type":"reasoning","summary":[]},{"type":"function_call","call_id":"call_1"}]',
        b'[{"functionCall":{"name":"read","args":{}}}]',
    ],
)
def test_the_items_of_another_dialect_are_not_read_as_blocks(wire: bytes) -> None:
    call = b'{"id":"call_1","type":"function","function":{"name":"read","arguments":"{}"}}'
    chat = b'{"role":"assistant","content":"Hi.","tool_calls":[' + call + b'],"wire":' + wire + b"}"
    assert json.loads(make_answer_blocks(chat)) == [
        {"type": "text", "text": "Hi."},
        {"type": "tool_use", "id": "call_1", "name": "read", "input": {}},
    ]


def test_an_answer_with_the_result_of_an_earlier_answers_call_is_its_continuation() -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    called = {**CALL, "caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}}
    assert [_answer(*blocks)[0].continues for blocks in ([search], [search, found], [search, called])] == [False] * 3
    assert _answer(found)[0].continues
    assert _answer(called)[0].continues
