"""Facts about the chunks of a Gemini stream, and about an answer in one body: each is a GenerateContentResponse.

A chunk is a whole object with candidates, usage and ids. There is no mark of the end: the last chunk has the finish
reason. Some models give it in each chunk, so it is known to be the last one only when the stream has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.chat import json_spans
from proxy.dialects import spans
from proxy.dialects.completions.stream import read_json, write_json
from proxy.dialects.usage import read_count

RUNNABLE_REASONS: Final = frozenset({"", "STOP", "FINISH_REASON_UNSPECIFIED"})
"""Finish reasons of an answer that is complete. With any other, it was cut off, and hidden calls are not run."""

_FINISH: Final = {"STOP": "stop", "MAX_TOKENS": "length"}
_FILTERED: Final = frozenset(
    {"SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY"}
)
_STATUSES: Final = {"upstream_timeout": (504, "DEADLINE_EXCEEDED"), "unavailable": (503, "UNAVAILABLE")}
_BY_HTTP: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_SUMMED: Final = ("candidatesTokenCount", "thoughtsTokenCount")
_TOTAL: Final = ("promptTokenCount", "toolUsePromptTokenCount", *_SUMMED)


def read_response(data: bytes) -> dict[str, Any] | None:
    """The object in these data; None if they hold none."""
    try:
        value = spans.read_any(data)
    except (ValueError, RecursionError):
        value = read_json(data)
    return value if isinstance(value, dict) else None


def find_candidate(response: Mapping[str, Any]) -> dict[str, Any]:
    """The first candidate; an empty one if there is none."""
    candidates = response.get("candidates")
    found = candidates[0] if isinstance(candidates, list) and candidates else None
    return found if isinstance(found, dict) and not found.get("index") else {}


def list_parts(response: Mapping[str, Any]) -> list[Any]:
    """The parts of the first candidate."""
    content = find_candidate(response).get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    return parts if isinstance(parts, list) else []


def read_reason(response: Mapping[str, Any]) -> str:
    """Why the answer ends with this response; "" if it does not."""
    reason = find_candidate(response).get("finishReason")
    if isinstance(reason, str) and reason:
        return reason
    feedback = response.get("promptFeedback")
    blocked = feedback.get("blockReason") if isinstance(feedback, dict) else None
    return "SAFETY" if blocked else ""


def read_finish_reason(reason: str, *, has_calls: bool) -> str:
    """A finish reason under the name of chat completions; unknown ones stay as they are, in small letters."""
    if reason == "STOP" and has_calls:
        return "tool_calls"
    return "content_filter" if reason in _FILTERED else _FINISH.get(reason, reason.lower())


def cut_parts(data: bytes) -> list[bytes]:
    """The bytes of the parts of the first candidate. Raises ValueError or KeyError if they cannot be distinguished."""
    span = _find_parts(data)
    return [data[start:end] for start, end in spans.read_elements(data, span)] if span is not None else []


def _find_parts(data: bytes) -> spans.Span | None:
    """The span of the parts of the first candidate; None if it has none."""
    top = spans.read_members(data)
    candidates = spans.read_elements(data, top["candidates"]) if "candidates" in top else []
    content = spans.read_members(data, candidates[0]).get("content") if candidates else None
    if content is None or data[content[0] : content[0] + 1] != b"{":
        return None
    span = spans.read_members(data, content).get("parts")
    return span if span is not None and data[span[0] : span[0] + 1] == b"[" else None


def set_parts(data: bytes, parts: Sequence[bytes]) -> bytes:
    """The response with other parts in its first candidate, which gets a content where it has none."""
    try:
        span = _find_parts(data)
        joined = b"[" + b",".join(parts) + b"]"
        if span is not None:
            return data[: span[0]] + joined + data[span[1] :]
        return _add_content(data, b'{"parts":' + joined + b',"role":"model"}') if parts else data
    except (ValueError, KeyError):  # only Python's own reader accepts these data
        value = read_json(data)
        candidate = find_candidate(value)
        candidate["content"] = {**(candidate.get("content") or {}), "parts": [read_json(part) for part in parts]}
        return write_json(value)


def _add_content(data: bytes, content: bytes) -> bytes:
    top = spans.read_members(data)
    if "candidates" not in top:
        return json_spans.set_member(data, "candidates", b'[{"content":' + content + b"}]")
    start, end = spans.read_elements(data, top["candidates"])[0]
    return data[:start] + json_spans.set_member(data[start:end], "content", content) + data[end:]


def drop_reason(data: bytes) -> bytes:
    """The response without a finish reason: more of the answer follows it."""
    try:
        start, end = spans.read_elements(data, spans.read_members(data)["candidates"])[0]
        return data[:start] + json_spans.remove_member(data[start:end], "finishReason") + data[end:]
    except (ValueError, KeyError, IndexError):
        value = read_json(data)
        find_candidate(value).pop("finishReason", None)
        return write_json(value)


def set_top(data: bytes, values: Mapping[str, Any]) -> bytes:
    """The response with other top-level values, where it has values of these names."""
    for name, value in values.items():
        try:
            if json_spans.find_member(data, name) is not None:
                data = json_spans.set_member(data, name, write_json(value))
        except ValueError:
            data = write_json({**read_json(data), name: value})
    return data


def add_spent_usage(usage: Mapping[str, Any], spent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage of an answer of several rounds: output adds up, input is that of the last round.

    usage: of the last round. spent: the usage of the rounds before, added up.
    """
    if not spent:
        return dict(usage)
    total = dict(usage)
    for name in _SUMMED:
        if name in spent or name in usage:
            total[name] = (read_count(spent.get(name)) or 0) + (read_count(usage.get(name)) or 0)
    if "totalTokenCount" in usage:
        total["totalTokenCount"] = sum(read_count(total.get(name)) or 0 for name in _TOTAL)
    return total


def make_error_body(message: str, code: str, status: int = 500) -> bytes:
    """Return an error of the proxy as a body. code: the proxy's own code, which the message begins with."""
    number, name = _STATUSES.get(code, (status, _BY_HTTP.get(status, "INTERNAL")))
    return write_json({"error": {"code": number, "message": f"{code}: {message}", "status": name}})


def make_error_event(message: str, code: str) -> bytes:
    """Return an error of the proxy as an event within a stream."""
    return b"data: " + make_error_body(message, code) + b"\n\n"
