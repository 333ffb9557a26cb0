"""Facts about the chunks of a Gemini stream."""

from __future__ import annotations

import json

import pytest

from proxy.dialects.completions.stream import describe_error
from proxy.dialects.gemini.stream import (
    add_spent_usage,
    cut_parts,
    drop_reason,
    list_parts,
    make_error_body,
    make_error_event,
    read_finish_reason,
    read_reason,
    read_response,
    set_parts,
    set_top,
)

CHUNK = b'{"candidates": [{"content": {"parts": [{"text": "a"}, {"x": 1.50}],"role":"model"},"finishReason":"STOP"}]}'


def test_the_parts_of_the_first_candidate() -> None:
    assert cut_parts(CHUNK) == [b'{"text": "a"}', b'{"x": 1.50}']
    found = read_response(CHUNK)
    assert found is not None
    assert list_parts(found) == [{"text": "a"}, {"x": 1.5}]
    assert cut_parts(b'{"candidates":[{"finishReason":"STOP"}]}') == []
    assert list_parts({"candidates": [{"index": 1, "content": {"parts": [{"text": "a"}]}}]}) == []


def test_set_parts_replaces_the_parts_of_a_chunk() -> None:
    made = set_parts(CHUNK, [b'{"text":"b"}'])
    assert made == CHUNK.replace(b'[{"text": "a"}, {"x": 1.50}]', b'[{"text":"b"}]')
    bare = set_parts(b'{"candidates":[{"index":0}]}', [b'{"text":"b"}'])
    assert json.loads(bare)["candidates"] == [{"index": 0, "content": {"parts": [{"text": "b"}], "role": "model"}}]
    assert json.loads(set_parts(b"{}", [b"{}"]))["candidates"][0]["content"]["parts"] == [{}]
    lone = b'{"candidates":[{"content":{"parts":[{"text":"\\ud800"}]}}],"a":1,"a":2}'
    assert json.loads(set_parts(lone, [b"{}"]))["candidates"][0]["content"]["parts"] == [{}]


def test_a_reason_leaves_and_other_values_change_where_they_are() -> None:
    assert b"finishReason" not in drop_reason(CHUNK)
    assert json.loads(drop_reason(b'{"a":1,"a":2,"candidates":[{"finishReason":"STOP"}]}'))["candidates"] == [{}]
    assert set_top(b'{"responseId":"r2"}', {"responseId": "r1", "modelVersion": "m"}) == b'{"responseId":"r1"}'
    assert json.loads(set_top(b'{"a":1,"a":2,"responseId":"r2"}', {"responseId": "r1"})).get("responseId") == "r2"


@pytest.mark.parametrize(
    ("reason", "has_calls", "wanted"),
    [
        ("STOP", False, "stop"),
        ("STOP", True, "tool_calls"),
        ("MAX_TOKENS", True, "length"),
        ("RECITATION", False, "content_filter"),
        ("MALFORMED_FUNCTION_CALL", False, "malformed_function_call"),
    ],
)
def test_gemini_finish_reasons_map_to_those_of_chat_completions(reason: str, has_calls: bool, wanted: str) -> None:
    assert read_finish_reason(reason, has_calls=has_calls) == wanted
    assert read_reason({"candidates": [{"finishReason": reason}]}) == reason


def test_usage_of_rounds_adds_up() -> None:
    first = {"promptTokenCount": 5, "candidatesTokenCount": 2, "totalTokenCount": 7}
    last = {"promptTokenCount": 9, "candidatesTokenCount": 1, "thoughtsTokenCount": 4, "totalTokenCount": 14}
    wanted = {"promptTokenCount": 9, "candidatesTokenCount": 3, "thoughtsTokenCount": 4, "totalTokenCount": 16}
    assert add_spent_usage(last, add_spent_usage(first, {})) == wanted


def test_errors_have_googles_shape() -> None:
    made = json.loads(make_error_body("no", "unauthorized", 401))
    assert made == {"error": {"code": 401, "message": "unauthorized: no", "status": "UNAUTHENTICATED"}}
    assert json.loads(make_error_event("slow", "upstream_timeout")[6:])["error"]["code"] == 504
    assert json.loads(make_error_body("x", "broken"))["error"]["status"] == "INTERNAL"
    assert describe_error({"message": "busy"}) == "busy"
    assert describe_error({"code": 1}) == '{"code":1}'


def test_what_is_not_a_response_is_read_as_none() -> None:
    assert read_response(b"[]") is None
    assert read_response(b"{") is None
    assert read_response(b'{"a":"\\ud800"}') is not None
