"""The fake upstream's answers in the wire formats other than chat completions: one body, and a stream of pieces."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MODEL = "gpt-5-mini"


def _cached(prompt: int) -> int:
    return prompt * 9 // 10 // 128 * 128


def write_message(message: Mapping[str, Any], prompt: int) -> bytes:
    """The answer of Messages. message: as chat completions have it; prompt: tokens."""
    calls = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": json.loads(call["function"]["arguments"]),
        }
        for call in message["tool_calls"]
    ]
    usage = {"input_tokens": prompt - _cached(prompt), "cache_read_input_tokens": _cached(prompt), "output_tokens": 30}
    content = [{"type": "text", "text": message["content"]}, *calls]
    return json.dumps({**_message(content), "stop_reason": "tool_use", "usage": usage}).encode()


def _message(content: Sequence[Any]) -> dict[str, Any]:
    known = {"id": "msg_bench", "type": "message", "role": "assistant", "model": MODEL}
    return {**known, "content": content, "stop_reason": None, "stop_sequence": None}


def write_response(message: Mapping[str, Any], prompt: int) -> bytes:
    """The answer of Responses, with the arguments of `write_message`."""
    calls = [
        {"type": "function_call", "id": f"fc_{call['id']}", "call_id": call["id"], **call["function"]}
        for call in message["tool_calls"]
    ]
    return json.dumps(_response("completed", [_item(message["content"]), *calls], prompt)).encode()


def _item(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_bench", "status": "completed", "role": "assistant", "content": [part]}


def _response(status: str, output: Sequence[Any], prompt: int = 0) -> dict[str, Any]:
    usage = {"input_tokens": prompt, "input_tokens_details": {"cached_tokens": _cached(prompt)}, "output_tokens": 30}
    usage |= {"output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": prompt + 30}
    known = {"id": "resp_bench", "object": "response", "created_at": 1, "status": status, "model": MODEL}
    return {**known, "output": output, "store": False, "usage": usage if output else None}


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def stream_message(pieces: Sequence[str]) -> list[bytes]:
    """The events of a message of text."""
    begun = {**_message([]), "usage": {"input_tokens": 300, "cache_read_input_tokens": 0, "output_tokens": 1}}
    return [
        _event("message_start", message=begun),
        _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        *[_event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece}) for piece in pieces],
        _event("content_block_stop", index=0),
        _event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 200}),
        _event("message_stop"),
    ]


def stream_response(pieces: Sequence[str]) -> list[bytes]:
    """The events of a response of one text."""
    whole = _item("".join(pieces))
    at = {"item_id": "msg_bench", "output_index": 0, "content_index": 0}
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": _response("in_progress", [])}),
        ("response.in_progress", {"response": _response("in_progress", [])}),
        ("response.output_item.added", {"output_index": 0, "item": {**whole, "status": "in_progress", "content": []}}),
        ("response.content_part.added", {**at, "part": {**whole["content"][0], "text": ""}}),
        *[("response.output_text.delta", {**at, "delta": piece}) for piece in pieces],
        ("response.output_text.done", {**at, "text": whole["content"][0]["text"]}),
        ("response.content_part.done", {**at, "part": whole["content"][0]}),
        ("response.output_item.done", {"output_index": 0, "item": whole}),
        ("response.completed", {"response": _response("completed", [whole], 300)}),
    ]
    return [_event(kind, sequence_number=n, **fields) for n, (kind, fields) in enumerate(events)]


WRITERS: Mapping[str, Callable[[Mapping[str, Any], int], bytes]] = {
    "/v1/messages": write_message,
    "/v1/responses": write_response,
}
"""Writers of one body, by path."""
STREAMS: Mapping[str, Callable[[Sequence[str]], list[bytes]]] = {
    "/v1/messages": stream_message,
    "/v1/responses": stream_response,
}
"""Makers of the events of a stream, by path."""
