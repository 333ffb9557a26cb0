"""Lateness of the tokens of open streams while a person opens a session of 1,660 messages in the dashboard.

    python tests/benchmarks/dashboard_load.py PORT SESSION EXCHANGE

Sixteen streams run, with 20 ms between two chunks. The lateness of a chunk is the time since the chunk before it, less
the 20 ms. The end of a stream does not count as a token: before it, the proxy stores the turn, which takes the
time of a disk in every case.

Each round measures three cases. In the first, nobody opens the dashboard. In the second, the session is opened in
another proxy on the same machine: this lateness comes from the machine, which does both. In the third, the session is
opened in the measured proxy. A process of its own (the command above) requests the pages, so that the process with the
streams does nothing else. The probe measures the holds of the event loop.
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

from tests.benchmarks.driver import HEAD, Connection, UnexpectedAnswer, run_client
from tests.benchmarks.event_loop_probe import read_longest_hold
from tests.benchmarks.rows import Row, compute_quartiles, find_percentile, round_figure
from tests.benchmarks.scope import Scope
from tests.benchmarks.start_servers import Server, start_proxy, start_upstream
from tests.benchmarks.traffic import make_long, make_short

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
"""The requests of the dashboard's pages: the overview, each tab of the session, the search. Those of one tuple are sent
at once, as the pages do it."""
QUIET, BESIDE, WATCHED = "nobody looks", "the session is opened in another proxy", "the session is opened"


@dataclass(slots=True)
class Lateness:
    """Milliseconds by which tokens, and the ends of streams, were late."""

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
        raise UnexpectedAnswer(f"{path}: {raw[:200]!r}")
    return raw.partition(b"\r\n\r\n")[2]


async def read_stream(server: Server, body: bytes, late: Lateness) -> None:
    """Read one stream to its end; record the lateness of its chunks."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"{HEAD.format(server.path)}content-length: {len(body)}\r\n\r\n".encode() + body)
    before, tail, ended = 0.0, b"", False
    while not ended:
        data = await reader.read(65536)
        if not data:
            raise UnexpectedAnswer("a stream ended early")
        now = time.perf_counter()
        ended = b"[DONE]" in tail + data
        if before:
            (late.ends if ended else late.tokens).append(max(0.0, (now - before) * 1000 - GAP_MS))
        before, tail = now, data[-64:]
    writer.close()


async def measure_streams(server: Server, seed: str, count: int) -> Lateness:
    """Run all streams; return the lateness of their chunks."""
    late = Lateness()
    bodies = [make_short(f"{seed}_{n}", stream=True, gap=GAP_MS).body() for n in range(count)]
    await asyncio.gather(*(read_stream(server, body, late) for body in bodies))
    return late


@contextmanager
def open_dashboard(server: Server, names: dict[str, str]) -> Iterator[None]:
    """Run a process that opens the pages of the dashboard again and again."""
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
        raise UnexpectedAnswer("the pages were not opened while the streams ran")


def view_pages(port: int, names: dict[str, str]) -> None:
    """Request all pages again and again until SIGTERM; print the number of requests."""

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

    print(run_client(ask), flush=True)


async def store_long_session(server: Server, scope: Scope) -> dict[str, str]:
    """Store the long session; return its name (`s`) and its exchange (`e`)."""
    connection = Connection(server)
    await connection.send(
        make_long("watched", scope.choose_count(MESSAGES, 40), scope.choose_count(SIZE, 20_000)).body()
    )
    connection.close()
    listed = json.loads(await fetch(server.port, "/api/sessions?limit=1"))["items"]
    name = listed[0]["address"]
    exchange = json.loads(await fetch(server.port, f"/api/sessions/{name}/exchanges?limit=1"))["items"][0]["exchange"]
    return {"s": name, "e": exchange}


def make_rows(case: str, late: Sequence[Lateness], held: Sequence[tuple[float, float]]) -> list[Row]:
    """Return the rows of one case: the median of all rounds, and the worst round."""
    values = {
        "99 of 100 tokens are late by at most": [find_percentile(one.tokens, 0.99) for one in late],
        "the latest token": [max(one.tokens) for one in late],
        "the latest token, worst round": [max(max(one.tokens) for one in late)],
        "the latest end of a stream": [max(one.ends) for one in late],
        "the loop was held, by the clock": [clock for clock, _ in held],
        "the loop was held, by itself": [own for _, own in held],
    }
    rows = []
    for what, found in values.items():
        low, middle, high = compute_quartiles(found)
        rows.append({
            "case": f"{case}: {what}", "server": "context-proxy", "unit": "ms", "value": round_figure(middle),
            "q1": round_figure(low), "q3": round_figure(high), "rounds": len(found),
        })  # fmt: skip
    return rows


def run(scope: Scope) -> list[Row]:
    """Measure the three cases in turn."""
    late: dict[str, list[Lateness]] = {QUIET: [], BESIDE: [], WATCHED: []}
    held: dict[str, list[tuple[float, float]]] = {case: [] for case in late}
    count = scope.choose_count(STREAMS, 2)
    with start_upstream() as up, start_proxy(up.port, probe=True) as ours, start_proxy(up.port) as other:
        opened = {
            QUIET: None,
            BESIDE: (other, run_client(lambda: store_long_session(other, scope))),
            WATCHED: (ours, run_client(lambda: store_long_session(ours, scope))),
        }
        for number in range(scope.rounds):
            for case, looked_at in opened.items():
                scope.report(f"{case}, round {number + 1}")
                read_longest_hold(ours.pid, ours.probe)
                seed = f"w{number}{len(case)}"
                with open_dashboard(*looked_at) if looked_at is not None else nullcontext():
                    found = run_client(lambda: measure_streams(ours, seed, count))  # noqa: B023  run at once
                late[case].append(found)
                held[case].append(read_longest_hold(ours.pid, ours.probe))
                scope.report(f"  latest token {max(found.tokens):.1f} ms, latest end {max(found.ends):.1f} ms")
    return [row for case in late for row in make_rows(case, late[case], held[case])]


if __name__ == "__main__":
    view_pages(int(sys.argv[1]), {"s": sys.argv[2], "e": sys.argv[3]})
