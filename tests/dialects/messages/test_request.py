"""A Messages body is read into a chat body that only grows, or is not managed, with the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.chat.json_spans import SizeLimits
from proxy.dialects.completions.request import build_prefix_cache, read_request
from proxy.dialects.messages import request as messages_request
from proxy.dialects.messages.blocks import WireMessage, convert_message
from proxy.dialects.messages.request import (
    MessagesRequest,
    find_session_names,
    read_messages_request,
)
from proxy.errors import NotManaged
from tests.dialects.messages.drawn import append_messages, bodies, histories


def _read(**members: Any) -> MessagesRequest:
    body = {"model": "claude-opus-5-5", "max_tokens": 64, "messages": [{"role": "user", "content": "Hi."}], **members}
    return read_messages_request(json.dumps(body).encode())


def test_the_chat_body_reads_as_a_chat_request() -> None:
    found = _read(
        system=[{"type": "text", "text": "You."}],
        stream=True,
        tools=[
            {"name": "read", "description": "Reads.", "input_schema": {"type": "object"}},
            {"type": "bash_20250124", "name": "bash"},
            {"type": "mcp_toolset", "mcp_server_name": "x"},
        ],
        tool_choice={"type": "auto"},
        output_config={"effort": "low"},
    )
    request = read_request(found.chat_body)
    assert [m.role for m in request.messages] == ["system", "user"]
    assert (request.model, request.stream, request.usage_wanted) == ("claude-opus-5-5", True, True)
    assert request.tool_names == ("read", "bash")
    assert (request.max_tokens, request.reasoning_effort, request.is_free_text) == (64, "low", True)
    assert json.loads(found.chat_body)["tools"][0]["function"]["parameters"] == {"type": "object"}


def test_a_forced_tool_and_a_format_exclude_free_text_and_a_last_answer_is_continued() -> None:
    for members in (
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "tool", "name": "read"}},
        {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
    ):
        assert not read_request(_read(**members).chat_body).is_free_text
    ended = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "{"}]
    assert read_request(_read(messages=ended).chat_body).is_continuation
    assert not read_request(_read().chat_body).is_continuation


def test_each_message_lists_the_signatures_of_its_thinking_blocks() -> None:
    thinking = [{"type": "thinking", "thinking": "", "signature": s} for s in ("a", "b")]
    found = _read(
        system="You.",
        messages=[
            {"role": "user", "content": "Hi."},
            {"role": "assistant", "content": [*thinking, {"type": "text", "text": "x"}]},
            {"role": "user", "content": "And?"},
        ],
    )
    assert found.bound == (None, None, "a b", None)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"thread": {"previous_message_id": "msg_1"}}, "chain"),
        ({"compaction": {"type": "summarize"}}, "compaction"),
        ({"messages": []}, "shape"),
        ({"messages": "x"}, "shape"),
        ({"system": 3}, "shape"),
        ({"messages": [{"role": "user", "content": 1}]}, "shape"),
        ({"messages": [{"role": {}, "content": "Hi."}]}, "shape"),
        ({"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": 1}]}]}, "shape"),
        ({"tools": "x"}, "shape"),
    ],
)
def test_requests_that_cannot_be_managed_say_why(members: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotManaged) as refused:
        _read(**members)
    assert refused.value.reason == reason


def test_bodies_that_are_unreadable_or_too_large_say_why() -> None:
    for body, limits, reason in (
        (b"{", None, "unreadable"),
        (b'{"model":"m"}', None, "shape"),
        (b'{"messages":[{"role":"user","content":"x"}],"messages":[]}', None, "unreadable"),
        (b'{"messages":[{"role":"user","content":"x"}]}', SizeLimits(body_bytes=9), "size"),
        (b'{"messages":[{"role":"user","content":"x"},{}]}', SizeLimits(messages=1), "size"),
    ):
        with pytest.raises(NotManaged) as refused:
            read_messages_request(body, limits)
        assert refused.value.reason == reason


@given(bodies())
def test_unchanged_messages_give_the_same_bytes(body: bytes) -> None:
    found = read_messages_request(body)
    request = read_request(found.chat_body)
    assert [m.raw for m in request.messages] == [unit.chat for _, unit in found.units]
    assert len(found.bound) == len(request.messages)
    assert found.write([(n, m.raw) for n, m in enumerate(request.messages)]) == body


@given(histories(), st.data())
def test_a_history_that_grew_gives_a_chat_body_that_grew(history: list[dict[str, Any]], data: Any) -> None:
    cut = data.draw(st.sampled_from([n for n, m in enumerate(history) if m["role"] == "user"])) + 1
    before, after = _read(system="You.", messages=history[:cut]), _read(system="You.", messages=history)
    front = build_prefix_cache(read_request(before.chat_body))
    assert after.chat_body.startswith(front.body_prefix)
    assert read_request(after.chat_body, prefix=front).known_messages == front.messages


@given(histories(), st.data())
def test_a_continued_body_is_read_as_a_whole_one(history: list[dict[str, Any]], data: Any) -> None:
    cut = data.draw(st.integers(1, len(history)))
    before, whole = _read(messages=history[:cut]), _read(messages=history, system="You.", stream=True)
    read: list[bytes] = []

    def convert(raw: bytes) -> WireMessage:
        read.append(raw)
        return convert_message(raw)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(messages_request, "convert_message", convert)
        assert read_messages_request(whole.body, None, before) == whole
    assert len(read) == (len(history) if before.is_cut else len(history) - before.stable)


def test_marks_at_the_end_of_a_prompt_are_expected_to_leave() -> None:
    """Claude Code marks the last message of each request, and no other one."""

    def talk(count: int) -> list[dict[str, Any]]:
        texts: list[dict[str, Any]] = [{"type": "text", "text": str(n)} for n in range(count)]
        texts[-1]["cache_control"] = {"type": "ephemeral"}
        return [{"role": ("user", "assistant")[n % 2], "content": [text]} for n, text in enumerate(texts)]

    before, whole = _read(messages=talk(21)), _read(messages=talk(23))
    assert before.stable == 20
    assert whole.body.startswith(before.body[: before.prefix_end])
    assert read_messages_request(whole.body, None, before) == whole


@pytest.mark.parametrize("rest", [b'],"model":"b"}', b'],"messages":[]}', b",]}", b",7]}", b"]"])
def test_a_body_that_does_not_continue_another_is_refused_as_a_whole_one(rest: bytes) -> None:
    before = _read()
    start = before.body[: before.prefix_end]
    for known in (None, before):
        with pytest.raises(NotManaged):
            read_messages_request(start + rest, SizeLimits(), known)


def test_the_values_of_a_continued_body_are_counted_once() -> None:
    limits = SizeLimits(values=60)
    talk = [{"role": "user", "content": "Hi." * 30}, {"role": "assistant", "content": "Ho." * 30}]
    before = read_messages_request(_read(messages=talk[:1]).body, limits)
    whole = _read(messages=talk).body
    assert 0 < before.value_count < read_messages_request(whole, limits, before).value_count
    assert read_messages_request(whole, limits, before).value_count == read_messages_request(whole, limits).value_count
    with pytest.raises(NotManaged):
        read_messages_request(_read(messages=talk * 20).body, limits, before)


def test_session_names_are_the_clients_most_specific_first() -> None:
    claude = json.dumps({"device_id": "d", "account_uuid": "a", "session_id": "s-1"})
    found = _read(metadata={"user_id": claude})
    assert find_session_names({}, found) == ["s-1"]
    headers = {"x-claude-code-session-id": "s-1", "x-claude-code-agent-id": "a9"}
    assert find_session_names(headers, found) == ["s-1/a9", "s-1"]
    old = _read(metadata={"user_id": "user_ab_account__session_0a1b2c3d-0000"})
    assert find_session_names({}, old) == ["0a1b2c3d-0000"]
    for other in ({"metadata": {"user_id": "{bad"}}, {"metadata": {"user_id": "bob"}}, {"metadata": None}, {}):
        assert find_session_names({}, _read(**other)) == []


def test_an_answer_and_its_results_are_appended() -> None:
    body = _read(metadata={"user_id": "é"}).body
    call = b'{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}'
    answer = b'{"role":"assistant","content":null,"tool_calls":[%b]}' % call
    made = append_messages(body, [answer, b'{"role":"tool","tool_call_id":"a","content":"out"}'])
    added = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "out"}]},
    ]
    assert json.loads(made)["messages"] == [*json.loads(body)["messages"], *added]
    assert made.startswith(body[: body.index(b"Hi.")])
