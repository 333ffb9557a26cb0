"""Content codings of request bodies: gzip, deflate and zstd are decoded, so that compressed requests are managed too.

The decoded size is bounded while decoding, because a few kilobytes can stand for gigabytes. The number of members and
the processor time are also bounded, because many megabytes can stand for nothing. A body that cannot be decoded is
passed on as received. Python has zstd from 3.14 on. Before that the package `zstandard` is used if it is installed."""

from __future__ import annotations

import importlib
import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Final

WINDOW_LOG: Final = 27
"""Largest window of a zstd frame, as a power of two: RFC 8878 recommends 8 MB, its tools write up to 128 MB."""
STEP_BYTES: Final = 1 << 16
"""Bytes that are decoded in one step. The rest of a step is copied, so a step must be far shorter than a body."""
MAX_MEMBERS: Final = 1000
"""Members that a gzip file may have: each costs a new decoder, and clients write one."""
MAX_SECONDS: Final = 1.0
"""Seconds of processor time for a body's codings: many times the need of a normal body of the allowed length."""
MAX_CODINGS: Final = 3
"""Codings that may be applied to one body."""


class NotDecodedError(Exception):
    """The body has an unknown coding, is damaged, or exceeds the allowed length or cost."""


class _Deadline:
    """The end of the processor time of one body, in the thread that decodes it."""

    __slots__ = ("_until",)

    def __init__(self, seconds: float) -> None:
        self._until = time.thread_time() + seconds

    def check(self) -> None:
        """Raises NotDecodedError once the time has passed."""
        if time.thread_time() > self._until:
            raise NotDecodedError("takes too long")


def read_codings(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """Return the codings of a body in the order in which they were applied, without `identity`."""
    named = [
        part.strip().lower()
        for name, value in headers
        if name == b"content-encoding"
        for part in value.decode("latin-1").split(",")
    ]
    return [name for name in named if name and name != "identity"]


def decode_body(body: bytes, applied: list[str], limit: int, seconds: float = MAX_SECONDS) -> bytes:
    """Return the body without its codings. Raises NotDecodedError. limit: bytes that it may have after each decoding.
    seconds: processor time for all of it."""
    deadline = _Deadline(seconds)
    if len(applied) > MAX_CODINGS:
        raise NotDecodedError(f"{len(applied)} codings over each other")
    for name in reversed(applied):
        known = _DECODERS.get(name)
        if known is None:
            raise NotDecodedError("a coding that is not known")
        try:
            body = known(body, limit, deadline)
        except (zlib.error, ValueError, EOFError, OSError) as problem:
            raise NotDecodedError(f"damaged {name}") from problem
        if len(body) > limit:
            raise NotDecodedError("too long")
    return body


def _decode_gzip(body: bytes, limit: int, deadline: _Deadline) -> bytes:
    """Decode every member of a gzip file, one after the other (RFC 1952 2.2)."""
    parts: list[bytes] = []
    at = size = members = 0
    while at < len(body) and size <= limit:
        if members == MAX_MEMBERS:
            raise NotDecodedError("too many members")
        members += 1
        found, at = _inflate_stream(body, at, 16 + zlib.MAX_WBITS, limit + 1 - size, deadline)
        parts.append(found)
        size += len(found)
    return b"".join(parts)


def _decode_deflate(body: bytes, limit: int, deadline: _Deadline) -> bytes:
    """Decode zlib's format, or the bare stream that some clients send under this name."""
    try:
        return _inflate_stream(body, 0, zlib.MAX_WBITS, limit + 1, deadline)[0]
    except zlib.error:
        return _inflate_stream(body, 0, -zlib.MAX_WBITS, limit + 1, deadline)[0]


def _inflate_stream(body: bytes, at: int, wbits: int, room: int, deadline: _Deadline) -> tuple[bytes, int]:
    """Return (one stream from `at` on, or its first `room` bytes; the position of its end)."""
    reader = zlib.decompressobj(wbits)
    body_view = memoryview(body)
    parts: list[bytes] = []
    while room > 0 and not reader.eof:
        if at >= len(body_view):
            raise EOFError("the body ends in the middle of a stream")
        deadline.check()
        piece = body_view[at : at + STEP_BYTES]
        parts.append(reader.decompress(piece, room))
        room -= len(parts[-1])
        at += len(piece) - len(reader.unused_data)
    return b"".join(parts), at


class _Source:
    """A body as a file that is read in pieces: zstd has frames without content, which one read may skip."""

    def __init__(self, body: bytes, deadline: _Deadline) -> None:
        self._body = body
        self._at = 0
        self._deadline = deadline

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, at most `size` and at most STEP_BYTES of them."""
        self._deadline.check()
        begin = self._at
        self._at = min(len(self._body), begin + (STEP_BYTES if size < 0 else min(size, STEP_BYTES)))
        return self._body[begin : self._at]


def _decode_zstd(body: bytes, limit: int, deadline: _Deadline) -> bytes:
    made = _open_zstd_reader(_Source(body, deadline))
    if made is None:
        raise NotDecodedError("zstd, which this installation cannot read")
    reader, errors = made
    decoded = bytearray()
    try:
        while len(decoded) <= limit:
            part = reader.read(min(STEP_BYTES, limit + 1 - len(decoded)))
            if not part:
                break
            decoded += part
    except errors as problem:
        raise ValueError("not zstd") from problem
    return bytes(decoded)


def _open_zstd_reader(source: _Source) -> tuple[Any, type[Exception]] | None:
    """Return (a file that decodes as it is read, the error that it raises); None if there is no decoder."""
    try:
        own = importlib.import_module("compression.zstd")
    except ImportError:
        pass
    else:
        options = {own.DecompressionParameter.window_log_max: WINDOW_LOG}
        return own.ZstdFile(source, options=options), own.ZstdError
    try:
        package = importlib.import_module("zstandard")
    except ImportError:
        return None
    reader = package.ZstdDecompressor(max_window_size=1 << WINDOW_LOG)
    return reader.stream_reader(source, read_across_frames=True), package.ZstdError


_DECODERS: Final[dict[str, Callable[[bytes, int, _Deadline], bytes]]] = {
    "gzip": _decode_gzip,
    "x-gzip": _decode_gzip,
    "deflate": _decode_deflate,
    "zstd": _decode_zstd,
}
