"""Reads from PostgreSQL through a pool of connections, each one statement with a time limit on both sides of the
network.

A server that hangs accepts a statement and never answers, so that each read would wait for its time limit. A circuit
breaker ends that: after a few limits in a row reads fail at once. A probe then reads in the background, one statement
at a time, until the server answers. So no request has to find out that it does.

A limit counts only if no other read was answered meanwhile, and if the event loop was in time. Else a burst of requests
would count as a server that hangs, and one statement that is always too slow would stop all others.

The probe reads what a request reads, so that a lock on one of these tables is seen. It also starts after any other
fault, so that an idle replica knows that the store works again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any

import asyncpg

from proxy.errors import StoreUnavailable
from proxy.store.circuit_breaker import DOWN_AFTER, CircuitBreaker
from proxy.store.expected_reads import ExpectedReads
from proxy.store.postgres_read_ahead import ReadAhead
from proxy.store.postgres_writer import describe_error
from proxy.store.read_probe import ReadProbe
from proxy.store.sql import for_postgres

log = logging.getLogger(__name__)

OURS = "context-proxy"
PLANNING = {"plan_cache_mode": "force_generic_plan", "jit": "off"}
"""Plan each statement once for a connection. PostgreSQL would plan statements of partitioned tables each time, and
compile what it takes for a large query; both cost more than the query."""

_BAD_ARGUMENT = (asyncpg.DataError, OverflowError, UnicodeError, TypeError, ValueError)
_LIMITS = (TimeoutError, asyncpg.QueryCanceledError)
"""The time limit on this side of the network, and the same limit of the server."""
_PAUSE_S = 5.0
"""Seconds of a pause. Each failed read of the probe begins another one, so reads are only made again without the probe
if it has not come to an end."""
_LATE_S = 0.1
"""Seconds by which a time limit may be late. If it is later, this process was busy, and the answer may lie there."""
_SUSPICIOUS_S = 0.1
"""Seconds after which a read that its caller gives up starts the probe. Callers with a short limit of their own would
else never meet the limit of a read."""


class _Connection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg has no types
    """A connection without a reset query. The pool's connections are read-only and never in a transaction, so no trip
    to the server is needed after each read."""

    __slots__ = ()

    def get_reset_query(self) -> str:
        return ""


class PostgresReader:
    """The reading half of the store. connections: the most that are open at once."""

    def __init__(self, url: str, *, connections: int, read_s: float, connect_s: float) -> None:
        self.trouble = "not open"
        """The fault of the last read, "" for none."""
        self._url = url
        self._connections = connections
        self._read_s = read_s
        self._connect_s = connect_s
        self._pool: Any = None
        self._closed = False
        self._breaker = CircuitBreaker(pause_s=_PAUSE_S)
        self._probe = ReadProbe(self._read_as_request)
        self._answered_at = 0.0
        """Time of the last answer to a read, by the clock of the event loop."""
        self._ending: set[asyncio.Task[None]] = set()
        """Releases of connections whose statement has not ended yet."""

    async def open(self) -> None:
        """Make the pool; its connections are made when they are needed."""
        self._pool = await asyncpg.create_pool(
            self._url,
            min_size=0,
            max_size=self._connections,
            timeout=self._connect_s,
            command_timeout=self._read_s,
            connection_class=_Connection,
            server_settings={
                "application_name": OURS,
                "statement_timeout": str(int(self._read_s * 1000)),
                "default_transaction_read_only": "on",
                **PLANNING,
            },
        )

    async def close(self) -> None:
        self._closed = True
        await self._probe.close()
        if self._pool is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._read_s):
                    await self._pool.close()
            self._pool.terminate()

    async def read_version(self) -> int:
        """The version of the schema. Errors of the server pass through."""
        async with self._pool.acquire() as connection:
            version: int = await connection.fetchval("SELECT version FROM context_proxy_schema")
        return version

    def check_answering(self) -> None:
        """Raise StoreUnavailable if no read is to be made now: the store is closed, or does not answer."""
        if self._pool is None or self._closed:
            raise StoreUnavailable("the store is closed.")
        if self._breaker.is_open():
            raise StoreUnavailable(f"the store does not answer: {self.trouble}.")

    async def fetch(self, text: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The rows of one statement, in a round trip of its own."""
        self.check_answering()
        return await self._fetch(text, args)

    async def _fetch(self, text: str, args: Sequence[Any], weight: int = 1) -> list[tuple[Any, ...]]:
        """The rows of a statement, even if the breaker is open. weight: what a time limit counts."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(self._read_s):
                rows = await self._run(for_postgres(text), args)
        except asyncio.CancelledError:
            if clock() - began > _SUSPICIOUS_S:
                self._probe.start()
            raise
        except _LIMITS as error:
            self.trouble = f"a read took longer than {self._read_s} s"
            is_telling = self._answered_at < began and clock() - began < self._read_s + _LATE_S
            self._note_limit(weight if is_telling else 0)
            raise StoreUnavailable(f"{self.trouble}.") from error
        except _BAD_ARGUMENT as error:
            # A value of the query could not be stored either; the server has no fault.
            raise StoreUnavailable(f"the store cannot be asked for that: {type(error).__name__}.") from error
        except Exception as error:
            # Errors of the server, the network, or the driver, which raises many kinds of errors when a server dies.
            self.trouble = describe_error(error)
            self._probe.start()
            raise StoreUnavailable(f"a read failed: {type(error).__name__}.") from error
        if self._breaker.is_open():
            log.warning("the store answers reads again")
        self._breaker.record_success()
        self._answered_at = clock()
        self.trouble = ""
        return [tuple(row) for row in rows]

    async def _run(self, text: str, args: Sequence[Any]) -> list[Any]:
        connection = await self._pool.acquire()
        try:
            rows: list[Any] = await connection.fetch(text, *args)
        except BaseException:
            # A statement that is given up is cancelled on the server first. A server that hangs does not answer that
            # either, and the caller's time is over.
            task = asyncio.create_task(self._release(connection))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            raise
        await self._pool.release(connection)
        return rows

    async def _release(self, connection: Any) -> None:
        with contextlib.suppress(Exception):  # the pool drops a connection that it cannot use again
            await self._pool.release(connection)

    def _note_limit(self, weight: int) -> None:
        if weight and self._breaker.record_failure(weight=weight):
            log.error("the store does not answer; until it does, reads fail at once: %s", self.trouble)
        self._probe.start()

    async def _read_as_request(self) -> None:
        """The read of a request, of a session that cannot be: if it meets the time limit, no request's read is made."""
        ahead = ReadAhead(ExpectedReads("", "", [b""], [b""], is_new=True, scratchpad=True, memos=1))
        await ahead.take_known("", "", [b""], lambda text, args: self._fetch(text, args, DOWN_AFTER))
