"""Facts in the events and the response objects of a Responses answer, which are read and never serialised again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from proxy.chat import json_spans
from proxy.dialects.completions.stream import MAX_ERROR_CHARS, read_json, repair_surrogates, write_json
from proxy.dialects.usage import read_count

BEGINNINGS: Final = frozenset({"response.created", "response.queued", "response.in_progress"})
"""Events with the whole response, in front of its items."""
ENDINGS: Final = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
}
"""Events that end an answer, each with the status of its response."""
FINISH_REASONS: Final = {"max_output_tokens": "length", "max_tokens": "length", "content_filter": "content_filter"}
"""Reasons of an incomplete answer, in the words of chat completions."""

_OBJECT = msgspec.json.Decoder(dict[str, Any])


def read_event(data: bytes) -> dict[str, Any] | None:
    """The event in these data; None if they hold no object with a type."""
    value = read_object(data)
    return value if value is not None and isinstance(value.get("type"), str) else None


def read_object(data: bytes) -> dict[str, Any] | None:
    """The JSON object in these bytes, also one that only Python's reader accepts; None if there is none."""
    try:
        return _OBJECT.decode(data)
    except (ValueError, RecursionError):
        value = read_json(data)
        return value if isinstance(value, dict) else None


def read_member(data: bytes, name: str, value: Any) -> bytes:
    """The bytes of one member of an object, or `value` as JSON where its span is not certain."""
    found = json_spans.read_value(data, name)
    return write_json(value) if found is None else found


def read_output(response: bytes) -> list[bytes]:
    """The items of a response object, each with its bytes."""
    raw = json_spans.read_value(response, "output")
    spans = None if raw is None else json_spans.find_elements(raw)
    if raw is not None and spans is not None:
        return [raw[start:end] for start, end in spans]
    value = read_object(response) or {}
    output = value.get("output")
    return [write_json(item) for item in output] if isinstance(output, list) else []


def read_status(response: Mapping[str, Any]) -> str:
    """The status of a response; a response without one is complete."""
    status = response.get("status")
    return status if isinstance(status, str) else "completed"


def find_finish_reason(response: Mapping[str, Any], *, has_calls: bool) -> str | None:
    """The finish reason of an ended answer, in the words of chat completions; None for one that failed."""
    status = read_status(response)
    if status == "completed":
        return "tool_calls" if has_calls else "stop"
    if status != "incomplete":
        return None
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    return FINISH_REASONS.get(str(reason), "length")


def find_error(value: Mapping[str, Any]) -> str | None:
    """The error that a response, an `error` event or an error body tells, in words; None if there is none."""
    error = value.get("error")
    if value.get("type") == "error" and not error:
        error = value
    if not error:
        return "the upstream reported a failure" if value.get("status") == "failed" else None
    if isinstance(error, dict):
        message = error.get("message") or error.get("code")
        error = message if isinstance(message, str) else write_json(error).decode()
    return repair_surrogates(error if isinstance(error, str) else write_json(error).decode())[:MAX_ERROR_CHARS]


def add_spent_usage(usage: Any, earlier: Iterable[Any]) -> Any:
    """Return the usage object of the last round plus the output tokens of the earlier rounds, whose usage objects are
    in `earlier`. Input and cached tokens stay the last round's. A usage that is no object is returned as it is."""
    if not isinstance(usage, dict):
        return usage
    total = dict(usage)
    details = total.get("output_tokens_details")
    details = dict(details) if isinstance(details, dict) else None
    for spent in earlier:
        if not isinstance(spent, dict):
            continue
        total["output_tokens"] = (read_count(total.get("output_tokens")) or 0) + (
            read_count(spent.get("output_tokens")) or 0
        )
        spent_details = spent.get("output_tokens_details")
        for name, size in (spent_details if isinstance(spent_details, dict) else {}).items():
            details = details or {}
            details[name] = (read_count(details.get(name)) or 0) + (read_count(size) or 0)
    if details is not None:
        total["output_tokens_details"] = details
    if "total_tokens" in total:
        total["total_tokens"] = (read_count(total.get("input_tokens")) or 0) + (
            read_count(total.get("output_tokens")) or 0
        )
    return total


def make_error_event(message: str, code: str, sequence_number: int = 0) -> bytes:
    """The event that tells a client of a failure. Its top-level `error` makes the SDKs raise."""
    error = {"type": "server_error", "code": code, "message": message, "param": None}
    data = {"type": "error", "sequence_number": sequence_number, "code": code, "message": message, "param": None}
    return b"event: error\ndata: " + write_json({**data, "error": error}) + b"\n\n"
