"""Gemini contents, read by the strategy that they were stored with (A5)."""

from __future__ import annotations

import json

import pytest

from proxy.dialects.gemini.request import read_message
from proxy.errors import NotManaged


def content(role: str, *parts: object) -> bytes:
    return json.dumps({"role": role, "parts": list(parts)}).encode()


def test_a5_text_calls_and_thoughts_are_told_apart() -> None:
    message = read_message(
        content(
            "model",
            {"text": "I think", "thought": True},
            {"text": "Let me "},
            {"text": "look."},
            {"functionCall": {"name": "ls", "args": {"path": "/a"}}},
        )
    )
    assert (message.role, message.text, message.reasoning) == ("assistant", "Let me look.", "I think")
    assert [(c.id, c.name, c.arguments) for c in message.calls] == [("ls", "ls", '{"path":"/a"}')]


def test_a5_a_function_response_is_the_result_of_the_call_of_its_name_or_id() -> None:
    named = read_message(content("user", {"functionResponse": {"name": "ls", "response": {"output": "a\nb"}}}))
    assert (named.role, named.call_id, named.text) == ("tool", "ls", "a\nb")
    by_id = read_message(content("user", {"functionResponse": {"id": "7", "name": "ls", "response": {"n": 1, "m": 2}}}))
    assert (by_id.call_id, by_id.text) == ("7", '{"n":1,"m":2}')


def test_parts_that_are_no_text_count_as_media_and_tell_messages_apart() -> None:
    one, other = (read_message(content("user", {"text": "see"}, {"inlineData": {"data": d}})) for d in "ab")
    assert (one.media_count, one.shape) == (1, "mixed")
    assert one.digest != other.digest


@pytest.mark.parametrize("raw", [b"[]", b"{}", b'{"parts": 1}', b'{"parts": [1]}', b"{", b'"x"'])
def test_what_is_no_content_is_not_managed(raw: bytes) -> None:
    with pytest.raises(NotManaged):
        read_message(raw)
