"""Reasoning that is bound to its prompt, in the form in which gateways carry it in chat completions.

LiteLLM puts the blocks of Claude into `thinking_blocks` of an answer, OpenRouter into `reasoning_details`. The gateway
joins all system messages at the front and makes one message of a run of results. So every system message counts for
the part of the prompt outside of the messages, and the texts of a message count without its form.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from proxy.chat import json_spans
from proxy.dialects import spans
from proxy.dialects.base import UNSIGNED, Binding, BindingTrace, ChainHash, HistoryTracer
from proxy.dialects.completions.request import CACHE_MARKS
from proxy.dialects.known_prefix import BodyHistory, keep_objects

MEMBERS: Final = ("thinking_blocks", "reasoning_details")
"""Members of an answer that hold its bound reasoning."""
_NOT_COMPARED: Final = frozenset(
    {*MEMBERS, *CACHE_MARKS, "content", "tool_calls", "reasoning_content", "reasoning", "refusal", "annotations"}
    | {"provider_specific_fields", "function_call", "audio"}
)


SIGNATURE: Final = b"thought_signature"
"""Google's member of a call's `extra_content` in chat completions. A Gemini model wants it on the first call of each
answer since the newest prompt."""


def read_tokens(message: Mapping[str, Any]) -> list[str]:
    """The tokens of the bound reasoning of one message, in their order."""
    tokens: dict[str, None] = {}
    for member in MEMBERS:
        entries = message.get(member)
        for entry in entries if isinstance(entries, list) else ():
            if token := _read_token(entry):
                tokens[token] = None
    return [*tokens]


def _read_token(entry: Any) -> str:
    """The token of one entry; "" if it has none."""
    found = (entry.get("signature") or entry.get("data")) if isinstance(entry, dict) else None
    return found if isinstance(found, str) else ""


def trace_answer(prompt: BindingTrace, answer: bytes) -> dict[str, Binding]:
    """The bindings of an answer to this prompt. answer: its message. Raises ValueError if it cannot be read."""
    trace, message = prompt.copy(), spans.read_any(answer)
    if isinstance(message, dict):
        _add_message(trace, message)
    return trace.bindings


def _begin_trace(history: BodyHistory[Any]) -> BindingTrace:
    """The trace with all system messages and the tools."""
    outside = ChainHash()
    messages = keep_objects(history.new)
    outside.add([_normalize_content(one.get("content")) for one in messages if _is_system(one)])
    outside.add(history.read_value("tools") or [])
    return BindingTrace(outside)


def _add_messages(trace: BindingTrace, messages: Sequence[Any]) -> None:
    for message in messages:
        if isinstance(message, dict) and not _is_system(message):
            _add_message(trace, message)


def _add_message(trace: BindingTrace, message: Mapping[str, Any]) -> None:
    trace.add({name: one for name, one in message.items() if name not in _NOT_COMPARED})
    for token in read_tokens(message):  # they stand in front of the text and the calls of their message
        trace.add_token(token)
    trace.add(_normalize_content(message.get("content")))
    trace.add(_normalize_calls(message))


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in ("system", "developer")


trace_prompt: Final = HistoryTracer("messages", ("tools",), _begin_trace, _add_messages, _is_system).trace


def _normalize_content(content: Any) -> list[Any]:
    """Content as it is compared: a string is one text part, cache marks do not count, and an empty text is nothing."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    normalized = []
    for part in parts if isinstance(parts, list) else ():
        if not isinstance(part, dict):
            normalized.append(part)
        elif part.get("text") != "":
            normalized.append({name: one for name, one in part.items() if name not in CACHE_MARKS})
    return normalized


def _normalize_calls(message: Mapping[str, Any]) -> list[Any]:
    """The calls as they are compared: arguments by their value."""
    normalized = []
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        inner = call.get("function") or call.get("custom") if isinstance(call, dict) else None
        if not isinstance(inner, dict):
            normalized.append(call)
            continue
        arguments = inner.get("arguments", inner.get("input"))
        with suppress(ValueError):  # a text that is no JSON is compared as it is
            arguments = msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
        normalized.append([call.get("id"), inner.get("name"), arguments])
    return [*normalized, message.get("function_call")]


def strip_bound(body: bytes, tokens: Collection[str]) -> bytes:
    """The body without the reasoning of these tokens.

    Raises ValueError if the body cannot be read. Raises it too if a model that must think is in the middle of its
    calls: an upstream refuses such an answer without its reasoning.
    """
    span = spans.read_members(body).get("messages")
    if span is None:
        return body
    places = spans.read_elements(body, span)
    new = [_strip_message(body[start:end], tokens) for start, end in places]
    if all(raw is None for raw in new):
        return body
    _check_open_loop(body, [raw or body[start:end] for raw, (start, end) in zip(new, places, strict=True)], new)
    return spans.apply_replacements(
        body, [(*place, raw) for place, raw in zip(places, new, strict=True) if raw is not None]
    )


def _strip_message(raw: bytes, tokens: Collection[str]) -> bytes | None:
    """One message without these tokens; None if it has none of them."""
    if not any(token.encode() in raw for token in tokens):
        return None
    stripped = raw
    for member in MEMBERS:
        at = spans.read_members(stripped).get(member)
        if at is None or stripped[at[0] : at[0] + 1] != b"[":
            continue
        elements = spans.read_elements(stripped, at)
        values = [(n, stripped[start:end]) for n, (start, end) in enumerate(elements)]
        kept = [(n, one) for n, one in values if _read_token(spans.read_any(one)) not in tokens]
        if len(kept) == len(values):
            continue
        if not any(_read_token(spans.read_any(one)) for _, one in kept):
            stripped = json_spans.remove_member(stripped, member)  # what is left is text without its token
        else:
            stripped = stripped[: at[0]] + spans.rewrite_array(stripped, at, elements, kept) + stripped[at[1] :]
    return None if stripped == raw else stripped


def _check_open_loop(body: bytes, messages: list[bytes], changed: list[bytes | None]) -> None:
    thinking = spans.read_members(body).get("thinking")
    thinking = spans.read_any(body[slice(*thinking)]) if thinking is not None else None
    if not isinstance(thinking, dict) or thinking.get("type") != "enabled":
        return
    at = len(messages) - 1
    while at >= 0 and spans.read_any(messages[at]).get("role") == "tool":
        at -= 1
    if 0 <= at < len(messages) - 1 and changed[at] is not None and not read_tokens(spans.read_any(messages[at])):
        raise ValueError(f"messages.{at}: thinking is expected in front of calls whose results are the last messages")


def sign_calls(body: bytes) -> bytes:
    """The body with Google's signature for unsigned calls on the first call of each answer since the newest prompt that
    lacks one. The signature stood on a call of the proxy's tools, which the client never got.

    Bodies for other models stay as they are. Raises ValueError, KeyError or RecursionError if it cannot be read.
    """
    if SIGNATURE not in body and b"gemini" not in (json_spans.scan_model_name(body) or b""):
        return body
    signature = b',"extra_content":{"google":{"%b":%b}}' % (SIGNATURE, UNSIGNED)
    unsigned: list[spans.Replacement] = []
    for start, end in spans.read_elements(body, spans.read_members(body)["messages"]):
        members = spans.read_members(body, (start, end))
        role = spans.read_any(body[slice(*members["role"])])
        if role == "user":
            unsigned = []
        elif role == "assistant" and (calls := members.get("tool_calls")) is not None and body[calls[0]] == ord("["):
            for first in spans.read_elements(body, calls)[:1]:
                if "extra_content" not in spans.read_members(body, first):
                    unsigned.append((first[1] - 1, first[1] - 1, signature))
    return spans.apply_replacements(body, unsigned)
