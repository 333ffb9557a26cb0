"""S2: one request that is made to cost as much as it can, and others beside it.

Each body is sent to a proxy in a process of its own, while `/healthz` is asked all the time and the process's memory
is looked at.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import statistics
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import zstandard

from proxy.web.content_encoding import MAX_SECONDS
from tests.faults.fork_server import ForkServer
from tests.faults.test_content import ANSWER, fine
from tests.proxy_server import CHAT, RawAnswer, RunningProxy, parse_answer, run_proxy, run_proxy_in_thread
from tests.raw_upstream import HEAD, Connection, RawRequest, connect, make_post, run_upstream, send_raw, wait_until

pytestmark = pytest.mark.timed

Record = Callable[[str, object], None]

PROMISED_S = 0.25
"""For `/healthz` on a machine that has nothing else to do. A test shares its machine: it allows SLACK times as much."""
SLACK = 4
PEAK = 300 << 20
"""Bytes above idle."""
LEFT = 80 << 20
"""Bytes above idle a moment after the request: what is remembered of the one live conversation, of 16 MB at most."""
MOST = 64 << 20
"""Bytes of a body by default."""


def filled(head: bytes, item: bytes, tail: bytes, size: int = MOST) -> bytes:
    """A body of nearly `size` bytes: the item, again and again with commas between."""
    count = (size - len(head) - len(tail)) // (len(item) + 1)
    return head + b",".join([item] * count) + tail


def keys(size: int = MOST) -> bytes:
    """One key after another on the outermost level."""
    count = size // 13 - 10
    return (
        b'{"model":"m","messages":[{"role":"user","content":"a"}],'
        + b",".join(b'"k%d":1' % n for n in range(count))
        + b"}"
    )


EMPTY = b'{"role":"user","content":""}'
CALL = b'{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}'

PROBE = """
import json, select, socket, sys, time
times = []
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.01)[0]:
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 60) as there:
        there.sendall(b"GET /healthz HTTP/1.1\\r\\nhost: localhost\\r\\nconnection: close\\r\\n\\r\\n")
        answer = b""
        while data := there.recv(4096):
            answer += data
    assert answer.startswith(b"HTTP/1.1 200"), answer
    times.append(time.perf_counter() - began)
print(json.dumps(times))
"""
"""Asks `/healthz` from a process of its own: this one has 64 MB to send and to receive."""

HOSTILE: dict[str, Callable[[], bytes]] = {
    "keys": keys,
    "messages": lambda: filled(b'{"model":"m","messages":[', EMPTY, b"]}"),
    "parts": lambda: filled(b'{"model":"m","messages":[{"role":"user","content":[', b'{"type":"x"}', b"]}]}"),
    "numbers in a content": lambda: filled(b'{"model":"m","messages":[{"role":"user","content":[', b"1", b"]}]}"),
    "lists in tools": lambda: filled(b'{"model":"m","messages":[%b],"tools":[' % EMPTY, b"[]", b"]}"),
    "calls": lambda: filled(b'{"model":"m","messages":[{"role":"assistant","tool_calls":[', CALL, b"]}]}"),
    "objects in arguments": lambda: filled(
        b'{"model":"m","messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":[',
        b"{}",
        b"]}}]}]}",
    ),
    "one long text": lambda: filled(b'{"model":"m","messages":[{"role":"user","content":"', b"word word", b'"}]}'),
    "one long wide text": lambda: filled(
        b'{"model":"m","messages":[{"role":"user","content":"', "wörd \U0001f600".encode(), b'"}]}'
    ),
    "one long word": lambda: b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"a" * (MOST - 100)),
    "backslashes": lambda: b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"\\" * (MOST - 100)),
    "8 MB of text": lambda: filled(
        b'{"model":"m","messages":[{"role":"user","content":"', b"word word\\n", b'"}]}', 8 << 20
    ),
    "16 MB of wide text": lambda: filled(
        b'{"model":"m","messages":[{"role":"user","content":"', "wörd \U0001f600".encode(), b'"}]}', 16 << 20
    ),
    "10,000 messages": lambda: (
        b'{"model":"m","messages":[%b]}'
        % b",".join(b'{"role":"user","content":"message %d"}' % n for n in range(9_999))
    ),
    "250 KB of messages": lambda: filled(b'{"model":"m","messages":[', EMPTY, b"]}", 250 << 10),
    "250 KB of keys": lambda: keys(250 << 10),
    "1 MB of messages": lambda: filled(b'{"model":"m","messages":[', EMPTY, b"]}", 1 << 20),
    "1 MB of keys": lambda: keys(1 << 20),
    "combining marks in a session's name": lambda: filled(
        b'{"model":"m","messages":[%b],"session_id":"' % EMPTY, "\u0316\u0301".encode() * 1000, b'"}', 15 << 20
    ),
}


@dataclass(frozen=True)
class Beside:
    """Figures of a proxy while it answered one request, in seconds and bytes."""

    slowest: float
    usual: float
    peak: int
    left: int
    took: float
    answer: RawAnswer

    def __str__(self) -> str:
        return (
            f"/healthz {self.slowest * 1000:.0f} ms at most, {self.usual * 1000:.0f} ms usually; memory"
            f" +{self.peak / (1 << 20):.0f} MiB at its peak, +{self.left / (1 << 20):.0f} MiB after it;"
            f" the request itself {self.took:.1f} s"
        )


async def beside(pid: int, port: int, body: bytes, *lines: bytes, path: str = CHAT) -> Beside:
    """Send it, and look at everything else meanwhile."""
    process = psutil.Process(pid)
    loop = asyncio.get_running_loop()
    idle = peak = process.memory_info().rss
    done = asyncio.Event()
    probe = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", PROBE, str(port), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert probe.stdout is not None
    assert await probe.stdout.readline() == b"ready\n"

    async def weighing() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, process.memory_info().rss)
            await asyncio.sleep(0.005)

    watching = asyncio.create_task(weighing())
    began = loop.time()
    raw = make_post(path, body, b"content-type: application/json", *lines)
    got = parse_answer(await send_raw(port, raw, 120))
    took = loop.time() - began
    await asyncio.sleep(1.0)  # what is done after the answer counts, too
    done.set()
    await watching
    times = json.loads((await probe.communicate(b"end\n"))[0])
    left = process.memory_info().rss
    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            while (left := min(left, process.memory_info().rss)) - idle > LEFT:
                await asyncio.sleep(0.05)
    return Beside(max(times), statistics.median(times), peak - idle, left - idle, took, got)


@pytest.mark.parametrize("name", HOSTILE)
async def test_s2_one_hostile_request_stops_nobody(
    fork_server: ForkServer, tmp_path: Path, record_property: Record, name: str
) -> None:
    body = HOSTILE[name]()
    async with run_upstream(fine) as upstream:
        url, db = f"http://127.0.0.1:{upstream.port}/v1", f"{tmp_path}/a.sqlite3"
        pid, port = await fork_server.started(upstream=url, db=db, policy="thrifty", log_level="error")
        for n in range(20):  # everything has been used once
            small = json.dumps({"model": "m", "messages": [{"role": "user", "content": f"warm {n} " * 50}]}).encode()
            assert parse_answer(await send_raw(port, make_post(CHAT, small))).status == 200
        found = await beside(pid, port, body)
        record_property("measured", f"{name}: {found}")
        print(f"{name}: {found}")
        await asyncio.to_thread(fork_server.kill, pid)
        assert (found.answer.status, found.answer.body) == (200, ANSWER)
        assert upstream.requests[-1].body == body
    assert found.slowest <= SLACK * PROMISED_S
    assert found.peak <= PEAK
    assert found.left <= LEFT


@pytest.mark.parametrize("coding", [b"x-context-off: 0", b"x-context-off: 1"])
@pytest.mark.parametrize("shape", ["values", "keys"])
@pytest.mark.parametrize(
    ("path", "member"),
    [("/v1/compress", b"messages"), ("/v1/responses/compact", b"input"), ("/v1/messages", b"messages")],
)
async def test_s2_one_hostile_request_on_another_path_stops_nobody(
    fork_server: ForkServer, tmp_path: Path, path: str, member: bytes, shape: str, coding: bytes
) -> None:
    more = b'"k":0' if shape == "values" else b",".join(b'"k%d":0' % n for n in range(500_000))
    item = b"0" if shape == "values" else b"{}"
    body = filled(b'{"model":"m",%b,"%b":[' % (more, member), item, b"]}", len(more) + (6 << 20))
    async with run_upstream(fine) as upstream:
        url, db = f"http://127.0.0.1:{upstream.port}/v1", f"{tmp_path}/a.sqlite3"
        pid, port = await fork_server.started(upstream=url, db=db, policy="thrifty", log_level="error")
        small = json.dumps({"model": "m", "messages": [user("warm")]}).encode()
        assert parse_answer(await send_raw(port, make_post(CHAT, small))).status == 200
        found = await beside(pid, port, body, coding, path=path)
        print(f"{path} {shape}: {found}")
        await asyncio.to_thread(fork_server.kill, pid)
        assert found.answer.status == 200
    assert found.slowest <= SLACK * PROMISED_S
    assert found.peak <= PEAK


HOLLOW: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "gzip": (gzip.compress(b"", 1), gzip.compress),
    "deflate": (b"\0\0\0\xff\xff", lambda body: zlib.compress(body, wbits=-15)),
    "zstd": (zstandard.compress(b""), zstandard.compress),
}


@pytest.mark.parametrize("name", HOLLOW)
async def test_s2_megabytes_that_decode_to_nothing_hold_neither_the_workers_nor_the_end(
    fork_server: ForkServer, tmp_path: Path, record_property: Record, name: str
) -> None:
    empty, pack = HOLLOW[name]
    coding = b"content-encoding: " + name.encode()
    hollow = empty * ((18 << 20) // len(empty)) + pack(json.dumps({"model": "m", "messages": [user("a")]}).encode())
    async with run_upstream(fine) as upstream:
        url, db = f"http://127.0.0.1:{upstream.port}/v1", f"{tmp_path}/a.sqlite3"
        pid, port = await fork_server.started(upstream=url, db=db, policy="thrifty", log_level="error")
        small = pack(json.dumps({"model": "m", "messages": [user("warm")]}).encode())
        assert parse_answer(await send_raw(port, make_post(CHAT, small, coding))).status == 200
        others = [asyncio.create_task(send_raw(port, make_post(CHAT, hollow, coding), 20)) for _ in range(2)]
        found = await beside(pid, port, hollow, coding)
        record_property("measured", f"{name}: {found}")
        print(f"{name}: {found}")
        assert [parse_answer(said).status for said in await asyncio.gather(*others)] == [200, 200]
        assert (found.answer.status, found.answer.body) == (200, ANSWER)
        assert found.answer.header("x-context-fallback") == ("encoding" if name == "gzip" else None)
        await asyncio.to_thread(fork_server.end, pid)
    assert found.slowest <= SLACK * PROMISED_S
    assert found.took <= SLACK * 3 * MAX_SECONDS
    assert found.peak <= PEAK


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


FEW = {"messages": 20, "parts": 20, "calls": 20, "values": 2000}
OVER: dict[str, dict[str, object]] = {
    "messages": {"messages": [user("a")] * 21},
    "parts": {"messages": [user([{"type": "text", "text": "a"}] * 7)] * 3},
    "calls": {
        "messages": [
            user("a"),
            {"role": "assistant", "content": None, "tool_calls": [json.loads(CALL)] * 21},
            *[{"role": "tool", "tool_call_id": "c", "content": "done"}],
        ]
    },
    "values": {"messages": [user("long " * 2000)], "tools": [{"n": [1] * 2000}]},
    "outermost keys": {"messages": [user("a")], **{f"k{n}": n for n in range(1000)}},
}


@pytest.mark.parametrize("name", OVER)
async def test_s2_a_body_over_a_limit_is_passed_on_unchanged_with_a_header(name: str) -> None:
    async with run_upstream(fine) as upstream, run_proxy(upstream.port, policy="thrifty", limits=FEW) as proxy:
        got = await proxy.post({"model": "m", **OVER[name]})
        assert (got.status, got.body, got.header("x-context-fallback")) == (200, ANSWER, "size")
        assert json.loads(upstream.requests[-1].body) == {"model": "m", **OVER[name]}
        assert proxy.count("fallbacks_total", reason="size") == 1
        within = {"messages": [user([{"type": "text", "text": "a, [b], {c}, " * 400}])] * 20}
        assert (await proxy.post({"model": "m", **within})).header("x-context-fallback") is None


@pytest.mark.parametrize("stream", [False, True])
async def test_s2_an_answer_with_too_many_values_is_passed_on_unchanged(stream: bool) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}
    said = [json.dumps({"choices": [choice], "more": [0] * count}).encode() for count in (9_000, 11_000)]

    async def answer(_: RawRequest, connection: Connection) -> None:
        await connection.send(HEAD + b"content-length: %d\r\n\r\n" % len(said[0]), said[0])

    async with run_upstream(answer) as upstream, run_proxy(upstream.port, limits=FEW) as proxy:
        for status in ("complete", "partial"):
            got = await proxy.post({"model": "m", "messages": [user("a")], "stream": stream})
            assert (got.status, got.body) == (200, said.pop(0))
            assert (await proxy.outcome())[0] == status


async def test_s2_a_history_that_grows_over_a_limit_is_passed_on_unchanged_from_then_on() -> None:
    async with run_upstream(fine) as upstream, run_proxy(upstream.port, policy="thrifty", limits=FEW) as proxy:
        told = []
        for count in range(15, 25):
            history = [user(f"message {n} " + "word " * 100) for n in range(count)]
            told.append((await proxy.post({"model": "m", "messages": history})).header("x-context-fallback"))
        assert told == [None] * 6 + ["size"] * 4


async def test_s2_a_body_too_large_to_be_read_still_finds_the_upstream_of_its_model() -> None:
    async with run_upstream(fine) as one, run_upstream(fine) as other:
        upstreams = {
            name: {"base_url": f"http://127.0.0.1:{there.port}/v1", "models": [pattern]}
            for name, there, pattern in (("one", one, "a-*"), ("other", other, "b-*"))
        }
        async with run_proxy("", upstreams=upstreams, limits={"managed_mb": 1}) as proxy:
            said = [user('"model": "a-1" ' * 80_000)]
            got = await proxy.post({"metadata": {"model": "a-2"}, "messages": said, "model": "b-1"})
            assert (got.status, got.header("x-context-fallback")) == (200, "size")
        assert (len(one.requests), len(other.requests)) == (0, 1)


async def test_s2_bodies_together_are_bounded_and_who_comes_later_is_told_to_come_back() -> None:
    async with run_upstream(fine) as upstream, run_proxy(upstream.port, limits={"bodies_mb": 1}) as proxy:
        whole = json.dumps({"model": "m", "messages": [user("x" * 900_000)]}).encode()
        begun = await connect(proxy.port)
        await begun.send(make_post(CHAT, whole)[:-1])
        await wait_until(lambda: proxy.app.body_budget.held > 900_000)
        refused = await proxy.post({"model": "m", "messages": [user("y" * 200_000)]})
        assert (refused.status, refused.header("retry-after")) == (503, "1")
        assert proxy.count("refused_requests_total") == 1
        assert (await proxy.post({"model": "m", "messages": [user("z" * 1000)]})).status == 200
        await begun.send(whole[-1:])
        assert parse_answer(await begun.reader.read()).status == 200
        await wait_until(lambda: proxy.app.body_budget.held == 0)
        assert (await proxy.post({"model": "m", "messages": [user("y" * 200_000)]})).status == 200
        begun.writer.transport.abort()


class Held:
    """The processor time of a proxy in a thread of its own while its event loop did nothing else, at the longest: of
    the whole process, since a worker that cannot be interrupted holds the loop as well; and of the loop's thread."""

    def __init__(self, proxy: RunningProxy) -> None:
        self._proxy = proxy
        self._watching = True
        self.process = self.loop = 0.0

    async def _watch(self) -> None:
        whole, own = time.process_time(), time.thread_time()
        while self._watching:
            await asyncio.sleep(0.001)
            before, whole = whole, time.process_time()
            self.process = max(self.process, whole - before)
            before, own = own, time.thread_time()
            self.loop = max(self.loop, own - before)

    async def by(self, body: bytes) -> tuple[float, float]:
        """(of the process, of the loop's thread) while it answers this."""
        self.process = self.loop = 0.0
        self._watching = True
        assert self._proxy.beside is not None
        watching = asyncio.run_coroutine_threadsafe(self._watch(), self._proxy.beside)
        got = parse_answer(
            await send_raw(self._proxy.port, make_post(CHAT, body, b"content-type: application/json"), 60)
        )
        assert (got.status, got.body) == (200, ANSWER)
        await asyncio.sleep(1.0)  # what is done after the answer counts, too
        self._watching = False
        await asyncio.wrap_future(watching)
        return self.process, self.loop


def called(arguments: bytes, result: bytes) -> bytes:
    """A conversation with one call. Both are what stands between the quotes."""
    return (
        b'{"model":"m","messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":'
        b'"c1","type":"function","function":{"name":"bash","arguments":"%b"}}]},{"role":"tool","tool_call_id":"c1",'
        b'"content":"%b"},{"role":"user","content":"b"}]}' % (arguments, result)
    )


EMBEDDED: dict[str, Callable[[int], bytes]] = {
    "lists in arguments": lambda n: called(b"[%b[]]" % (b"[]," * n), b"ok"),
    "lists in an argument": lambda n: called(b'{\\"command\\":[%b[]]}' % (b"[]," * n), b"ok"),
    "objects in a result": lambda n: called(b"{}", b'{\\"output\\":[%b{}]}' % (b"{}," * n)),
}


@pytest.mark.parametrize("name", EMBEDDED)
async def test_s2_json_inside_of_strings_holds_nobody_longer_than_text(record_property: Record, name: str) -> None:
    async with run_upstream(fine) as upstream:
        with run_proxy_in_thread(upstream.port, policy="thrifty") as proxy:
            held = Held(proxy)
            await held.by(called(b"{}", b"ok"))
            text, _ = await held.by(called(b"{}", b"word word " * 1_200_000))
            process, loop = await held.by(EMBEDDED[name](4_000_000))
            told = f"{name}: {process * 1000:.0f} ms, as much text {text * 1000:.0f} ms; loop {loop * 1000:.0f} ms"
            record_property("measured", told)
            print(told)
            assert process <= 3 * text + 0.1
            assert loop <= 0.1
            _, small = await held.by(EMBEDDED[name](19_000))
            assert small <= 0.1, "a body that is planned in the event loop itself"
