"""Reads in the background after a fault, so that a store that nobody asks is known to work again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from proxy.errors import StoreUnavailable

PROBE_PAUSE_S = 0.5
"""Seconds between two reads of a probe."""


class ReadProbe:
    """A read that is repeated until it succeeds, once at a time. read: raises StoreUnavailable if it fails."""

    def __init__(self, read: Callable[[], Awaitable[object]]) -> None:
        self._read = read
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """Begin to read, unless it is under way."""
        if not self._closed and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run(), name="store-probe")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PROBE_PAUSE_S)
            with contextlib.suppress(StoreUnavailable):  # counted and shown by `read` itself
                await self._read()
                return

    async def close(self) -> None:
        """End a read that is under way, and begin no other. Idempotent."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
