"""Write the bodies of `traffic`, which are chat completions, in the other wire formats, as their agents send them: with
the whole history, and without a history that the provider stores."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class WireFormat:
    """A wire format. path: the path of its requests. terminal: a text at the end of every whole stream."""

    path: str
    terminal: bytes
    write: Callable[[bytes], bytes]
    """Returns the body in this format for a body of chat completions."""


def write_messages(body: bytes) -> bytes:
    """Write a Messages body with its members in the order of Claude Code: model, messages, system, tools, the rest."""
    chat = json.loads(body)
    system = "".join(one["content"] for one in chat["messages"] if one["role"] == "system")
    turns = [_make_turn(one) for one in chat["messages"] if one["role"] != "system"]
    tools = [{"name": one["function"]["name"], "input_schema": one["function"]["parameters"]} for one in chat["tools"]]
    made = {"model": chat["model"], "messages": turns, "system": system, "tools": tools, "max_tokens": 4096}
    return json.dumps(made | _make_stream_option(chat)).encode()


def _make_turn(message: Mapping[str, Any]) -> dict[str, Any]:
    text = {"type": "text", "text": message["content"]}
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
        return {"role": "user", "content": [result]}
    calls = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": json.loads(call["function"]["arguments"]),
        }
        for call in message.get("tool_calls", ())
    ]
    return {"role": message["role"], "content": [text, *calls]}


def write_responses(body: bytes) -> bytes:
    """Write a Responses body with its members in the order of Codex: model, instructions, input, tools, the rest."""
    chat = json.loads(body)
    system = "".join(one["content"] for one in chat["messages"] if one["role"] == "system")
    items = [item for one in chat["messages"] if one["role"] != "system" for item in _make_items(one)]
    tools = [{"type": "function", **one["function"], "strict": False} for one in chat["tools"]]
    made = {"model": chat["model"], "instructions": system, "input": items, "tools": tools, "store": False}
    return json.dumps(made | _make_stream_option(chat)).encode()


def _make_items(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if message["role"] == "tool":
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
        return
    kind = "output_text" if message["role"] == "assistant" else "input_text"
    part = {"type": kind, "text": message["content"]}
    yield {"type": "message", "role": message["role"], "content": [part]}
    for call in message.get("tool_calls", ()):
        yield {"type": "function_call", "call_id": call["id"], **call["function"]}


def _make_stream_option(chat: Mapping[str, Any]) -> dict[str, Any]:
    return {"stream": True} if chat.get("stream") else {}


WIRE_FORMATS: Mapping[str, WireFormat] = {
    "Chat completions": WireFormat("/v1/chat/completions", b"data: [DONE]", lambda body: body),
    "Messages": WireFormat("/v1/messages", b"event: message_stop", write_messages),
    "Responses": WireFormat("/v1/responses", b"event: response.completed", write_responses),
}
