"""The store without a file, for tests and `--db :memory:`: the same SQL on a private in-memory SQLite database.

It runs on the event loop: there is no disk to wait for, and without a thread a `put` is done when it returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Sequence
from functools import cache
from typing import Any

from proxy.errors import StoreUnavailable
from proxy.store import encode, full_text_search
from proxy.store.base import Row
from proxy.store.journal import execute_rows
from proxy.store.new_schema import fold_renames
from proxy.store.reads import Store
from proxy.store.schema import MIGRATIONS
from proxy.store.sql import for_sqlite
from proxy.store.write_queue import count_bytes


@cache
def _make_empty_database() -> bytes:
    """Return the file of a database that has all tables and no row. The migrations take longer than a copy."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        full_text_search.register_functions(connection)
        for statement in fold_renames(statement for migration in MIGRATIONS for statement in migration.statements):
            connection.execute(statement)
        return connection.serialize()


class ConnectionStore(Store):
    """The part of a `Store` whose one SQLite connection belongs to the event loop's thread."""

    trouble = "not open"
    dropped = 0
    queued = 0
    _connection: sqlite3.Connection | None = None

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection, self.trouble = None, "closed"

    async def _fetch(self, text: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
        if self._connection is None:
            raise StoreUnavailable("the store is closed.")
        try:
            return self._connection.execute(for_sqlite(text), args).fetchall()
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise StoreUnavailable(f"a read failed: {type(error).__name__}.") from error


class InMemoryStore(ConnectionStore):
    """`Store` in memory; its content is lost when it is closed."""

    async def open(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=256)
        full_text_search.register_functions(self._connection)
        with contextlib.closing(sqlite3.connect(":memory:")) as empty:
            empty.deserialize(_make_empty_database())
            empty.backup(self._connection)  # a database from `deserialize` itself could not grow past a gigabyte
        self.trouble = ""

    def _find_oldest_open(self) -> float:
        return 0.0  # the process that works on the requests is this one

    def put(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            self._write(rows)
        except (sqlite3.Error, OverflowError, UnicodeError, TypeError, ValueError, KeyError, AttributeError) as error:
            self.dropped += 1
            unavailable = StoreUnavailable(f"the rows could not be stored: {type(error).__name__}: {error}.")
            unavailable.__cause__ = error
            future.set_exception(unavailable)
            future.exception()  # no caller has to await a put
            gap = encode.make_gap(rows, count_bytes(rows), type(error).__name__)
            if gap is not None and self._connection is not None:
                with contextlib.suppress(sqlite3.Error, UnicodeError):
                    self._write([gap])
        else:
            future.set_result(None)
        return future

    def _write(self, rows: Sequence[Row]) -> None:
        if self._connection is None:
            raise ValueError("the store is closed")
        self._connection.execute("BEGIN")
        try:
            execute_rows(self._connection, rows)
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")
