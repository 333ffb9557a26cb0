"""The store on PostgreSQL, for any number of replicas: the statements that SQLite gets, through asyncpg.

A replica's memory is a cache, and the database is the truth. The first insert of an edit, a round or a decision stands,
and a later writer reads it back. Reads go through a pool (`postgres_reader`), and those of a request go together
(`postgres_read_ahead`). Writes go through one connection with group commit (`postgres_writer`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

import asyncpg

from proxy.errors import StoreRefused, StoreUnavailable, describe_cause
from proxy.store import postgres_index
from proxy.store.base import GapRow, Row
from proxy.store.branch_positions import KnownMessage
from proxy.store.expected_reads import ExpectedReads
from proxy.store.full_text_search import SearchMatch
from proxy.store.postgres_partitions import (
    drop_partitions,
    extend_partitions,
    read_partitions,
    remove_sessions,
    round_down,
)
from proxy.store.postgres_read_ahead import ReadAhead
from proxy.store.postgres_reader import OURS, PLANNING, PostgresReader
from proxy.store.postgres_schema import migrate
from proxy.store.postgres_writer import SERVER_ERRORS, PostgresWriter, compute_lock_id, describe_error
from proxy.store.reads import Store
from proxy.store.removal import IDLE_SESSIONS, SessionPlace
from proxy.store.row_reader import MAX_PAGE_BYTES
from proxy.store.schema import LATEST_VERSION
from proxy.store.session_notes import HiddenRoundRow
from proxy.store.write_queue import QueuedStore

log = logging.getLogger(__name__)

_TIMEOUT = "SELECT setting FROM pg_settings WHERE name = 'statement_timeout'"
"""The time limit that a connection has in fact, in milliseconds."""
_STATE = "SELECT pg_is_in_recovery(), coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)"
_ADDRESS_HINT = (
    "See that the server runs, and that --db names it, a user, a password and a database. In the URL, signs such as @ "
    "and / in a password are percent-encoded; PGPASSWORD takes them as they are."
)
_POOLER_HINT = (
    "Connect to PostgreSQL itself: the pooler in between, for example PgBouncer, does not pass on the settings of a "
    "connection."
)
_MAINTENANCE_S = 600.0
"""Seconds that a statement of maintenance may take: it reads whole partitions."""

_AHEAD: ContextVar[ReadAhead | None] = ContextVar("read_ahead", default=None)
"""The announced reads of the request that the current task works on."""


class DatabaseState(NamedTuple):
    """A database as a start would find it. version: of its schema, None if it has no tables yet."""

    version: int | None
    is_standby: bool
    may_create: bool
    """True if the role may create tables and functions, as each new version does."""


class PostgresStore(QueuedStore, Store):
    """`Store` on a PostgreSQL server (12 or newer). url: `postgresql://user:password@host:port/database`."""

    shared = True

    def __init__(
        self,
        url: str,
        *,
        durability: Literal["full", "normal"] = "full",
        spool_mb: int = 64,
        readers: int = 8,
        read_s: float = 2.0,
        write_s: float = 10.0,
        connect_s: float = 5.0,
        drain_s: float = 5.0,
        partition_days: int = 30,
    ) -> None:
        self._url = url
        self._partition_days = partition_days
        self._durability = durability
        self._write_s = write_s
        self._connect_s = connect_s
        self._reader = PostgresReader(url, connections=readers, read_s=read_s, connect_s=connect_s)
        self._writer = PostgresWriter(self._connect, spool_bytes=spool_mb << 20, drain_s=drain_s)
        super().__init__(self._writer)
        self._closed = False
        self._removal: Any = None
        """The connection of a round of `remove_expired`."""

    def _find_read_trouble(self) -> str:
        return self._reader.trouble

    def _keep_gaps(self, gaps: Sequence[GapRow]) -> None:
        """Do nothing: a replica may have no disk, and the gaps are in the log."""

    async def _connect(self, limit_s: float | None = None) -> Any:
        """A connection for writing. limit_s: seconds that a statement may take, if not those of a write."""
        limit_s = self._write_s if limit_s is None else limit_s
        milliseconds = str(int(limit_s * 1000))
        return await asyncpg.connect(
            self._url,
            timeout=self._connect_s,
            command_timeout=limit_s + 1.0,
            server_settings={
                "application_name": OURS,
                "statement_timeout": milliseconds,
                # If a replica is cut off in the middle of a transaction, the server ends it, and the locks of its
                # sessions with it.
                "idle_in_transaction_session_timeout": milliseconds,
                "default_transaction_read_only": "off",
                **PLANNING,
                "synchronous_commit": "on" if self._durability == "full" else "off",
            },
        )

    async def open(self) -> None:
        async with self._close_on_failure():
            connection = await self._connect()
            try:
                if await connection.fetchval(_TIMEOUT) != str(int(self._write_s * 1000)):
                    raise StoreRefused(
                        "the PostgreSQL database cannot be opened: the settings of the connection did not reach it.",
                        hint=_POOLER_HINT,
                    )
                # Another replica may be migrating a large store now, and this one waits for it.
                await connection.execute("SET statement_timeout = 0")
                await migrate(connection, partition_days=self._partition_days)
            finally:
                await connection.close(timeout=self._connect_s)
            with contextlib.suppress(StoreUnavailable):  # rows go to the default partition, and `maintain` tries again
                await self.maintain()
            await self._writer.start()
            await self._reader.open()
        log.info("store open: PostgreSQL")

    async def open_for_reports(self) -> None:
        """Open the store for reading alone: nothing is migrated, and no row can be put. Raises StoreRefused."""
        async with self._close_on_failure():
            await self._reader.open()
            version = await self._reader.read_version()
        if version != LATEST_VERSION:
            await self.close()
            raise StoreRefused(
                f"the PostgreSQL database has schema {version}, and this version reads schema {LATEST_VERSION}.",
                hint="Start a proxy of this version on it, or use the version of its proxies.",
            )

    async def inspect(self) -> DatabaseState:
        """Log in and look at the database, as a start would. Raises StoreRefused if that is not possible."""
        async with self._close_on_failure():
            connection = await self._connect(self._connect_s)
            try:
                has_tables = await connection.fetchval("SELECT to_regclass('context_proxy_schema') IS NOT NULL")
                version = await connection.fetchval("SELECT version FROM context_proxy_schema") if has_tables else None
                return DatabaseState(version, *await connection.fetchrow(_STATE))
            finally:
                await connection.close(timeout=1.0)

    @contextlib.asynccontextmanager
    async def _close_on_failure(self) -> AsyncIterator[None]:
        """Close the store again if it cannot be opened, and raise StoreRefused."""
        try:
            yield
        except (*SERVER_ERRORS, ValueError, TimeoutError) as error:
            await self.close()
            raise StoreRefused(
                f"the PostgreSQL database cannot be opened: {describe_refusal(error)}.",
                hint=_POOLER_HINT if isinstance(error, asyncpg.ProtocolViolationError) else _ADDRESS_HINT,
            ) from error
        except BaseException:
            await self.close()
            raise
        self._reader.trouble = ""

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._close_removal()
        await self._writer.stop()
        await self._reader.close()
        self._log_close()

    @contextlib.asynccontextmanager
    async def try_lock(self, work: str) -> AsyncIterator[bool]:
        """Take an advisory lock of a connection of its own; the lock ends with the connection."""
        try:
            connection = await self._connect()
            mine = bool(await connection.fetchval("SELECT pg_try_advisory_lock($1)", compute_lock_id(OURS, work)))
        except SERVER_ERRORS as error:
            raise StoreUnavailable(f"who is at {work} cannot be asked: {type(error).__name__}.") from error
        try:
            yield mine
        finally:
            with contextlib.suppress(Exception):
                await connection.close(timeout=1.0)

    def expect_reads(self, wanted: ExpectedReads) -> None:
        _AHEAD.set(ReadAhead(wanted))

    def put(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        _drop_read_ahead()
        return super().put(rows)

    def put_deferred(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        _drop_read_ahead()
        return super().put_deferred(rows)

    async def find_known_messages(self, tenant: str, session: str, keys: Sequence[bytes]) -> dict[bytes, KnownMessage]:
        ahead = _AHEAD.get()
        found = await ahead.take_known(tenant, session, keys, self._query) if ahead is not None and keys else None
        return await super().find_known_messages(tenant, session, keys) if found is None else found

    async def read_hidden_rounds(self, tenant: str, session: str, keys: Sequence[bytes]) -> list[HiddenRoundRow]:
        ahead = _AHEAD.get()
        found = await ahead.take_rounds(tenant, session, keys, self._query) if ahead is not None and keys else None
        return await super().read_hidden_rounds(tenant, session, keys) if found is None else found

    async def _fetch(self, text: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
        ahead = _AHEAD.get()
        found = await ahead.take(text, args, self._query) if ahead is not None else None
        return await self._query(text, args) if found is None else found

    async def _query(self, text: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The rows of one statement, in a round trip of its own."""
        self.flush_deferred()  # rows that are held back are included in the read
        return await self._reader.fetch(text, args)

    async def maintain(self) -> None:
        """Make the partitions for the time ahead, if another replica has not."""
        try:
            async with self._connect_for_maintenance() as connection:
                made = await extend_partitions(connection, time.time(), self._partition_days)
        except SERVER_ERRORS as error:
            raise StoreUnavailable(f"partitions cannot be made now: {type(error).__name__}.") from error
        if made:
            log.info("%d partitions made", made)

    async def remove_expired(self, before: float, limit: int = 100) -> list[SessionPlace]:
        """Remove sessions together, and then whole partitions. A session that cannot be removed in one statement is
        removed in steps. The connection is kept until nothing is left to remove: a new one plans all statements again,
        for four times the work of the removal."""
        try:
            if self._removal is None or self._removal.is_closed():
                self._removal = await self._connect(_MAINTENANCE_S)
            until, end = round_down(await read_partitions(self._removal), before)
            names = [(row[0], row[1]) for row in await self._fetch(IDLE_SESSIONS, (until, limit))]
            removed = await self._remove_together(names, until, end) if names else []
            removed += await super().remove_expired(until, limit - len(removed))
            if not removed and end:
                dropped = await drop_partitions(self._removal, end, time.time())
                if dropped:
                    log.info("retention: %d partitions dropped", dropped)
        except SERVER_ERRORS as error:
            await self._close_removal()
            raise StoreUnavailable(f"nothing can be removed now: {type(error).__name__}.") from error
        if not removed:
            await self._close_removal()
        return removed

    async def _remove_together(self, names: Sequence[SessionPlace], until: float, end: str) -> list[SessionPlace]:
        """Remove sessions in one statement, and return them; none if that takes too long."""
        locks = sorted(compute_lock_id(*name) for name in names)
        try:
            async with asyncio.timeout(self._write_s):
                return await remove_sessions(self._removal, names, locks, until, end)
        except (asyncpg.QueryCanceledError, TimeoutError):
            log.warning("%d sessions have too many rows to be removed together; they are removed in steps", len(names))
            return []

    async def _close_removal(self) -> None:
        connection, self._removal = self._removal, None
        if connection is not None:
            with contextlib.suppress(Exception):
                await connection.close(timeout=1.0)

    @contextlib.asynccontextmanager
    async def _connect_for_maintenance(self) -> AsyncIterator[Any]:
        """A connection for statements that may take longer than those of requests."""
        connection = await self._connect(_MAINTENANCE_S)
        try:
            yield connection
        finally:
            with contextlib.suppress(Exception):
                await connection.close(timeout=1.0)

    async def search(self, tenant: str, session: str, query: str, limit: int = 10) -> list[SearchMatch]:
        asked = postgres_index.build_query(query)
        if not asked:
            return []
        self._reader.check_answering()  # the index of a store that does not answer is not waited for
        await self._update_index(tenant, session)
        rows = await self._fetch(postgres_index.SEARCH, (MAX_PAGE_BYTES, asked, tenant, session, limit))
        return await asyncio.to_thread(lambda: [postgres_index.read_match(row) for row in rows])


def _drop_read_ahead() -> None:
    """Forget the rows that the current task has read ahead: it writes something now."""
    ahead = _AHEAD.get()
    if ahead is not None:
        ahead.drop()
        _AHEAD.set(None)


def describe_refusal(error: Exception) -> str:
    """The reason for which a database cannot be opened. The address may hold a password, and so may the message of a
    parser, so only the name of other errors is reported."""
    if isinstance(error, asyncpg.PostgresError):
        return describe_error(error)
    is_system_error = isinstance(error, (socket.gaierror, TimeoutError)) or "Connect call failed" in str(error)
    return describe_cause(error) if is_system_error else type(error).__name__
