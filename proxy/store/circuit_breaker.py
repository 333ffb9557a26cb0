"""A circuit breaker: a service that failed several times in a row is not asked for a while.

Else each request would wait for the same failure. After the pause calls are made again, and one more failure begins the
next pause.
"""

from __future__ import annotations

import time
from collections.abc import Callable

DOWN_AFTER = 3
"""Number of failures in a row that begin a pause."""
BREAK_S = 30.0
"""Seconds of a pause, where the owner of the breaker does not say otherwise."""

MAX_TENANTS = 1000
"""Limit on the tenants whose failures are kept in memory."""
EVERYBODY = ""
"""In place of a tenant: failures that count for all of them."""


class CircuitBreaker:
    """Circuit breaker of one service. A failure may be due to one tenant, and then counts for that tenant alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, pause_s: float = BREAK_S) -> None:
        self._clock = clock
        self._pause_s = pause_s
        self._failures: dict[str, int] = {}
        """Failures in a row of each tenant, and of all together."""
        self._until: dict[str, float] = {}

    def is_open(self, tenant: str = EVERYBODY) -> bool:
        """True if the service has failed so often of late that nothing is to be asked for this tenant."""
        return self._clock() < max(self._until.get(one, 0.0) for one in (EVERYBODY, tenant))

    def record_failure(self, tenant: str = EVERYBODY, weight: int = 1) -> bool:
        """Count a failure. weight: the number of failures that it stands for. True if a pause begins with it."""
        failures = self._failures.pop(tenant, 0) + weight
        self._failures[tenant] = failures
        was_open = self._clock() < self._until.get(tenant, 0.0)
        if failures >= DOWN_AFTER:
            self._until.pop(tenant, None)
            self._until[tenant] = self._clock() + self._pause_s
        for table in (self._failures, self._until):
            if len(table) > MAX_TENANTS:
                del table[next(iter(table))]
        return failures >= DOWN_AFTER and not was_open

    def record_success(self, tenant: str = EVERYBODY) -> None:
        """Forget the failures, and end a pause: the service answers."""
        self._failures.pop(tenant, None)
        self._until.pop(tenant, None)
