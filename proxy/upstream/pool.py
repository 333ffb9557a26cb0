"""The connections to one upstream: so many at most, those that wait for one in their order, idle ones kept a while.

Whoever has asked and is told nothing of it any more (cancelled, or out of patience, in the moment in which it was
given something) hands on what it was given. Each step costs the same however many connections and waiters there are.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from proxy.upstream.connection import Connection

KEPT_S: Final = 4.0
"""How long an idle connection is kept: less than the 5 s after which uvicorn (so vLLM and LiteLLM) and Node close
theirs, since a request that crosses such a close is lost, and must not be sent twice. Clients' own pools do not keep
theirs longer (httpx: 5 s). One that the upstream has closed already is not used again."""


class Full(Exception):
    """All connections were in use for too long."""


class Pool:
    """`limit` connections at most, `kept` of them while idle. connect: opens one."""

    def __init__(self, connect: Callable[[Connection], Awaitable[None]], limit: int, kept: int) -> None:
        self._connect = connect
        self._limit = limit
        self._kept = kept
        self._taken = 0
        """Connections there are, being opened ones and the right to open one included."""
        self._all: set[Connection] = set()
        self._idle: OrderedDict[Connection, float] = OrderedDict()
        """With when they came back, the last ones at the end: these are used first, the others may become too old."""
        self._waiting: OrderedDict[asyncio.Future[Connection | None], None] = OrderedDict()
        """Who is told next, with a connection or with the right to open one. Nothing is idle while somebody waits."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    def ready(self) -> Connection | None:
        """An idle connection, to be used at once."""
        if not self._idle:
            return None
        connection, since = self._idle.popitem()
        if asyncio.get_running_loop().time() - since < KEPT_S:
            return connection
        connection.abort()
        return None

    async def open(self, patience: float) -> Connection:
        """An idle connection or a new one, after `patience` s for others at most. Raises Full, and what `connect`
        raises."""
        while (connection := self.ready()) is None:
            if self._taken >= self._limit:
                connection = await self._wait(patience)
                if connection is not None:
                    if connection.closed:  # in the moment between
                        continue
                    break
            else:
                self._taken += 1
            return await self._opened()
        return connection

    async def _opened(self) -> Connection:
        connection = Connection(self)
        self._all.add(connection)
        try:
            await self._connect(connection)
        except BaseException:
            connection.abort()
            raise
        return connection

    async def _wait(self, patience: float) -> Connection | None:
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            async with asyncio.timeout(patience):
                return await waiter
        except BaseException as error:
            self._waiting.pop(waiter, None)
            if waiter.done() and not waiter.cancelled():
                given = waiter.result()
                if given is None:
                    self._free()
                elif not given.closed:
                    self.back(given)
            if isinstance(error, TimeoutError):
                raise Full from error
            raise

    def back(self, connection: Connection) -> None:
        if self._give(connection):
            return
        if self._closed or len(self._idle) >= self._kept:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        self._idle[connection] = loop.time()
        if self._sweeper is None:
            self._sweeper = loop.call_later(KEPT_S, self._sweep)

    def gone(self, connection: Connection) -> None:
        if connection in self._all:
            self._all.discard(connection)
            self._idle.pop(connection, None)
            self._free()

    def close(self) -> None:
        """Close every connection, those in use too."""
        self._closed = True
        for connection in list(self._all):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def _free(self) -> None:
        if not self._give(None):
            self._taken -= 1

    def _give(self, connection: Connection | None) -> bool:
        while self._waiting:
            waiter, _ = self._waiting.popitem(last=False)
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False

    def _sweep(self) -> None:
        self._sweeper = None
        loop = asyncio.get_running_loop()
        while self._idle:
            connection, since = next(iter(self._idle.items()))
            if loop.time() - since < KEPT_S:
                self._sweeper = loop.call_at(since + KEPT_S, self._sweep)
                return
            connection.abort()
