"""Events are read whatever their form, and blocks and usage add up as a client adds them up."""

from __future__ import annotations

import json
import time

import pytest

from proxy.dialects.completions.stream import describe_error
from proxy.dialects.messages.stream import (
    BlockBuilder,
    add_spent_usage,
    choose_stop_reason,
    make_error_body,
    make_error_event,
    merge_usage,
    read_event,
    read_finish_reason,
)
from proxy.dialects.usage import read_usage


def test_an_event_is_read_and_anything_else_is_not() -> None:
    found = read_event(b'{"type":"content_block_delta","index":3,"delta":{"type":"text_delta","text":"x"},"new":1}')
    assert found is not None
    assert (found.type, found.index, found.delta) == ("content_block_delta", 3, {"type": "text_delta", "text": "x"})
    for data in (b"", b"[]", b"7", b'{"no":"type', b'{"type":3}'):
        assert read_event(data) is None
    odd = read_event(b'{"type":"content_block_start","index":"1","content_block":[],"delta":{"text":"\\ud83d"}}')
    assert odd is not None
    assert (odd.index, odd.content_block, odd.delta) == (None, None, {"text": "\ud83d"})


def test_citations_add_up_in_linear_time_and_leave_the_list_of_the_event() -> None:
    """100,000 of them took a minute, in which nothing else was answered."""
    given = [{"n": 0}]
    block = BlockBuilder({"type": "text", "text": "", "citations": given})
    began = time.thread_time()
    for n in range(1, 100_000):
        block.add({"type": "citations_delta", "citation": {"n": n}})
    assert [one["n"] for one in json.loads(block.build())["citations"]] == [*range(100_000)]
    assert given == [{"n": 0}]
    assert time.thread_time() - began < 5


def test_a_block_is_assembled_from_its_start_and_deltas() -> None:
    block = BlockBuilder({"type": "thinking", "thinking": "", "signature": ""})
    for delta in ({"thinking": "Let "}, {"thinking": "me."}, {"signature": "c2ln"}):
        block.add({"type": "x", **delta})
    assert json.loads(block.build()) == {"type": "thinking", "thinking": "Let me.", "signature": "c2ln"}
    text = BlockBuilder({"type": "text", "text": "A"})
    text.add({"type": "text_delta", "text": "b\ud83d"})
    text.add({"type": "text_delta", "text": "\ude00"})
    text.add({"type": "citations_delta", "citation": {"url": "u"}})
    text.add({"type": "later_delta", "extra": None, "flag": True})
    assert json.loads(text.build()) == {"type": "text", "text": "Ab😀", "citations": [{"url": "u"}], "flag": True}


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        (["", '{"a"', ": 1.50}"], {"a": 1.5}),
        ([], {}),
        (["  "], {}),
        (['{"a":'], {"INVALID_JSON": '{"a":'}),
        (["[1]"], {"INVALID_JSON": "[1]"}),
    ],
)
def test_the_input_of_a_call_is_what_the_model_wrote(pieces: list[str], wanted: object) -> None:
    block = BlockBuilder({"type": "tool_use", "id": "a", "name": "f", "input": {}})
    for piece in pieces:
        block.add({"type": "input_json_delta", "partial_json": piece})
    assert json.loads(block.build())["input"] == wanted
    if pieces[1:]:
        assert b'{"a": 1.50}' in block.build(), "the model's own form of its numbers"


def test_usage_counts_the_whole_prompt() -> None:
    found = read_usage(
        {"input_tokens": 5, "cache_read_input_tokens": 70, "cache_creation_input_tokens": 20, "output_tokens": 3}
    )
    assert found is not None
    assert (found.prompt, found.completion, found.total, found.cached, found.cache_write) == (95, 3, 98, 70, 20)
    assert read_usage({"input_tokens": None}) is None
    assert read_usage([1]) is None


def test_later_reports_overwrite_and_rounds_add_up() -> None:
    assert merge_usage({"input_tokens": 5, "output_tokens": 1}, {"output_tokens": 9, "input_tokens": None}) == {
        "input_tokens": 5,
        "output_tokens": 9,
    }
    first = {"input_tokens": 5, "output_tokens": 9, "cache_read_input_tokens": 4, "service_tier": "x"}
    second = {"input_tokens": 8, "output_tokens": 2}
    assert add_spent_usage(first, {}) == first
    assert add_spent_usage(second, first) == {"input_tokens": 8, "output_tokens": 11, "service_tier": "x"}


def test_reasons_and_errors_have_their_forms() -> None:
    assert [read_finish_reason(one) for one in ("end_turn", "tool_use", "max_tokens", "new")] == [
        "stop",
        "tool_calls",
        "length",
        "new",
    ]
    assert choose_stop_reason("tool_use", 0) == "end_turn"
    assert choose_stop_reason("tool_use", 1) == "tool_use"
    assert choose_stop_reason("max_tokens", 0) == "max_tokens"
    assert describe_error({"type": "x", "message": "Overloaded"}) == "Overloaded"
    assert describe_error(["x"]) == '["x"]'
    event = make_error_event("too slow", "upstream_timeout")
    assert event.startswith(b"event: error\ndata: ")
    assert event.endswith(b"\n\n")
    error = json.loads(event.split(b"data: ")[1])
    assert error == {"type": "error", "error": {"type": "timeout_error", "message": "upstream_timeout: too slow"}}
    assert json.loads(make_error_body("gone", "upstream_broken"))["error"]["type"] == "api_error"
