"""The store in one SQLite file: a writer thread with its own connection, and readers through aiosqlite.

SQLite lets one connection write at a time, and in WAL mode readers never wait for it. The readers are `query_only` and
do not checkpoint, so that one thread alone decides what is on disk. Each read is one statement, hence one snapshot that
lives for milliseconds and does not keep the log from being truncated. A read that takes over `read_s` is interrupted.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import aiosqlite

from proxy.errors import StoreRefused, StoreUnavailable, describe_cause
from proxy.store import sqlite_files, wal_reset
from proxy.store.base import GapRow, MessageRow, Row
from proxy.store.gap_file import GapFile
from proxy.store.migrate import migrate
from proxy.store.read_probe import ReadProbe
from proxy.store.reads import Store
from proxy.store.session_notes import MEMO_SESSION, HiddenRoundRow, MemoRow, ScratchpadRow
from proxy.store.sql import for_sqlite
from proxy.store.write_queue import QueuedStore
from proxy.store.writer import SqliteWriter

log = logging.getLogger(__name__)

_BAD_ARGUMENT = (OverflowError, UnicodeError, sqlite3.ProgrammingError, sqlite3.InterfaceError)


CachedTable = Literal["memos", "hidden_rounds", "scratchpads"]
SessionKey = tuple[str, str]
"""(tenant, session)"""

MAX_SESSIONS = 10_000
"""Sessions remembered per table; if more sessions have rows, all are queried."""
_MAX_SCANNED_ROWS = 100_000
"""Rows above which a table is not scanned at the start, since the scan would take more than 0.1 s."""

_CACHED_TABLES: dict[type, CachedTable] = {
    MemoRow: "memos",
    HiddenRoundRow: "hidden_rounds",
    ScratchpadRow: "scratchpads",
}

_COUNT_BY_SESSION = {
    table: f"""
SELECT p.tenant, p.session, count(*) FROM (SELECT tenant, session FROM {table} LIMIT {_MAX_SCANNED_ROWS + 1}) p
GROUP BY p.tenant, p.session LIMIT $1"""  # noqa: S608  names of ours
    for table in _CACHED_TABLES.values()
}


class NegativeCache:
    """Sessions that have memos, hidden rounds or a scratchpad. Any other session is known to have none, and is not
    queried.

    Few conversations have any of these, yet every prompt would query for each of them. All writes to the store of one
    process go through its `put`. So the sessions with rows are read once, when the store is opened, and each later put
    adds its sessions. No session is removed again: a session that once had rows is simply queried.
    """

    def __init__(self) -> None:
        self._sessions_with_rows: dict[CachedTable, set[SessionKey] | None] = dict.fromkeys(_CACHED_TABLES.values())
        """By table. None: too many sessions have rows, so every session is queried."""

    async def load_sessions(self, fetch: Callable[[str, Sequence[Any]], Awaitable[list[tuple[Any, ...]]]]) -> None:
        """Read the sessions that have rows. Called before the first put."""
        for table, text in _COUNT_BY_SESSION.items():
            rows = await fetch(text, (MAX_SESSIONS + 1,))
            if len(rows) <= MAX_SESSIONS and sum(row[2] for row in rows) <= _MAX_SCANNED_ROWS:
                self._sessions_with_rows[table] = {(row[0], row[1]) for row in rows}

    def add_sessions(self, rows: Sequence[Any]) -> None:
        """Add the sessions of rows that are put."""
        if _CACHED_TABLES.keys().isdisjoint(map(type, rows)):
            return
        for row in rows:
            table = _CACHED_TABLES.get(type(row))
            sessions = self._sessions_with_rows[table] if table is not None else None
            if table is not None and sessions is not None:
                sessions.add((row.tenant, row.session))
                if len(sessions) > MAX_SESSIONS:
                    self._sessions_with_rows[table] = None

    def has_none(self, table: CachedTable, tenant: str, session: str) -> bool:
        """True if the session certainly has no row in the table."""
        sessions = self._sessions_with_rows[table]
        return sessions is not None and (tenant, session) not in sessions


MAX_RECENT_ANSWERS = 1000
"""Answers remembered by key; if more were put, each of them counts as one that is not in the tables."""


class RecentAnswers:
    """Keys of the answers that may not be in the tables yet: those put since all rows were last written there.

    A conversation without a name is looked up by the keys of its answers. Most such conversations are new. The rows of
    the journal need not be applied to find that none of their answers is known: that would be a transaction.
    """

    def __init__(self) -> None:
        self.puts = 0
        """The number of puts with answers so far."""
        self._keys: dict[bytes, int] = {}
        """The number of the last put of each key."""
        self._missed = 0
        """The number of the last put whose answers had no room, 0 for none."""

    def add(self, rows: Sequence[Any]) -> None:
        """Add the answers among rows that are put."""
        keys = [row.key for row in rows if type(row) is MessageRow and row.answer]
        if not keys:
            return
        self.puts += 1
        if len(self._keys) + len(keys) > MAX_RECENT_ANSWERS:
            self._missed = self.puts
        else:
            self._keys.update(dict.fromkeys(keys, self.puts))

    def has_none(self, args: Sequence[Any]) -> bool:
        """True if certainly none of these arguments of a statement is the key of such an answer."""
        return not self._missed and self._keys.keys().isdisjoint(args)

    def forget(self, puts: int) -> None:
        """Forget the answers of the first `puts` puts: they are in the tables."""
        self._keys = {key: number for key, number in self._keys.items() if number > puts}
        if self._missed <= puts:
            self._missed = 0


class SqliteStore(QueuedStore, Store):
    """`Store` on a file."""

    def __init__(
        self,
        path: Path | str,
        *,
        durability: Literal["full", "normal"] = "full",
        spool_mb: int = 64,
        readers: int = 2,
        read_s: float = 2.0,
        drain_s: float = 5.0,
    ) -> None:
        self.path = Path(path)
        self._lock = sqlite_files.FileLock(self.path)
        self._gaps = GapFile(self.path)
        self._writer = SqliteWriter(self.path, durability=durability, spool_bytes=spool_mb << 20, drain_s=drain_s)
        super().__init__(self._writer)
        self._read_s = read_s
        self._readers = [_Reader(self.path, read_s) for _ in range(readers)]
        self._negative_cache = NegativeCache()
        self._recent_answers = RecentAnswers()
        self._closed = False

    def _find_read_trouble(self) -> str:
        return next((reader.trouble for reader in self._readers if reader.trouble), "")

    @property
    def log_bytes(self) -> int:
        """Size of the write-ahead log, for an alert: a foreign reader with an old snapshot makes it grow."""
        return self._writer.log_bytes

    def _find_oldest_open(self) -> float:
        return max(super()._find_oldest_open(), sqlite_files.read_opening_time(self.path))

    async def open(self) -> None:
        # At level DEBUG aiosqlite logs every statement with its arguments, which are the users' messages.
        logging.getLogger("aiosqlite").setLevel(logging.WARNING)
        try:
            sqlite_files.prepare_folder(self.path)
            self._lock.acquire()
            sqlite_files.prepare_files(self.path)
            await migrate(self.path)
            await self._writer.start()
            self._take_gaps()
            for reader in self._readers:
                await reader.open()
            await self._negative_cache.load_sessions(self._fetch)
            unapplied = self._writer.list_unapplied_rows()  # of a disk that is full now
            self._negative_cache.add_sessions(unapplied)
            self._recent_answers.add(unapplied)
        except BaseException as error:
            await self.close()
            if isinstance(error, (sqlite3.Error, OSError)):
                raise StoreRefused(
                    f"the database {self.path} cannot be opened: {describe_cause(error)}.",
                    hint=sqlite_files.PLACE_HINT if isinstance(error, OSError) else "",
                ) from error
            raise
        sqlite_files.make_private(self.path)
        log.info("store open: SQLite %s%s", sqlite3.sqlite_version, wal_reset.describe_bug_briefly())

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for reader in self._readers:
            await reader.close()
        # The writer stops last, so that its connection is the last one and SQLite copies the log into the database.
        await self._writer.stop()
        self._log_close()
        self._lock.release()

    def _take_gaps(self) -> None:
        """Store the gaps of the last process. The file of gaps stays unchanged until this process ends."""
        try:
            gaps = self._gaps.open()
        except OSError as error:
            log.warning("the file of gaps %s cannot be used: %s", self._gaps.path, error)
            return
        if gaps:
            log.warning("%d gaps that the last process could not store are recorded", len(gaps))
            super().put(gaps)

    def _keep_gaps(self, gaps: Sequence[GapRow]) -> None:
        try:
            if gaps:
                self._gaps.write_gaps(gaps)
            else:
                self._gaps.remove()
        except OSError as error:
            log.error("what was lost cannot be recorded in %s: %s", self._gaps.path, error)

    def put(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        self._negative_cache.add_sessions(rows)
        self._recent_answers.add(rows)
        return super().put(rows)

    def put_deferred(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        self._negative_cache.add_sessions(rows)
        self._recent_answers.add(rows)
        return super().put_deferred(rows)

    async def read_rounds_page(self, tenant: str, session: str, after: bytes = b"") -> list[HiddenRoundRow]:
        if self._negative_cache.has_none("hidden_rounds", tenant, session):
            return []
        return await super().read_rounds_page(tenant, session, after)

    async def read_hidden_rounds(self, tenant: str, session: str, keys: Sequence[bytes]) -> list[HiddenRoundRow]:
        if self._negative_cache.has_none("hidden_rounds", tenant, session):
            return []
        return await super().read_hidden_rounds(tenant, session, keys)

    async def read_scratchpad(self, tenant: str, session: str) -> ScratchpadRow | None:
        if self._negative_cache.has_none("scratchpads", tenant, session):
            return None
        return await super().read_scratchpad(tenant, session)

    async def read_memos(
        self, tenant: str, project: str | None = None, limit: int = 1000, after: str = ""
    ) -> list[MemoRow]:
        if self._negative_cache.has_none("memos", tenant, MEMO_SESSION):
            return []
        return await super().read_memos(tenant, project, limit, after)

    async def _fetch(self, text: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
        self.flush_deferred()  # rows that are held back are included in the read
        place = (args[0], args[1]) if concerns_one_session(text) else None
        if self._writer.has_unapplied(place):
            await self._apply_journal(place)
        return await self._fetch_tables(text, args)

    async def _fetch_answers(self, text: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The same. The journal is applied only where it may have a row that the statement concerns."""
        if self._recent_answers.has_none(args):
            rows = await self._fetch_tables(text, args)
            if not rows:
                return rows
        return await self._fetch(text, args)

    async def _fetch_tables(self, text: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
        reader: _Reader = min(self._readers, key=attrgetter("busy"))
        return await reader.fetch(for_sqlite(text), args)

    async def _apply_journal(self, place: tuple[str, str] | None) -> None:
        """Wait until the rows of the journal are in the tables. Raises StoreUnavailable if those of the session cannot
        be written there now; other reads, such as lists, go on without them."""
        if not self._writer.trouble:
            puts = self._recent_answers.puts
            barrier = self._writer.queue.put_barrier()
            await asyncio.wait((barrier,), timeout=self._read_s)
            if barrier.done() and not barrier.exception():
                self._recent_answers.forget(puts)
                return
        if place is not None and self._writer.has_unapplied(place):
            raise StoreUnavailable("rows of this session cannot be written to the tables now.")


@cache
def concerns_one_session(text: str) -> bool:
    """True if a statement reads only rows of one session: its first arguments are tenant and session."""
    return _PLACE.search(text) is not None


_PLACE = re.compile(r"\btenant = \$1 AND (\w+\.)?session = \$2\b")


class _Reader:
    """One reading connection, with its thread. After a fault it is closed, and the next read opens a new one: the
    interruption of a slow statement may hit a later one."""

    def __init__(self, path: Path, read_s: float) -> None:
        self.busy = 0
        self.trouble = ""
        self._path = path
        self._read_s = read_s
        self._connection: aiosqlite.Connection | None = None
        self._opening: asyncio.Task[aiosqlite.Connection] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False
        # Other reads may go to the other readers for hours, and the fault of this one would be shown all the time.
        self._probe = ReadProbe(lambda: self.fetch("SELECT 1 FROM sqlite_master LIMIT 1", ()))

    async def open(self) -> aiosqlite.Connection:
        """Return the connection, opened if there is none. A caller that is cancelled leaves it for the next one."""
        if self._closed:
            raise StoreUnavailable("the store is closed.")
        if self._connection is not None:
            return self._connection
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._connect())
            self._opening.add_done_callback(_retrieve_error)
        return await asyncio.shield(self._opening)

    async def _connect(self) -> aiosqlite.Connection:
        connection = await aiosqlite.connect(
            sqlite_files.build_uri(self._path), uri=True, isolation_level=None, timeout=1.0, cached_statements=128
        )
        try:
            await connection.execute("PRAGMA query_only = 1")
            await connection.execute("PRAGMA wal_autocheckpoint = 0")
        except BaseException:
            await _close_connection(connection)
            raise
        if self._closed:
            await _close_connection(connection)
            raise StoreUnavailable("the store is closed.")
        self._connection = connection
        return connection

    async def fetch(self, text: str, args: Sequence[Any]) -> list[Any]:
        self.busy += 1
        try:
            async with asyncio.timeout(self._read_s):
                connection = self._connection or await self.open()
                rows = await connection.execute_fetchall(text, args)
        except TimeoutError as error:
            self.trouble = f"a read took longer than {self._read_s} s"
            self._probe.start()
            await self._drop_connection()
            raise StoreUnavailable(f"{self.trouble}.") from error
        except _BAD_ARGUMENT as error:
            # A value of the query could not be stored either; the file has no fault.
            raise StoreUnavailable(f"the store cannot be asked for that: {type(error).__name__}.") from error
        except (sqlite3.Error, OSError, ValueError) as error:
            self.trouble = f"{type(error).__name__}: {error}"
            self._probe.start()
            await self._drop_connection()
            raise StoreUnavailable(f"a read failed: {error}.") from error
        finally:
            self.busy -= 1
        self.trouble = ""
        return list(rows)

    async def _drop_connection(self) -> None:
        """Interrupt the statement and close the connection, without waiting: a disk that hangs would block all."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.interrupt()
            task = asyncio.create_task(_close_connection(connection))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        self._closed = True
        await self._probe.close()
        await self._drop_connection()
        left = {*self._ending, *([self._opening] if self._opening is not None else ())}
        if left:
            await asyncio.wait(left, timeout=self._read_s)


def _retrieve_error(opening: asyncio.Task[aiosqlite.Connection]) -> None:
    """Retrieve the error, or asyncio would log it if nobody waits any more. The next read meets it again."""
    if not opening.cancelled():
        opening.exception()


async def _close_connection(connection: aiosqlite.Connection) -> None:
    try:
        await connection.close()
    except (sqlite3.Error, ValueError) as error:
        log.warning("closing a reader failed: %s", type(error).__name__)
