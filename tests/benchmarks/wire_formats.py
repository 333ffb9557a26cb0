"""A chat-completions body of the traffic as the other dialects write it, as their agents do: the whole history with
every request, and nothing that the provider stores."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class WireFormat:
    """path: where it is asked. terminal: what a whole stream contains at its end."""

    path: str
    terminal: bytes
    write: Callable[[bytes], bytes]
    """The body in this format, from that of chat completions."""


def write_messages(body: bytes) -> bytes:
    """As Claude Code orders it: model, messages, system, tools, and the rest."""
    chat = json.loads(body)
    system = "".join(one["content"] for one in chat["messages"] if one["role"] == "system")
    turns = [_turn(one) for one in chat["messages"] if one["role"] != "system"]
    tools = [{"name": one["function"]["name"], "input_schema": one["function"]["parameters"]} for one in chat["tools"]]
    made = {"model": chat["model"], "messages": turns, "system": system, "tools": tools, "max_tokens": 4096}
    return json.dumps(made | _stream(chat)).encode()


def _turn(message: Mapping[str, Any]) -> dict[str, Any]:
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
    """As Codex orders it: model, instructions, input, tools, and the rest; the provider stores nothing."""
    chat = json.loads(body)
    system = "".join(one["content"] for one in chat["messages"] if one["role"] == "system")
    items = [item for one in chat["messages"] if one["role"] != "system" for item in _items(one)]
    tools = [{"type": "function", **one["function"], "strict": False} for one in chat["tools"]]
    made = {"model": chat["model"], "instructions": system, "input": items, "tools": tools, "store": False}
    return json.dumps(made | _stream(chat)).encode()


def _items(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if message["role"] == "tool":
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
        return
    kind = "output_text" if message["role"] == "assistant" else "input_text"
    part = {"type": kind, "text": message["content"]}
    yield {"type": "message", "role": message["role"], "content": [part]}
    for call in message.get("tool_calls", ()):
        yield {"type": "function_call", "call_id": call["id"], **call["function"]}


def _stream(chat: Mapping[str, Any]) -> dict[str, Any]:
    return {"stream": True} if chat.get("stream") else {}


WIRE_FORMATS: Mapping[str, WireFormat] = {
    "Chat completions": WireFormat("/v1/chat/completions", b"data: [DONE]", lambda body: body),
    "Messages": WireFormat("/v1/messages", b"event: message_stop", write_messages),
    "Responses": WireFormat("/v1/responses", b"event: response.completed", write_responses),
}
