from __future__ import annotations

import asyncio
import gzip
import random
import zlib
from collections.abc import AsyncIterator, Callable, Iterator

import httpx2
import pytest
import zstandard

from proxy.upstream.decompress import FREE_BYTES, MAX_MEMBERS, MAX_RATIO, STEP_BYTES, DecodedBody, make_decoders

BODY = b"".join(b'data: {"n":%d,"text":"\xc3\xa4"}\n\n' % number for number in range(20_000))
"""Some ten times as long as one step of decoding."""


def bare(body: bytes) -> bytes:
    made = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return made.compress(body) + made.flush()


def brotli(body: bytes) -> bytes:
    packed: bytes = pytest.importorskip("brotli", minversion="1.2").compress(body)
    return packed


WAYS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "padded members": ("x-gzip", lambda body: gzip.compress(body[:10]) + gzip.compress(body[10:]) + b"\0" * 9),
    "deflate": ("deflate", zlib.compress),
    "bare deflate": ("deflate", bare),
    "brotli": ("br", brotli),
    "zstd": ("zstd", zstandard.ZstdCompressor().compress),
    "two codings": ("deflate, gzip", lambda body: gzip.compress(zlib.compress(body))),
}


async def split_body(body: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(body), size):
        yield body[at : at + size]


async def decoded(body: bytes, encoding: str, size: int) -> bytes:
    decoders = make_decoders(encoding)
    assert decoders is not None
    return b"".join([part async for part in DecodedBody(split_body(body, size), decoders)])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [1, 7, 1 << 16])
async def test_a_body_is_decoded_however_it_is_cut(way: str, size: int) -> None:
    encoding, pack = WAYS[way]
    assert await decoded(pack(BODY), encoding, size) == BODY
    assert await decoded(b"", encoding, size) == b""


@pytest.mark.parametrize("way", WAYS)
async def test_a_body_that_is_cut_off_or_damaged_gives_what_came_before_and_an_error(way: str) -> None:
    encoding, pack = WAYS[way]
    packed = pack(random.Random(1).randbytes(100_000))
    for broken in (packed[: len(packed) // 2], packed[:50_000] + b"\xff" * 50_000):
        decoders = make_decoders(encoding)
        assert decoders is not None
        with pytest.raises(httpx2.RemoteProtocolError):
            [part async for part in DecodedBody(split_body(broken, 1000), decoders)]


@pytest.mark.parametrize("way", WAYS)
async def test_bytes_that_stand_for_gigabytes_are_refused_in_small_pieces(way: str) -> None:
    encoding, pack = WAYS[way]
    bomb = pack(b"\0" * (64 << 20))
    decoders = make_decoders(encoding)
    assert decoders is not None
    turns, sizes = 0, []

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def measure() -> None:
        async for part in DecodedBody(split_body(bomb, 1 << 20), decoders):
            sizes.append(len(part))  # noqa: PERF401  # those before the error count too

    beside = asyncio.create_task(others())
    with pytest.raises(httpx2.RemoteProtocolError):
        await measure()
    beside.cancel()
    assert sum(sizes) <= FREE_BYTES + MAX_RATIO * len(bomb)
    assert max(sizes, default=0) <= 9 << 20
    assert turns >= len(sizes) - 1, "others had their turn between two pieces"


async def test_compressed_bytes_after_the_end_of_a_stream_are_bounded_too() -> None:
    # The outer codings would be decoded for as long as they last, and the inner one gives out nothing of it.
    bomb = gzip.compress(gzip.compress(gzip.compress(b"{}") + b"\0" * (128 << 20)))
    decoders = make_decoders("gzip, gzip, gzip")
    assert decoders is not None
    with pytest.raises(httpx2.RemoteProtocolError, match="stands for too many bytes"):
        [part async for part in DecodedBody(split_body(bomb, 1 << 16), decoders)]


class CountedBytes:
    """A coding that changes nothing, and knows how much it got at once."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def decode(self, data: bytes) -> Iterator[bytes]:
        self.sizes.append(len(data))
        yield data

    def check_end(self) -> None:
        pass


async def test_a_coding_under_another_gets_little_at_once() -> None:
    # 157 bytes of zstd in zstd held all requests for five seconds: for each 256 bytes the other 4 MiB were copied.
    decoders, inner = make_decoders("zstd"), CountedBytes()
    assert decoders is not None
    size = sum([len(part) async for part in DecodedBody(split_body(pack_zeros(4 << 20), 1 << 16), [*decoders, inner])])
    assert size == sum(inner.sizes) == 4 << 20
    assert max(inner.sizes) <= STEP_BYTES


def pack_zeros(size: int) -> bytes:
    """A frame of zstd whose blocks stand for 128 KiB each, in 4 bytes."""
    blocks = [((128 << 10) << 3 | 1 << 1 | (n == 0)).to_bytes(3, "little") + b"\0" for n in range(size >> 17)]
    return b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(reversed(blocks))


@pytest.mark.parametrize("way", ["gzip", "zstd"])
@pytest.mark.parametrize("text", [b"x", b""])
async def test_a_body_of_very_many_members_is_refused(way: str, text: bytes) -> None:
    encoding, pack = WAYS[way]
    assert await decoded(pack(text) * MAX_MEMBERS, encoding, 1 << 16) == text * MAX_MEMBERS
    with pytest.raises(httpx2.RemoteProtocolError):
        await decoded(pack(text) * (MAX_MEMBERS + 1), encoding, 1 << 16)


def test_codings_that_are_not_known_or_too_many_are_not_decoded() -> None:
    assert make_decoders("x-unknown") is None
    assert make_decoders("gzip, x-unknown") is None
    assert make_decoders("gzip, gzip, gzip, gzip") is None
