"""H1, H6: requests that two HTTP parsers read differently. What reaches the upstream is exactly what was asked once, or
nothing and a 400 with the connection closed; never a second request, and never a byte of one."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest

from tests.proxy_server import CHAT, RunningProxy, parse_answer, run_proxy
from tests.raw_upstream import HEAD, Connection, RawRequest, connect, make_post, run_upstream, send_raw

INNER = b"POST /v1/inner HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"
"""A request that an attacker hides in the body of another one."""
LINE = b"POST /v1/outer HTTP/1.1\r\nhost: a\r\n"
SIZED = b"content-length: %d\r\n" % len(INNER)
CHUNKED = b"transfer-encoding: chunked\r\n"
CODED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(INNER), INNER)

ATTACKS: dict[str, bytes] = {
    "CL and TE": LINE + SIZED + CHUNKED + b"\r\n0\r\n\r\n" + INNER,
    "TE and CL": LINE + CHUNKED + b"content-length: 4\r\n\r\n" + CODED,
    "two CL that differ": LINE + SIZED + b"content-length: 0\r\n\r\n" + INNER,
    "two CL that agree": LINE + SIZED + SIZED + b"\r\n" + INNER,
    "CL as a list": LINE + b"content-length: 0, %d\r\n\r\n" % len(INNER) + INNER,
    "CL with a sign": LINE + b"content-length: +%d\r\n\r\n" % len(INNER) + INNER,
    "CL negative": LINE + b"content-length: -1\r\n\r\n" + INNER,
    "CL in hexadecimal": LINE + b"content-length: 0x%x\r\n\r\n" % len(INNER) + INNER,
    "CL beyond 64 bits": LINE + b"content-length: 18446744073709551616\r\n\r\n" + INNER,
    "CL with a space inside": LINE + b"content-length: 1 0\r\n\r\n" + INNER,
    "CL empty": LINE + b"content-length:\r\n\r\n" + INNER,
    "CL before a colon with a space": LINE + b"content-length : %d\r\n\r\n" % len(INNER) + INNER,
    "TE unknown": LINE + b"transfer-encoding: xchunked\r\n\r\n" + CODED,
    "TE with a vertical tab": LINE + b"transfer-encoding: \x0bchunked\r\n\r\n" + CODED,
    "TE twice": LINE + CHUNKED + b"transfer-encoding: identity\r\n\r\n" + CODED,
    "TE chunked is not last": LINE + b"transfer-encoding: chunked, gzip\r\n\r\n" + CODED,
    "TE before a colon with a space": LINE + b"transfer-encoding : chunked\r\n\r\n" + CODED,
    "TE behind a bare line feed": LINE + b"x: y\ntransfer-encoding: chunked\r\n\r\n" + CODED,
    "TE by obs-fold": LINE + b"transfer-encoding:\r\n chunked\r\n\r\n" + CODED,
    "TE in HTTP/1.0": b"POST /v1/outer HTTP/1.0\r\nhost: a\r\n" + CHUNKED + b"\r\n" + CODED,
    "TE in quotes": LINE + b'transfer-encoding: "chunked"\r\n\r\n' + CODED,
    "bare line feeds": LINE.replace(b"\r\n", b"\n") + SIZED.replace(b"\r\n", b"\n") + b"\n" + INNER,
    "bare return in a value": LINE + b"x: a\rcontent-length: 0\r\n" + SIZED + b"\r\n" + INNER,
    "obs-fold": LINE + b"x: a\r\n b\r\n" + SIZED + b"\r\n" + INNER,
    "a fold before the first field": b"POST /v1/outer HTTP/1.1\r\n host: a\r\n" + SIZED + b"\r\n" + INNER,
    "NUL in a value": LINE + b"x: a\x00b\r\n" + SIZED + b"\r\n" + INNER,
    "NUL in a name": LINE + b"x\x00: b\r\n" + SIZED + b"\r\n" + INNER,
    "no colon": LINE + b"content-length\r\n\r\n" + INNER,
    "no name": LINE + b": x\r\n" + SIZED + b"\r\n" + INNER,
    "chunk negative": LINE + CHUNKED + b"\r\n-1\r\n" + INNER + b"\r\n0\r\n\r\n",
    "chunk beyond 64 bits": LINE + CHUNKED + b"\r\n10000000000000005\r\nhello\r\n0\r\n\r\n" + INNER,
    "chunk with a prefix": LINE + CHUNKED + b"\r\n0x5\r\nhello\r\n0\r\n\r\n" + INNER,
    "chunk without an end": LINE + CHUNKED + b"\r\n5\r\nhelloXX0\r\n\r\n" + INNER,
    "chunk with a bare line feed": LINE + CHUNKED + b"\r\n5\nhello\n0\n\n" + INNER,
    "chunk extension of 1 MB": LINE + CHUNKED + b"\r\n5;" + b"x" * (1 << 20) + b"\r\nhello\r\n0\r\n\r\n" + INNER,
    "chunk extension with a line feed": LINE + CHUNKED + b"\r\n5;a\nb\r\nhello\r\n0\r\n\r\n" + INNER,
    "CONNECT": b"CONNECT a:80 HTTP/1.1\r\nhost: a\r\n\r\n" + INNER,
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + INNER,
    "HTTP/0.9": b"GET /v1/outer\r\n\r\n" + INNER,
    "HTTP/1.2": LINE.replace(b"1.1", b"1.2") + SIZED + b"\r\n" + INNER,
    "two spaces in the line": b"POST  /v1/outer HTTP/1.1\r\nhost: a\r\n" + SIZED + b"\r\n" + INNER,
    "a tab in the line": b"POST\t/v1/outer HTTP/1.1\r\nhost: a\r\n" + SIZED + b"\r\n" + INNER,
    "a space in the path": b"POST /v1/ou ter HTTP/1.1\r\nhost: a\r\n" + SIZED + b"\r\n" + INNER,
}


async def echo(request: RawRequest, connection: Connection) -> None:
    await connection.send(HEAD + b"content-length: %d\r\n\r\n" % len(request.body) + request.body)


async def talk(proxy: RunningProxy, raw: bytes) -> tuple[bytes, bool]:
    """Return the answer, and True if the proxy closed the connection by itself. Waits for the first of both as
    long as it takes, and a while for more behind an answer that is not a refusal."""
    client = await connect(proxy.port)
    got, closed = b"", False
    with suppress(TimeoutError, ConnectionError):
        await client.send(raw)
        async with asyncio.timeout(10) as patience:
            while data := await client.reader.read(65536):
                got += data
                if not got.startswith(b"HTTP/1.1 400"):
                    patience.reschedule(asyncio.get_running_loop().time() + 0.3)
            closed = True
    client.writer.transport.abort()
    return got, closed


@pytest.mark.parametrize("name", ATTACKS)
async def test_h1_ambiguous_requests_are_refused_or_forwarded_as_exactly_one(name: str) -> None:
    async with run_upstream(echo) as upstream, run_proxy(upstream.port) as proxy:
        raw = ATTACKS[name]
        got, closed = await talk(proxy, raw)
        lines = [request.line for request in upstream.requests]
        statuses = [int(line.split()[1]) for line in got.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
        # A request that is complete may be followed by another of the client's own: pipelining, and its own affair.
        outer = [line for line in lines if line == b"POST /v1/outer HTTP/1.1"]
        followed = raw.endswith((b"0\r\n\r\n" + INNER, b"\n0\n\n" + INNER))
        assert lines in ([], outer[:1], [*outer[:1], INNER.partition(b"\r\n")[0]] if followed else outer[:1]), lines
        if 400 in statuses:
            assert closed, "what cannot be read is closed after"
            assert statuses[-1] == 400
        else:
            assert lines, "neither refused nor passed on"
        for request in upstream.requests:
            assert len(request.all(b"content-length")) + len(request.all(b"transfer-encoding")) <= 1
            assert request.all(b"content-length") in ([], [b"%d" % len(request.body)])
        assert await upstream_answers(proxy)


async def upstream_answers(proxy: RunningProxy) -> bool:
    """Nothing of what came before has got into what the next one, on the same upstream connection, is told."""
    return parse_answer(await send_raw(proxy.port, make_post("/v1/next", b"mark"))).body == b"mark"


REFUSED = {
    "CL and TE", "CL as a list", "CL before a colon with a space", "CL beyond 64 bits", "CL in hexadecimal",
    "CL negative", "CL with a sign", "CL with a space inside", "CONNECT", "HTTP/2 preface", "NUL in a name",
    "NUL in a value", "TE and CL", "TE before a colon with a space", "TE chunked is not last", "TE unknown",
    "chunk beyond 64 bits", "chunk negative", "chunk with a prefix", "chunk without an end", "no colon", "no name",
    "two CL that differ",
}  # fmt: skip
"""Of these nothing may reach the upstream at all."""


@pytest.mark.parametrize("name", sorted(REFUSED))
async def test_h1_dangerous_requests_never_reach_the_upstream(name: str) -> None:
    async with run_upstream(echo) as upstream, run_proxy(upstream.port) as proxy:
        got, closed = await talk(proxy, ATTACKS[name])
        assert got.startswith(b"HTTP/1.1 400")
        assert closed
        assert [r for r in upstream.requests if r.line.startswith(b"POST")] == []


@pytest.mark.parametrize(
    "text", ["a\r\nx-evil: 1", "a\nx-evil: 1", "a\r\n\r\nHTTP/1.1 200 OK", "a\x00b", "ä\u2028b", "\x1b[2J"]
)
async def test_h6_repeated_values_forge_neither_headers_nor_log_lines(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(request: RawRequest, connection: Connection) -> None:
        model = json.loads(request.body)["model"]
        body: Any = {
            "id": "c",
            "model": model,
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "x"}}],
        }
        raw = json.dumps(body).encode()
        await connection.send(HEAD + b"content-length: %d\r\n\r\n" % len(raw) + raw)

    async with run_upstream(answer) as upstream, run_proxy(upstream.port) as proxy:
        body = json.dumps({"model": text, "messages": [{"role": "user", "content": text}]}).encode()
        quoted = "".join(f"%{byte:02X}" for byte in text.encode())
        for path in (CHAT, f"/s/{quoted}/v1/chat/completions"):
            raw = await send_raw(proxy.port, make_post(path, body))
            head = raw.partition(b"\r\n\r\n")[0]
            assert not [line for line in head.split(b"\r\n")[1:] if line.lower().startswith((b"x-evil", b"http/"))], (
                head
            )
            assert raw.count(b"HTTP/1.1 ") <= 1 + json.dumps(text).count("HTTP/1.1")
            assert head.split()[1] in (b"200", b"400")
            assert not any(byte < 32 and byte not in b"\r\n\t" for byte in head)
        assert "\r" not in caplog.text
        assert not [line for line in caplog.text.split("\n") if line.startswith(("x-evil", "HTTP/"))]
