"""Rules by which the fields of deltas add up to the fields of a message, unknown fields included.

Strings are continued. Objects grow field by field. List entries with an `index` grow separately, and other entries are
appended. Everything else is replaced. The SDKs do the same, so the client will send back the same fields. Growing
strings are kept in buffers, because concatenating a long answer piece by piece would be quadratic.
"""

from __future__ import annotations

from io import StringIO
from typing import Any

REPLACED = frozenset({"id", "type", "role", "index", "object", "format"})
"""Strings that name something; a repeated value replaces the old one instead of continuing it."""
DEPTH = 16
"""Deeper values are replaced as a whole."""
OVERHEAD = 64
"""Characters charged for an entry in addition to its text, so that a million empty entries are bounded too."""


class Room:
    """The number of characters that may still be captured."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, size: int) -> bool:
        """Tell if there is room for so many characters; after a refusal there is no room for fewer characters
        either."""
        self.left = self.left - size if size <= self.left else -1
        return self.left >= 0


class Rows:
    """A list that grows: entries with an index are found by their index."""

    __slots__ = ("by_index", "rows")

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.by_index: dict[int, dict[str, Any]] = {}


def grow(old: Any, new: Any, room: Room, depth: int = 0) -> Any:
    """Return `old` grown by `new`. old: an earlier result of this function, None at first. Nothing is added without
    room."""
    if new is None:
        return old
    if isinstance(new, str):
        if not room.take(len(new) + (0 if isinstance(old, StringIO) else OVERHEAD)):
            return old
        if not isinstance(old, StringIO):
            old = StringIO()
        old.write(new)
        return old
    if depth >= DEPTH or not isinstance(new, dict | list):
        return new if room.take(OVERHEAD) else old
    if isinstance(new, dict):
        if not isinstance(old, dict) and not room.take(OVERHEAD):
            return old
        fields: dict[str, Any] = old if isinstance(old, dict) else {}
        add_fields(fields, new, room, depth + 1)
        return fields
    rows = old if isinstance(old, Rows) else Rows()
    for entry in new:
        _add_entry(rows, entry, room, depth + 1)
    return rows


def add_fields(fields: dict[str, Any], new: dict[str, Any], room: Room, depth: int = 0) -> None:
    """Add the fields of one delta to the fields of a message."""
    for name, value in new.items():
        if name in REPLACED and isinstance(value, str):
            if value and fields.get(name) != value and room.take(len(value)):
                fields[name] = value
        else:
            grown = grow(fields.get(name), value, room, depth)
            if grown is not None:
                fields[name] = grown


def _add_entry(rows: Rows, entry: Any, room: Room, depth: int) -> None:
    index = entry.get("index") if isinstance(entry, dict) else None
    known = rows.by_index.get(index) if isinstance(index, int) else None
    if known is not None:
        add_fields(known, entry, room, depth + 1)
        return
    grown = grow(None, entry, room, depth)
    if grown is None:
        return
    rows.rows.append(grown)
    if isinstance(index, int) and isinstance(grown, dict):
        rows.by_index[index] = grown


def plain(value: Any, depth: int = 0) -> Any:
    """Return the JSON value that a grown value stands for."""
    if isinstance(value, StringIO):
        return value.getvalue()
    if depth >= DEPTH:
        return value
    if isinstance(value, Rows):
        return [plain(entry, depth + 1) for entry in value.rows]
    if isinstance(value, dict):
        return {name: plain(entry, depth + 1) for name, entry in value.items()}
    return value
