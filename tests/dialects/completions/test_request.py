from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.chat.message import Call, Message, Request
from proxy.dialects.completions.request import (
    is_thinking,
    read_message,
    read_request,
    remove_usage_option,
    write_request,
)
from proxy.errors import NotManaged
from tests.conversations import Json, assistant, encode_json, make_message, make_request, result, user

IMAGE = {"type": "image_url", "image_url": {"url": "https://x/1.png"}}


@pytest.mark.parametrize(
    ("content", "text", "shape", "media"),
    [
        ("hello", "hello", "string", 0),
        ("", "", "string", 0),
        (None, "", "none", 0),
        ([], "", "parts", 0),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab", "parts", 0),
        ([{"type": "text", "text": "a"}, IMAGE], "a", "mixed", 1),
        ([IMAGE, IMAGE], "", "mixed", 2),
        ([{"type": "refusal", "refusal": "no"}], "", "mixed", 1),
        (["a bare string"], "a bare string", "mixed", 1),
    ],
)
def test_every_form_of_content_is_read(content: Any, text: str, shape: str, media: int) -> None:
    found = make_message(user(content))
    assert (found.text, found.shape, found.media_count) == (text, shape, media)


def test_a_message_without_content_has_no_text() -> None:
    found = make_message({"role": "assistant", "tool_calls": []})
    assert (found.text, found.shape, found.calls) == ("", "none", ())


def test_function_calls_custom_calls_and_those_of_the_old_kind_are_read() -> None:
    told: Json = {
        "role": "assistant",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "run", "arguments": '{"a": 1}'}},
            {"id": "2", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}},
            {"type": "function", "function": {"name": "none"}},
            {"id": "4", "type": "function", "function": {"name": "table", "arguments": {"a": 1}}},
        ],
        "function_call": {"name": "old", "arguments": "{}"},
    }
    assert make_message(told).calls == (
        Call("1", "run", '{"a": 1}'),
        Call("2", "sql", "SELECT 1"),
        Call("", "none", ""),
        Call("4", "table", '{"a":1}'),
        Call("old", "old", "{}"),
    )


def test_a_result_names_its_call_and_one_of_the_old_kind_its_function() -> None:
    assert make_message(result("c9", "ok")).call_id == "c9"
    assert make_message({"role": "function", "name": "run", "content": "ok"}).call_id == "run"
    assert make_message({"role": "tool", "content": "ok"}).call_id is None


def test_reasoning_is_read_under_either_name() -> None:
    assert make_message(assistant("a", reasoning_content="because")).reasoning == "because"
    assert make_message(assistant("a", reasoning="since")).reasoning == "since"
    assert make_message(assistant("a", reasoning_content="", reasoning=None)).reasoning == ""


@pytest.mark.parametrize("mark", ["cache_control", "prompt_cache_breakpoint"])
def test_cache_marks_are_seen_on_a_message_and_on_a_part(mark: str) -> None:
    assert make_message(user("a", **{mark: {"type": "ephemeral"}})).has_cache_mark
    assert make_message(user([{"type": "text", "text": "a", mark: {}}])).has_cache_mark
    assert not make_message(user("a")).has_cache_mark


ODD_MESSAGES = [
    b"7",
    b"[]",
    b"null",
    b"{}",
    b'{"role":7}',
    b'{"role":""}',
    b'{"role":null,"content":"a"}',
    b'{"role":"user","content":7}',
    b'{"role":"user","content":{"text":"a"}}',
    b'{"role":"user","content":[7]}',
    b'{"role":"user","content":"\\ud800"}',
    b'{"role":"user","content":"\xff"}',
    b'{"role":"user","content":NaN}',
    b'{"role":"user","content":[{"type":"x","n":1e999}]}',
    b'{"role":"user"',
    b'{"role":"user","content":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"role":"assistant","tool_calls":["a"]}',
    b'{"role":"assistant","tool_calls":[{"id":"1"}]}',
]


@pytest.mark.parametrize("raw", ODD_MESSAGES, ids=range(len(ODD_MESSAGES)))
def test_a_message_of_an_odd_shape_is_not_managed(raw: bytes) -> None:
    with pytest.raises(NotManaged) as caught:
        read_message(raw)
    assert caught.value.reason in ("shape", "unreadable")


ODD_BODIES = [
    b"",
    b"7",
    b"[]",
    b"{}",
    b'{"messages":null}',
    b'{"messages":{}}',
    b'{"messages":[]}',
    b'{"messages":[{"role":"user","content":"a"}],"messages":[]}',
    b'{"messages":[{"role":"user","content":"a"}]',
    b'{"messages":[{"role":"user","content":"a"}],"tools":{"a":1}}',
    b'{"messages":[{"role":"user","content":"a"}],"tools":7}',
    b'{"messages":[{"role":"user","content":"a"}],"model":"\\ud800"}',
    b'{"messages":[{"role":"user","content":"a"}],"n":1e999}',
    b'{"messages":[{"role":"user","content":"a"}],"tools":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
]


@pytest.mark.parametrize("body", ODD_BODIES, ids=range(len(ODD_BODIES)))
def test_a_body_of_an_odd_shape_is_not_managed(body: bytes) -> None:
    with pytest.raises(NotManaged) as caught:
        read_request(body)
    assert caught.value.reason in ("shape", "unreadable")


KNOWN = [
    "role", "content", "text", "type", "tool_calls", "function", "function_call", "custom", "name",
    "arguments", "id", "image_url", "url", "messages", "tools", "model", "n", "stream",
    "stream_options", "include_usage", "response_format", "tool_choice", "cache_control",
]  # fmt: skip
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False)
    | st.sampled_from(["user", "assistant", "tool", "text", "function", "", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "content",
                    "text",
                    "type",
                    "tool_calls",
                    "function",
                    "function_call",
                    "custom",
                    "name",
                    "arguments",
                    "id",
                    "image_url",
                    "url",
                    "messages",
                    "tools",
                    "model",
                    "n",
                    "stream",
                    "stream_options",
                    "include_usage",
                    "response_format",
                    "tool_choice",
                    "cache_control",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


def managed(read: Callable[[bytes], object], raw: bytes) -> object:
    """The request as it was read; None if it is not managed."""
    try:
        return read(raw)
    except NotManaged:
        return None


GOOD = st.sampled_from([user("a"), assistant(None, "1"), result("1", "b")])


@settings(max_examples=300)
@given(JSON, st.lists(GOOD | JSON, max_size=3), JSON)
def test_arbitrary_json_is_read_or_not_managed_and_nothing_else(inner: Any, talk: list[Any], tools: Any) -> None:
    more = inner if isinstance(inner, dict) else {"tools": tools, "n": inner, "stream_options": inner}
    for value in (inner, {"messages": talk, **more}, {**more, "messages": talk}):
        raw = json.dumps(value).encode()
        for read, kind in ((read_message, Message), (read_request, Request)):
            assert isinstance(managed(read, raw), kind | None)


@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_read_or_not_managed_and_nothing_else(raw: bytes) -> None:
    for body in (raw, b'{"messages":[' + raw + b"]}", b'{"messages":[{"role":"user","content":' + raw + b"}]}"):
        assert isinstance(managed(read_request, body), Request | None)


def test_messages_are_the_very_slices_of_the_body() -> None:
    talk = b'{ "role" : "user", "content":"\\u00e4", "x":1.0 }'
    body = b'{"z":1e0,\n "messages" : [ ' + talk + b" ,\n" + talk + b' ] , "model":"m" }'
    found = read_request(body)
    assert [m.raw for m in found.messages] == [talk, talk]
    assert (found.model, found.body) == ("m", body)


def test_a_reader_of_the_callers_own_is_used() -> None:
    known = make_message(user("known"))
    found = read_request(encode_json({"messages": [user("a"), user("b")]}), lambda raw: known)
    assert found.messages == (known, known)


@pytest.mark.parametrize(
    ("more", "plain"),
    [
        ({}, True),
        ({"n": 1, "response_format": {"type": "text"}, "tool_choice": "auto", "modalities": ["text"]}, True),
        ({"tool_choice": "none", "response_format": None}, True),
        ({"n": 2}, False),
        ({"response_format": {"type": "json_object"}}, False),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, False),
        ({"tool_choice": "required"}, False),
        ({"tool_choice": {"type": "function", "function": {"name": "run"}}}, False),
        ({"modalities": ["text", "audio"]}, False),
        ({"logprobs": False}, True),
        ({"logprobs": True, "top_logprobs": 3}, False),
    ],
)
def test_a_request_is_plain_where_one_free_text_is_expected(more: Json, plain: bool) -> None:
    assert make_request([user("a")], **more).is_free_text is plain


def test_what_a_rewrite_must_know_of_a_request_is_read() -> None:
    tools = [
        {"type": "function", "function": {"name": "run"}},
        {"type": "custom", "custom": {"name": "sql"}},
        {"type": "function"},
        7,
    ]
    found = make_request(
        [user("a")], tools=tools, stream=True, stream_options={"include_usage": True}, n=3, reasoning_effort="high"
    )
    assert found.tool_names == ("run", "sql")
    assert found.tools is not None
    assert json.loads(found.tools) == tools
    assert (found.stream, found.usage_wanted, found.choices, found.reasoning_effort) == (True, True, 3, "high")


@pytest.mark.parametrize("tools", [None, []])
def test_an_empty_list_of_tools_counts_as_none_however_it_is_written(tools: Any) -> None:
    found = make_request([user("a")], tools=tools)
    assert (found.tools, found.tool_names) == (None, ())


def test_parameters_of_odd_kinds_are_upstreams_to_judge() -> None:
    found = make_request([user("a")], model=7, stream="yes", n="two", stream_options=[1], reasoning_effort=3)
    assert (found.model, found.stream, found.choices, found.usage_wanted) == ("", False, 1, False)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (b"", b""),
        (b',"stream_options":null', b""),
        (b',"stream_options":{"include_obfuscation":false}', b',"stream_options":{"include_obfuscation":false}'),
    ],
)
def test_the_request_for_usage_is_taken_out_again(options: bytes, left: bytes) -> None:
    asked = read_request(b'{"messages":[{"role":"user","content":"a"}],"stream":true' + options + b"}")
    written = write_request(asked, request_usage=True)
    assert b"include_usage" in written
    assert remove_usage_option(written) == b'{"messages":[{"role":"user","content":"a"}],"stream":true' + left + b"}"
    assert remove_usage_option(b"{}") == b"{}"


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({}, False),
        ({"thinking": {"type": "enabled"}}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"reasoning": {"effort": "high"}}, True),
        ({"reasoning": {"enabled": False}}, False),
        ({"thinking": None, "reasoning_effort": "high"}, False),
    ],
)
def test_a_request_for_reasoning_is_known_by_its_members(more: Json, found: bool) -> None:
    body = {"model": "m", "messages": [user("Go on")], **more}
    assert is_thinking(read_request(json.dumps(body).encode())) is found


def test_the_parts_of_a_result_begin_on_lines_of_their_own() -> None:
    def read(role: str, *texts: str) -> Message:
        parts = [{"type": "text", "text": text} for text in texts]
        return read_message(encode_json({"role": role, "tool_call_id": "c", "content": parts}))

    assert read("tool", "src/a.py", "src/b.py\n", "Exit code: 1").text == "src/a.py\nsrc/b.py\nExit code: 1"
    assert read("tool", "", "a").text == "a"
    assert read("assistant", "a", "b").text == "ab"
    # A message is the same in one part and in several.
    assert read("tool", "a", "b").digest == read("tool", "ab").digest
