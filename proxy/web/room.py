"""How many requests are worked on at once: one more than that is told to come back, at once, and costs nothing else.

What is let in beyond what can be done makes all of it slow; a client that is told 503 with Retry-After tries again by
itself. Our own pages are not counted: an operator gets in when it is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from proxy.errors import Unavailable
from proxy.metrics import Metrics


class Room:
    """`most` at once."""

    __slots__ = ("_metrics", "_most", "broken_off", "taken")

    def __init__(self, most: int, metrics: Metrics) -> None:
        self.taken = 0
        self.broken_off = 0
        """Requests that the server cancelled, because it stops and waits no longer."""
        self._most = most
        self._metrics = metrics

    @contextmanager
    def place(self) -> Iterator[None]:
        """Raises Unavailable where there is none."""
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
