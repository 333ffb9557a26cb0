"""D9, D12: being told to stop with answers open, being told twice, and being cancelled at any moment of a turn."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path

import psutil
import pytest

from tests.proxy_server import CHAT
from tests.raw_upstream import STREAM, Connection, RawRequest, connect, make_post, run_upstream, wait_until
from tests.snapshot import snapshot

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


@asynccontextmanager
async def served(
    folder: Path, upstream: int, drain_s: float, more: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[subprocess.Popen[str], int]]:
    """A `context-proxy serve` of its own, and its port."""
    environment = os.environ | {"CONTEXT_PROXY_TIMEOUTS__DRAIN_S": str(drain_s)} | dict(more or {})
    command = [sys.executable, "-m", "proxy.cli.main", "serve", "--port", "0", "--db", str(folder / "a.sqlite3")]
    command += ["--upstream", f"http://127.0.0.1:{upstream}/v1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None

    def ready() -> int:
        assert process.stdout is not None
        for line in process.stdout:
            if "listening" in line:
                return int(line.split(":")[-1].split("/")[0])
        raise AssertionError("it did not start")

    try:
        yield process, await asyncio.to_thread(ready)
    finally:
        process.kill()
        await asyncio.to_thread(process.communicate)


async def streams(port: int, count: int, until: bytes = EVENT) -> list[Connection]:
    """So many answers under way, each until this has come."""
    out = []
    for n in range(count):
        body = json.dumps(
            {"model": "m", "stream": True, "messages": [{"role": "user", "content": f"mark {n}"}]}
        ).encode()
        out.append(await connect(port))
        await out[-1].send(make_post(CHAT, body, b"content-type: application/json"))
    async with asyncio.timeout(60):
        for client in out:
            await client.reader.readuntil(until)
    return out


def stored(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with closing(snapshot(path)) as connection:
        return dict(connection.execute("SELECT status, count(*) FROM exchanges GROUP BY status").fetchall())


async def test_d9_with_200_streams_open_all_end_in_order_and_are_stored(tmp_path: Path) -> None:
    end = asyncio.Event()

    async def stream(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(EVENT)
        await end.wait()
        await connection.chunk(LAST)
        await connection.send(b"0\r\n\r\n")

    async with run_upstream(stream) as upstream, served(tmp_path, upstream.port, 60) as (process, port):
        clients = await streams(port, 200)
        process.send_signal(signal.SIGTERM)
        await refusing(port)
        end.set()
        async with asyncio.timeout(60):
            for client in clients:
                assert (await client.reader.read()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
                client.writer.transport.abort()
        _, logged = await asyncio.to_thread(process.communicate)
        assert process.returncode == 0
        assert "drained: 200 answers were open, 0 of them were broken off" in logged
        assert "0 items could not be stored" in logged
        assert "Traceback" not in logged
        assert stored(tmp_path / "a.sqlite3") == {"complete": 200}


async def status(port: int, path: str) -> int:
    """Of a GET on a connection of its own."""
    client = await connect(port)
    await client.send(b"GET %b HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n" % path.encode())
    head = await client.reader.readline()
    client.writer.transport.abort()
    return int(head.split()[1])


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
async def test_d9_with_notice_it_serves_on_and_says_that_it_will_stop(tmp_path: Path, told: signal.Signals) -> None:
    async def answer(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(LAST)
        await connection.send(b"0\r\n\r\n")

    notice = {"CONTEXT_PROXY_DRAIN__NOTICE_S": "600"}
    async with run_upstream(answer) as upstream, served(tmp_path, upstream.port, 5, notice) as (process, port):
        assert await status(port, "/readyz") == 200
        process.send_signal(told)
        if told == signal.SIGTERM:  # Ctrl-C does not wait
            async with asyncio.timeout(20):
                while await status(port, "/readyz") != 503:
                    await asyncio.sleep(0.02)
            assert await status(port, "/healthz") == 200
            (client,) = await streams(port, 1, until=b"[DONE]")  # on a new connection, taken after the signal
            client.writer.transport.abort()
            process.send_signal(signal.SIGTERM)  # told once more it does not wait either
        _, logged = await asyncio.to_thread(process.communicate, None, 60)
        assert process.returncode == 0
        assert "Traceback" not in logged
        assert stored(tmp_path / "a.sqlite3") == ({"complete": 1} if told == signal.SIGTERM else {})


async def refusing(port: int) -> None:
    """Until no connection is taken any more."""
    async with asyncio.timeout(20):
        while True:
            try:
                client = await connect(port)
            except OSError:
                return
            client.writer.transport.abort()
            await asyncio.sleep(0.02)


async def test_d9_requests_on_connections_that_nobody_has_accepted_yet_are_answered(tmp_path: Path) -> None:
    async def answer(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(LAST)
        await connection.send(b"0\r\n\r\n")

    body = b'{"model":"m","messages":[{"role":"user","content":"a"}]}'
    asked = make_post(CHAT, body, b"content-type: application/json").replace(b"connection: close\r\n", b"")
    async with run_upstream(answer) as upstream, served(tmp_path, upstream.port, 60) as (process, port):
        known = await connect(port)  # idle when the signal comes, with a request on its way
        await known.send(asked)
        assert b"connection: close" not in await known.reader.readuntil(b"\r\n\r\n")
        await known.reader.readuntil(b"\r\n0\r\n\r\n")
        process.send_signal(signal.SIGSTOP)
        clients = [known] + [await connect(port) for _ in range(40)]
        for client in clients:
            await client.send(asked)
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)  # it looks for signals every tenth of a second: at once when it goes on
        process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(60):
            for client in clients:
                head = await client.reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200")
                assert (await client.reader.read()).endswith(b"0\r\n\r\n"), "and then the connection ends"
                client.writer.transport.abort()
        await asyncio.to_thread(process.communicate)
        assert process.returncode == 0
        assert stored(tmp_path / "a.sqlite3") == {"complete": 42}


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_d9_told_twice_it_waits_no_longer_and_stores_what_there_was(
    tmp_path: Path, second: signal.Signals
) -> None:
    async def stall(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(EVENT)
        await connection.left()

    async with run_upstream(stall) as upstream, served(tmp_path, upstream.port, 600) as (process, port):
        clients = await streams(port, 20)
        process.send_signal(signal.SIGTERM)
        await refusing(port)
        process.send_signal(second)
        _, logged = await asyncio.to_thread(process.communicate, None, 60)
        assert process.returncode == 0
        assert "drained: 20 answers were open, 20 of them were broken off" in logged
        assert "0 items could not be stored" in logged
        assert "Traceback" not in logged
        for client in clients:
            rest = await client.reader.read()
            assert b"[DONE]" not in rest
            assert not rest.endswith(b"0\r\n\r\n"), "a broken answer does not look whole"
            client.writer.transport.abort()
        assert await upstream.none_open()
        assert stored(tmp_path / "a.sqlite3") == {"client_gone": 20}


async def test_d9_answers_open_at_the_drain_limit_are_broken_off(tmp_path: Path) -> None:
    async def stall(_: RawRequest, connection: Connection) -> None:
        await connection.left()

    async with run_upstream(stall) as upstream, served(tmp_path, upstream.port, 1) as (process, port):
        client = await connect(port)
        body = b'{"model":"m","messages":[{"role":"user","content":"a"}]}'
        await client.send(make_post(CHAT, body, b"content-type: application/json"))
        await wait_until(lambda: bool(upstream.requests), 20)
        process.send_signal(signal.SIGTERM)
        _, logged = await asyncio.to_thread(process.communicate, None, 60)
        assert "drained: 1 answers were open, 1 of them were broken off" in logged
        assert "Traceback" not in logged
        got = await client.reader.read()
        assert got.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in got
        client.writer.transport.abort()


async def test_r1_with_a_full_disk_and_much_waiting_it_ends_and_what_was_lost_is_recorded(tmp_path: Path) -> None:
    async def answer(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(LAST)
        await connection.send(b"0\r\n\r\n")

    path = tmp_path / "a.sqlite3"
    quick = {"CONTEXT_PROXY_LIMITS__COMMIT_WAIT_MS": "1"}
    async with run_upstream(answer) as upstream:
        async with served(tmp_path, upstream.port, 5, quick) as (process, port):
            for client in await streams(port, 5, until=b"[DONE]"):
                client.writer.transport.abort()
            await asyncio.sleep(0.5)
            # No file is written beyond its beginning: to a process the same as a disk that is full.
            psutil.Process(process.pid).rlimit(psutil.RLIMIT_FSIZE, (64 << 10, psutil.RLIM_INFINITY))
            for client in await streams(port, 150, until=b"[DONE]"):
                client.writer.transport.abort()
            process.send_signal(signal.SIGTERM)
            _, logged = await asyncio.to_thread(process.communicate, None, 40)
            assert process.returncode == 0
            assert "items not stored" in logged
            assert "lost: " in logged
            assert "Traceback" not in logged
        there = stored(path).get("complete", 0)
        gaps = [json.loads(line) for line in (tmp_path / "a.sqlite3.gaps").read_bytes().split()]
        assert len({gap["exchange"] for gap in gaps}) >= 155 - there > 64
        async with served(tmp_path, upstream.port, 5) as (process, port):
            await asyncio.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            _, logged = await asyncio.to_thread(process.communicate, None, 40)
            assert f"{len(gaps)} gaps that the last process could not store are recorded" in logged
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM gaps").fetchone() == (len(gaps),)
    assert not (tmp_path / "a.sqlite3.gaps").exists()
