from __future__ import annotations

import gzip
import json
import time
import zlib
from contextlib import suppress
from types import ModuleType
from typing import Any

import pytest
import zstandard

from proxy.web.content_encoding import MAX_MEMBERS, MAX_SECONDS, NotDecodedError, decode_body, read_codings
from tests.proxy_server import run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

BODY = b'{"model":"m","messages":[{"role":"user","content":"Hello"}]}'
LIMIT = 1000
MOST = 18 << 20
"""Bytes of a body that decodes to nearly nothing."""


def bare(body: bytes) -> bytes:
    made = zlib.compressobj(wbits=-15)
    return made.compress(body) + made.flush()


def frames(body: bytes) -> bytes:
    packed = zstandard.ZstdCompressor()
    return packed.compress(body[:10]) + packed.compress(body[10:])


WAYS: dict[str, tuple[str, Any]] = {
    "gzip": ("gzip", gzip.compress),
    "gzip, two members": ("x-gzip", lambda body: gzip.compress(body[:10]) + gzip.compress(body[10:])),
    "deflate": ("deflate", zlib.compress),
    "bare deflate": ("deflate", bare),
    "zstd": ("zstd", zstandard.ZstdCompressor().compress),
    "zstd, two frames": ("zstd", frames),
    "zstd without a size": ("zstd", lambda body: zstandard.ZstdCompressor(write_content_size=False).compress(body)),
    "both": ("gzip, zstd", lambda body: zstandard.compress(gzip.compress(body))),
    "none": ("identity", lambda body: body),
}


@pytest.mark.parametrize("way", WAYS)
def test_compressed_bodies_are_decoded_to_the_original(way: str) -> None:
    name, pack = WAYS[way]
    applied = read_codings([(b"host", b"a"), (b"content-encoding", name.upper().encode())])
    assert decode_body(pack(BODY), applied, LIMIT) == BODY
    assert decode_body(pack(BODY), applied, max(len(BODY), len(pack(BODY)))) == BODY


@pytest.mark.parametrize("way", [way for way in WAYS if way != "none"])
def test_a_body_that_is_too_long_damaged_or_cut_is_not_decoded(way: str) -> None:
    name, pack = WAYS[way]
    applied = read_codings([(b"content-encoding", name.encode())])
    for wrong in (pack(b"a" * (LIMIT + 1)), b"{}" + pack(BODY), BODY):
        with pytest.raises(NotDecodedError):
            decode_body(wrong, applied, LIMIT)
    if not way.startswith("zstd"):
        with pytest.raises(NotDecodedError):
            decode_body(pack(BODY)[:-3], applied, LIMIT)


def test_a_bomb_is_read_no_further_than_its_limit() -> None:
    for name, pack in (WAYS["gzip"], WAYS["zstd"]):
        with pytest.raises(NotDecodedError, match="too long"):
            decode_body(pack(b"a" * (64 << 20)), [name], 1 << 20)


def test_empty_gzip_members_count_towards_the_limit() -> None:
    empty, last = gzip.compress(b"", 1), gzip.compress(BODY)
    assert decode_body(empty * (MAX_MEMBERS - 1) + last, ["gzip"], LIMIT) == BODY
    with pytest.raises(NotDecodedError, match="too many members"):
        decode_body(empty * MAX_MEMBERS + last, ["gzip"], LIMIT)


HOLLOW: dict[str, tuple[str, bytes, bytes]] = {
    "members": ("gzip", gzip.compress(b"", 1), gzip.compress(BODY)),
    "blocks": ("deflate", b"\0\0\0\xff\xff", bare(BODY)),
    "frames": ("zstd", zstandard.compress(b""), zstandard.compress(BODY)),
}


@pytest.mark.parametrize("way", HOLLOW)
def test_megabytes_that_stand_for_nothing_cost_no_more_than_is_allowed(way: str) -> None:
    name, empty, last = HOLLOW[way]
    body = empty * (MOST // len(empty)) + last
    began = time.thread_time()
    with suppress(NotDecodedError):
        assert decode_body(body, [name], LIMIT) == BODY
    assert time.thread_time() - began <= 2 * MAX_SECONDS
    with pytest.raises(NotDecodedError, match=r"takes too long|too many members"):
        decode_body(body, [name], LIMIT, seconds=0.001)


@pytest.mark.parametrize("applied", [["br"], ["gzip"] * 4, ["sdch", "gzip"]])
def test_other_codings_are_not_decoded(applied: list[str]) -> None:
    with pytest.raises(NotDecodedError):
        decode_body(gzip.compress(BODY), applied, LIMIT)


def test_without_a_decoder_zstd_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(NotDecodedError, match="cannot read"):
        decode_body(zstandard.compress(BODY), ["zstd"], LIMIT)


@pytest.mark.parametrize("way", WAYS)
async def test_a_compressed_request_is_managed(way: str) -> None:
    name, pack = WAYS[way]
    model = ScriptedModel("Well.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        found = await proxy.post(pack(BODY), b"content-encoding: " + name.encode(), b"x-context-session: s")
        assert (found.status, found.session) == (200, "s")
        assert found.header("x-context-fallback") is None
        assert await proxy.rows("SELECT role FROM messages ORDER BY seq") == [("user",), ("assistant",)]
    (came,) = model.received
    assert json.loads(came.body)["messages"] == json.loads(BODY)["messages"]
    named = dict(came.headers)
    assert named.get(b"content-encoding", b"identity") == b"identity"
    assert named[b"content-length"] == str(len(came.body)).encode()


async def test_a_body_that_cannot_be_decoded_is_passed_on_unchanged_with_a_reason() -> None:
    model = ScriptedModel("Well.")
    bomb = gzip.compress(b'{"model":"m","messages":[' + b" " * (3 << 20) + b"]}")
    cases = {b"br": b"\x0b\x02\x80abc\x03", b"gzip": bomb, b"zstd": b"not zstd"}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, limits={"managed_mb": 1}) as proxy:
        for name, body in cases.items():
            found = await proxy.post(body, b"content-encoding: " + name)
            assert found.status == 200
            assert found.header("x-context-fallback") == "encoding"
            assert model.received[-1].body == body
            assert dict(model.received[-1].headers)[b"content-encoding"] == name
        assert proxy.count("fallbacks_total", reason="encoding") == 3


async def test_a_decoded_body_that_is_not_chat_is_passed_on_in_its_original_bytes() -> None:
    model = ScriptedModel("Well.")
    body = gzip.compress(b'{"model":"m","messages":"none"}')
    async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy:
        found = await proxy.post(body, b"content-encoding: gzip")
        assert found.header("x-context-fallback") not in (None, "encoding")
    assert model.received[-1].body == body
    assert dict(model.received[-1].headers)[b"content-encoding"] == b"gzip"
