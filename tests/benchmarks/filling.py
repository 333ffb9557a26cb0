"""A store with many rows: real ones, that the proxy wrote, copied under other names until there are enough."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from tests.benchmarks.driver import Broken, drive, send
from tests.benchmarks.meter import settled
from tests.benchmarks.starting import proxy, upstream
from tests.benchmarks.traffic import Conversation, growing

KEYS = ("key", "parent", "tip", "answer", "fork_key")
"""Columns that say which message it is. A copy has others, consistent with each other: no two conversations are alike,
and a look-up must not find all copies of one."""
CONVERSATIONS, REQUESTS = 40, 5


def template(db: Path, conversations: int = CONVERSATIONS) -> None:
    """A store with conversations that went through the proxy."""
    with upstream() as up, proxy(up.port, str(db)) as ours:
        lines = [list(growing(Conversation(f"stored_{n}", prompt=300), REQUESTS, 300)) for n in range(conversations)]
        for line in lines:
            drive(lambda: send(ours, [line]))  # noqa: B023  run at once
        settled(ours.pid)


def fill(db: Path, wanted: int) -> int:
    """Copies until there are so many rows; how many there are then."""
    with closing(sqlite3.connect(db)) as connection:
        connection.execute("PRAGMA synchronous = off")
        connection.execute("PRAGMA cache_size = -200000")
        connection.create_function("other", 2, other, deterministic=True)
        tables = dict(sharded(connection))
        for table in tables:
            connection.execute(f"CREATE TEMP TABLE first_{table} AS SELECT * FROM main.{table}")
        first = {table: count(connection, table) for table in tables}
        there = each = sum(first.values())
        if not each:
            raise Broken("the proxy has stored nothing")
        number = 0
        while there + each // 2 <= wanted:
            number += 1
            for table, columns in tables.items():
                copied = ", ".join(_copied(name) for name in columns)
                into = f"INSERT INTO {table} ({', '.join(columns)}) SELECT {copied} FROM first_{table}"
                connection.execute(into, {"n": number})
            there += each
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return sum(count(connection, table) for table in tables)


def _copied(column: str) -> str:
    if column in KEYS:
        return f"other({column}, :n)"
    return "session || '~' || :n" if column == "session" else column


def other(key: bytes | float | str | None, number: int) -> bytes | float | str | None:
    """A copy's key in the place of this one; what is no key stays."""
    if not isinstance(key, bytes) or not 0 < len(key) <= 64:
        return key
    return hashlib.blake2b(key, digest_size=len(key), salt=number.to_bytes(8, "big")).digest()


def sharded(connection: sqlite3.Connection) -> Iterator[tuple[str, list[str]]]:
    """(table, its columns) of all that belongs to sessions and has rows."""
    listed = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE '%VIRTUAL%'"
    for (table,) in connection.execute(listed).fetchall():
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        if {"tenant", "session"} <= set(columns) and count(connection, table):
            yield table, columns


def count(connection: sqlite3.Connection, table: str) -> int:
    """Rows of a table."""
    found: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return found
