"""Positions of the values in a JSON text, so that one value can be replaced and every other byte stays.

Decoding and encoding again changes the client's bytes: escapes, floats, unknown fields, the order of keys, duplicate
keys. So a body is never encoded again: it is cut at the spans found here, and the pieces are joined. A text whose spans
are not certain (duplicate or escaped keys, bad JSON) gives None, and is passed on unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from proxy.errors import NotManaged

_SPACE = frozenset(b" \t\r\n")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_STRING = msgspec.json.Decoder(str)
_QUOTE, _BACKSLASH, _COLON, _COMMA = 0x22, 0x5C, 0x3A, 0x2C


@dataclass(frozen=True, slots=True)
class Member:
    """One key of an object: `at` is the byte offset of the key's quote, `start` and `end` span the value."""

    key: str
    key_start: int
    start: int
    end: int


def _skip(raw: bytes, at: int) -> int:
    while raw[at] in _SPACE:
        at += 1
    return at


def find_members(raw: bytes, max_members: int | None = None) -> list[Member] | None:
    """The members of the JSON object `raw` in their order; None if the spans are not certain. Raises NotManaged if
    there are more than `most`, before the walk.

    The spans come from a walk of the text in parallel with msgspec's decoding. Each key and each value must stand where
    the walk expects it. A duplicate key, which a decoder folds away, breaks the walk.
    """
    try:
        values = _OBJECT.decode(raw)
        if max_members is not None and len(values) > max_members:
            raise NotManaged("size", f"an object has {len(values)} keys")
        found: list[Member] = []
        at = _skip(raw, 0) + 1
        for key, value in values.items():
            if found:
                at = _skip(raw, at)
                if raw[at] != _COMMA:
                    return None
                at += 1
            at = _skip(raw, at)
            close = raw.index(b'"', at + 1)
            if raw[at] != _QUOTE or raw[at + 1 : close] != key.encode():
                return None
            start = _skip(raw, close + 1)
            if raw[start] != _COLON:
                return None
            start = _skip(raw, start + 1)
            end = start + memoryview(value).nbytes
            if raw[start:end] != bytes(value):
                return None
            found.append(Member(key, at, start, end))
            at = end
        at = _skip(raw, at)
        return found if raw[at : at + 1] == b"}" and not raw[at + 1 :].strip(b" \t\r\n") else None
    except (ValueError, RecursionError, IndexError):
        return None  # not an object, or not JSON: the caller passes the bytes on


def find_elements(raw: bytes, max_elements: int | None = None) -> list[tuple[int, int]] | None:
    """The (start, end) spans of the elements of the JSON array `raw`, or None if it is no array. Raises NotManaged if
    there are more than `most`, before the walk."""
    try:
        values = _ARRAY.decode(raw)
        if max_elements is not None and len(values) > max_elements:
            raise NotManaged("size", f"a list has {len(values)} items")
        found: list[tuple[int, int]] = []
        at = _skip(raw, 0) + 1
        for value in values:
            if found:
                at = raw.index(b",", at) + 1
            at = _skip(raw, at)
            end = at + memoryview(value).nbytes
            found.append((at, end))
            at = end
        return found
    except (ValueError, RecursionError, IndexError):
        return None


def find_member(raw: bytes, key: str) -> Member | None:
    """The member named `key`, or None."""
    for found in find_members(raw) or ():
        if found.key == key:
            return found
    return None


def read_value(raw: bytes, key: str) -> bytes | None:
    """The bytes of one member's value, or None."""
    found = find_member(raw, key)
    return raw[found.start : found.end] if found else None


def decode_string(raw: bytes) -> str | None:
    """The text of a JSON string, or None if it is no string or cannot be text (a lone surrogate)."""
    try:
        return _STRING.decode(raw)
    except (ValueError, RecursionError):
        return None


def set_member(raw: bytes, key: str, new_value: bytes) -> bytes:
    """The object with one value replaced in place, or, if the key is new, added at the end.

    Raises ValueError if the members cannot be told apart.
    """
    found = find_members(raw)
    if found is None:
        raise ValueError("the members of this object cannot be told apart")
    for one in found:
        if one.key == key:
            return raw[: one.start] + new_value + raw[one.end :]
    end = raw.rindex(b"}")
    return raw[:end] + (b"," if found else b"") + msgspec.json.encode(key) + b":" + new_value + raw[end:]


def remove_member(raw: bytes, key: str) -> bytes:
    """The object without that key and the key's comma. Raises ValueError as `set_member`."""
    found = find_members(raw)
    if found is None:
        raise ValueError("the members of this object cannot be told apart")
    for n, one in enumerate(found):
        if one.key == key:
            if n + 1 < len(found):
                return raw[: one.key_start] + raw[found[n + 1].key_start :]
            return raw[: found[n - 1].end if n else one.key_start] + raw[one.end :]
    return raw
