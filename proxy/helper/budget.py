"""Bounds for helpers: a limit in dollars a day, and a pause for a helper that is down.

Dollars are reserved before a question goes out and settled when its answer has come. The reserve is the most that an
answer can cost. So the sum stays under the limit, however many questions are under way at once. The dollars spent are
stored, so that a restart does not begin the day's budget again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from proxy.store.base import Store
from proxy.store.derived import NO_CONVERSATION, SpendingRow

DAY_S = 86_400

DOWN_OUTCOMES = frozenset({"unreachable", "timeout", "broken", "refused", "failed", "garbage"})
"""Outcomes (see `helper_client.HelperAnswer`) that say more about the helper than about the question."""
DOWN_AFTER = 3
"""Number of these outcomes in a row after which nothing is asked for `BREAK_S` seconds: not every request should meet
the same failure."""
BREAK_S = 30.0


class Budget:
    """Daily budget of the helpers in dollars. limit: for each day in UTC; 0: nothing may be asked."""

    def __init__(self, limit: float, now: Callable[[], float] = time.time) -> None:
        self.limit = limit
        self.spent = 0.0
        """Dollars of `day` so far."""
        self.reserved = 0.0
        """Dollars that questions under way may still cost."""
        self._now = now
        self._day = -1
        self._reading = asyncio.Lock()

    @property
    def day(self) -> int:
        """Today, as the store counts days."""
        return int(self._now() // DAY_S)

    async def reserve(self, store: Store, dollars: float) -> bool:
        """Reserve dollars until `settle_reserve`. True if so many are left. Raises StoreUnavailable if the dollars
        spent today cannot be read."""
        async with self._reading:
            today = self.day
            if self._day != today or store.shared:  # other replicas spend from the same budget
                stored = await store.sum_spending(today)
                self.spent = max(stored, self.spent) if self._day == today else stored
                self._day = today
        if self.limit <= 0 or self.spent + self.reserved + dollars > self.limit:
            return False
        self.reserved += dollars
        return True

    def settle_reserve(self, kind: str, reserved: float, tokens: tuple[int, int], dollars: float) -> SpendingRow:
        """Replace a reserve by the real cost, and return the row to be stored. tokens: of prompts and of answers."""
        self.reserved = max(0.0, self.reserved - reserved)
        self.spent += dollars
        return SpendingRow(*NO_CONVERSATION, self.day, kind, 1, *tokens, dollars)


class CircuitBreaker:
    """Circuit breaker for a helper that fails. open_calls: calls under way, for callers that bound them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.open_calls = 0
        self._clock = clock
        self._failures = 0
        self._until = 0.0

    @property
    def is_open(self) -> bool:
        """True if the helper has failed so often of late that nothing is to be asked."""
        return self._clock() < self._until

    def record_call(self, outcome: str) -> bool:
        """Record the outcome of a call. True if a pause begins with it."""
        self._failures = self._failures + 1 if outcome in DOWN_OUTCOMES else 0
        if self._failures < DOWN_AFTER:
            return False
        self._failures = 0
        self._until = self._clock() + BREAK_S
        return True
