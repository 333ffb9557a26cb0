"""Changes of one event of a Messages stream: its block's index, its text, and the stop reason and usage of the end.

The bytes change at the spans in question only. Data that only Python's own reader accepts are written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.chat import json_spans
from proxy.dialects.completions.stream import read_json, write_json

_SUMMED_USAGE = (
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "cache_creation",
    "output_tokens",
)
"""Usage that the last event of an answer of several rounds reports, whatever upstream's last event reports."""


def patch_index(data: bytes, index: int) -> bytes:
    """Return the event with another block index."""
    return _set(data, ("index",), write_json(index))


def patch_text(data: bytes, text: str, *, is_start: bool = False) -> bytes:
    """Return the event with another text. is_start: the event starts a block, and the text is in the block."""
    return _set(data, ("content_block" if is_start else "delta", "text"), write_json(text))


def patch_tail(data: bytes, stop_reason: str | None, usage: Mapping[str, Any] | None) -> bytes:
    """Return a `message_delta` with another stop reason and usage; None leaves either as it is."""
    if stop_reason is not None:
        data = _set(data, ("delta", "stop_reason"), write_json(stop_reason))
    if usage is not None:
        value = read_json(data)
        reported = value.get("usage") if isinstance(value, dict) else None
        names = [*(reported if isinstance(reported, dict) else ()), *_SUMMED_USAGE]
        made = {name: usage[name] for name in dict.fromkeys(names) if name in usage}
        data = _set(data, ("usage",), write_json(made))
    return data


def remove_hidden_member(data: bytes, member: str) -> bytes:
    """Return the object without a member that answers a request of the proxy's; "": as it is."""
    if not member or json_spans.find_member(data, member) is None:
        return data
    return json_spans.remove_member(data, member)


def _set(data: bytes, path: tuple[str, ...], value: bytes) -> bytes:
    """Return the object with one member replaced, which may be in an object in it."""
    try:
        if len(path) == 1:
            return json_spans.set_member(data, path[0], value)
        inner = json_spans.read_value(data, path[0])
        return json_spans.set_member(data, path[0], json_spans.set_member(inner or b"{}", path[1], value))
    except ValueError:
        decoded = read_json(data)
        if not isinstance(decoded, dict):
            return data
        holder = decoded
        for name in path[:-1]:
            holder = holder.setdefault(name, {})
        holder[path[-1]] = read_json(value)
        return write_json(decoded)
