"""What the store takes with ever more rows in it: a request's rows written, the reads of a request, and requests whole.

Writes and reads are those of the store alone, in this process; requests are the served proxy's, beside the bare one's.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from proxy.store.base import Row as Stored
from proxy.store.sqlite import SqliteStore
from proxy.web.app import ContextProxy
from tests.benchmarks.driver import drive, send
from tests.benchmarks.filling import fill, template
from tests.benchmarks.meter import settled
from tests.benchmarks.rows import Row, compared, turned
from tests.benchmarks.scope import Scope
from tests.benchmarks.starting import BARE, PROXY, bare, proxy, upstream
from tests.benchmarks.traffic import Conversation, growing
from tests.running import running

ROWS = (10_000, 100_000, 1_000_000)
REQUESTS = 80
OPERATIONS = 200
STORE = "store alone"


@dataclass(frozen=True, slots=True)
class Place:
    """Some stored conversation, as it is looked for."""

    tenant: str
    session: str
    branch: str
    keys: list[bytes]


def places(db: Path, wanted: int) -> list[Place]:
    """Some conversations of a store, from all over it."""
    chance = random.Random(3)
    with closing(sqlite3.connect(db)) as connection:
        all_ = connection.execute("SELECT tenant, session, branch FROM branches").fetchall()
        found = []
        keys = "SELECT key FROM messages WHERE tenant = ? AND session = ? ORDER BY position"
        for tenant, session, branch in chance.choices(all_, k=wanted):
            rows = connection.execute(keys, (tenant, session)).fetchall()
            found.append(Place(tenant, session, branch, [row[0] for row in rows]))
        return found


async def captured() -> tuple[list[Stored], list[Stored]]:
    """The rows of a conversation's first request, and those of its next: what the proxy really gives to the store."""
    batches: list[Stored] = []

    def tap(app: ContextProxy) -> None:
        put = app.store.put

        def noted(rows: Sequence[Stored]) -> asyncio.Future[None]:
            batches.extend(rows)
            return put(rows)

        app.store.put = app.store.put_deferred = noted  # type: ignore[method-assign]  # to see what comes

    async with running("demo", before=tap, policy="thrifty") as proxy_:
        talk: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Hello."}]}
        heard = await proxy_.post(talk)
        await proxy_.outcome()
        first = list(batches)
        batches.clear()
        talk["messages"] += [heard.message, {"role": "user", "content": "And now?"}]
        await proxy_.post(talk)
        await proxy_.outcome()
        return first, batches


async def timed(work: Callable[[int], Awaitable[object]], count: int) -> float:
    """Microseconds of processor time, all threads of this process, an operation."""
    await work(0)
    before = time.process_time()
    for n in range(1, count + 1):
        await work(n)
    return (time.process_time() - before) / count * 1e6


async def alone(db: Path, rounds: int, count: int) -> dict[str, list[float]]:
    """Microseconds of each operation of the store, a round each."""
    first, after = await captured()
    known = places(db, count + 1)
    store = SqliteStore(db)
    await store.open()

    async def write(rows: list[Stored], session: str) -> None:
        await store.put([msgspec.structs.replace(row, session=session) for row in rows])

    def found(n: int) -> Awaitable[object]:
        return store.find_chain_hits(known[n].tenant, known[n].keys, None)

    def missed(n: int) -> Awaitable[object]:
        return store.find_chain_hits(known[n].tenant, [os.urandom(len(key)) for key in known[n].keys], None)

    def branch(n: int) -> Awaitable[object]:
        return store.read_branch(known[n].tenant, known[n].session, known[n].branch)

    def page(n: int) -> Awaitable[object]:
        return store.read_messages(known[n].tenant, known[n].session)

    taken: dict[str, list[float]] = {}
    try:
        for number in range(rounds):

            def begun(n: int, number: int = number) -> Awaitable[object]:
                return write(first, f"n{number}_{n}")

            def gone_on(n: int, number: int = number) -> Awaitable[object]:
                return write(after, f"n{number}_{n}")

            for name, work in {
                f"{len(first)} rows written, new": begun,
                f"{len(after)} rows written, next": gone_on,
                "a conversation found": found,
                "a conversation not found": missed,
                "a branch read back": branch,
                "a page of messages read": page,
            }.items():
                taken.setdefault(name, []).append(await timed(work, count))
    finally:
        await store.close()
    return taken


def whole(db: Path, scope: Scope, stored: str) -> list[Row]:
    """Microseconds a request of the proxy with this store, and of the bare one."""
    rows: list[Row] = []
    count = scope.few(REQUESTS, 4)
    with upstream() as up, bare(up.port) as simple, proxy(up.port, str(db)) as ours:
        for kind, each in (("new", 1), ("grows", 8)):
            spent: dict[str, list[float]] = {BARE: [], PROXY: []}
            for number in range(-1, scope.rounds):
                talks = [Conversation(f"w{kind}{number}_{n}", prompt=500) for n in range(count // each + 1)]
                opening = [body for talk in talks for body in growing(talk, 1 if each > 1 else 0, 200)]
                bodies = [body for talk in talks for body in growing(talk, each, 200)]
                for server in turned([simple, ours], number):
                    drive(lambda: send(server, [opening]))  # noqa: B023  run at once
                    before = settled(server.pid)
                    drive(lambda: send(server, [bodies]))  # noqa: B023
                    spent[server.name].append((settled(server.pid) - before).all / len(bodies) * 1e6)
            spent = {name: values[1:] for name, values in spent.items()}
            rows += compared({"case": f"a request, {kind}", "stored": stored}, "us", spent)
    return rows


def run(scope: Scope) -> list[Row]:
    """From few rows to many."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "template.sqlite3"
        template(empty, scope.few(40, 4))
        for wanted in ROWS[: scope.few(len(ROWS), 1)]:
            name = f"{wanted:,}"
            if not scope.wants(f"{name} rows"):
                continue
            db = Path(folder) / "full.sqlite3"
            shutil.copy(empty, db)
            fill(db, scope.few(wanted, 1000))
            rows += whole(db, scope, name)
            taken = asyncio.run(alone(db, scope.rounds, scope.few(OPERATIONS, 3)))
            for case, values in taken.items():
                rows += compared({"case": case, "stored": name}, "us", {STORE: values})
            db.unlink()
    return rows
