"""Limits on the contents of a body, so that one request cannot cost seconds of processor time and gigabytes.

A JSON value costs 50 to 100 bytes of memory and a microsecond of processor time, however few bytes it came in. For
example, 64 MB of `[]` took 1.8 GB and 16 s. So the values of a body are counted before any of them is decoded. The
first count is of bytes; it costs 1.5 ns a byte and includes commas in texts. Only if that count is too high, a second
count leaves texts out. A body over a limit is passed on as it came.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from proxy.chat.message import Request
from proxy.errors import NotManaged

MAX_TOP_LEVEL_KEYS: Final = 1_000
"""Limit of the keys on the outermost level of a body; requests have 5 to 30."""
SCAN_BYTES: Final = 128 * 1024
"""Bytes that are scanned in one go. Another thread can run between two pieces."""

_MODEL: Final = re.compile(rb'"model"[ \t\r\n]*:[ \t\r\n]*("(?:[^"\\]|\\.){0,1000}")')
MAX_MODEL_MATCHES: Final = 100
"""Limit of the places with the word `model` that are examined."""


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """Upper limits of a body's size and of its contents."""

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

    def check_size(self, body: bytes) -> None:
        """Check the body's length. Raises NotManaged if the body has more than `body_bytes` bytes."""
        if len(body) > self.body_bytes:
            raise NotManaged("size", f"the body is {len(body)} bytes long")

    def check_values(self, body: bytes, begin: int = 0, known: int = 0) -> int:
        """Upper bound of the number of JSON values in the body; 0 if the body has fewer bytes than `values`.

        known: the bound for the bytes before `begin`. Raises NotManaged if the body has more than `values` values.
        """
        if len(body) < self.values:  # a value takes a byte
            return 0
        found = known + count_marks(body[begin:] if begin else body)
        if found > self.values:
            found = count_values(body, self.values)
        if found > self.values:
            raise NotManaged("size", f"the body has more than {self.values} JSON values")
        return found

    def check_request(self, request: Request) -> None:
        """Check the content parts and the tool calls of all messages. Raises NotManaged if there are too many of
        either."""

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
    return piece.count(b",") + piece.count(b"{") + piece.count(b"[")


def count_values(body: bytes, stop_after: int) -> int:
    """The count of `count_marks` without the marks in texts. Counting stops soon after `enough`."""
    return _Walk(body).count(len(body), stop_after)


def find_model(body: bytes) -> bytes | None:
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
        """Scan up to the offset `until`. Return the number of value marks outside of texts on the way, or somewhat more
        than `enough`."""
        found = 0
        while self._at < until and (enough is None or found <= enough):
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
            found += opened + outside.count(b",")
            self._at = end
        return found
