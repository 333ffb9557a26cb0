"""C9, R1: many requests with faults among them. Each answer is its own request's, and nothing grows."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil
import pytest

from tests.faults.fork_server import ForkServer
from tests.proxy_server import CHAT
from tests.raw_upstream import HEAD, STREAM, Connection, RawRequest, connect, make_post, run_upstream, wait_until

pytestmark = pytest.mark.timed

WORKERS = 16
FAULTS = 0.01


async def model(request: RawRequest, connection: Connection) -> None:
    """Answers with the mark that it was asked with; breaks as the text says."""
    asked = json.loads(request.body)
    mark = asked["messages"][-1]["content"].split()[0]
    if mark.startswith("refuse"):
        await connection.send(b"HTTP/1.1 529 Busy\r\ncontent-length: 0\r\n\r\n")
    elif mark.startswith("reset"):
        await connection.send(STREAM)
        await connection.chunk(b'data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\n\n')
        await connection.reset()
    elif asked.get("stream"):
        chunk = {"choices": [{"index": 0, "delta": {"content": mark}, "finish_reason": "stop"}]}
        await connection.send(STREAM)
        await connection.chunk(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        await connection.chunk(b"data: [DONE]\n\n")
        await connection.send(b"0\r\n\r\n")
    else:
        choice = {"index": 0, "message": {"role": "assistant", "content": mark}, "finish_reason": "stop"}
        body = json.dumps({"choices": [choice]}).encode()
        await connection.send(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)


@dataclass
class Soak:
    """Workers with connections that they keep, and what they have seen."""

    port: int
    chance: random.Random
    left: int
    answered: int = 0
    faults: int = 0
    grown: str = ""

    async def worker(self, number: int) -> None:
        client = await connect(self.port)
        while self.left > 0:
            self.left -= 1
            mark = f"m{number}.{self.left}"
            stream = self.chance.random() < 0.5
            if self.chance.random() < FAULTS:
                self.faults += 1
                await self._break(client, mark)
                client.writer.transport.abort()
                client = await connect(self.port)
                continue
            await client.send(self._request(mark, stream))
            got = await answer(client)
            assert b'"' + mark.encode() + b'"' in got, f"{mark} got {got!r}"
            self.answered += 1
        client.writer.transport.abort()

    def _request(self, mark: str, stream: bool) -> bytes:
        messages = [{"role": "user", "content": mark + " text" * self.chance.randrange(100)}]
        body = json.dumps({"model": "m", "stream": stream, "messages": messages}).encode()
        return make_post(CHAT, body).replace(b"connection: close\r\n", b"content-type: application/json\r\n")

    async def _break(self, client: Connection, mark: str) -> None:
        """One fault of a client's or of the upstream's."""
        kind = self.chance.choice(("leave", "half", "garbage", "refuse", "reset", "pipeline"))
        with suppress(ConnectionError, asyncio.IncompleteReadError, ValueError):  # it breaks off
            if kind == "leave":
                await client.send(self._request(mark, True))
                await asyncio.sleep(self.chance.uniform(0, 0.01))
            elif kind == "half":
                await client.send(self._request(mark, True)[: self.chance.randrange(20, 150)])
            elif kind == "garbage":
                await client.send(bytes(self.chance.randrange(256) for _ in range(200)))
            elif kind == "pipeline":
                await client.send(self._request(f"{mark}a", False) + self._request(f"{mark}b", False))
                for end in "ab":
                    got = await answer(client)
                    assert f'"{mark}{end}"'.encode() in got
            else:
                await client.send(self._request(f"{kind}{mark}", True))
                await answer(client)


async def answer(client: Connection) -> bytes:
    """The body of one answer on a connection that stays."""
    async with asyncio.timeout(30):
        head = (await client.reader.readuntil(b"\r\n\r\n")).lower()
        if b"transfer-encoding: chunked" not in head:
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            return await client.reader.readexactly(length)
        body = b""
        while size := int(await client.reader.readline(), 16):
            body += await client.reader.readexactly(size)
            await client.reader.readexactly(2)
        await client.reader.readexactly(2)
        return body


async def soak(fork_server: ForkServer, requests: int, db: str, growth: float) -> Soak:
    """Drives a proxy of its own; after the first tenth nothing may grow. growth: of memory, as a share."""
    async with run_upstream(model) as upstream:
        url = f"http://127.0.0.1:{upstream.port}/v1"
        limits = {"live_branches": 100, "message_cache_mb": 1}
        pid, port = await fork_server.started(upstream=url, db=db, log_level="error", limits=limits)
        process = psutil.Process(pid)
        driver = Soak(port, random.Random(1), requests // 10)
        marks = []
        for count in (requests // 10, requests * 9 // 10):
            driver.left = count
            await asyncio.gather(*(driver.worker(number) for number in range(WORKERS)))
            await wait_until(lambda: upstream.open <= 50)
            await asyncio.sleep(0.3)
            tasks = await asyncio.to_thread(fork_server.tasks, pid)
            marks.append((process.memory_info().rss, process.num_fds(), tasks, process.num_threads(), upstream.open))
        early, late = marks
        driver.grown = (
            f"{driver.answered} requests answered, {driver.faults} faults: from the first tenth to the end memory"
            f" {early[0] >> 20} to {late[0] >> 20} MiB, descriptors {early[1]} to {late[1]},"
            f" tasks {early[2]} to {late[2]}"
        )
        assert driver.answered + driver.faults == requests
        assert driver.faults > 0
        assert late[0] < early[0] * (1 + growth), "memory grows"
        assert late[1] <= early[1] + WORKERS, "descriptors grow"
        assert late[2] <= early[2] + 2, "tasks grow"
        assert late[3] <= early[3] + 2, "branches grow"
        await asyncio.to_thread(fork_server.kill, pid)
        return driver


async def test_r1_c9_two_thousand_requests_with_faults_get_their_own_answers_and_nothing_grows(
    fork_server: ForkServer, tmp_path: os.PathLike[str], record_property: Callable[[str, object], None]
) -> None:
    record_property("measured", (await soak(fork_server, 2000, f"{tmp_path}/a.sqlite3", 0.5)).grown)


@pytest.mark.long
async def test_r1_c9_two_hundred_thousand_requests(
    fork_server: ForkServer, tmp_path: os.PathLike[str], record_property: Callable[[str, object], None]
) -> None:
    driver = await soak(fork_server, int(os.environ.get("REQUESTS", "200000")), f"{tmp_path}/a.sqlite3", 0.05)
    record_property("measured", driver.grown)
