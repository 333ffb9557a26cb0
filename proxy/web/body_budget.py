"""Budget of memory for the bodies that requests hold: a body beyond it gets 503 with Retry-After.

A body is counted as it comes, not as it is declared: a client that only declares a length takes nothing from others.
Two rules keep one client from holding the whole budget. A tenant gets half, if there are several. If there is no room,
the body that has been arriving for longest is dropped, because a normal client sends its body at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

from proxy.errors import Unavailable
from proxy.metrics import Metrics

SLOW_S: Final = 5.0
"""Seconds after which an incomplete body is dropped if others need the room."""


class BodyBudget:
    """`most` bytes for all bodies together. several: True if the bodies may be of several tenants."""

    __slots__ = ("_by_tenant", "_coming", "_metrics", "_most", "_several", "held")

    def __init__(self, most: int, metrics: Metrics, *, several: bool = False) -> None:
        self.held = 0
        self._by_tenant: Counter[str] = Counter()
        self._several = several
        self._most = most
        self._metrics = metrics
        self._coming: dict[BodyShare, float] = {}
        """Bodies that are being read, with the start time of each, the oldest first."""

    @contextmanager
    def share(self, tenant: str = "") -> Iterator[BodyShare]:
        """Yield the share of one request, and free it at the end."""
        share = BodyShare(self, tenant)
        try:
            yield share
        finally:
            self.release(share)

    def reserve(self, size: int, share: BodyShare) -> None:
        """Reserve `size` more bytes for a body. Raises Unavailable if there is no room. A body that is alone here is
        accepted at any length: another limit bounds it."""
        own, of_tenant = share.size, self._by_tenant[share.tenant]
        if self._several and of_tenant > own and of_tenant + size > self._most // 2:
            self._metrics.refused_requests_total.inc()
            raise Unavailable("the bodies of this tenant take half of the memory", hint="Try again in a moment.")
        while self.held > own and self.held + size > self._most:
            if not self._make_room(share):
                self._metrics.refused_requests_total.inc()
                raise Unavailable(
                    "the bodies of other requests take all the memory there is", hint="Try again in a moment."
                )
        self.held += size
        self._by_tenant[share.tenant] += size
        share.size += size

    def release(self, share: BodyShare) -> None:
        """Free the bytes that a share holds. It may be called again."""
        self.held -= share.size
        self._by_tenant[share.tenant] -= share.size
        if not self._by_tenant[share.tenant]:
            del self._by_tenant[share.tenant]
        share.size = 0

    def begin_reading(self, share: BodyShare) -> None:
        """Record that the body of this share is being read."""
        self._coming[share] = asyncio.get_running_loop().time()

    def end_reading(self, share: BodyShare) -> None:
        """Record that the body of this share is read, or never will be."""
        self._coming.pop(share, None)

    def _make_room(self, wanted_by: BodyShare) -> bool:
        """Drop the body that has been arriving for longest; return False if none is slow."""
        slow = asyncio.get_running_loop().time() - SLOW_S
        for share, since in self._coming.items():
            if since > slow:
                return False
            if share.size and share is not wanted_by:
                self._metrics.refused_requests_total.inc()
                self.end_reading(share)
                self.release(share)
                share.give_way()
                return True
        return False


class BodyShare:
    """The part of the budget that one request holds."""

    __slots__ = ("_budget", "_gave_way", "_reading", "size", "tenant")

    def __init__(self, budget: BodyBudget, tenant: str) -> None:
        self.size = 0
        self.tenant = tenant
        self._budget = budget
        self._reading: asyncio.Task[Any] | None = None
        self._gave_way = False

    def reserve(self, size: int) -> None:
        """Reserve so many more bytes, which have arrived. Raises Unavailable."""
        self._budget.reserve(size, self)

    def give_way(self) -> None:
        """End the reading, because others need the room."""
        self._gave_way = True
        if self._reading is not None:
            self._reading.cancel()

    async def read_whole(self, reading: Coroutine[Any, Any, bytes]) -> bytes:
        """Return the body as `reading` reads it; `reading` calls `reserve`. Raises any error of `reading`, and
        Unavailable if the body is dropped."""
        task = self._reading = asyncio.current_task()
        self._budget.begin_reading(self)
        try:
            return await reading
        except asyncio.CancelledError as error:
            if task is None or not self._gave_way:
                raise  # the server cancels this request (shutdown)
            task.uncancel()
            raise Unavailable("the body came slowly, and others need its room", hint="Try again.") from error
        finally:
            self._reading = None
            self._budget.end_reading(self)
