"""Content codings of request bodies: gzip, deflate and zstd are decoded, so that compressed requests are managed too.

The decoded size is bounded while decoding, since a few kilobytes can stand for gigabytes. What cannot be decoded goes
on as it came. zstd is in Python from 3.14 on; before that the package `zstandard` is used where it is installed.
"""

from __future__ import annotations

import importlib
import io
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Final

WINDOW_LOG: Final = 27
"""Largest window of a zstd frame, as a power of two: RFC 8878 recommends 8 MB, its tools write up to 128 MB."""
PIECE: Final = 1 << 16
CODINGS: Final = 3
"""Codings that may lie over each other."""


class NotDecodedError(Exception):
    """The body has a coding that is not known, is damaged, or is longer than what is allowed once it is decoded."""


def codings(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """The codings of a body in the order in which they were applied, `identity` left out."""
    named = [
        part.strip().lower()
        for name, value in headers
        if name == b"content-encoding"
        for part in value.decode("latin-1").split(",")
    ]
    return [name for name in named if name and name != "identity"]


def decode(body: bytes, applied: list[str], limit: int) -> bytes:
    """The body without its codings. Raises NotDecodedError. limit: bytes that it may have then, or in between."""
    if len(applied) > CODINGS:
        raise NotDecodedError(f"{len(applied)} codings over each other")
    for name in reversed(applied):
        known = _DECODERS.get(name)
        if known is None:
            raise NotDecodedError("a coding that is not known")
        try:
            body = known(body, limit)
        except (zlib.error, ValueError, EOFError, OSError) as problem:
            raise NotDecodedError(f"damaged {name}") from problem
        if len(body) > limit:
            raise NotDecodedError("too long")
    return body


def _gzip(body: bytes, limit: int) -> bytes:
    """Every member of a gzip file, one after the other (RFC 1952 2.2)."""
    found = b""
    while body:
        reader = zlib.decompressobj(16 + zlib.MAX_WBITS)
        found += reader.decompress(body, limit + 1 - len(found))
        if len(found) > limit:
            return found
        if not reader.eof:
            raise EOFError("the body ends in the middle of a member")
        body = reader.unused_data
    return found


def _deflate(body: bytes, limit: int) -> bytes:
    """zlib's format, or the bare stream that some clients send under this name."""
    reader = zlib.decompressobj(zlib.MAX_WBITS)
    try:
        found = reader.decompress(body, limit + 1)
    except zlib.error:
        reader = zlib.decompressobj(-zlib.MAX_WBITS)
        found = reader.decompress(body, limit + 1)
    if not reader.eof and len(found) <= limit:
        raise EOFError("the body ends too early")
    return found


def _zstd(body: bytes, limit: int) -> bytes:
    made = _zstd_reader(body)
    if made is None:
        raise NotDecodedError("zstd, which this installation cannot read")
    reader, errors = made
    found = bytearray()
    try:
        while len(found) <= limit:
            part = reader.read(min(PIECE, limit + 1 - len(found)))
            if not part:
                break
            found += part
    except errors as problem:
        raise ValueError("not zstd") from problem
    return bytes(found)


def _zstd_reader(body: bytes) -> tuple[Any, type[Exception]] | None:
    """(a file that decodes as it is read, what it raises); None where there is no decoder."""
    try:
        own = importlib.import_module("compression.zstd")
    except ImportError:
        pass
    else:
        options = {own.DecompressionParameter.window_log_max: WINDOW_LOG}
        return own.ZstdFile(io.BytesIO(body), options=options), own.ZstdError
    try:
        package = importlib.import_module("zstandard")
    except ImportError:
        return None
    reader = package.ZstdDecompressor(max_window_size=1 << WINDOW_LOG)
    return reader.stream_reader(body, read_across_frames=True), package.ZstdError


_DECODERS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "zstd": _zstd,
}
