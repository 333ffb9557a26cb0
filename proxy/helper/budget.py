"""Bounds for helpers: a limit in dollars a day, one for each tenant, and a pause for a helper that is down.

Dollars are reserved before a question goes out and settled when its answer has come. The reserve is the most that an
answer can cost. So the sum stays under the limit, however many questions are under way at once. The dollars spent are
stored, so that a restart does not begin the day's budget again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from proxy.store.circuit_breaker import EVERYBODY, CircuitBreaker
from proxy.store.derived import NO_CONVERSATION, NO_SESSION, SpendingRow
from proxy.store.reads import Store

DAY_S = 86_400

REFUSED = "refused"
DOWN_OUTCOMES = frozenset({"unreachable", "timeout", "broken", REFUSED, "failed", "garbage"})
"""Outcomes (see `helper_client.HelperAnswer`) that say more about the helper than about the question."""

MAX_TENANTS = 1000
"""Limit on the tenants whose spending is kept in memory. The spending of others is read from the store again."""


@dataclass(slots=True)
class DaySpending:
    """Dollars of one day, of all tenants or of one."""

    day: int = -1
    spent: float = 0.0
    reserved: float = 0.0
    """Dollars that questions under way may still cost."""

    async def refresh(self, store: Store, tenant: str, today: int) -> None:
        """Read the dollars spent today, where this process does not know them. StoreUnavailable passes through."""
        if self.day != today or store.shared:  # other replicas spend from the same budget
            stored = await store.sum_spending(today, tenant)
            self.spent = max(stored, self.spent) if self.day == today else stored
            self.day = today


class Budget:
    """Daily budget of the helpers in dollars. limit: for each day in UTC; 0: nothing may be asked. tenant_limit: the
    same for each tenant; 0: a tenant may use up the whole budget."""

    def __init__(self, limit: float, now: Callable[[], float] = time.time, tenant_limit: float = 0.0) -> None:
        self.limit = limit
        self.tenant_limit = tenant_limit
        self._now = now
        self._all = DaySpending()
        self._by_tenant: dict[str, DaySpending] = {}
        self._reading = asyncio.Lock()

    @property
    def spent(self) -> float:
        """Dollars of all tenants today."""
        return self._all.spent

    @property
    def reserved(self) -> float:
        """Dollars that questions under way may still cost."""
        return self._all.reserved

    @property
    def day(self) -> int:
        """Today, as the store counts days."""
        return int(self._now() // DAY_S)

    async def reserve(self, store: Store, tenant: str, dollars: float) -> bool:
        """Reserve dollars until `settle_reserve`. True if that many are left, in all and for this tenant. Raises
        StoreUnavailable if the dollars spent today cannot be read."""
        async with self._reading:
            today, own = self.day, self._find_own(tenant)
            await self._all.refresh(store, NO_CONVERSATION[0], today)
            if own is not None:
                await own.refresh(store, tenant, today)
        if self.limit <= 0 or self.spent + self.reserved + dollars > self.limit:
            return False
        if own is not None and own.spent + own.reserved + dollars > self.tenant_limit:
            return False
        self._all.reserved += dollars
        if own is not None:
            own.reserved += dollars
        return True

    def settle_reserve(
        self, tenant: str, kind: str, reserved: float, tokens: tuple[int, int], dollars: float
    ) -> list[SpendingRow]:
        """Replace a reserve by the real cost, and return the rows to be stored. tokens: of prompts and of answers."""
        own = self._find_own(tenant)
        for spending in (self._all, own) if own is not None else (self._all,):
            spending.reserved = max(0.0, spending.reserved - reserved)
            spending.spent += dollars
        places = [NO_CONVERSATION, (tenant, NO_SESSION)] if own is not None else [NO_CONVERSATION]
        return [SpendingRow(*place, self.day, kind, 1, *tokens, dollars) for place in places]

    def _find_own(self, tenant: str) -> DaySpending | None:
        """The spending of a tenant; None if tenants have no limit of their own."""
        if not self.tenant_limit:
            return None
        if tenant not in self._by_tenant and len(self._by_tenant) >= MAX_TENANTS:
            # Questions under way keep theirs: they are few, see `helper.concurrency`.
            self._by_tenant = {name: one for name, one in self._by_tenant.items() if one.reserved}
        return self._by_tenant.setdefault(tenant, DaySpending())


class HelperCircuitBreaker(CircuitBreaker):
    """Circuit breaker of a helper. open_calls: calls under way, for callers that bound them.

    A refusal may be due to the tenant's credential or text, so it counts for that tenant alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self.open_calls = 0

    def record_call(self, outcome: str, tenant: str) -> bool:
        """Record the outcome of a call. True if a pause begins with it."""
        concerned = (tenant,) if outcome == REFUSED else (tenant, EVERYBODY)
        if outcome in DOWN_OUTCOMES:
            begun = [self.record_failure(one) for one in concerned]  # each counts, also after one that begins a pause
            return any(begun)
        for one in concerned:
            self.record_success(one)
        return False
