"""Disk writes of the store: pages, bytes and system calls per exchange, on SQLite with thousands of sessions.

Pages are the frames that are appended to the write-ahead log. Bytes and calls are those of the writer thread, as Linux
counts them. They include the checkpoints, which copy the log into the database.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.driver import send_all
from tests.benchmarks.fill_store import fill_with_copies, make_template_store
from tests.benchmarks.meter import wait_until_idle
from tests.benchmarks.rows import Row, compare_servers
from tests.benchmarks.scope import Scope
from tests.benchmarks.start_servers import PROXY, start_proxy, start_upstream
from tests.benchmarks.traffic import Conversation, iter_growing, iter_new_conversations

ROWS = 50_000
EXCHANGES = 128
STEP = 1500
"""Characters of a tool's result in a step."""
PAGE, FRAME, LOG_HEAD = 4096, 4120, 32


@dataclass(frozen=True, slots=True)
class ThreadWrites:
    """Bytes and system calls with which a thread has written so far."""

    bytes: int
    calls: int

    def __sub__(self, other: ThreadWrites) -> ThreadWrites:
        return ThreadWrites(self.bytes - other.bytes, self.calls - other.calls)


def read_writes(pid: int) -> ThreadWrites:
    """Return the writes of the store's writer: the thread that writes most, except for that of the event loop."""
    beside = [task for task in Path(f"/proc/{pid}/task").iterdir() if task.name != str(pid)]
    found = [dict(line.split(": ") for line in (task / "io").read_text().splitlines()) for task in beside]
    most = max(found, key=lambda lines: int(lines["wchar"]))
    return ThreadWrites(int(most["wchar"]), int(most["syscw"]))


@contextmanager
def hold_snapshot(db: Path) -> Iterator[None]:
    """Hold a snapshot as a reader. Meanwhile the log only grows, so that its length shows how much was appended."""
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sessions").fetchone()
        yield


def count_log_pages(db: Path) -> int:
    """Count the pages in the write-ahead log."""
    log = db.with_name(db.name + "-wal")
    return (log.stat().st_size - LOG_HEAD) // FRAME if log.exists() and log.stat().st_size else 0


def make_bodies(case: str, count: int, seed: str) -> list[list[bytes]]:
    """Return the bodies of one or several conversations. The last `count` of them are measured."""
    if case == "new":
        return [[body] for body in iter_new_conversations(seed, count, 2, 0)]
    bodies = list(iter_growing(Conversation(seed, prompt=300), count + 2, STEP))
    return [bodies]


def measure(db: Path, case: str, count: int) -> tuple[list[float], list[float], list[float]]:
    """Measure (pages, KB, system calls) per exchange."""
    with start_upstream() as up, start_proxy(up.port, str(db)) as ours:
        send_all(ours, [list(iter_growing(Conversation("warm", prompt=300), 3, 300))])
        wait_until_idle(ours.pid)

        def run(seed: str) -> tuple[ThreadWrites, int]:
            lines = make_bodies(case, count, seed)
            if len(lines) == 1:
                send_all(ours, [lines[0][:-count]])
                wait_until_idle(ours.pid)
                lines = [lines[0][-count:]]
            before, pages = read_writes(ours.pid), count_log_pages(db)
            for line in lines:
                send_all(ours, [line])
            wait_until_idle(ours.pid)
            return read_writes(ours.pid) - before, count_log_pages(db) - pages

        with hold_snapshot(db):
            run(f"{case}_w")
            _, pages = run(f"{case}_a")
        took, _ = run(f"{case}_b")
    return [pages / count], [took.bytes / count / 1024], [took.calls / count]


def run(scope: Scope) -> list[Row]:
    """Measure a new conversation of 1 KB, and a step of an agent."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "full.sqlite3"
        make_template_store(db, scope.choose_count(40, 4))
        fill_with_copies(db, scope.choose_count(ROWS, 1000))
        for case, name in (("new", "a new conversation, 1 KB"), ("step", "a step with 1.5 KB")):
            if scope.selects(name):
                copy = Path(folder) / f"{case}.sqlite3"
                shutil.copy(db, copy)
                found = measure(copy, case, scope.choose_count(EXCHANGES, 3))
                for unit, values in zip(("pages", "KB", "calls"), found, strict=True):
                    rows += compare_servers({"case": f"{name}: {unit}", "stored": f"{ROWS:,}"}, unit, {PROXY: values})
    return rows
