"""Reading on from an earlier body of the same history: the same request as reading the whole, with less work."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.chat.message import Message, Request
from proxy.dialects.completions.request import build_prefix_cache, read_message, read_request
from proxy.errors import NotManaged
from tests.conversations import Json, assistant, result, user

TALK = [user("a"), assistant(None, "1"), result("1", "ä ] , }"), assistant("b"), user("c")]

TOOLS = [{"type": "function", "function": {"name": "g"}}]


def body(talk: list[Json], before: Json, after: Json, indent: int | None = None) -> bytes:
    return json.dumps({**before, "messages": talk, **after}, ensure_ascii=False, indent=indent).encode()


def list_request_values(request: Request) -> tuple[Any, ...]:
    """All of a request that does not say how it was read."""
    raws = [m.raw for m in request.messages]
    return (
        request.body, request.spans, raws, request.model, request.stream, request.tools, request.tool_names,
        request.is_free_text, request.usage_wanted, request.choices, request.reasoning_effort,
    )  # fmt: skip


@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from([{}, {"model": "m"}, {"model": "m", "tools": [{"type": "function", "function": {"name": "f"}}]}]),
    st.sampled_from([{}, {"stream": True}, {"n": 2, "stream_options": {"include_usage": True}}, {"tools": TOOLS}]),
    st.sampled_from([{}, {"stream": True}, {"temperature": 1.0}, {"tools": TOOLS}, {"tools": [*TOOLS, *TOOLS]}]),
    st.sampled_from([None, 2]),
)
def test_reading_a_continuation_equals_reading_the_whole(
    first: int, second: int, before: Json, after: Json, other: Json, indent: int | None
) -> None:
    prefix_cache = build_prefix_cache(read_request(body(TALK[:first], before, after, indent)))
    longer = body(TALK[:second], before, other, indent)
    assert list_request_values(read_request(longer, read_message, prefix_cache)) == list_request_values(
        read_request(longer)
    )


def test_tools_are_read_again_only_where_they_are_others() -> None:
    first = read_request(body(TALK[:3], {"model": "m"}, {"tools": TOOLS}))
    same, other = (
        read_request(body(TALK, {"model": "m"}, {"tools": tools}), read_message, build_prefix_cache(first))
        for tools in (TOOLS, [*TOOLS, {"type": "function", "function": {"name": "h"}}])
    )
    assert same.tools is first.tools
    assert same.tool_names is first.tool_names
    assert other.tool_names == ("g", "h")


def test_only_what_is_new_is_read() -> None:
    read: list[bytes] = []

    def count(raw: bytes) -> Message:
        read.append(raw)
        return read_message(raw)

    first = read_request(body(TALK[:3], {"model": "m"}, {"stream": True}))
    longer = body(TALK, {"model": "m"}, {"stream": True})
    found = read_request(longer, count, build_prefix_cache(first))
    assert [json.loads(raw) for raw in read] == TALK[3:]
    assert len(found.known_messages) == 3
    assert found.messages[:3] == first.messages
    assert json.loads(longer[: found.prefix_bytes] + b"]}") == {"model": "m", "messages": TALK[:3]}


def test_another_history_is_read_whole() -> None:
    prefix_cache = build_prefix_cache(read_request(body(TALK, {}, {})))
    for other in (body(TALK[1:], {}, {}), body(TALK, {"model": "m"}, {})):
        found = read_request(other, read_message, prefix_cache)
        assert list_request_values(found) == list_request_values(read_request(other))
        assert not found.known_messages


START = b'{"model":"m","messages":[{"role":"user","content":"a"}'


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"]",
        b",]}",
        b',,{"role":"user","content":"b"}]}',
        b',{"role":"user","content":"b"},]}',
        b'{"role":"user","content":"b"}]}',
        b',{"role":"user","content":"b"}]',
        b"]} x",
        b'],"model":"n"}',
        b'],"messages":[]}',
        b'],"stream":true,"stream":false}',
        b'],"\\u006dodel":"n"}',
        b"],}",
        b"]]}",
        b',{"content":"b"}]}',
        b",7]}",
    ],
)
def test_a_body_that_is_not_managed_whole_is_not_managed_when_read_on(rest: bytes) -> None:
    prefix_cache = build_prefix_cache(read_request(START + b"]}"))
    for body in (START + rest, START + b"\n " + rest):
        with pytest.raises(NotManaged):
            read_request(body)
        with pytest.raises(NotManaged):
            read_request(body, read_message, prefix_cache)
