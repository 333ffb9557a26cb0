"""How late the tokens of open streams come while a person opens a session of 1,660 messages in the dashboard.

    python tests/benchmarks/watching.py PORT SESSION EXCHANGE

Sixteen streams run, 20 ms between two chunks. A chunk is late by the time since the chunk before it, less the 20 ms.
The end of a stream is no token: before it the proxy has the turn stored, which takes a disk's time whoever looks.

Each round measures three cases. Nobody looks. Then the session is opened in another proxy beside the measured one: the
same work at the same time, so that what comes late by it comes late by the machine, which has to do both. Then the
session is opened in the measured proxy. The pages are asked for by a process of its own (the command above), so that
the one that stamps the tokens does nothing else. The probe tells how long the event loop was held.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.driver import HEAD, Broken, Connection, drive
from tests.benchmarks.probe import longest
from tests.benchmarks.rows import Row, figure, percentile, quartiles
from tests.benchmarks.scope import Scope
from tests.benchmarks.starting import Server, proxy, upstream
from tests.benchmarks.traffic import long, short

STREAMS, GAP_MS = 16, 20
MESSAGES, SIZE = 1660, 800_000
SESSION = "/api/sessions/{s}"
PAGE = "prompt?first=0&limit=400&changed=true"
OPENED = ((f"{SESSION}/exchanges?limit=1",), (SESSION, f"{SESSION}/stats"))
PAGES = (
    ("/api/me",), ("/api/money?step=auto", "/api/money?since=1&step=day", "/api/stats", "/api/live", "/api/policies"),
    *OPENED, (f"{SESSION}/prompt_chart",), (f"{SESSION}/search?q=handler&limit=20",),
    *OPENED, (f"{SESSION}/exchanges?limit=40", f"{SESSION}/points?limit=200"),
    (f"{SESSION}/{PAGE}",), (f"{SESSION}/exchanges/{{e}}/{PAGE}",),
    *OPENED, (f"{SESSION}/points?limit=200",),
    *OPENED, tuple(f"{SESSION}/{one}" for one in ("state", "scratchpad", "notes", "feedback", "summaries?limit=50")),
    *OPENED, (f"{SESSION}/settings", "/api/policies"), ("/api/search?q=handler",),
)  # fmt: skip
"""The requests of the dashboard's pages: the overview, each tab of the session, the search. Those in a line are sent at
once, as the pages do it."""
QUIET, BESIDE, WATCHED = "nobody looks", "the session is opened in another proxy", "the session is opened"


@dataclass(slots=True)
class Late:
    """Milliseconds by which tokens, and the ends of streams, came late."""

    tokens: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)


async def fetch(port: int, path: str) -> bytes:
    """The body of one answer of the admin API."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\nauthorization: Bearer sk-bench\r\n\r\n"
    writer.write(head.encode())
    raw = await reader.read()
    writer.close()
    if not raw.startswith(b"HTTP/1.1 200"):
        raise Broken(f"{path}: {raw[:200]!r}")
    return raw.partition(b"\r\n\r\n")[2]


async def listen(server: Server, body: bytes, late: Late) -> None:
    """One stream to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"{HEAD.format(server.path)}content-length: {len(body)}\r\n\r\n".encode() + body)
    before, tail, ended = 0.0, b"", False
    while not ended:
        data = await reader.read(65536)
        if not data:
            raise Broken("a stream ended early")
        now = time.perf_counter()
        ended = b"[DONE]" in tail + data
        if before:
            (late.ends if ended else late.tokens).append(max(0.0, (now - before) * 1000 - GAP_MS))
        before, tail = now, data[-64:]
    writer.close()


async def streams(server: Server, seed: str, count: int) -> Late:
    """How late the chunks of all streams were."""
    late = Late()
    bodies = [short(f"{seed}_{n}", stream=True, gap=GAP_MS).body() for n in range(count)]
    await asyncio.gather(*(listen(server, body, late) for body in bodies))
    return late


@contextmanager
def looking(server: Server, names: dict[str, str]) -> Iterator[None]:
    """A process that opens the dashboard's pages, again and again."""
    command = [sys.executable, str(Path(__file__).resolve()), str(server.port), names["s"], names["e"]]
    looker = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert looker.stdout is not None
    try:
        looker.stdout.readline()
        yield
    finally:
        looker.terminate()
        asked, _ = looker.communicate(timeout=60)
    if looker.returncode or not int(asked):
        raise Broken("the pages were not opened while the streams ran")


def look(port: int, names: dict[str, str]) -> None:
    """Ask for all pages, again and again, until SIGTERM; print the number of requests."""

    async def ask() -> int:
        over = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
        print("ready", flush=True)
        asked = 0
        while not over.is_set():
            for at_once in PAGES:
                await asyncio.gather(*(fetch(port, path.format(**names)) for path in at_once))
                asked += len(at_once)
                if over.is_set():
                    break
        return asked

    print(drive(ask), flush=True)


async def prepare(server: Server, scope: Scope) -> dict[str, str]:
    """Store the long session; its name and its exchange."""
    connection = Connection(server)
    await connection.ask(long("watched", scope.few(MESSAGES, 40), scope.few(SIZE, 20_000)).body())
    connection.close()
    listed = json.loads(await fetch(server.port, "/api/sessions?limit=1"))["items"]
    name = listed[0]["address"]
    exchange = json.loads(await fetch(server.port, f"/api/sessions/{name}/exchanges?limit=1"))["items"][0]["exchange"]
    return {"s": name, "e": exchange}


def rows_of(case: str, late: Sequence[Late], held: Sequence[tuple[float, float]]) -> list[Row]:
    """The rows of one case: a value a round, and the worst of all rounds."""
    values = {
        "99 of 100 tokens are late by at most": [percentile(one.tokens, 0.99) for one in late],
        "the latest token": [max(one.tokens) for one in late],
        "the latest token, worst round": [max(max(one.tokens) for one in late)],
        "the latest end of a stream": [max(one.ends) for one in late],
        "the loop was held, by the clock": [clock for clock, _ in held],
        "the loop was held, by itself": [own for _, own in held],
    }
    rows = []
    for what, found in values.items():
        low, middle, high = quartiles(found)
        rows.append({
            "case": f"{case}: {what}", "server": "context-proxy", "unit": "ms", "value": figure(middle),
            "q1": figure(low), "q3": figure(high), "rounds": len(found),
        })  # fmt: skip
    return rows


def run(scope: Scope) -> list[Row]:
    """The three cases, in turn."""
    late: dict[str, list[Late]] = {QUIET: [], BESIDE: [], WATCHED: []}
    held: dict[str, list[tuple[float, float]]] = {case: [] for case in late}
    count = scope.few(STREAMS, 2)
    with upstream() as up, proxy(up.port, probe=True) as ours, proxy(up.port) as other:
        opened = {
            QUIET: None,
            BESIDE: (other, drive(lambda: prepare(other, scope))),
            WATCHED: (ours, drive(lambda: prepare(ours, scope))),
        }
        for number in range(scope.rounds):
            for case, looked_at in opened.items():
                scope.say(f"{case}, round {number + 1}")
                longest(ours.pid, ours.probe)
                seed = f"w{number}{len(case)}"
                with looking(*looked_at) if looked_at is not None else nullcontext():
                    found = drive(lambda: streams(ours, seed, count))  # noqa: B023  run at once
                late[case].append(found)
                held[case].append(longest(ours.pid, ours.probe))
                scope.say(f"  latest token {max(found.tokens):.1f} ms, latest end {max(found.ends):.1f} ms")
    return [row for case in late for row in rows_of(case, late[case], held[case])]


if __name__ == "__main__":
    look(int(sys.argv[1]), {"s": sys.argv[2], "e": sys.argv[3]})
