"""JSON and text of clients and models, made safe to show, and cut for a line of a list."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

import msgspec

from proxy.chat.unicode_text import replace_surrogates

PREVIEW_CHARS: Final = 200
"""Characters of a text in a list."""
MAX_READ_CHARS: Final = 10_000
"""Characters of a message from which they are taken, runs of blanks being one each. A message may have millions."""


def decode_json(body: bytes) -> Any:
    """Return the JSON in these bytes as it can be shown: halves of surrogate pairs, NaN and anything but JSON as
    text."""
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        pass
    try:
        return clean_json(json.loads(body))
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")


def clean_json(value: Any) -> Any:
    """Return the value without halves of surrogate pairs, infinities and NaN."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {clean_json(k): clean_json(v) for k, v in value.items()}
    if isinstance(value, list):
        return [clean_json(v) for v in value]
    return value


def render_text(body: bytes) -> str:
    """Return the beginning of a message's text, for a line in a list."""
    message = decode_json(body)
    content = message.get("content") if isinstance(message, dict) else message
    if isinstance(content, list):
        content = " ".join(str(p.get("text", ""))[:MAX_READ_CHARS] for p in content if isinstance(p, dict))
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    calls = calls if isinstance(calls, list) else ()
    functions = [call.get("function") for call in calls if isinstance(call, dict)]
    named = [f"{function.get('name', '')}()" for function in functions if isinstance(function, dict)]
    text = content[:MAX_READ_CHARS] if isinstance(content, str) else ""
    return " ".join(f"{text} {' '.join(named)}".split())


def cut_preview(text: str) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= PREVIEW_CHARS else text[: PREVIEW_CHARS - 1] + "…"


def cut_excerpt(text: str, query: str) -> str:
    """Return the part of a text around the first word of the query that it has, else its beginning."""
    words = query.split()
    found = re.search("|".join(map(re.escape, words)), text, re.IGNORECASE) if words else None
    start = max(0, found.start() - PREVIEW_CHARS // 3) if found is not None else 0
    return cut_preview(text if start == 0 else "…" + text[start:])
