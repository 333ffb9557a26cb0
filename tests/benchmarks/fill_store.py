"""Fill a store with many rows: real rows, written by the proxy, are copied under other names until there are enough."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from tests.benchmarks.driver import UnexpectedAnswer, send_all
from tests.benchmarks.meter import wait_until_idle
from tests.benchmarks.start_servers import start_proxy, start_upstream
from tests.benchmarks.traffic import Conversation, iter_growing

KEYS = ("key", "parent", "tip", "answer", "fork_key")
"""Columns that identify a message. A copy gets other values, consistent with each other: no two real conversations are
equal, and a look-up must not find all copies of one."""
CONVERSATIONS, REQUESTS = 40, 5


def make_template_store(db: Path, conversations: int = CONVERSATIONS) -> None:
    """Write a store with conversations that went through the proxy."""
    with start_upstream() as up, start_proxy(up.port, str(db)) as ours:
        lines = [
            list(iter_growing(Conversation(f"stored_{n}", prompt=300), REQUESTS, 300)) for n in range(conversations)
        ]
        for line in lines:
            send_all(ours, [line])
        wait_until_idle(ours.pid)


def fill_with_copies(db: Path, wanted: int) -> int:
    """Copy all rows until there are about `wanted` of them; return their number."""
    with closing(sqlite3.connect(db)) as connection:
        connection.execute("PRAGMA synchronous = off")
        connection.execute("PRAGMA cache_size = -200000")
        connection.create_function("derive_copy_key", 2, derive_copy_key, deterministic=True)
        tables = dict(list_session_tables(connection))
        for table in tables:
            connection.execute(f"CREATE TEMP TABLE first_{table} AS SELECT * FROM main.{table}")
        first = {table: count_rows(connection, table) for table in tables}
        there = each = sum(first.values())
        if not each:
            raise UnexpectedAnswer("the proxy has stored nothing")
        number = 0
        while there + each // 2 <= wanted:
            number += 1
            for table, columns in tables.items():
                copied = ", ".join(_copy_expression(name) for name in columns)
                into = f"INSERT INTO {table} ({', '.join(columns)}) SELECT {copied} FROM first_{table}"
                connection.execute(into, {"n": number})
            there += each
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return sum(count_rows(connection, table) for table in tables)


def _copy_expression(column: str) -> str:
    if column in KEYS:
        return f"derive_copy_key({column}, :n)"
    return "session || '~' || :n" if column == "session" else column


def derive_copy_key(key: bytes | float | str | None, number: int) -> bytes | float | str | None:
    """Return the key that stands for this one in a copy. A value that is not a key is returned unchanged."""
    if not isinstance(key, bytes) or not 0 < len(key) <= 64:
        return key
    return hashlib.blake2b(key, digest_size=len(key), salt=number.to_bytes(8, "big")).digest()


def list_session_tables(connection: sqlite3.Connection) -> Iterator[tuple[str, list[str]]]:
    """Yield (table, its columns) of each table that belongs to sessions and has rows."""
    listed = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE '%VIRTUAL%'"
    for (table,) in connection.execute(listed).fetchall():
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        if {"tenant", "session"} <= set(columns) and count_rows(connection, table):
            yield table, columns


def count_rows(connection: sqlite3.Connection, table: str) -> int:
    """Count the rows of a table."""
    found: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return found
