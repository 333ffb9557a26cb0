"""JSON text as received: positions of its values, so that one can be replaced, and limits on what is decoded of it.

Decoding and encoding again changes the client's bytes: escapes, floats, unknown fields, the order of keys, duplicate
keys. So a body is never encoded again: it is cut at the spans found here, and the pieces are joined. A text whose spans
are not certain (duplicate or escaped keys, bad JSON) gives None, and is passed on unchanged.

A JSON value costs 50 to 100 bytes of memory and a microsecond of processor time, however few bytes it came in. For
example, 64 MB of `[]` took 1.8 GB and 16 s. So the values of a body are counted before any of them is decoded
(`SizeLimits`). The first count is of bytes; it costs 1.5 ns a byte and includes commas in texts. Only if that count is
too high, a second count leaves texts out. A body over a limit is passed on as received.

`SizeLimits.values` does not count JSON in a message's strings: arguments of calls, and tool results that are JSON.
Prose and code are full of commas as well. So each such text has its own bound (`decode_embedded`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from proxy.chat.message import Request
from proxy.errors import NotManaged

_SPACE = frozenset(b" \t\r\n")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_STRING = msgspec.json.Decoder(str)

_COLON, _COMMA = 0x3A, 0x2C

MAX_TOP_LEVEL_KEYS: Final = 1_000
"""Limit of the keys on the outermost level of a body; requests have 5 to 30."""
SCAN_BYTES: Final = 128 * 1024
"""Bytes that are scanned in one go. Another thread can run between two pieces."""

_MODEL: Final = re.compile(rb'"model"[ \t\r\n]*:[ \t\r\n]*("(?:[^"\\]|\\.){0,1000}")')
MAX_MODEL_MATCHES: Final = 100
"""Limit of the places with the word `model` that are examined."""

MAX_CHARS: Final = 1 << 20
"""Characters of a text that is decoded; the longest file that an agent writes in one call has a tenth of them."""
MAX_VALUES: Final = 20_000
"""Values of a text that is decoded, each after a comma or an opening bracket: empty lists take 2 ms."""


class Member(msgspec.Struct, frozen=True, gc=False):
    """One key of an object. `key_start` is the byte offset of the key's quote, `start` and `end` span the value."""

    key: str
    key_start: int
    start: int
    end: int


def find_members(raw: bytes, max_members: int | None = None) -> list[Member] | None:
    """The members of the JSON object `raw` in their order; None if the spans are not certain. Raises NotManaged if
    there are more than `max_members`, before the walk.

    The spans come from a walk of the text in parallel with msgspec's decoding. Each key and each value must stand where
    the walk expects it. A duplicate key, which a decoder folds away, breaks the walk.
    """
    try:
        values = _OBJECT.decode(raw)
        if max_members is not None and len(values) > max_members:
            raise NotManaged("size", f"an object has {len(values)} keys")
        members: list[Member] = []
        space = _SPACE
        at = raw.index(b"{") + 1
        for key, value in values.items():
            while raw[at] in space:
                at += 1
            if members:
                if raw[at] != _COMMA:
                    return None
                at += 1
                while raw[at] in space:
                    at += 1
            written = b'"%b"' % key.encode()
            if not raw.startswith(written, at):
                return None
            start = at + len(written)
            while raw[start] in space:
                start += 1
            if raw[start] != _COLON:
                return None
            start += 1
            while raw[start] in space:
                start += 1
            if not raw.startswith(value, start):
                return None
            end = start + memoryview(value).nbytes
            members.append(Member(key, at, start, end))
            at = end
        while raw[at] in space:
            at += 1
        return members if raw[at : at + 1] == b"}" and not raw[at + 1 :].strip(b" \t\r\n") else None
    except (ValueError, RecursionError, IndexError):
        return None  # not an object, or not JSON: the caller passes the bytes on


def find_elements(raw: bytes, max_elements: int | None = None) -> list[tuple[int, int]] | None:
    """The (start, end) spans of the elements of the JSON array `raw`, or None if it is no array. Raises NotManaged if
    there are more than `max_elements`, before the walk."""
    try:
        values = _ARRAY.decode(raw)
        if max_elements is not None and len(values) > max_elements:
            raise NotManaged("size", f"a list has {len(values)} items")
        spans: list[tuple[int, int]] = []
        space = _SPACE
        at = raw.index(b"[") + 1
        for value in values:
            if spans:
                at = raw.index(b",", at) + 1
            while raw[at] in space:
                at += 1
            end = at + memoryview(value).nbytes
            spans.append((at, end))
            at = end
        return spans
    except (ValueError, RecursionError, IndexError):
        return None


def find_rest(
    body: bytes,
    begin: int,
    array: str,
    spans: dict[str, tuple[int, int]],
    array_start: int,
    max_elements: int | None = None,
    max_members: int | None = None,
) -> tuple[dict[str, tuple[int, int]], list[tuple[int, int]]] | None:
    """Return the spans of all members, and those of the new elements of an array, for a body that is known up to
    `begin`. That offset follows an element of the array. None if the rest does not continue from there. Raises
    NotManaged as `find_members` and `find_elements` do.

    array: the key of the array. spans: the members before it. array_start: its opening bracket. max_elements:
    limit of the new elements.
    """
    unread = body[begin:].lstrip(b" \t\r\n")
    has_comma = unread[:1] == b","
    if has_comma:
        unread = unread[1:]
    elif unread[:1] != b"]":
        return None
    # Everything after the known elements becomes a body of its own. Its spans, moved by `by`, are the wanted spans.
    own = b'{"' + array.encode() + b'":[' + unread
    members = find_members(own, max_members)
    if not members:
        return None
    inside = find_elements(own[members[0].start : members[0].end], max_elements)
    if inside is None or has_comma != bool(inside):
        return None  # for example a comma with nothing after it
    by = len(body) - len(own)
    all_spans = dict(spans)
    all_spans[array] = (array_start, members[0].end + by)
    for member in members[1:]:
        if member.key in all_spans:
            return None  # a duplicate key: the caller then reads the whole body, and refuses it there
        all_spans[member.key] = (member.start + by, member.end + by)
    at = members[0].start + by
    return all_spans, [(at + start, at + end) for start, end in inside]


def find_array_end(body: bytes, span: tuple[int, int]) -> int:
    """The offset after the last element of an array, where more would follow. span: of the array."""
    end = span[1] - 1
    while body[end - 1] in _SPACE:
        end -= 1
    return end


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

    Raises ValueError if the members cannot be distinguished.
    """
    members = find_members(raw)
    if members is None:
        raise ValueError("the members of this object cannot be told apart")
    for member in members:
        if member.key == key:
            return raw[: member.start] + new_value + raw[member.end :]
    end = raw.rindex(b"}")
    return raw[:end] + (b"," if members else b"") + msgspec.json.encode(key) + b":" + new_value + raw[end:]


def remove_member(raw: bytes, key: str) -> bytes:
    """The object without that key and the key's comma. Raises ValueError as `set_member`."""
    members = find_members(raw)
    if members is None:
        raise ValueError("the members of this object cannot be told apart")
    for n, member in enumerate(members):
        if member.key == key:
            if n + 1 < len(members):
                return raw[: member.key_start] + raw[members[n + 1].key_start :]
            return raw[: members[n - 1].end if n else member.key_start] + raw[member.end :]
    return raw


_SPARSE_SHIFT, _FEW = 7, 32
"""A mark is rare up to one in 128 bytes. Above that, a search from one to the next takes longer. A piece that may have
fewer than 32 of them is short: it is counted at once."""


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """Upper limits of a body's size and contents, so that a request cannot cost seconds of processor time."""

    body_bytes: int = 16 << 20
    """Bytes."""
    messages: int = 10_000
    """Messages. The reader in `dialects` checks this limit before it reads any of them."""
    parts: int = 10_000
    """Content parts of all messages."""
    calls: int = 10_000
    """Tool calls of all messages."""
    values: int = 200_000
    """JSON values: each member of an object and each item of a list counts."""

    def check_body(self, body: bytes, begin: int = 0, known: int = 0) -> int:
        """Check the length of the body and the number of its JSON values.

        known: an upper bound of that number for the bytes before `begin`; 0: they have not been counted. Returns the
        bound for the body; 0 if the body has fewer bytes than `values`. Raises NotManaged if there is too much.
        """
        if len(body) > self.body_bytes:
            raise NotManaged("size", f"the body is {len(body)} bytes long")
        if len(body) < self.values:  # a value takes a byte
            return 0
        value_count = known + count_marks(body[begin:] if known and begin else body)
        if value_count > self.values:
            value_count = count_values(body, self.values)
        if value_count > self.values:
            raise NotManaged("size", f"the body has more than {self.values} JSON values")
        return value_count

    def check_request(self, request: Request) -> None:
        """Check the content parts and tool calls of all messages. Raises NotManaged if there are too many."""

        def add(begin: int, known: tuple[int, int] | None) -> tuple[int, int]:
            new = request.messages[begin:]
            parts, calls = known or (0, 0)
            return parts + sum(m.part_count for m in new), calls + sum(len(m.calls) for m in new)

        parts, calls = request.memo("size", add)
        if parts > self.parts:
            raise NotManaged("size", f"the messages have {parts} content parts")
        if calls > self.calls:
            raise NotManaged("size", f"the messages have {calls} tool calls")


def count_marks(piece: bytes) -> int:
    """Upper bound of the number of values, without the outermost one: a value follows a bracket or a comma. Brackets
    and commas in texts are counted as well."""
    return sum(_count_sparse(piece, mark) for mark in (b",", b"{", b"["))


def _count_sparse(piece: bytes, mark: bytes) -> int:
    """`piece.count(mark)`, in a fifth of its time for a rare mark: `replace` searches with memchr."""
    most = len(piece) >> _SPARSE_SHIFT
    if most < _FEW:
        return piece.count(mark)
    found = len(piece) - len(piece.replace(mark, b"", most))
    return found if found < most else piece.count(mark)


def count_values(body: bytes, stop_after: int) -> int:
    """The count of `count_marks` without the marks in texts. Counting stops soon after `stop_after`."""
    return _Walk(body).count(len(body), stop_after)


def has_more_values(body: bytes, limit: int) -> bool:
    """True if a body has more than `limit` JSON values. Texts are told apart only where a quick count is too high."""
    return len(body) > limit and count_marks(body) > limit and count_values(body, limit) > limit


class _ModelField(msgspec.Struct):
    model: str | None = None


_MODEL_FIELD: Final = msgspec.json.Decoder(_ModelField)


def decode_model_name(body: bytes) -> str | None:
    """The `model` of a body; None if it names none, or is no JSON object."""
    try:
        return _MODEL_FIELD.decode(body).model
    except (ValueError, RecursionError):
        return None


def scan_model_name(body: bytes) -> bytes | None:
    """The JSON string of a body's own `model`, found without decoding the body, for bodies that are too large to
    decode. None if it is not among the first `MAX_MODEL_MATCHES` places with the word."""
    walk = _Walk(body)
    at = -1
    for _ in range(MAX_MODEL_MATCHES):
        at = body.find(b'"model"', at + 1)
        if at < 0:
            return None
        walk.count(at)
        named = _MODEL.match(body, at)
        if named is not None and walk.depth == 1 and not walk.in_text:
            return named.group(1)
    return None


class _Walk:
    """Scanner of a JSON text by its quotes and brackets alone."""

    __slots__ = ("_at", "_body", "depth", "in_text")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0
        self.depth = 0
        self.in_text = False

    def count(self, until: int, enough: int | None = None) -> int:
        """Scan up to the offset `until`. Return the value marks outside of texts, or more than `enough`."""
        mark_count = 0
        while self._at < until and (enough is None or mark_count <= enough):
            end = min(self._at + SCAN_BYTES, until)
            piece = self._body[self._at : end]
            if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
                end += 1  # an escaped character stays with its backslash
                piece = self._body[self._at : end]
            if b"\\" in piece:
                piece = piece.replace(rb"\\", b"").replace(rb"\"", b"")
            texts = piece.split(b'"')
            outside = b"".join(texts[1 if self.in_text else 0 :: 2])
            self.in_text ^= len(texts) % 2 == 0
            opened = outside.count(b"{") + outside.count(b"[")
            self.depth += opened - outside.count(b"}") - outside.count(b"]")
            mark_count += opened + outside.count(b",")
            self._at = end
        return mark_count


def decode_embedded(text: str, kind: Any = Any) -> Any:
    """The JSON value in a text inside of a message, decoded as `kind`. Raises ValueError or RecursionError if the text
    is no JSON of that kind, is too long, or has too many values. The caller then treats it as plain text.

    Decoding is one call that no other thread interrupts: 12 MB of empty lists held the event loop for 2 s.
    """
    if len(text) > MAX_CHARS:
        raise ValueError("too long to be decoded")
    if (
        len(text) > MAX_VALUES
        and text.count(",") + text.count("[") + text.count("{") > MAX_VALUES  # a quick count, strings included
        and count_values(text.encode("utf-8", "surrogatepass"), MAX_VALUES) > MAX_VALUES
    ):
        raise ValueError("too many values to be decoded")
    return msgspec.json.decode(text, type=kind)
