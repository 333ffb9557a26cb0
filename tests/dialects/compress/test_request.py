from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.chat.json_spans import SizeLimits
from proxy.dialects.completions.request import replace_text
from proxy.dialects.compress.request import CompressRequest, read_compress_request
from proxy.dialects.written_history import OutgoingMessage
from proxy.errors import NotManaged

CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
PARTIAL: list[dict[str, Any]] = [
    {"role": "user", "content": "Look at both."},
    {"role": "tool", "tool_call_id": "call_1", "content": "one"},
    {"role": "tool", "tool_call_id": "call_2", "content": "two", "name": "search"},
]
WHOLE: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Look."},
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "one"},
]


def read(rows: list[dict[str, Any]], **more: Any) -> CompressRequest:
    return read_compress_request(json.dumps({"model": "m", "messages": rows, **more}, indent=1).encode())


def chat(request: CompressRequest) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(request.chat_body)["messages"]
    return found


def whole(request: CompressRequest) -> list[OutgoingMessage]:
    return [(n, json.dumps(message).encode()) for n, message in enumerate(chat(request))]


def rows_of(body: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(body)["messages"]
    return found


def test_each_result_of_withheld_answers_gets_a_call_of_its_own_and_user_rows_are_context() -> None:
    made = chat(read(PARTIAL))
    assert [m["role"] for m in made] == ["system", "assistant", "tool", "assistant", "tool"]
    assert [m["tool_calls"][0]["id"] for m in made if m["role"] == "assistant"] == ["call_1", "call_2"]
    assert [m["tool_calls"][0]["function"]["name"] for m in made if m["role"] == "assistant"] == [
        "unknown_tool", "search",
    ]  # fmt: skip


def test_two_calls_that_stand_in_never_look_like_one_call_made_twice() -> None:
    arguments = [m["tool_calls"][0]["function"]["arguments"] for m in chat(read(PARTIAL)) if m["role"] == "assistant"]
    assert len(set(arguments)) == 2


def test_the_chat_form_only_grows_with_rows_at_the_end() -> None:
    first, later = read(PARTIAL[1:2]).chat_body, read(PARTIAL[1:]).chat_body
    assert later.startswith(first.removesuffix(b"]}"))


def test_rows_with_an_answer_among_them_are_read_as_they_are() -> None:
    assert chat(read(WHOLE)) == WHOLE


@pytest.mark.parametrize("rows", [PARTIAL, WHOLE])
def test_nothing_changed_is_the_body_that_came(rows: list[dict[str, Any]]) -> None:
    request = read(rows, config={"mode": "x"})
    at = 0
    came: list[OutgoingMessage] = []
    for place, raw in zip(request.places, request.read_rows(), strict=True):
        came += [(n, b"{}") for n in range(at, place)]
        came.append((place, raw))
        at = place + 1
    assert request.write(came) == request.body


def test_a_shortened_row_is_in_its_place_and_no_other_byte_moves() -> None:
    request = read(PARTIAL)
    messages = [(n, replace_text(raw, "short") if n == 2 else raw) for n, raw in whole(request)]
    written = rows_of(request.write(messages))
    assert written == [PARTIAL[0], PARTIAL[1] | {"content": "short"}, PARTIAL[2]]


def test_a_row_that_left_the_prompt_keeps_its_place_with_a_stand_in() -> None:
    request = read(PARTIAL)
    written = rows_of(request.write([one for one in whole(request) if one[0] not in (1, 2)]))
    assert written == [PARTIAL[0], PARTIAL[1] | {"content": "[removed]"}, PARTIAL[2]]


def test_an_answer_keeps_its_calls_since_the_results_after_it_stay() -> None:
    request = read(WHOLE)
    without = [one for one in whole(request) if one[0] not in (2, 3)]
    stripped: list[OutgoingMessage] = [*without, (2, b'{"role":"assistant","content":"I look."}')]
    for messages in (without, stripped):
        written = rows_of(request.write(messages))
        assert written[2] == WHOLE[2]
        assert written[3]["content"] == "[removed]"


def test_a_message_of_the_proxys_own_has_no_place() -> None:
    request = read(WHOLE)
    written = rows_of(request.write([*whole(request), (None, b'{"role":"user","content":"by the way"}')]))
    assert written == WHOLE


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[1", "shape"),
        (b'{"model":"m"}', "shape"),
        (b'{"messages":[]}', "shape"),
        (b'{"messages":[{"content":"x"}]}', "shape"),
        (b'{"messages":[{"role":"user","content":"x"}]}', "rows"),
    ],
)
def test_what_cannot_be_shortened_is_refused_with_its_reason(body: bytes, reason: str) -> None:
    with pytest.raises(NotManaged) as refused:
        read_compress_request(body)
    assert refused.value.reason == reason


def test_a_body_over_the_limits_is_refused() -> None:
    with pytest.raises(NotManaged) as refused:
        read_compress_request(json.dumps({"messages": PARTIAL}).encode(), SizeLimits(body_bytes=20))
    assert refused.value.reason == "size"
