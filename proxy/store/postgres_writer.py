"""The writer to PostgreSQL: queued items, written in one transaction at a time, with a connection of its own.

Group commit as in SQLite's writer: a lone item is committed at once, and items that come while that commit waits go
into the next. An item is taken from the queue only when it is durable. Over a network each statement costs a round
trip. So a batch is one call of a server function (`postgres_batch`): one trip, as many rows and tables as it has.

Other replicas write to the same sessions. Each transaction holds the advisory locks of the sessions it writes to, taken
in one order. So running numbers have neither gaps nor clashes, and no deadlock occurs. If a server has no such locks, a
clash of numbers is an error and the transaction is tried again.

A row that cannot be stored fails its own item, by writing the items of its batch one by one. Any other error comes from
the server or the network. The items stay, the connection is made again with growing pauses, and nothing is acknowledged
until it works.

Inserts are ignored where the row is there, and updates set the same values. So a batch whose commit broke off with an
unknown outcome can be written again (a gap, or spending, may then be counted twice).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from queue import Empty
from typing import Any

import asyncpg

from proxy.store import encode, postgres_index
from proxy.store.base import Row
from proxy.store.full_text_search import IndexRow
from proxy.store.postgres_batch import encode_batch, prepare_function
from proxy.store.removal import RemovalStepRow
from proxy.store.write_queue import WriteItem, WriteQueue

log = logging.getLogger(__name__)

_BATCH_ITEMS = 64
_RETRY_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
_CHECK_S = 5.0
"""Seconds between two checks of the connection when nothing is written: a lost server is noticed within 10 s."""
_MAX_ATTEMPTS = 5
"""Maximum number of attempts of a transaction that clashes with another replica's."""

_BAD_ROW = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.ProgramLimitExceededError)
SERVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
"""Errors of the server or the network; a time limit is an OSError. All others are the rows' own."""
_CLASH = (asyncpg.UniqueViolationError, asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


class PostgresWriter:
    """The writer, as one task. `connect` gives a new connection, and may raise anything."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], *, spool_bytes: int, drain_s: float = 5.0) -> None:
        self.commits = 0
        self.trouble = "not started"
        self._wake = asyncio.Event()
        self.queue = WriteQueue(spool_bytes, self._wake.set)
        self._connect = connect
        self._drain_s = drain_s
        self._pending: deque[WriteItem] = deque()
        self._connection: Any = None
        self._call: Any = None
        """The prepared call of the function that writes a batch; of this connection."""
        self._failures = 0
        self._stop_at: float | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect and start the task. Raises what `connect` raises."""
        await self._reconnect()
        self.trouble = ""
        self._task = asyncio.create_task(self._run(), name="store-writer")

    async def stop(self) -> None:
        """Write what waits, for `drain_s` at most if the server hangs, and end the task. Idempotent."""
        self.queue.close()
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _reconnect(self) -> None:
        self._connection = await self._connect()
        self._call = await prepare_function(self._connection)

    async def _run(self) -> None:
        while self._stop_at is None or self._pending:
            await self._run_cycle()
        await self._drop()

    async def _run_cycle(self) -> None:
        """Take the queued items and write them. A step that fails is tried again in the next cycle."""
        await self._collect_items()
        try:
            if self._connection is None or self._connection.is_closed():
                await self._reconnect()
            if self._pending:
                await self._write_batch()
            else:
                await self._connection.fetchval("SELECT 1")
        except Exception as error:  # noqa: BLE001  the task must not end: logged, shown as `trouble`, tried again
            await self._handle_failure(error)
        else:
            if self.trouble:
                log.warning("the store works again after %d failures", self._failures)
                self.trouble, self._failures = "", 0

    async def _collect_items(self) -> None:
        """Wait until there is something to write or to check, then take the items that are there without waiting."""
        self._take_queued()
        if self._pending or self._stop_at is not None or self.trouble:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), _CHECK_S)
        self._take_queued()

    def _take_queued(self) -> None:
        self._wake.clear()
        with contextlib.suppress(Empty):
            # While stopping, all items are taken: else the end mark behind a full batch that cannot be written would
            # never be read.
            while (len(self._pending) < _BATCH_ITEMS or self.queue.closed) and self._stop_at is None:
                items = self.queue.inbox.get_nowait()
                if items is None:
                    self._stop_at = time.monotonic() + self._drain_s
                else:
                    self._pending.extend(items)

    async def _write_batch(self) -> None:
        batch = list(islice(self._pending, _BATCH_ITEMS))
        try:
            await self._commit(batch)
            self._settle_first(len(batch), None)
        except Exception as trouble:
            if _is_server_error(trouble):
                raise
            await self._write_singly(batch)

    async def _write_singly(self, batch: Sequence[WriteItem]) -> None:
        for item in batch:
            try:
                await self._commit([item])
                self._settle_first(1, None)
            except Exception as error:
                if _is_server_error(error):
                    raise
                log.warning("rows that cannot be stored: %s", type(error).__name__)
                self._settle_first(1, _strip_values(error))

    async def _commit(self, batch: Sequence[WriteItem]) -> None:
        """Write the items in one transaction; they are durable afterwards."""
        rows = [row for item in batch for row in item.rows]
        locks = sorted({compute_lock_id(row.tenant, row.session) for row in rows})
        parts = list(encode.split_by_table(rows, (RemovalStepRow, IndexRow)))
        for attempt in range(_MAX_ATTEMPTS):
            try:
                if len(parts) == 1 and not isinstance(parts[0][0], (RemovalStepRow, IndexRow)):
                    await self._write_rows(parts[0], locks)
                else:
                    async with self._connection.transaction():
                        await self._connection.execute(_LOCK, locks)
                        for part in parts:
                            await self._write_part(part)
            except _CLASH:
                if attempt == _MAX_ATTEMPTS - 1:
                    raise
                await asyncio.sleep(_RETRY_PAUSES_S[attempt])
            else:
                self.commits += 1
                return

    async def _write_part(self, rows: list[Row]) -> None:
        first = rows[0]
        if isinstance(first, IndexRow):
            await postgres_index.update_index(self._connection, first.tenant, first.session)
        elif isinstance(first, RemovalStepRow):
            for text, args in encode.build_statements(rows):
                await self._connection.executemany(text, args)
        else:
            await self._write_rows(rows, [])

    async def _write_rows(self, rows: Sequence[Row], locks: Sequence[int]) -> None:
        """Write rows that neither index nor remove others, in one round trip."""
        counts, values = encode_batch(rows)
        await self._call.fetchval(locks, counts, *values)

    def _settle_first(self, count: int, error: Exception | None) -> None:
        """Drop the first items, and report them as durable, or as lost because of `error`."""
        self.queue.settle_items([self._pending.popleft() for _ in range(count)], error)

    async def _handle_failure(self, error: Exception) -> None:
        """Report the fault, drop the connection and pause. Give up the items once the time to stop has passed."""
        trouble = describe_error(error)
        if not self.trouble:
            known = isinstance(error, SERVER_ERRORS)
            waiting = len(self._pending)
            log.error("the store cannot write, %d items wait: %s", waiting, trouble, exc_info=None if known else error)
        self.trouble = trouble
        self._failures += 1
        await self._drop()
        if self._stop_at is not None and time.monotonic() >= self._stop_at:
            if self._pending:
                log.error("closing with %d items not stored", len(self._pending))
                self._settle_first(len(self._pending), error)
            return
        pause = _RETRY_PAUSES_S[min(self._failures, len(_RETRY_PAUSES_S)) - 1]
        if self._stop_at is not None:
            pause = min(pause, self._drain_s / 10)
        await asyncio.sleep(pause)

    async def _drop(self) -> None:
        """Close the connection without a long wait for a server that may be gone."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                await connection.close(timeout=1.0)


def describe_error(error: Exception) -> str:
    """The error in one line. The further lines of a PostgreSQL message may quote rows."""
    text = str(error).partition("\n")[0]
    if not text and isinstance(error, TimeoutError):
        text = "the database did not answer in time"
    return f"{type(error).__name__}: {text}"


def _strip_values(error: Exception) -> Exception:
    """The error of a bad row without the values that PostgreSQL and asyncpg quote: it is logged."""
    if isinstance(error, asyncpg.PostgresError):
        bare: Exception = type(error)(f"SQLSTATE {error.sqlstate}")
        return bare
    return error


def _is_server_error(error: Exception) -> bool:
    return isinstance(error, SERVER_ERRORS) and not isinstance(error, _BAD_ROW)


_LOCK = "SELECT pg_advisory_xact_lock(place) FROM unnest($1::bigint[]) AS place"
"""Takes the locks in the order of the list."""


def compute_lock_id(tenant: str, session: str) -> int:
    """The number of a session's advisory lock: 64 bits, signed."""
    name = f"{len(tenant)}:{tenant}{session}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), signed=True)
