from __future__ import annotations

import json

import pytest

from proxy.dialects.responses import stream as facts
from proxy.dialects.usage import Usage, read_usage
from tests.response_events import USAGE, Json, response


def test_an_event_is_an_object_with_a_type() -> None:
    assert facts.read_event(b'{"type":"error"}') == {"type": "error"}
    assert facts.read_event(b'{"type":"x","text":"\\ud800"}') == {"type": "x", "text": "\ud800"}
    for data in (b"[DONE]", b"[]", b'{"type":1}', b"{}", b"\xff"):
        assert facts.read_event(data) is None


def test_items_are_read_in_their_own_bytes() -> None:
    assert facts.read_output(b'{"output": [{"a": 1.50}, {}]}') == [b'{"a": 1.50}', b"{}"]
    assert facts.read_output(b'{"output":null}') == facts.read_output(b"[]") == []
    assert facts.read_output(b'{"output":[{"a":1}],"output":[{"a":2}]}') == [b'{"a":2}']


@pytest.mark.parametrize(
    ("value", "calls", "wanted"),
    [
        (response(), False, "stop"),
        (response(), True, "tool_calls"),
        ({}, False, "stop"),
        (response(status="incomplete", incomplete_details={"reason": "max_output_tokens"}), True, "length"),
        (response(status="incomplete", incomplete_details={"reason": "content_filter"}), False, "content_filter"),
        (response(status="incomplete"), False, "length"),
        (response(status="failed"), False, None),
    ],
)
def test_the_end_has_a_finish_reason(value: Json, calls: bool, wanted: str | None) -> None:
    assert facts.find_finish_reason(value, has_calls=calls) == wanted


def test_errors_are_reported_in_words() -> None:
    assert facts.find_error(response()) is None
    assert facts.find_error({"error": {"message": "no"}}) == "no"
    assert facts.find_error({"error": {"code": "bad"}}) == "bad"
    assert facts.find_error({"error": {"x": 1}}) == '{"x":1}'
    assert facts.find_error({"error": "text"}) == "text"
    assert facts.find_error({"type": "error", "message": "no", "code": "c"}) == "no"
    assert facts.find_error({"status": "failed", "error": None}) == "the upstream reported a failure"


def test_usage_is_read_in_the_words_of_chat_completions() -> None:
    assert read_usage(USAGE) == Usage(100, 7, 107, 64, 32, 3)
    assert read_usage({"input_tokens": 5}) == Usage(5, 0, 5)
    assert read_usage(None) is None
    assert read_usage({"other": 1}) is None


def test_output_tokens_of_all_rounds_add_up() -> None:
    earlier = [{"output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 2}}, None, {"output_tokens": 1}]
    found = facts.add_spent_usage(USAGE, earlier)
    assert found == USAGE | {
        "output_tokens": 13, "output_tokens_details": {"reasoning_tokens": 5}, "total_tokens": 113,
    }  # fmt: skip
    assert facts.add_spent_usage(None, earlier) is None


def test_an_error_event_has_the_shapes_that_clients_read() -> None:
    name, data, *_ = facts.make_error_event("no", "code", 4).decode().split("\n")
    value = json.loads(data.removeprefix("data: "))
    assert name == "event: error"
    assert (value["type"], value["code"], value["message"], value["sequence_number"]) == ("error", "code", "no", 4)
    assert value["error"] == {"type": "server_error", "code": "code", "message": "no", "param": None}
