"""Measure processor time and disk space of a request: the table in docs/deploy/postgres-and-replicas.md.

    python -m tests.replicas.sizing

Processor time is the process's own (and PostgreSQL's), not the clock's, so that it means something on a busy machine;
bytes and rows are counted in the store afterwards.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.faults.fork_server import ForkServer
from tests.postgres import Server, execute, new_database, server
from tests.proxy_server import CHAT, parse_answer
from tests.raw_upstream import HEAD, Connection, RawRequest, make_post, run_upstream, send_raw

TICK = os.sysconf("SC_CLK_TCK")
WARM = 40
COUNT = 400
TABLES = ("sessions", "branches", "messages", "forms", "edits", "states", "exchanges")
TOOLS = [
    {"type": "function", "function": {"name": f"tool_{n}", "description": "d" * 300, "parameters": {"type": "object"}}}
    for n in range(10)
]


async def model(_: RawRequest, connection: Connection) -> None:
    message = {"role": "assistant", "content": "It is so, as far as can be seen. " * 10}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = json.dumps({"id": "c", "object": "chat.completion", "choices": [choice]}).encode()
    await connection.send(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)


def seconds(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def of_server(pid: int) -> float:
    """Of a PostgreSQL server: what its processes have used, those that have ended included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ended = (int(fields[13]) + int(fields[14])) / TICK
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return seconds(pid) + ended + sum(seconds(int(child)) for child in children)


async def short(port: int, count: int, start: int) -> int:
    """Conversations of five requests, of 1 KB on average. The bytes of their messages."""
    told = 0
    for n in range(start, start + count // 5):
        messages: list[dict[str, Any]] = []
        for turn in range(5):
            messages.append({"role": "user", "content": f"{n}.{turn} " + "word " * 12})
            told += await send_and_measure(
                port, {"model": "m", "messages": messages}, b"x-session-id: short-%d" % n, messages
            )
    return told


async def long(port: int, count: int, start: int, history: list[dict[str, Any]]) -> int:
    """One conversation whose requests are some 200 KB."""
    told = 0
    for n in range(start, start + count):
        history.append({"role": "user", "content": f"{n} " + "word " * 100})
        told += await send_and_measure(
            port, {"model": "m", "messages": history, "tools": TOOLS}, b"x-session-id: long", history
        )
    return told


async def send_and_measure(port: int, body: dict[str, Any], line: bytes, messages: list[dict[str, Any]]) -> int:
    raw = json.dumps(body).encode()
    found = parse_answer(await send_raw(port, make_post(CHAT, raw, b"content-type: application/json", line), 60))
    assert found.status == 200, found.body
    messages.append(found.message)
    return sum(len(json.dumps(m)) for m in messages[-2:])


async def measure(fork_server: ForkServer, db: str, upstream: int, postgres: Server | None) -> dict[str, str]:
    """One row of the table a size."""
    made = {}
    for size in ("1 KB", "200 KB"):
        where = await new_database(postgres.url) if postgres is not None else f"{db}-{size[:1]}.sqlite3"
        tree = {"db": where, "upstream": f"http://127.0.0.1:{upstream}/v1", "policy": "thrifty", "log_level": "error"}
        pid, port = await fork_server.started(**tree)
        history = [{"role": "system", "content": "word " * 37_000}] if size == "200 KB" else []

        async def run(count: int, start: int) -> int:
            return await (long(port, count, start, history) if history else short(port, count, start))  # noqa: B023

        await run(WARM, 100_000)
        rows, size_before = await stored(where)
        before, there = seconds(pid), of_server(postgres.process.pid) if postgres is not None else 0.0
        told = await run(COUNT, 0)
        used = (seconds(pid) - before) / COUNT
        theirs = (of_server(postgres.process.pid) - there) / COUNT if postgres is not None else 0.0
        rows_after, size_after = await stored(where)
        new = {table: (rows_after[table] - rows[table]) / COUNT for table in TABLES}
        messages = rows_after["messages"] - rows["messages"]
        made[size] = (
            f"{used * 1000:.2f} ms processor ({1 / used:.0f}/s a core), PostgreSQL {theirs * 1000:.2f} ms; "
            f"{sum(new.values()):.1f} rows a request {new}; "
            f"{(size_after - size_before) / messages:.0f} bytes a message of {told / messages:.0f} bytes"
        )
        await asyncio.to_thread(fork_server.end, pid)
    return made


async def stored(where: str) -> tuple[dict[str, int], int]:
    """(rows a table, bytes with indexes) of a store."""
    await asyncio.sleep(0.3)
    if where.startswith("postgresql"):
        await execute(where, "CHECKPOINT")
        counts = {t: int(str((await execute(where, f"SELECT count(*) FROM {t}"))[0][0])) for t in TABLES}
        size = "SELECT sum(pg_total_relation_size(relid)) FROM pg_statio_user_tables"
        return counts, int(str((await execute(where, size))[0][0]))
    with closing(sqlite3.connect(f"file:{where}?mode=ro", uri=True)) as found:
        counts = {t: found.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in TABLES}
        pages, page = (found.execute(f"PRAGMA page_{name}").fetchone()[0] for name in ("count", "size"))
        return counts, pages * page


async def main() -> None:
    fork_server = ForkServer()
    try:
        async with run_upstream(model) as upstream:
            with tempfile.TemporaryDirectory() as folder, server() as postgres:
                for name, at in (("SQLite", None), ("PostgreSQL", postgres)):
                    for size, row in (await measure(fork_server, f"{folder}/s", upstream.port, at)).items():
                        print(f"{name}, {size}: {row}", flush=True)
    finally:
        fork_server.close()


if __name__ == "__main__":
    asyncio.run(main())
