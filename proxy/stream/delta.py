"""Rules by which the fields of deltas add up to the fields of a message, unknown fields included.

Strings are continued. Objects grow field by field. List entries with an `index` grow separately, and other entries are
appended. Everything else is replaced. The SDKs do the same, so the client will send back the same fields. Growing
strings are kept in buffers, because concatenating a long answer piece by piece would be quadratic.
"""

from __future__ import annotations

from io import StringIO
from typing import Any

REPLACED_FIELDS = frozenset({"id", "type", "role", "index", "object", "format"})
"""Strings that name something; a repeated value replaces the old one instead of continuing it."""
MAX_DEPTH = 16
"""Deeper values are replaced as a whole."""
ENTRY_OVERHEAD = 64
"""Characters charged for an entry in addition to its text, so that a million empty entries are bounded too."""


class CaptureLimit:
    """The number of characters that may still be captured."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def reserve_chars(self, size: int) -> bool:
        """Tell if there is room for so many characters; after a refusal there is no room for fewer characters
        either."""
        self.left = self.left - size if size <= self.left else -1
        return self.left >= 0


class IndexedList:
    """A list that grows: entries with an index are found by their index."""

    __slots__ = ("by_index", "entries")

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.by_index: dict[int, dict[str, Any]] = {}


def merge_value(old: Any, new: Any, capture_limit: CaptureLimit, depth: int = 0) -> Any:
    """Return `old` grown by `new`. old: an earlier result of this function, None at first. Nothing is added without
    room."""
    if new is None:
        return old
    if isinstance(new, str):
        if not capture_limit.reserve_chars(len(new) + (0 if isinstance(old, StringIO) else ENTRY_OVERHEAD)):
            return old
        if not isinstance(old, StringIO):
            old = StringIO()
        old.write(new)
        return old
    if depth >= MAX_DEPTH or not isinstance(new, dict | list):
        return new if capture_limit.reserve_chars(ENTRY_OVERHEAD) else old
    if isinstance(new, dict):
        if not isinstance(old, dict) and not capture_limit.reserve_chars(ENTRY_OVERHEAD):
            return old
        fields: dict[str, Any] = old if isinstance(old, dict) else {}
        merge_fields(fields, new, capture_limit, depth + 1)
        return fields
    rows = old if isinstance(old, IndexedList) else IndexedList()
    for entry in new:
        _add_entry(rows, entry, capture_limit, depth + 1)
    return rows


def merge_fields(fields: dict[str, Any], new: dict[str, Any], capture_limit: CaptureLimit, depth: int = 0) -> None:
    """Add the fields of one delta to the fields of a message."""
    for name, value in new.items():
        if name in REPLACED_FIELDS and isinstance(value, str):
            if value and fields.get(name) != value and capture_limit.reserve_chars(len(value)):
                fields[name] = value
        else:
            grown = merge_value(fields.get(name), value, capture_limit, depth)
            if grown is not None:
                fields[name] = grown


def _add_entry(rows: IndexedList, entry: Any, room: CaptureLimit, depth: int) -> None:
    index = entry.get("index") if isinstance(entry, dict) else None
    known = rows.by_index.get(index) if isinstance(index, int) else None
    if known is not None:
        merge_fields(known, entry, room, depth + 1)
        return
    grown = merge_value(None, entry, room, depth)
    if grown is None:
        return
    rows.entries.append(grown)
    if isinstance(index, int) and isinstance(grown, dict):
        rows.by_index[index] = grown


def build_json_value(value: Any, depth: int = 0) -> Any:
    """Return the JSON value that a grown value stands for."""
    if isinstance(value, StringIO):
        return value.getvalue()
    if depth >= MAX_DEPTH:
        return value
    if isinstance(value, IndexedList):
        return [build_json_value(entry, depth + 1) for entry in value.entries]
    if isinstance(value, dict):
        return {name: build_json_value(entry, depth + 1) for name, entry in value.items()}
    return value
