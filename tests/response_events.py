"""Answers on the Responses wire as OpenAI writes them: items, the response object, and the events of its stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

Json = dict[str, Any]

USAGE: Json = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 32},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 107,
}


def text_part(text: str, *, logged: int = 0, **more: Any) -> Json:
    """A part of text. logged: the size of its tokens, if log probabilities are asked for."""
    tokens = (
        [{"token": text[at : at + logged], "logprob": -0.5} for at in range(0, len(text), logged)] if logged else []
    )
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": tokens} | more


def message(number: int, *texts: str | Json, **more: Any) -> Json:
    parts = [text_part(one) if isinstance(one, str) else one for one in texts]
    return {
        "type": "message",
        "id": f"msg_{number}",
        "status": "completed",
        "role": "assistant",
        "content": parts,
    } | more


def thinking(number: int, *summary: str, **more: Any) -> Json:
    parts = [{"type": "summary_text", "text": text} for text in summary]
    return {"type": "reasoning", "id": f"rs_{number}", "summary": parts, "encrypted_content": f"gAAA{number}"} | more


def tool_call(number: int, name: str, arguments: str = "{}", **more: Any) -> Json:
    made = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": name}
    return made | {"arguments": arguments, "status": "completed"} | more


def custom_call(number: int, name: str, text: str) -> Json:
    made = {"type": "custom_tool_call", "id": f"ctc_{number}", "call_id": f"call_{number}", "name": name}
    return made | {"input": text, "status": "completed"}


def web_search(number: int) -> Json:
    return {"type": "web_search_call", "id": f"ws_{number}", "status": "completed", "action": {"type": "search"}}


def response(*output: Json, number: int = 1, status: str = "completed", **more: Any) -> Json:
    """A finished response."""
    made: Json = {"id": f"resp_{number}", "object": "response", "created_at": 1_790_000_000 + number, "status": status}
    made |= {"error": None, "incomplete_details": None, "instructions": None, "model": "gpt-6.2"}
    made |= {"output": list(output), "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": USAGE}
    return made | more


def event(kind: str, number: int, **members: Any) -> bytes:
    data = {"type": kind, "sequence_number": number, **members}
    return f"event: {kind}\ndata: ".encode() + json.dumps(data).encode() + b"\n\n"


def events(made: Json, size: int = 7) -> list[bytes]:
    """The whole stream of a response, with texts in deltas of `size` characters."""
    begun = made | {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None, "error": None}
    members: list[tuple[str, Json]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
    ]
    for index, item in enumerate(made["output"]):
        members += [(f"response.{kind}", {"output_index": index, **more}) for kind, more in _item_events(item, size)]
    members.append((f"response.{made['status']}", {"response": made}))
    return [event(kind, number, **more) for number, (kind, more) in enumerate(members)]


def _item_events(item: Json, size: int) -> Iterator[tuple[str, Json]]:
    kind = item["type"]
    empty: Json = {"content": []} if kind == "message" else {}
    empty |= {"summary": [], "encrypted_content": ""} if kind == "reasoning" else {}
    empty |= {name: "" for name in ("arguments", "input") if isinstance(item.get(name), str)}
    begun = item | empty | ({"status": "in_progress"} if "status" in item else {})
    yield "output_item.added", {"item": begun}
    own = {"item_id": item.get("id")}
    if kind == "message":
        for place, part in enumerate(item["content"]):
            yield from _part_events(part, own | {"content_index": place}, size)
    elif kind == "reasoning":
        for place, part in enumerate(item["summary"]):
            yield from _summary_events(part, own | {"summary_index": place}, size)
    elif kind == "function_call":
        for piece in _cut(item["arguments"], size):
            yield "function_call_arguments.delta", {**own, "delta": piece}
        yield "function_call_arguments.done", {**own, "arguments": item["arguments"]}
    elif kind == "custom_tool_call":
        for piece in _cut(item["input"], size):
            yield "custom_tool_call_input.delta", {**own, "delta": piece}
        yield "custom_tool_call_input.done", {**own, "input": item["input"]}
    elif kind == "web_search_call":
        for state in ("in_progress", "searching", "completed"):
            yield f"web_search_call.{state}", own
    yield "output_item.done", {"item": item}


def _part_events(part: Json, own: Json, size: int) -> Iterator[tuple[str, Json]]:
    if part["type"] == "refusal":
        yield "content_part.added", {**own, "part": part | {"refusal": ""}}
        for piece in _cut(part["refusal"], size):
            yield "refusal.delta", {**own, "delta": piece}
        yield "refusal.done", {**own, "refusal": part["refusal"]}
        yield "content_part.done", {**own, "part": part}
        return
    logged = list(part["logprobs"])
    yield "content_part.added", {**own, "part": part | {"text": "", "annotations": [], "logprobs": []}}
    sent = 0
    for piece in _cut(part["text"], size):
        sent += len(piece)
        here: list[Json] = []
        while (
            logged
            and sum(len(one["token"]) for one in part["logprobs"]) - sum(len(one["token"]) for one in logged) < sent
        ):
            here.append(logged.pop(0))
        yield "output_text.delta", {**own, "delta": piece, "logprobs": here}
    for place, note in enumerate(part["annotations"]):
        yield "output_text.annotation.added", {**own, "annotation_index": place, "annotation": note}
    yield "output_text.done", {**own, "text": part["text"], "logprobs": part["logprobs"]}
    yield "content_part.done", {**own, "part": part}


def _summary_events(part: Json, own: Json, size: int) -> Iterator[tuple[str, Json]]:
    yield "reasoning_summary_part.added", {**own, "part": part | {"text": ""}}
    for piece in _cut(part["text"], size):
        yield "reasoning_summary_text.delta", {**own, "delta": piece}
    yield "reasoning_summary_text.done", {**own, "text": part["text"]}
    yield "reasoning_summary_part.done", {**own, "part": part}


def _cut(text: str, size: int) -> Sequence[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]
