"""Changes of single values in a wire body, on its raw bytes. Every byte outside of a change is copied.

Spans are (start, end) offsets in the body. An array is written again from its elements. Elements that stay next to each
other keep the bytes between them, including spaces and line ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from proxy.chat import json_spans
from proxy.chat.json_spans import MAX_TOP_LEVEL_KEYS, SizeLimits
from proxy.errors import NotManaged

Span = tuple[int, int]
Replacement = tuple[int, int, bytes]
"""(start, end, new bytes). start == end inserts."""

EMPTY_STAND_IN = "[removed]"
"""Text that stands in for an empty one. Providers refuse texts without a visible character."""

_ANY = msgspec.json.Decoder()


def read_members(raw: bytes, span: Span | None = None) -> dict[str, Span]:
    """The spans of an object's values, by key. Raises ValueError if its members cannot be told apart."""
    start, end = span or (0, len(raw))
    members = json_spans.find_members(raw[start:end] if span else raw)
    if members is None:
        raise ValueError("the members of an object cannot be told apart")
    return {one.key: (start + one.start, start + one.end) for one in members}


def read_elements(raw: bytes, span: Span | None = None) -> list[Span]:
    """The spans of the elements of one array. Raises ValueError if it is no array."""
    start, end = span or (0, len(raw))
    elements = json_spans.find_elements(raw[start:end] if span else raw)
    if elements is None:
        raise ValueError("a value that should be a list is none")
    return [(start + one, start + other) for one, other in elements]


def find_body_members(body: bytes, limits: SizeLimits | None) -> dict[str, Span]:
    """The spans of the values of a request body, by key. Raises NotManaged: `unreadable` if its members cannot be
    distinguished, `size` over the limits."""
    members = json_spans.find_members(body, None if limits is None else MAX_TOP_LEVEL_KEYS)
    if members is None:
        raise NotManaged("unreadable", "the body's members cannot be told apart")
    return {one.key: (one.start, one.end) for one in members}


def find_history(body: bytes, span: Span, limits: SizeLimits | None, problem: str) -> tuple[Span, ...]:
    """The spans of the elements of the array with the history. Raises NotManaged: `shape` with this problem for an
    empty array or another value, `size` over the limits."""
    found = json_spans.find_elements(body[span[0] : span[1]], None if limits is None else limits.messages)
    if not found:
        raise NotManaged("shape", problem)
    return tuple((span[0] + start, span[0] + end) for start, end in found)


def find_longer_history(
    body: bytes, key: str, members: Mapping[str, Span], elements: Sequence[Span], limits: SizeLimits | None
) -> tuple[dict[str, Span], tuple[Span, ...]] | None:
    """The spans of the values and of the history of a body that begins as an earlier one; None if the rest does not
    continue from there. Raises NotManaged: `size` over the limits.

    key: that of the array with the history. members: of the earlier body. elements: those of its history that both
    bodies begin with.
    """
    start = members[key][0]
    known = {name: span for name, span in members.items() if span[1] <= start}
    most = (None, None) if limits is None else (limits.messages - len(elements), MAX_TOP_LEVEL_KEYS)
    found = json_spans.find_rest(body, elements[-1][1], key, known, start, *most)
    return None if found is None else (found[0], (*elements, *found[1]))


def find_again(body: bytes, text: bytes, begin: int, at: int) -> int:
    """`body.find(text)` past the first `begin` bytes, those of an earlier body with the result `at`."""
    return at if 0 <= at <= begin - len(text) else body.find(text, max(0, begin - len(text) + 1))


def read_any(raw: bytes | memoryview) -> Any:
    """The value of a JSON text. Raises ValueError or RecursionError if it cannot be read."""
    return _ANY.decode(raw)


def encode_text(text: str) -> bytes:
    """A JSON string as clients write it: quotes, backslashes and control characters are escaped, UTF-8 is kept."""
    return msgspec.json.encode(text)


def encode_visible(text: str) -> bytes:
    """`encode_text` of a text that must not be empty: `EMPTY_STAND_IN` stands in for one without visible characters."""
    return encode_text(text if text.strip() else EMPTY_STAND_IN)


def apply_replacements(raw: bytes, replacements: Iterable[Replacement]) -> bytes:
    """The bytes with these spans replaced. Raises ValueError if two spans overlap."""
    pieces: list[bytes | memoryview] = []
    view, at = memoryview(raw), 0
    for start, end, new in sorted(replacements, key=lambda one: one[:2]):
        if start < at:
            raise ValueError("two changes overlap")
        pieces += (view[at:start], new)
        at = end
    pieces.append(view[at:])
    return b"".join(pieces)


def rewrite_array(raw: bytes, span: Span, elements: Sequence[Span], items: Iterable[tuple[int | None, bytes]]) -> bytes:
    """The bytes of one array with other elements.

    span, elements: of the array and of its elements in `raw`. items: the new elements in order, each with the index of
    the element that it stands for, or None for a new one. Elements that were neighbours keep the bytes between them.
    """
    pieces = list_pieces(raw, elements, items)
    if not elements or not pieces:
        return b"[" + b"".join(pieces) + b"]"
    return raw[span[0] : elements[0][0]] + b"".join(pieces) + raw[elements[-1][1] : span[1]]


def list_pieces(
    raw: bytes, elements: Sequence[Span], items: Iterable[tuple[int | None, bytes]], before: int | None = -1
) -> list[bytes]:
    """The pieces of an array with other elements, as `rewrite_array`: each element with the bytes in front of it.

    before: the index of the element in front of the first one, None if that is a new one; -1 if there is none.
    """
    pieces: list[bytes] = []
    for index, new in items:
        if before == -1:
            pieces.append(new)
        elif index is not None and before is not None and index == before + 1:
            pieces.append(raw[elements[before][1] : elements[index][0]] + new)
        else:
            pieces.append(b"," + new)
        before = index
    return pieces


def append_element(raw: bytes, span: Span, new: bytes) -> Replacement:
    """The replacement that puts elements behind the last one of an array. new: the elements with commas between. Raises
    ValueError if it is no array."""
    if not raw.startswith(b"[", span[0]):
        raise ValueError("a value that should be a list is none")
    at = json_spans.find_array_end(raw, span)
    return at, at, (b"" if raw.endswith(b"[", span[0], at) else b",") + new


def append_member(raw: bytes, span: Span, key: str, value: bytes) -> Replacement:
    """The replacement that adds a member at the end of an object. Raises ValueError as `read_members`."""
    members = read_members(raw, span)
    at = max((end for _, end in members.values()), default=raw.index(b"{", span[0]) + 1)
    return at, at, (b"," if members else b"") + encode_text(key) + b":" + value


def extend_array(body: bytes, members: Mapping[str, Span], name: str, elements: bytes) -> Replacement:
    """The replacement that adds elements to a body's array, absent or null at first. members: the body's spans."""
    span = members.get(name)
    if span is None:
        return append_member(body, (0, len(body)), name, b"[" + elements + b"]")
    if body[span[0] : span[1]] == b"null":
        return *span, b"[" + elements + b"]"
    return append_element(body, span, elements)
