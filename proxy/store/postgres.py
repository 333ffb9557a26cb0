"""The store on PostgreSQL, for any number of replicas: the statements that SQLite gets, through asyncpg.

A replica's memory is a cache, and the database is the truth. The first insert of an edit, a round or a decision stands,
and a later writer reads it back. Reads go through a pool, each one statement with a time limit on both sides of the
network. Writes go through one connection with group commit (`postgres_writer`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

import asyncpg

from proxy.errors import StoreRefused, StoreUnavailable
from proxy.store import postgres_index
from proxy.store.base import GapRow
from proxy.store.full_text_search import IndexRow, SearchMatch
from proxy.store.postgres_schema import migrate
from proxy.store.postgres_writer import SERVER_ERRORS, PostgresWriter, compute_lock_id, describe_error
from proxy.store.reads import StoreReads
from proxy.store.sql import for_postgres
from proxy.store.write_queue import QueuedStore

log = logging.getLogger(__name__)

_BAD_ARGUMENT = (asyncpg.DataError, OverflowError, UnicodeError, TypeError, ValueError)
_OURS = "context-proxy"


class _Connection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg has no types
    """A connection without a reset query. The pool's connections are read-only and never in a transaction, so no trip
    to the server is needed after each read."""

    __slots__ = ()

    def get_reset_query(self) -> str:
        return ""


class PostgresStore(QueuedStore, StoreReads):
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
    ) -> None:
        self._url = url
        self._durability = durability
        self._readers = readers
        self._read_s = read_s
        self._write_s = write_s
        self._connect_s = connect_s
        self._pool: Any = None
        self._read_trouble = "not open"
        self._writer = PostgresWriter(self._connect, spool_bytes=spool_mb << 20, drain_s=drain_s)
        super().__init__(self._writer)
        self._closed = False

    def _reading(self) -> str:
        return self._read_trouble

    def _keep_gaps(self, gaps: Sequence[GapRow]) -> None:
        """Do nothing: a replica may have no disk, and the gaps are in the log."""

    async def _connect(self) -> Any:
        milliseconds = str(int(self._write_s * 1000))
        return await asyncpg.connect(
            self._url,
            timeout=self._connect_s,
            command_timeout=self._write_s + 1.0,
            server_settings={
                "application_name": _OURS,
                "statement_timeout": milliseconds,
                # If a replica is cut off in the middle of a transaction, the server ends it, and the locks of its
                # sessions with it.
                "idle_in_transaction_session_timeout": milliseconds,
                "default_transaction_read_only": "off",
                "synchronous_commit": "on" if self._durability == "full" else "off",
            },
        )

    async def open(self) -> None:
        """Open the store; a store is opened once. Raises StoreRefused if the database cannot be opened."""
        try:
            connection = await self._connect()
            try:
                # Another replica may be migrating a large store now, and this one waits for it.
                await connection.execute("SET statement_timeout = 0")
                await migrate(connection)
            finally:
                await connection.close(timeout=self._connect_s)
            await self._writer.start()
            self._pool = await asyncpg.create_pool(
                self._url,
                min_size=0,
                max_size=self._readers,
                timeout=self._connect_s,
                command_timeout=self._read_s,
                connection_class=_Connection,
                server_settings={
                    "application_name": _OURS,
                    "statement_timeout": str(int(self._read_s * 1000)),
                    "default_transaction_read_only": "on",
                },
            )
        except (*SERVER_ERRORS, ValueError, TimeoutError) as error:
            await self.close()
            # The address may hold a password, and so may the message of a resolver or parser.
            raise StoreRefused(
                "the PostgreSQL database cannot be opened: "
                + (
                    f"{describe_error(error)}."
                    if isinstance(error, asyncpg.PostgresError)
                    else f"{type(error).__name__}."
                ),
                hint="See that the server runs, and that --db names it, a user, a password and a database.",
            ) from error
        except BaseException:
            await self.close()
            raise
        self._read_trouble = ""
        log.info("store open: PostgreSQL")

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._writer.stop()
        if self._pool is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._read_s):
                    await self._pool.close()
            self._pool.terminate()
        self._tell_closed()

    @contextlib.asynccontextmanager
    async def try_lock(self, work: str) -> AsyncIterator[bool]:
        """Take an advisory lock of a connection of its own; the lock ends with the connection."""
        try:
            connection = await self._connect()
            mine = bool(await connection.fetchval("SELECT pg_try_advisory_lock($1)", compute_lock_id(_OURS, work)))
        except SERVER_ERRORS as error:
            raise StoreUnavailable(f"who is at {work} cannot be asked: {type(error).__name__}.") from error
        try:
            yield mine
        finally:
            with contextlib.suppress(Exception):
                await connection.close(timeout=1.0)

    async def _fetch(self, text: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
        if self._pool is None or self._closed:
            raise StoreUnavailable("the store is closed.")
        self.flush_deferred()  # rows that are held back are included in the read
        try:
            async with asyncio.timeout(self._read_s), self._pool.acquire() as connection:
                rows = await connection.fetch(for_postgres(text), *args)
        except _BAD_ARGUMENT as error:
            # A value of the query could not be stored either; the server has no fault.
            raise StoreUnavailable(f"the store cannot be asked for that: {type(error).__name__}.") from error
        except TimeoutError as error:
            self._read_trouble = f"a read took longer than {self._read_s} s"
            raise StoreUnavailable(f"{self._read_trouble}.") from error
        except Exception as error:
            # Errors of the server, the network, or the driver, which raises many kinds of errors when a server dies.
            self._read_trouble = describe_error(error)
            raise StoreUnavailable(f"a read failed: {type(error).__name__}.") from error
        self._read_trouble = ""
        return [tuple(row) for row in rows]

    async def search(self, tenant: str, session: str, query: str, limit: int = 10) -> list[SearchMatch]:
        asked = postgres_index.build_query(query)
        if not asked:
            return []
        with contextlib.suppress(StoreUnavailable):  # an index that cannot be brought up to date is searched as it is
            await self.put([IndexRow(tenant, session)])
        rows = await self._fetch(postgres_index.SEARCH, (asked, tenant, session, limit))
        return [postgres_index.read_match(row) for row in rows]
