"""Processor time by number of stored rows: of the writes and reads of a request, and of whole requests.

Writes and reads are measured on the store alone, in this process. Whole requests are measured on the running proxy,
beside the bare pass-through.
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
from tests.benchmarks.driver import send_all
from tests.benchmarks.fill_store import fill_with_copies, make_template_store
from tests.benchmarks.meter import wait_until_idle
from tests.benchmarks.rows import Row, compare_servers, rotate_order
from tests.benchmarks.scope import Scope
from tests.benchmarks.start_servers import BARE, PROXY, start_bare, start_proxy, start_upstream
from tests.benchmarks.traffic import Conversation, iter_growing
from tests.proxy_server import run_proxy

ROWS = (10_000, 100_000, 1_000_000)
REQUESTS = 80
OPERATIONS = 200
STORE = "store alone"


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A stored conversation, with the values by which it is looked up."""

    tenant: str
    session: str
    branch: str
    keys: list[bytes]


def pick_conversations(db: Path, wanted: int) -> list[StoredConversation]:
    """Pick conversations of a store at random."""
    chance = random.Random(3)
    with closing(sqlite3.connect(db)) as connection:
        all_ = connection.execute("SELECT tenant, session, branch FROM branches").fetchall()
        found = []
        keys = "SELECT key FROM messages WHERE tenant = ? AND session = ? ORDER BY position"
        for tenant, session, branch in chance.choices(all_, k=wanted):
            rows = connection.execute(keys, (tenant, session)).fetchall()
            found.append(StoredConversation(tenant, session, branch, [row[0] for row in rows]))
        return found


async def capture_rows() -> tuple[list[Stored], list[Stored]]:
    """Return the rows that the proxy stores for the first request of a conversation, and for the second."""
    batches: list[Stored] = []

    def capture_puts(app: ContextProxy) -> None:
        put = app.store.put

        def capture(rows: Sequence[Stored]) -> asyncio.Future[None]:
            batches.extend(rows)
            return put(rows)

        app.store.put = app.store.put_deferred = capture  # type: ignore[method-assign]  # to see the rows

    async with run_proxy("demo", before=capture_puts, policy="thrifty") as proxy_:
        talk: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "Hello."}]}
        heard = await proxy_.post(talk)
        await proxy_.outcome()
        first = list(batches)
        batches.clear()
        talk["messages"] += [heard.message, {"role": "user", "content": "And now?"}]
        await proxy_.post(talk)
        await proxy_.outcome()
        return first, batches


async def time_operation(work: Callable[[int], Awaitable[object]], count: int) -> float:
    """Return microseconds of processor time per operation, of all threads of this process."""
    await work(0)
    before = time.process_time()
    for n in range(1, count + 1):
        await work(n)
    return (time.process_time() - before) / count * 1e6


async def measure_store(db: Path, rounds: int, count: int) -> dict[str, list[float]]:
    """Measure the microseconds of each operation of the store, one value per round."""
    first, after = await capture_rows()
    known = pick_conversations(db, count + 1)
    store = SqliteStore(db)
    await store.open()

    async def write(rows: list[Stored], session: str) -> None:
        await store.put([msgspec.structs.replace(row, session=session) for row in rows])

    def found(n: int) -> Awaitable[object]:
        return store.find_chain_hits(known[n].tenant, known[n].keys, None)

    def find_unknown(n: int) -> Awaitable[object]:
        return store.find_chain_hits(known[n].tenant, [os.urandom(len(key)) for key in known[n].keys], None)

    def branch(n: int) -> Awaitable[object]:
        return store.read_branch(known[n].tenant, known[n].session, known[n].branch)

    def page(n: int) -> Awaitable[object]:
        return store.read_messages(known[n].tenant, known[n].session)

    taken: dict[str, list[float]] = {}
    try:
        for number in range(rounds):

            def write_first(n: int, number: int = number) -> Awaitable[object]:
                return write(first, f"n{number}_{n}")

            def write_next(n: int, number: int = number) -> Awaitable[object]:
                return write(after, f"n{number}_{n}")

            for name, work in {
                f"{len(first)} rows written, new": write_first,
                f"{len(after)} rows written, next": write_next,
                "a conversation found": found,
                "a conversation not found": find_unknown,
                "a branch read back": branch,
                "a page of messages read": page,
            }.items():
                taken.setdefault(name, []).append(await time_operation(work, count))
    finally:
        await store.close()
    return taken


def measure_requests(db: Path, scope: Scope, stored: str) -> list[Row]:
    """Measure microseconds per request, of the proxy with this store and of the bare pass-through."""
    rows: list[Row] = []
    count = scope.choose_count(REQUESTS, 4)
    with start_upstream() as up, start_bare(up.port) as simple, start_proxy(up.port, str(db)) as ours:
        for kind, each in (("new", 1), ("grows", 8)):
            spent: dict[str, list[float]] = {BARE: [], PROXY: []}
            for number in range(-1, scope.rounds):
                talks = [Conversation(f"w{kind}{number}_{n}", prompt=500) for n in range(count // each + 1)]
                opening = [body for talk in talks for body in iter_growing(talk, 1 if each > 1 else 0, 200)]
                bodies = [body for talk in talks for body in iter_growing(talk, each, 200)]
                for server in rotate_order([simple, ours], number):
                    send_all(server, [opening])
                    before = wait_until_idle(server.pid)
                    send_all(server, [bodies])
                    spent[server.name].append((wait_until_idle(server.pid) - before).total / len(bodies) * 1e6)
            spent = {name: values[1:] for name, values in spent.items()}
            rows += compare_servers({"case": f"a request, {kind}", "stored": stored}, "us", spent)
    return rows


def run(scope: Scope) -> list[Row]:
    """Measure from few rows to many."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "template.sqlite3"
        make_template_store(empty, scope.choose_count(40, 4))
        for wanted in ROWS[: scope.choose_count(len(ROWS), 1)]:
            name = f"{wanted:,}"
            if not scope.selects(f"{name} rows"):
                continue
            db = Path(folder) / "full.sqlite3"
            shutil.copy(empty, db)
            fill_with_copies(db, scope.choose_count(wanted, 1000))
            rows += measure_requests(db, scope, name)
            taken = asyncio.run(measure_store(db, scope.rounds, scope.choose_count(OPERATIONS, 3)))
            for case, values in taken.items():
                rows += compare_servers({"case": case, "stored": name}, "us", {STORE: values})
            db.unlink()
    return rows
