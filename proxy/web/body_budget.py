"""Budget of memory for the bodies that requests hold: one that would go beyond it gets 503 with Retry-After.

A body is counted as it comes, not as it is declared: who only promises bytes takes none from others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from proxy.errors import Unavailable
from proxy.metrics import Metrics


class BodyBudget:
    """`most` bytes for all bodies together."""

    __slots__ = ("_metrics", "_most", "held")

    def __init__(self, most: int, metrics: Metrics) -> None:
        self.held = 0
        self._most = most
        self._metrics = metrics

    @contextmanager
    def share(self) -> Iterator[BodyShare]:
        """The share of one request, given back at its end."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            self.held -= share.size

    def take(self, size: int, own: int) -> None:
        """Raises Unavailable where there is no room for so many bytes more of a body that has `own` here already. A
        body that is here alone is let in however long it is: its own limit is another."""
        if self.held > own and self.held + size > self._most:
            self._metrics.refused_requests_total.inc()
            raise Unavailable(
                "the bodies of other requests take all the memory there is", hint="Try again in a moment."
            )
        self.held += size


class BodyShare:
    """What one request holds of the budget."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: BodyBudget) -> None:
        self.size = 0
        self._budget = budget

    def add(self, size: int) -> None:
        """So many more bytes have come. Raises Unavailable."""
        self._budget.take(size, self.size)
        self.size += size
