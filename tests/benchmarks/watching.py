"""How late the tokens of open streams come while a person opens a session of 1,660 messages in the dashboard.

Sixteen streams run, 20 ms between two chunks. A chunk is late by the time since the chunk before it, less the 20 ms.
The same is measured while nobody looks: a shared machine is late by itself. The probe tells how long the event loop was
held, of that by the process itself.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence

from tests.benchmarks.driver import HEAD, Broken, Connection, drive
from tests.benchmarks.probe import longest
from tests.benchmarks.rows import Row, figure, percentile, quartiles
from tests.benchmarks.scope import Scope
from tests.benchmarks.starting import Server, proxy, upstream
from tests.benchmarks.traffic import long, short

STREAMS, GAP_MS = 16, 20
MESSAGES, SIZE = 1660, 800_000
PAGE_REQUESTS = (
    "/api/me", "/api/money?step=auto", "/api/money?step=day", "/api/stats", "/api/policies", "/api/live",
    "/api/sessions/{s}/exchanges?limit=1", "/api/sessions/{s}", "/api/sessions/{s}/stats", "/api/sessions/{s}/settings",
    "/api/sessions/{s}/prompt_chart", "/api/sessions/{s}/exchanges?limit=40", "/api/sessions/{s}/points?limit=200",
    "/api/sessions/{s}/prompt", "/api/sessions/{s}/exchanges/{e}/prompt", "/api/sessions/{s}/search?q=handler",
    "/api/search?q=handler", "/api/sessions/{s}/state", "/api/sessions/{s}/summaries?limit=50",
)  # fmt: skip
"""The requests of the dashboard's pages: the overview, and each tab of the session."""
QUIET, WATCHED = "nobody looks", "the session is opened"


async def fetch(server: Server, path: str) -> bytes:
    """The body of one answer of the admin API."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\nauthorization: Bearer sk-bench\r\n\r\n"
    writer.write(head.encode())
    raw = await reader.read()
    writer.close()
    if not raw.startswith(b"HTTP/1.1 200"):
        raise Broken(f"{path}: {raw[:200]!r}")
    return raw.partition(b"\r\n\r\n")[2]


async def listen(server: Server, body: bytes, late: list[float]) -> None:
    """One stream to its end; adds the milliseconds by which its chunks were late."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"{HEAD.format(server.path)}content-length: {len(body)}\r\n\r\n".encode() + body)
    before, tail = 0.0, b""
    while b"[DONE]" not in tail:
        data = await reader.read(65536)
        if not data:
            raise Broken("a stream ended early")
        now = time.perf_counter()
        if before:
            late.append(max(0.0, (now - before) * 1000 - GAP_MS))
        before, tail = now, (tail + data)[-64:]
    writer.close()


async def look(server: Server, names: dict[str, str], over: asyncio.Event) -> None:
    """All requests of the dashboard's pages, again and again."""
    while not over.is_set():
        for path in PAGE_REQUESTS:
            await fetch(server, path.format(**names))


async def streams(server: Server, seed: str, count: int, names: dict[str, str] | None) -> list[float]:
    """The milliseconds by which the chunks of all streams were late. names: the session that is looked at meanwhile."""
    late: list[float] = []
    over = asyncio.Event()
    looking = asyncio.create_task(look(server, names, over)) if names is not None else None
    bodies = [short(f"{seed}_{n}", stream=True, gap=GAP_MS).body() for n in range(count)]
    await asyncio.gather(*(listen(server, body, late) for body in bodies))
    over.set()
    if looking is not None:
        await looking
    return late


async def prepare(server: Server, scope: Scope) -> dict[str, str]:
    """Store the long session; its name and its exchange."""
    connection = Connection(server)
    await connection.ask(long("watched", scope.few(MESSAGES, 40), scope.few(SIZE, 20_000)).body())
    connection.close()
    listed = json.loads(await fetch(server, "/api/sessions?limit=1"))["items"]
    name = listed[0]["address"]
    exchange = json.loads(await fetch(server, f"/api/sessions/{name}/exchanges?limit=1"))["items"][0]["exchange"]
    return {"s": name, "e": exchange}


def rows_of(case: str, late: Sequence[Sequence[float]], held: Sequence[tuple[float, float]]) -> list[Row]:
    """The rows of one case: a value a round."""
    values = {
        "99 of 100 tokens are late by at most": [percentile(one, 0.99) for one in late],
        "the latest token": [max(one) for one in late],
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
    """Both cases, in turn."""
    late: dict[str, list[list[float]]] = {QUIET: [], WATCHED: []}
    held: dict[str, list[tuple[float, float]]] = {QUIET: [], WATCHED: []}
    count = scope.few(STREAMS, 2)
    with upstream() as up, proxy(up.port, probe=True) as ours:
        names = drive(lambda: prepare(ours, scope))
        for number in range(scope.rounds):
            for case, looked_at in ((QUIET, None), (WATCHED, names)):
                scope.say(f"{case}, round {number + 1}")
                longest(ours.pid, ours.probe)
                seed = f"w{number}{len(case)}"
                late[case].append(drive(lambda: streams(ours, seed, count, looked_at)))  # noqa: B023  run at once
                held[case].append(longest(ours.pid, ours.probe))
    return [row for case in late for row in rows_of(case, late[case], held[case])]
