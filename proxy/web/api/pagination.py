"""Pages of lists, and JSON of clients and models made safe to show.

A cursor holds the sort values of the last line of a page. A page therefore costs the same wherever it is in the list.
The cursor is opaque to clients: base64url of a JSON array.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from fastapi import Query
from pydantic import BaseModel

from proxy.errors import BadRequest

T = TypeVar("T")
R = TypeVar("R")

Limit = Annotated[int, Query(ge=1, le=200, description="Lines of a page.")]
Cursor = Annotated[str | None, Query(max_length=1024, description="`next` of the page before.")]

PREVIEW_CHARS: Final = 200
"""Characters of a text in a list."""


class Page(BaseModel, Generic[T]):
    """Some lines of a list. next: the cursor of the following page, null on the last."""

    items: list[T]
    next: str | None = None


def make_page(
    rows: Sequence[R], limit: int, make_item: Callable[[R], T], sort_values: Callable[[R], Sequence[object]]
) -> Page[T]:
    """Return the page of these rows, of which up to `limit` + 1 were read. sort_values: the sort values of a row."""
    shown = rows[:limit]
    more = write_cursor(sort_values(shown[-1])) if len(rows) > limit else None
    return Page(items=[make_item(row) for row in shown], next=more)


def write_cursor(sort_values: Sequence[object]) -> str:
    """Return the cursor of a place in a list."""
    return base64.urlsafe_b64encode(json.dumps(list(sort_values)).encode()).decode().rstrip("=")


def read_cursor(text: str | None, *kinds: type) -> tuple[Any, ...] | None:
    """Return the place that a cursor stands for, its values of these kinds; None for no cursor. Raises BadRequest."""
    if text is None:
        return None
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        values = msgspec.json.decode(raw, type=list[float | int | str])
    except (binascii.Error, ValueError, RecursionError) as error:
        raise BadRequest("the cursor is none of this proxy's", hint="Leave it out for the first page.") from error
    fit = len(values) == len(kinds) and all(
        isinstance(value, kind) or (kind is float and isinstance(value, int))
        for value, kind in zip(values, kinds, strict=True)
    )
    if not fit or not all("\0" not in v if isinstance(v, str) else abs(v) < 2**62 for v in values):
        raise BadRequest("the cursor is another list's", hint="Leave it out for the first page.")
    return tuple(kind(value) for value, kind in zip(values, kinds, strict=True))


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
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {clean_json(k): clean_json(v) for k, v in value.items()}
    if isinstance(value, list):
        return [clean_json(v) for v in value]
    return value


def render_text(body: bytes) -> str:
    """Return the text of a message, for a line in a list."""
    message = decode_json(body)
    content = message.get("content") if isinstance(message, dict) else message
    if isinstance(content, list):
        content = " ".join(str(p.get("text", "")) for p in content if isinstance(p, dict))
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    calls = calls if isinstance(calls, list) else ()
    functions = [call.get("function") for call in calls if isinstance(call, dict)]
    named = [f"{function.get('name', '')}()" for function in functions if isinstance(function, dict)]
    text = content if isinstance(content, str) else ""
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
