"""U14, U15, U19, S14: answers that are larger than anything, a network that loses packets, names without number."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.faults.fork_server import ForkServer
from tests.faults.killing import make_sqlite_fetch
from tests.faults.test_load import answer
from tests.proxy_server import CHAT, parse_answer, run_proxy
from tests.raw_upstream import HEAD, STREAM, Connection, RawRequest, connect, make_post, run_upstream, send_raw

Record = Callable[[str, object], None]

MORE = 100 << 20
"""Bytes of memory that anything of this may take."""
LINE = 200 << 20
BODY = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"a"}]}'


@pytest.mark.parametrize("codings", [1, 3])
async def test_u14_a_reply_that_unpacks_to_gigabytes_is_refused(
    fork_server: ForkServer, record_property: Record, codings: int
) -> None:
    bomb = (gzip.compress(b"{}", 1) if codings > 1 else b"") + b"\0" * (1 << 30)
    for _coding in range(max(1, codings - 1)):
        bomb = gzip.compress(bomb, 1)

    async def pack(_: RawRequest, connection: Connection) -> None:
        named = b", ".join([b"gzip"] * codings)
        head = b"content-encoding: %b\r\ncontent-length: %d\r\n\r\n" % (named, len(bomb))
        await connection.send(HEAD + head + bomb)

    async with run_upstream(pack) as upstream:
        url = f"http://127.0.0.1:{upstream.port}/v1"
        pid, port = await fork_server.started(upstream=url, db=":memory:", log_level="error")
        before = psutil.Process(pid).memory_info().rss
        for _ in range(3):
            got = parse_answer(await send_raw(port, make_post(CHAT, BODY.replace(b"true", b"false")), 30))
            assert (got.status, got.header("content-encoding")) == (502, None)
            assert got.error["code"] == "upstream_broken"
        grown = psutil.Process(pid).memory_info().rss - before
        record_property("measured", f"{len(bomb) >> 10} KiB that unpack to 1 GiB: memory +{grown >> 20} MiB")
        assert grown <= MORE
        await asyncio.to_thread(fork_server.kill, pid)


@pytest.mark.parametrize("size", [LINE, pytest.param(1 << 30, marks=pytest.mark.long)], ids=["short", "long"])
async def test_u15_a_line_without_an_end_is_passed_on_and_not_held(
    fork_server: ForkServer, tmp_path: Path, record_property: Record, size: int
) -> None:
    part = b"x" * (1 << 20)
    asked: list[RawRequest] = []

    async def endless(request: RawRequest, connection: Connection) -> None:
        asked.append(request)
        if len(asked) == 1:
            await connection.send(HEAD + b"content-length: 2\r\n\r\n{}")
            return
        await connection.send(STREAM)
        await connection.chunk(b"data: ")
        with suppress(ConnectionError):
            for _part in range(size // len(part)):
                await connection.chunk(part)
            await connection.send(b"0\r\n\r\n")

    async with run_upstream(endless) as upstream:
        url, db = f"http://127.0.0.1:{upstream.port}/v1", str(tmp_path / "a.sqlite3")
        pid, port = await fork_server.started(upstream=url, db=db, log_level="error")
        process = psutil.Process(pid)
        await send_raw(port, make_post(CHAT, BODY), 30)  # what the first request imports is no part of this
        client = await connect(port)
        before = most = process.memory_info().rss
        await client.send(make_post(CHAT, BODY))
        came = 0
        async with asyncio.timeout(60 if size == LINE else 300):
            while data := await client.reader.read(1 << 20):
                if came >> 24 != (came + len(data)) >> 24:
                    most = max(most, process.memory_info().rss)
                came += len(data)
        client.writer.transport.abort()
        assert came > size
        record_property("measured", f"a line of {size >> 20} MiB: memory +{(most - before) >> 20} MiB")
        assert most - before <= MORE
        await asyncio.to_thread(fork_server.end, pid)
        [_, (status, size)] = await make_sqlite_fetch(db)(
            "SELECT e.status, coalesce(length(m.body), 0) FROM exchanges e LEFT JOIN messages m ON m.key = e.answer"
            " ORDER BY e.started_at"
        )
        assert status == "partial", "what broke off is never told as whole"
        assert size <= 16 << 20


@pytest.mark.parametrize("count", [600, pytest.param(100_000, marks=pytest.mark.long)])
async def test_s14_names_without_number_are_few_series(record_property: Record, count: int) -> None:
    async def said(_: RawRequest, connection: Connection) -> None:
        body = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}]}'
        await connection.send(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)

    async with run_upstream(said) as upstream, run_proxy(upstream.port) as proxy:
        client = await connect(proxy.port)
        for number in range(count):
            body = {"model": f"model-{number}", "messages": [{"role": "user", "content": "a"}]}
            lines = (b"x-context-policy: policy-%d" % number, b"authorization: Bearer key-%d" % number)
            path = CHAT if number % 3 else f"/v1/route-{number}"
            await client.send(make_post(path, json.dumps(body).encode(), *lines).replace(b"connection: close\r\n", b""))
            await answer(client)
        client.writer.transport.abort()
        text = parse_answer(
            await send_raw(proxy.port, b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        ).body
        series = [line for line in text.splitlines() if line and not line.startswith(b"#")]
        record_property("measured", f"{count:,} names of models, policies, keys and routes: {len(series)} series")
        assert 50 < len(series) <= 2000
        assert b"key-5" not in text


LOSS = """
set -e
ip link set lo up
nft add table inet t
nft add chain inet t i '{ type filter hook input priority 0; }'
nft 'add rule inet t i meta l4proto tcp numgen random mod 100 < 5 drop'
exec %s -c 'import asyncio
from tests.faults.test_answers import lossy
asyncio.run(lossy())'
"""


async def lossy() -> None:
    """Thirty answers, each of them whole."""
    async with run_upstream(_long) as upstream, run_proxy(upstream.port) as proxy:
        for number in range(30):
            body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": f"m{number}"}]}
            got = await proxy.post(body, seconds=60)
            assert (got.status, got.whole, len(got.events)) == (200, True, 21), got.body
    print("30 whole")


async def _long(_: RawRequest, connection: Connection) -> None:
    await connection.send(STREAM)
    for number in range(20):
        finish = b'"stop"' if number == 19 else b"null"
        await connection.chunk(
            b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":%b}]}\n\n' % finish
        )
    await connection.chunk(b"data: [DONE]\n\n")
    await connection.send(b"0\r\n\r\n")


def test_u19_lost_packets_cost_time_and_nothing_else() -> None:
    if shutil.which("nft") is None or shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("nft, ip or unshare is not installed (Debian's packages nftables, iproute2, util-linux)")
    if subprocess.run(["unshare", "-rn", "sh", "-c", "nft add table inet t"], capture_output=True).returncode:
        pytest.skip("packets cannot be dropped here")
    done = subprocess.run(
        ["unshare", "-rn", "sh", "-c", LOSS % sys.executable], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "30 whole\n"
