"""Concurrency limit. An excess request gets 503 with Retry-After immediately.

More requests than the proxy can serve make all of them slow. A client that gets 503 with Retry-After tries again by
itself. The proxy's own pages are not counted: an operator gets in when the proxy is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from proxy.errors import Unavailable
from proxy.metrics import Metrics


class ConcurrencyLimit:
    """A limit of `most` concurrent requests."""

    __slots__ = ("_metrics", "_most", "broken_off", "taken")

    def __init__(self, most: int, metrics: Metrics) -> None:
        self.taken = 0
        self.broken_off = 0
        """Requests that the server cancelled, because it stops and no longer waits."""
        self._most = most
        self._metrics = metrics

    @contextmanager
    def hold_place(self) -> Iterator[None]:
        """Hold a place for the time of a request. Raises Unavailable if there is none."""
        if self.taken >= self._most:
            self._metrics.refused_requests_total.inc()
            raise Unavailable(f"{self._most} requests are being worked on", hint="Try again in a moment.")
        self.taken += 1
        try:
            yield
        except asyncio.CancelledError:
            self.broken_off += 1
            raise
        finally:
            self.taken -= 1
