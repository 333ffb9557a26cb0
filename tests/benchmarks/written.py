"""What the store writes to disk: pages, bytes and system calls an exchange, on SQLite with thousands of sessions.

Pages are the frames that come to the write-ahead log. Bytes and calls are those of the thread that writes, as Linux
counts them, with the checkpoints that copy the log into the database.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.driver import drive, send
from tests.benchmarks.filling import fill, template
from tests.benchmarks.meter import settled
from tests.benchmarks.rows import Row, compared
from tests.benchmarks.scope import Scope
from tests.benchmarks.starting import PROXY, proxy, upstream
from tests.benchmarks.traffic import Conversation, growing, news

ROWS = 50_000
EXCHANGES = 128
STEP = 1500
"""Characters of a tool's result in a step."""
PAGE, FRAME, LOG_HEAD = 4096, 4120, 32


@dataclass(frozen=True, slots=True)
class Written:
    """What a thread has written so far."""

    bytes: int
    calls: int

    def __sub__(self, other: Written) -> Written:
        return Written(self.bytes - other.bytes, self.calls - other.calls)


def written(pid: int) -> Written:
    """The bytes and system calls of the store's writer: the thread that writes most, but for the event loop's."""
    beside = [task for task in Path(f"/proc/{pid}/task").iterdir() if task.name != str(pid)]
    found = [dict(line.split(": ") for line in (task / "io").read_text().splitlines()) for task in beside]
    most = max(found, key=lambda lines: int(lines["wchar"]))
    return Written(int(most["wchar"]), int(most["syscw"]))


@contextmanager
def held(db: Path) -> Iterator[None]:
    """While a reader holds a snapshot, the log only grows, so that its length says how much came to it."""
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sessions").fetchone()
        yield


def frames(db: Path) -> int:
    """Pages in the write-ahead log."""
    log = db.with_name(db.name + "-wal")
    return (log.stat().st_size - LOG_HEAD) // FRAME if log.exists() and log.stat().st_size else 0


def exchanges(case: str, count: int, seed: str) -> list[list[bytes]]:
    """Conversations whose last `count` requests are measured; those before them only bring them there."""
    if case == "new":
        return [[body] for body in news(seed, count, 2, 0)]
    bodies = list(growing(Conversation(seed, prompt=300), count + 2, STEP))
    return [bodies]


def measure(db: Path, case: str, count: int) -> tuple[list[float], list[float], list[float]]:
    """(pages, KB, system calls) an exchange."""
    with upstream() as up, proxy(up.port, str(db)) as ours:
        drive(lambda: send(ours, [list(growing(Conversation("warm", prompt=300), 3, 300))]))
        settled(ours.pid)

        def run(seed: str) -> tuple[Written, int]:
            lines = exchanges(case, count, seed)
            if len(lines) == 1:
                drive(lambda: send(ours, [lines[0][:-count]]))
                settled(ours.pid)
                lines = [lines[0][-count:]]
            before, pages = written(ours.pid), frames(db)
            for line in lines:
                drive(lambda: send(ours, [line]))  # noqa: B023  run at once
            settled(ours.pid)
            return written(ours.pid) - before, frames(db) - pages

        with held(db):
            run(f"{case}_w")
            _, pages = run(f"{case}_a")
        took, _ = run(f"{case}_b")
    return [pages / count], [took.bytes / count / 1024], [took.calls / count]


def run(scope: Scope) -> list[Row]:
    """A new conversation of 1 KB, and a step of an agent."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "full.sqlite3"
        template(db, scope.few(40, 4))
        fill(db, scope.few(ROWS, 1000))
        for case, name in (("new", "a new conversation, 1 KB"), ("step", "a step with 1.5 KB")):
            if scope.wants(name):
                copy = Path(folder) / f"{case}.sqlite3"
                shutil.copy(db, copy)
                found = measure(copy, case, scope.few(EXCHANGES, 3))
                for unit, values in zip(("pages", "KB", "calls"), found, strict=True):
                    rows += compared({"case": f"{name}: {unit}", "stored": f"{ROWS:,}"}, unit, {PROXY: values})
    return rows
