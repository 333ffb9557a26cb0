"""A store that fails or lingers as told, in front of one that works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from proxy.errors import StoreUnavailable
from proxy.store.base import Row
from proxy.store.in_memory import InMemoryStore
from proxy.web.app import ContextProxy


class FailingStore(InMemoryStore):
    """reads, writes: whether they work. hold: writes are done, but nobody is told until `release` is called. stalls:
    what the store says of its writes."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True
        self.writes = True
        self.hold = False
        self.stalls = False
        self._held: list[asyncio.Future[None]] = []

    @property
    def stalled(self) -> bool:
        return self.stalls

    def put(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self.writes:
            future.set_exception(StoreUnavailable("the disk is full."))
            future.exception()
            return future
        done = super().put(rows)
        if not self.hold:
            return done
        self._held.append(future)
        return future

    def release(self) -> None:
        """Tell what was held back."""
        self.hold = False
        for future in self._held:
            if not future.done():
                future.set_result(None)
        self._held.clear()

    async def _fetch(self, text: str, args: Sequence[Any]) -> list[tuple[Any, ...]]:
        if not self.reads:
            raise StoreUnavailable("a read failed.")
        return await super()._fetch(text, args)


def use_store(store: FailingStore) -> Callable[[ContextProxy], None]:
    """Lets an app work with this store; for `running(before=...)`."""

    def before(app: ContextProxy) -> None:
        app.store = app.services.store = app.services.live_sessions.store = store

    return before
