"""Decompression of an answer while it arrives: some upstreams, and gateways in front of them, compress unasked.

The bytes are decoded in short steps, and each step is passed on before the next one is decoded. A few kilobytes that
stand for gigabytes take no memory, hold up no other request, and are soon refused. Gzip and deflate are always known.
Brotli and zstd are known where a package for them is installed.
"""

from __future__ import annotations

import asyncio
import importlib
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Final, Protocol

import httpx2

STEP_BYTES: Final = 1 << 16
"""Bytes that are decoded in one step."""
MAX_MEMBERS: Final = 1000
"""Members of gzip, or frames of zstd, that a body may have: each costs a new decoder, and servers write one."""
MAX_CODINGS: Final = 3
"""Codings that may be applied to one body."""
MAX_RATIO: Final = 100
"""Bytes that a byte may stand for on average, after FREE_BYTES: answers of models have 30 at most, bombs 1,000."""
FREE_BYTES: Final = 4 << 20
"""Decoded bytes of a body that may have any ratio."""
ZSTD_WINDOW_LOG: Final = 23
"""Largest window of a zstd frame, as a power of two: 8 MB, as RFC 8878 recommends."""
ZSTD_SLICE_BYTES: Final = 256
"""Bytes that are given to a decoder without a bound of its own. A zstd block of 4 bytes may stand for 128 KB."""


class Decoder(Protocol):
    """One coding of one body."""

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Give out what these bytes stand for, in pieces of limited size. Raises the errors of its library."""
        ...

    def check_end(self) -> None:
        """Raises EOFError if the body has ended in the middle."""
        ...


class _ZlibDecoder:
    """gzip (RFC 1952) with its members one after the other, or deflate."""

    __slots__ = ("_begun", "_made", "_members", "_wbits")

    def __init__(self, wbits: int) -> None:
        """wbits: as for `zlib.decompressobj`; 0 for deflate, whose first bytes decide if zlib's header is there."""
        self._wbits = wbits
        self._made: Any = None
        self._begun = b""
        self._members = 0

    def decode(self, data: bytes) -> Iterator[bytes]:
        if self._made is None:
            data = self._begun + data
            self._begun = data if len(data) < 2 else b""
            if self._begun:
                return
            self._begin_member(data)
        part = b""
        while data or len(part) == STEP_BYTES:  # a full step may have left something behind in the decoder
            if self._made.eof:
                data = data.lstrip(b"\0")  # as gzip's own tool, and others, pad a file
                if self._wbits <= zlib.MAX_WBITS or not data.startswith(b"\x1f"):
                    return  # the rest belongs to no body
                self._begin_member(data)
            part = self._made.decompress(data, STEP_BYTES)
            data = self._made.unused_data if self._made.eof else self._made.unconsumed_tail
            if part:
                yield part

    def check_end(self) -> None:
        if self._begun or (self._made is not None and not self._made.eof):
            raise EOFError

    def _begin_member(self, data: bytes) -> None:
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise ValueError("too many members")
        wbits = self._wbits
        if not wbits:
            has_header = data[0] & 0x0F == zlib.DEFLATED and int.from_bytes(data[:2], "big") % 31 == 0
            wbits = zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS  # some servers send the bare stream
        self._made = zlib.decompressobj(wbits)


class _BrotliDecoder:
    """Brotli, by the package `Brotli` from 1.2 on: earlier ones have no bound for their output."""

    __slots__ = ("_has_begun", "_made")

    def __init__(self, library: Any) -> None:
        self._made = library.Decompressor()
        self._has_begun = False

    def decode(self, data: bytes) -> Iterator[bytes]:
        self._has_begun = self._has_begun or bool(data)
        while not self._made.is_finished():
            part = self._made.process(data, output_buffer_limit=STEP_BYTES)
            data = b""
            if not part:
                return
            yield part

    def check_end(self) -> None:
        if self._has_begun and not self._made.is_finished():
            raise EOFError


class _ZstdDecoder:
    """zstd, by the package `zstandard`, which has no bound for its output: it gets few bytes at a time."""

    __slots__ = ("_frames", "_library", "_made")

    def __init__(self, library: Any) -> None:
        self._library = library
        self._made: Any = None
        self._frames = 0

    def decode(self, data: bytes) -> Iterator[bytes]:
        try:
            rest = memoryview(data)  # a slice of bytes would copy all that is left, for each 256 of them
            while rest:
                if self._made is None or self._made.eof:
                    self._frames += 1
                    if self._frames > MAX_MEMBERS:
                        raise ValueError("too many frames")
                    decompressor = self._library.ZstdDecompressor(max_window_size=1 << ZSTD_WINDOW_LOG)
                    self._made = decompressor.decompressobj()
                piece = rest[:ZSTD_SLICE_BYTES]
                part = self._made.decompress(piece)
                rest = rest[len(piece) - len(self._made.unused_data) :]
                if part:
                    yield part
        except self._library.ZstdError as problem:
            raise ValueError("not zstd") from problem

    def check_end(self) -> None:
        if self._made is not None and not self._made.eof:
            raise EOFError


def _import_library(name: str, needed: str) -> Any:
    """A package with the attribute `needed`; None if it is not installed, or too old."""
    try:
        found = importlib.import_module(name)
    except ImportError:
        return None
    return found if hasattr(found, needed) else None


def _make_brotli() -> Decoder | None:
    library = _import_library("brotli", "Decompressor")
    bounded = library is not None and hasattr(library.Decompressor, "can_accept_more_data")
    return _BrotliDecoder(library) if bounded else None


def _make_zstd() -> Decoder | None:
    library = _import_library("zstandard", "ZstdDecompressor")
    return None if library is None else _ZstdDecoder(library)


def _make_gzip() -> Decoder:
    return _ZlibDecoder(16 + zlib.MAX_WBITS)


_MAKERS: Final[dict[str, Callable[[], Decoder | None]]] = {
    "gzip": _make_gzip,
    "x-gzip": _make_gzip,
    "deflate": lambda: _ZlibDecoder(0),
    "br": _make_brotli,
    "zstd": _make_zstd,
}


def make_decoders(encoding: str) -> list[Decoder] | None:
    """Return the decoders for a Content-Encoding in lower case, the last coding first. None if one is not known."""
    named = [name for part in encoding.split(",") if (name := part.strip())]
    if len(named) > MAX_CODINGS:
        return None
    made = [maker() if (maker := _MAKERS.get(name)) is not None else None for name in reversed(named)]
    known = [one for one in made if one is not None]
    return known if len(known) == len(made) else None


class DecodedBody:
    """The bytes of a compressed body as they come, decoded. A body that is damaged, or stands for far too much, raises
    `httpx2.RemoteProtocolError` after the bytes before."""

    __slots__ = ("_came", "_decoded", "_decoders", "_parts", "_ready", "_rest")

    def __init__(self, parts: AsyncIterator[bytes], decoders: list[Decoder]) -> None:
        self._parts = parts
        self._decoders = decoders
        self._ready: Iterator[bytes] = iter(())
        self._rest = memoryview(b"")
        self._came = 0
        self._decoded = [0] * len(decoders)

    def __aiter__(self) -> DecodedBody:
        return self

    async def __anext__(self) -> bytes:
        is_rest = True
        while True:
            try:
                part = next(self._ready, None)
            except (zlib.error, ValueError, EOFError, OSError, RuntimeError) as problem:
                raise httpx2.RemoteProtocolError("its compressed body is damaged") from problem
            if part is not None:
                if is_rest:
                    await asyncio.sleep(0)  # others have their turn between two steps of one piece
                return part
            is_rest = False
            self._ready = iter(await self._read_piece())

    async def _read_piece(self) -> Iterable[bytes]:
        """Return what the next bytes stand for, decoded as it is read. Few bytes show the ratio soon."""
        try:
            self._rest = self._rest or memoryview(await self._parts.__anext__())
        except StopAsyncIteration:
            try:
                for decoder in self._decoders:
                    decoder.check_end()
            except EOFError as problem:
                raise httpx2.RemoteProtocolError("its compressed body ended in the middle") from problem
            raise
        piece, self._rest = bytes(self._rest[:STEP_BYTES]), self._rest[STEP_BYTES:]
        self._came += len(piece)
        pieces: Iterable[bytes] = [piece]
        for n in range(len(self._decoders)):
            pieces = self._decode_all(n, pieces)
        return pieces

    def _decode_all(self, n: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield what these pieces stand for in one coding. Each coding has its own bound: one that gives nothing out,
        since its stream has ended, would have the others work without an end."""
        steps = (piece[at : at + STEP_BYTES] for piece in pieces for at in range(0, len(piece), STEP_BYTES))
        for step in steps:  # decoders copy what they leave for their next turn, and zstd gives out megabytes at once
            for part in self._decoders[n].decode(step):
                self._decoded[n] += len(part)
                if self._decoded[n] > FREE_BYTES + MAX_RATIO * self._came:
                    raise httpx2.RemoteProtocolError("its compressed body stands for too many bytes")
                yield part
