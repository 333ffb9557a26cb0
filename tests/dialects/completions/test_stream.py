from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from proxy.dialects.completions.stream import read_chunk, read_error_text, repair_surrogates, write_json
from proxy.dialects.usage import Usage, read_usage


def test_a_chunk_is_read_with_whatever_is_in_its_delta() -> None:
    chunk = read_chunk(
        b'{"id":"c","model":"m","choices":[{"index":1,"delta":{"content":"a","x":[1]},"finish_reason":"stop"}],"y":2}'
    )
    assert chunk is not None
    assert (chunk.id, chunk.model, chunk.usage) == ("c", "m", UNSET)
    assert chunk.choices is not None
    assert (chunk.choices[0].index, chunk.choices[0].delta, chunk.choices[0].finish_reason) == (
        1,
        {"content": "a", "x": [1]},
        "stop",
    )


def test_usage_that_is_null_is_distinguished_from_usage_that_is_missing() -> None:
    null, missing = read_chunk(b'{"usage":null}'), read_chunk(b"{}")
    assert null is not None
    assert missing is not None
    assert null.usage is None
    assert missing.usage is UNSET


@pytest.mark.parametrize(
    "data",
    [
        b'{"id":7,"choices":[{"index":0,"delta":{"content":"a"}}]}',
        b'{"choices":[{"index":0.0,"delta":{"content":"a"}}],"x":NaN}',
        b'{"choices":[{"index":null,"delta":{"content":"a"},"finish_reason":3},null]}',
        b'\xef\xbb\xbf{"choices":[{"delta":{"content":"a"}}]}',
        b'{"choices":[{"delta":{"content":"a","y":"\\ud83d"}}]}',
        b'{"choices":[{"delta":{"content":"a","y":"\xff"}}]}',
        b'{"choices":[{"delta":{"content":"a"}}],"x":1e999}',
    ],
)
def test_what_the_fast_reader_refuses_is_read_all_the_same(data: bytes) -> None:
    chunk = read_chunk(data)
    assert chunk is not None
    assert chunk.choices is not None
    assert chunk.choices[0].index == 0
    assert chunk.choices[0].delta is not None
    assert chunk.choices[0].delta["content"] == "a"


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"3", b"null", b'"x"', b"<html>", b'{"a":', b"[" * 100_000, b"9" * 5000, b"\xff"]
)
def test_what_is_not_a_chunk_is_read_as_none(data: bytes) -> None:
    assert read_chunk(data) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text() | st.integers(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_no_json_is_too_odd_to_be_looked_at(value: Any) -> None:
    for wrapped in (value, {"choices": value}, {"choices": [{"delta": value}]}, {"usage": value, "error": value}):
        chunk = read_chunk(json.dumps(wrapped).encode())
        if chunk is not None:
            read_usage(chunk.usage)
            read_error_text(chunk)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"error":{"message":"no","type":"x"}}', "no"),
        (b'{"error":"plain"}', "plain"),
        (b'{"error":{"code":402}}', '{"code":402}'),
        (b'{"object":"error","message":"old vLLM"}', "old vLLM"),
        (b'[{"error":{"code":429,"message":"slow down"}}]', "slow down"),
        (b'{"error":null,"choices":[]}', None),
        (b'{"choices":[]}', None),
    ],
)
def test_an_error_that_upstream_reports_is_reported_in_words(data: bytes, words: str | None) -> None:
    chunk = read_chunk(data)
    assert chunk is not None
    assert read_error_text(chunk) == words


@pytest.mark.parametrize(
    ("value", "usage"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}, Usage(10, 2, 12)),
        ({"prompt_tokens": 10, "completion_tokens": 2}, Usage(10, 2, 12)),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 2,
                "total_tokens": 12,
                "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 1},
            },
            Usage(10, 2, 12, 0, 4, 1),
        ),
        ({"prompt_tokens": 10, "completion_tokens": 2, "prompt_cache_hit_tokens": 8}, Usage(10, 2, 12, 8)),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 2,
                "cache_read_input_tokens": 7,
                "cache_creation_input_tokens": 3,
            },
            Usage(10, 2, 12, 7, 3),
        ),
        ({"prompt_tokens": 10.0, "completion_tokens": -1, "total_tokens": 1e300}, Usage(10, 0, 10)),
        ({"prompt_tokens": 10, "prompt_tokens_details": None}, Usage(10, 0, 10)),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": None}}, Usage(10, 0, 10)),
        ({"prompt_tokens": True}, None),
        ({}, None),
        (None, None),
        ([], None),
        (UNSET, None),
    ],
)
def test_usage_is_read_as_providers_report_it(value: Any, usage: Usage | None) -> None:
    assert read_usage(value) == usage


def test_surrogates_are_joined_or_replaced() -> None:
    assert repair_surrogates("\ud83d\ude00") == "😀"
    assert repair_surrogates("a\ud83d") == "a\ufffd"
    assert repair_surrogates("ok") == "ok"


def test_surrogates_are_written_as_received() -> None:
    assert write_json("\ud83d") == b'"\\ud83d"'
    assert write_json({"a": "ü"}) == '{"a":"ü"}'.encode()
    assert write_json({"a": "\ud83d", "b": msgspec.Raw(b'{"c":1}')}) == b'{"a":"\\ud83d","b":{"c":1}}'
