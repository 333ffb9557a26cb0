"""A SQLite store for reports: read while a proxy serves from it, and never written to.

No lock is taken, and the file is opened read-only. So a report costs the serving process nothing but a moment of the
disk. The newest rows may be in the journal alone. They are written to a copy of the tables in memory, which is then
read; of a large file they are left out. The store runs on the caller's thread: a report has no other work to wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from proxy.errors import StoreRefused, StoreUnavailable
from proxy.store import full_text_search, sqlite_files
from proxy.store.base import BranchTipRow, Row
from proxy.store.in_memory import ConnectionStore
from proxy.store.journal import Journal, execute_rows
from proxy.store.migrate import APPLICATION_ID
from proxy.store.schema import LATEST_VERSION

log = logging.getLogger(__name__)


COPIED_BYTES = 256 << 20
"""Size in bytes up to which a file is copied into memory, if rows are in its journal."""


def copy_with_journal(source: sqlite3.Connection) -> sqlite3.Connection:
    """A copy of the database in memory, as the next start would have it: with the journal's rows in the tables."""
    copy = sqlite3.connect(":memory:", isolation_level=None)
    source.backup(copy)
    full_text_search.register_functions(copy)
    journal, tips = Journal(), dict[tuple[str, str, str], BranchTipRow]()
    journal.load(copy)
    journal.write_tables(copy, tips)
    execute_rows(copy, tuple(tips.values()))
    return copy


class ReadOnlyStore(ConnectionStore):
    """`Store` on a file that another process may be writing to; rows put into it are refused."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def _find_oldest_open(self) -> float:
        return max(super()._find_oldest_open(), sqlite_files.read_opening_time(self.path))

    async def open(self) -> None:
        """Open the file. Raises StoreRefused if there is no store that this version can read."""
        uri = sqlite_files.build_read_uri(self.path, "Give its path with --db, or in the config file.")
        try:
            connection = sqlite3.connect(uri, uri=True, timeout=5.0)
            with contextlib.ExitStack() as stack:
                stack.callback(connection.close)
                self._check(connection)
                stack.pop_all()
        except sqlite3.Error as error:
            raise StoreRefused(f"the database {self.path} cannot be read: {error}.") from error
        self._connection, self.trouble = connection, ""
        journal = Journal()
        journal.load(connection)
        if not journal.items:
            return
        if self.path.stat().st_size <= COPIED_BYTES:
            self._connection = copy_with_journal(connection)
            connection.close()
        else:
            log.warning(
                "the newest %d transactions are not in the tables yet and are left out: a proxy on this file writes"
                " them within a minute, or when it starts",
                len(journal.items),
            )

    def _check(self, connection: sqlite3.Connection) -> None:
        mark = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if mark != APPLICATION_ID:
            raise StoreRefused(f"{self.path} is a database of another program.", hint="Give another path with --db.")
        if version != LATEST_VERSION:
            hint = "Start the proxy on it once." if version < LATEST_VERSION else "Install the version that wrote it."
            raise StoreRefused(
                f"{self.path} has schema {version}, and this version reads schema {LATEST_VERSION}.", hint=hint
            )

    def put(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        """Refuse the rows: the future holds StoreUnavailable."""
        self.dropped += 1
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused.set_exception(StoreUnavailable(f"{len(rows)} rows were put into a store that is only read."))
        refused.exception()  # no caller has to await a put
        return refused
