"""The answers of the fake upstream in the wire formats other than chat completions: one body, or a stream of events."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MODEL = "gpt-5-mini"


def _count_cached(prompt: int) -> int:
    return prompt * 9 // 10 // 128 * 128


def write_message(message: Mapping[str, Any], prompt: int) -> bytes:
    """The answer in Messages. message: in the form of chat completions. prompt: tokens of the prompt."""
    calls = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": json.loads(call["function"]["arguments"]),
        }
        for call in message["tool_calls"]
    ]
    usage = {
        "input_tokens": prompt - _count_cached(prompt),
        "cache_read_input_tokens": _count_cached(prompt),
        "output_tokens": 30,
    }
    content = [{"type": "text", "text": message["content"]}, *calls]
    return json.dumps({**_make_message(content), "stop_reason": "tool_use", "usage": usage}).encode()


def _make_message(content: Sequence[Any]) -> dict[str, Any]:
    known = {"id": "msg_bench", "type": "message", "role": "assistant", "model": MODEL}
    return {**known, "content": content, "stop_reason": None, "stop_sequence": None}


def write_response(message: Mapping[str, Any], prompt: int) -> bytes:
    """The answer in Responses. The arguments are those of `write_message`."""
    calls = [
        {"type": "function_call", "id": f"fc_{call['id']}", "call_id": call["id"], **call["function"]}
        for call in message["tool_calls"]
    ]
    return json.dumps(_make_response("completed", [_make_item(message["content"]), *calls], prompt)).encode()


def _make_item(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_bench", "status": "completed", "role": "assistant", "content": [part]}


def _make_response(status: str, output: Sequence[Any], prompt: int = 0) -> dict[str, Any]:
    usage = {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": _count_cached(prompt)},
        "output_tokens": 30,
    }
    usage |= {"output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": prompt + 30}
    known = {"id": "resp_bench", "object": "response", "created_at": 1, "status": status, "model": MODEL}
    return {**known, "output": output, "store": False, "usage": usage if output else None}


def _format_event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def stream_message(pieces: Sequence[str]) -> list[bytes]:
    """The events of a streamed Messages answer with this text."""
    begun = {**_make_message([]), "usage": {"input_tokens": 300, "cache_read_input_tokens": 0, "output_tokens": 1}}
    return [
        _format_event("message_start", message=begun),
        _format_event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        *[
            _format_event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
            for piece in pieces
        ],
        _format_event("content_block_stop", index=0),
        _format_event(
            "message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 200}
        ),
        _format_event("message_stop"),
    ]


def stream_response(pieces: Sequence[str]) -> list[bytes]:
    """The events of a streamed Responses answer with this text."""
    whole = _make_item("".join(pieces))
    at = {"item_id": "msg_bench", "output_index": 0, "content_index": 0}
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": _make_response("in_progress", [])}),
        ("response.in_progress", {"response": _make_response("in_progress", [])}),
        ("response.output_item.added", {"output_index": 0, "item": {**whole, "status": "in_progress", "content": []}}),
        ("response.content_part.added", {**at, "part": {**whole["content"][0], "text": ""}}),
        *[("response.output_text.delta", {**at, "delta": piece}) for piece in pieces],
        ("response.output_text.done", {**at, "text": whole["content"][0]["text"]}),
        ("response.content_part.done", {**at, "part": whole["content"][0]}),
        ("response.output_item.done", {"output_index": 0, "item": whole}),
        ("response.completed", {"response": _make_response("completed", [whole], 300)}),
    ]
    return [_format_event(kind, sequence_number=n, **fields) for n, (kind, fields) in enumerate(events)]


WRITERS: Mapping[str, Callable[[Mapping[str, Any], int], bytes]] = {
    "/v1/messages": write_message,
    "/v1/responses": write_response,
}
"""Writers of one body, by path."""
STREAMS: Mapping[str, Callable[[Sequence[str]], list[bytes]]] = {
    "/v1/messages": stream_message,
    "/v1/responses": stream_response,
}
"""Functions that make the events of a stream, by path."""
