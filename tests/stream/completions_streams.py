"""Streams of chat completions for tests: made here, relayed, and read as a client reads them."""

from __future__ import annotations

import json
from typing import Any

from proxy.notes.state_block import HEADINGS
from proxy.stream.answer_relay import RelayOptions
from proxy.stream.completions_relay import CompletionsRelay
from proxy.stream.sse import SseParser

BLOCK = "### STATE\nGoal: go on\nContext: as before\nResolved: one more step\nTechnical Anchors: none"
HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


def make_chunk(delta: dict[str, Any], index: int = 0, finish: str | None = None, **more: Any) -> bytes:
    value = {**HEAD, **more, "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def make_usage_chunk(**more: Any) -> bytes:
    return b"data: " + json.dumps({**HEAD, "choices": [], "usage": USAGE, **more}).encode() + b"\n\n"


def make_call_delta(index: int, arguments: str, name: str = "") -> dict[str, Any]:
    part: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
    if name:
        part |= {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"tool_calls": [part]}


def cut_pieces(text: str, size: int = 24) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def relay_stream(
    stream: list[bytes] | bytes, *, withhold: bool = True, drop: bool = False, limit: int = 8 << 20
) -> tuple[bytes, CompletionsRelay]:
    relay = CompletionsRelay(RelayOptions(withheld=HEADINGS if withhold else (), drop_usage=drop, limit=limit))
    parts = [stream] if isinstance(stream, bytes) else stream
    out = b"".join([relay.feed(part) for part in parts])
    return out + relay.end() + relay.terminal, relay


def read_events(data: bytes) -> list[Any]:
    found = [event.data for event in SseParser().feed(data) if event.data is not None]
    return [one if one == b"[DONE]" else json.loads(one) for one in found]


def list_choices(data: bytes, index: int = 0) -> list[dict[str, Any]]:
    return [
        c
        for event in read_events(data)
        if isinstance(event, dict)
        for c in event.get("choices", [])
        if c.get("index", 0) == index
    ]


def read_text(data: bytes, index: int = 0) -> str:
    return "".join(c["delta"].get("content") or "" for c in list_choices(data, index))


def make_answer_stream(text: str, size: int = 24, calls: int = 0, **more: Any) -> list[bytes]:
    parts = [make_chunk({"role": "assistant", "content": ""}, **more)]
    parts += [make_chunk({"content": piece}, **more) for piece in cut_pieces(text, size)]
    for n in range(calls):
        parts += [
            make_chunk(make_call_delta(n, "", f"tool{n}"), **more),
            make_chunk(make_call_delta(n, '{"a":'), **more),
            make_chunk(make_call_delta(n, "1}"), **more),
        ]
    return [*parts, make_chunk({}, 0, "tool_calls" if calls else "stop", **more), make_usage_chunk(), DONE]
