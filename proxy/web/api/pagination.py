"""Pages of lists.

A cursor holds the sort values of the last line of a page. A page therefore costs the same wherever it is in the list.
The cursor is opaque to clients: base64url of a JSON array.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from fastapi import Query
from pydantic import BaseModel

from proxy.errors import BadRequest

T = TypeVar("T")
R = TypeVar("R")

Limit = Annotated[int, Query(ge=1, le=200, description="Lines of a page.")]
Cursor = Annotated[str | None, Query(max_length=1024, description="`next` of the page before.")]


class Page(BaseModel, Generic[T]):
    """Some lines of a list. next: the cursor of the following page, null on the last."""

    items: list[T]
    next: str | None = None


def make_page(
    rows: Sequence[R],
    limit: int,
    make_item: Callable[[R], T],
    sort_values: Callable[[R], Sequence[object]],
    *,
    is_cut: bool = False,
) -> Page[T]:
    """Return the page of these rows, of which up to `limit` + 1 were read. sort_values: the sort values of a row.
    is_cut: others may follow, although there are no more rows than `limit`."""
    shown = rows[:limit]
    more = write_cursor(sort_values(shown[-1])) if len(rows) > limit or (is_cut and shown) else None
    return Page(items=[make_item(row) for row in shown], next=more)


def slice_page(rows: list[R], start: int, limit: int) -> tuple[list[R], str | None]:
    """Return (the rows of a page, the cursor of the next page) of a list that is whole in memory. start: of the page,
    from `read_offset`."""
    end = start + limit
    return rows[start:end], write_cursor([end]) if len(rows) > end else None


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


def read_offset(text: str | None) -> int:
    """Return the number of rows before the page that a cursor of `slice_page` stands for. Raises BadRequest."""
    at = read_cursor(text, int)
    return max(0, at[0]) if at else 0
