"""The demo model's answers in the other wire formats: Anthropic's Messages, OpenAI's Responses and Gemini's.

A request is read into chat form by the dialect that the proxy itself uses, answered as any chat request, and the
answer is written in the client's form. So Claude Code, Codex and Gemini CLI can be tried without a key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from proxy.dialects.gemini.request import PATH as GEMINI_PATH
from proxy.dialects.gemini.request import read_gemini_request
from proxy.dialects.messages.request import read_messages_request
from proxy.dialects.responses.request import read_wire_request as read_responses_request
from proxy.upstream.script import Json, ScriptedCall, ScriptedTurn

PIECE_CHARS: Final = 12
"""Characters of arguments in one event."""


@dataclass(frozen=True, slots=True)
class DemoUsage:
    """Tokens of an answer. cached: those of the prompt that began a recent prompt."""

    prompt: int
    cached: int
    completion: int


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    """An answer of the model. name: the end of its ids. is_cut: the token limit has cut it."""

    name: str
    model: str
    turn: ScriptedTurn
    words: Sequence[str]
    is_cut: bool
    usage: DemoUsage


@dataclass(frozen=True, slots=True)
class DemoDialect:
    """One wire format of the demo model."""

    read: Callable[[bytes], bytes]
    """The request as a chat body. Raises NotManaged."""
    write: Callable[[DemoAnswer], Json]
    """The answer as one body."""
    write_events: Callable[[DemoAnswer], list[bytes]]
    """The answer as events."""
    count_name: str = ""
    """The member that holds the tokens, where the request only asks for their number."""
    is_list: bool = False
    """True if a stream is one list of its chunks."""
    make_error: Callable[[int, str], Json] = lambda _, message: {
        "error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    }


def find_demo_dialect(path: str) -> DemoDialect | None:
    """The wire format of a path, with its query; None for chat completions and for all other paths."""
    bare, _, query = path.partition("?")
    short = bare.removeprefix("/v1").rstrip("/")
    if short in ("/messages", "/messages/count_tokens"):
        count = "input_tokens" if short.endswith("count_tokens") else ""
        return DemoDialect(_read_messages, write_message, write_message_events, count, make_error=_make_message_error)
    if short in ("/responses", "/responses/input_tokens"):
        count = "input_tokens" if short.endswith("input_tokens") else ""
        return DemoDialect(_read_responses, write_response, write_response_events, count)
    match = GEMINI_PATH.fullmatch(bare)
    if match is None:
        return None
    count = "totalTokens" if match["method"] == "countTokens" else ""
    is_list = match["method"] == "streamGenerateContent" and "alt=sse" not in query

    def read(body: bytes) -> bytes:
        return read_gemini_request(body, None, path).chat_body

    return DemoDialect(read, write_gemini, write_gemini_events, count, is_list, _make_gemini_error)


def _read_messages(body: bytes) -> bytes:
    return read_messages_request(body).chat_body


def _read_responses(body: bytes) -> bytes:
    return read_responses_request(body).chat_body


def _make_message_error(_: int, message: str) -> Json:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


def _make_gemini_error(status: int, message: str) -> Json:
    return {"error": {"code": status, "message": message, "status": "INVALID_ARGUMENT"}}


def _read_arguments(call: ScriptedCall) -> Json:
    try:
        value = json.loads(call.arguments)
    except ValueError:
        value = {"input": call.arguments}
    return value if isinstance(value, dict) else {"input": value}


def _encode_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _cut_pieces(text: str) -> list[str]:
    return [text[at : at + PIECE_CHARS] for at in range(0, len(text), PIECE_CHARS)]


# Anthropic's Messages.


def write_message(answer: DemoAnswer) -> Json:
    blocks: list[Json] = [{"type": "text", "text": answer.turn.text}] if answer.turn.text else []
    for n, call in enumerate(answer.turn.calls):
        named = {"id": f"toolu_{answer.name}{n}", "name": call.name}
        blocks.append({"type": "tool_use", **named, "input": _read_arguments(call)})
    reason = "tool_use" if answer.turn.calls else "max_tokens" if answer.is_cut else "end_turn"
    usage = {
        "input_tokens": answer.usage.prompt - answer.usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": answer.usage.cached,
        "output_tokens": answer.usage.completion,
    }
    head: Json = {"id": f"msg_{answer.name}", "type": "message", "role": "assistant", "model": answer.model}
    return {**head, "content": blocks, "stop_reason": reason, "stop_sequence": None, "usage": usage}


def write_message_events(answer: DemoAnswer) -> list[bytes]:
    message = write_message(answer)
    begun = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}}
    events: list[Json] = [{"type": "message_start", "message": begun}]
    for n, block in enumerate(message["content"]):
        empty = {**block, **({"text": ""} if block["type"] == "text" else {"input": {}})}
        events.append({"type": "content_block_start", "index": n, "content_block": empty})
        if block["type"] == "text":
            deltas: list[Json] = [{"type": "text_delta", "text": word} for word in answer.words]
        else:
            pieces = _cut_pieces(json.dumps(block["input"], ensure_ascii=False))
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        events += [{"type": "content_block_delta", "index": n, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": n})
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ended, "usage": message["usage"]})
    events.append({"type": "message_stop"})
    return [b"event: " + event["type"].encode() + b"\ndata: " + _encode_json(event) + b"\n\n" for event in events]


# OpenAI's Responses.


def write_response(answer: DemoAnswer) -> Json:
    items: list[Json] = []
    if answer.turn.text:
        part = {"type": "output_text", "text": answer.turn.text, "annotations": [], "logprobs": []}
        head = {"type": "message", "id": f"msg_{answer.name}", "status": "completed", "role": "assistant"}
        items.append({**head, "content": [part]})
    for n, call in enumerate(answer.turn.calls):
        known = {"call_id": f"call_{answer.name}{n}", "name": call.name, "status": "completed"}
        if call.custom:
            items.append({"type": "custom_tool_call", "id": f"ctc_{answer.name}{n}", **known, "input": call.arguments})
        else:
            items.append({"type": "function_call", "id": f"fc_{answer.name}{n}", **known, "arguments": call.arguments})
    used = answer.usage
    usage = {
        "input_tokens": used.prompt,
        "input_tokens_details": {"cached_tokens": used.cached, "cache_write_tokens": 0},
        "output_tokens": used.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": used.prompt + used.completion,
    }
    status = "incomplete" if answer.is_cut else "completed"
    return {
        "id": f"resp_{answer.name}", "object": "response", "created_at": 1_767_225_600, "status": status,
        "error": None, "incomplete_details": {"reason": "max_output_tokens"} if answer.is_cut else None,
        "instructions": None, "model": answer.model, "output": items, "parallel_tool_calls": True,
        "tool_choice": "auto", "tools": [], "metadata": {}, "temperature": 1.0, "top_p": 1.0, "usage": usage,
    }  # fmt: skip


def write_response_events(answer: DemoAnswer) -> list[bytes]:
    response = write_response(answer)
    begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    events: list[Json] = [{"type": f"response.{name}", "response": begun} for name in ("created", "in_progress")]
    for n, item in enumerate(response["output"]):
        events += _write_item_events(n, item, answer.words)
    events.append({"type": f"response.{response['status']}", "response": response})
    written = []
    for n, event in enumerate(events):
        data = _encode_json({"type": event["type"], "sequence_number": n, **event})
        written.append(b"event: " + event["type"].encode() + b"\ndata: " + data + b"\n\n")
    return written


def _write_item_events(n: int, item: Json, words: Sequence[str]) -> Iterator[Json]:
    place = {"item_id": item["id"], "output_index": n}
    name = {"message": "content", "custom_tool_call": "input"}.get(item["type"], "arguments")
    empty: Any = [] if name == "content" else ""
    yield {
        "type": "response.output_item.added", "output_index": n, "item": {**item, "status": "in_progress", name: empty},
    }  # fmt: skip
    if name == "content":
        (part,) = item["content"]
        at = {**place, "content_index": 0}
        yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
        for word in words:
            yield {"type": "response.output_text.delta", **at, "delta": word, "logprobs": []}
        yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **at, "part": part}
    else:
        kind = "custom_tool_call_input" if name == "input" else "function_call_arguments"
        for piece in _cut_pieces(item[name]):
            yield {"type": f"response.{kind}.delta", **place, "delta": piece}
        yield {"type": f"response.{kind}.done", **place, name: item[name]}
    yield {"type": "response.output_item.done", "output_index": n, "item": item}


# Gemini.


def write_gemini(answer: DemoAnswer) -> Json:
    """The answer as one response of generateContent."""
    parts: list[Json] = [{"text": answer.turn.text}] if answer.turn.text else []
    parts += [{"functionCall": {"name": call.name, "args": _read_arguments(call)}} for call in answer.turn.calls]
    return _make_chunk(answer, parts or [{"text": ""}], is_end=True)


def _make_chunk(answer: DemoAnswer, parts: Sequence[Json], *, is_end: bool) -> Json:
    candidate: Json = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    used = answer.usage
    usage = {"promptTokenCount": used.prompt, "cachedContentTokenCount": used.cached, "totalTokenCount": used.prompt}
    if is_end:
        candidate["finishReason"] = "MAX_TOKENS" if answer.is_cut else "STOP"
        usage |= {"candidatesTokenCount": used.completion, "totalTokenCount": used.prompt + used.completion}
    rest = {"modelVersion": answer.model, "responseId": answer.name}
    return {"candidates": [candidate], "usageMetadata": usage, **rest}


def write_gemini_events(answer: DemoAnswer) -> list[bytes]:
    """The answer as events of streamGenerateContent."""
    calls = [part for part in write_gemini(answer)["candidates"][0]["content"]["parts"] if "functionCall" in part]
    parts: list[Json] = [*({"text": word} for word in answer.words), *calls] or [{"text": ""}]
    chunks = [_make_chunk(answer, [part], is_end=n == len(parts) - 1) for n, part in enumerate(parts)]
    return [b"data: " + _encode_json(chunk) + b"\r\n\r\n" for chunk in chunks]
