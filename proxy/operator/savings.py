"""Savings of all requests since a moment: tokens that were left out, and dollars paid beside dollars without the proxy.

The sums are exact from that moment on, unlike the hours and days of the cost report. `context-proxy wrap` reads them
when its agent has ended.
"""

from __future__ import annotations

from functools import partial

from msgspec import Struct, field

from proxy.exchange.services import Services
from proxy.operator.find_session import PAGE_SIZE, run_off_loop
from proxy.operator.session_stats import MAX_EXCHANGES, is_request
from proxy.operator.timeline import FAILED_STATUSES, build_points
from proxy.store.base import ExchangeRecord
from proxy.store.session_lists import SessionFilter

MAX_SESSIONS = 500
"""Limit on the sessions that are added up, the newest."""


class Savings(Struct):
    """Sums over the requests since a moment."""

    since: float
    requests: int = 0
    open_requests: int = 0
    """Requests whose answer has not ended."""
    tokens_before: int = 0
    """Tokens of the prompts as received."""
    tokens_after: int = 0
    """Tokens of the prompts as they were sent."""
    cost: float = 0.0
    """Dollars paid, for the requests whose cost is known."""
    cost_without: float = 0.0
    """Dollars that the same requests would have cost without the proxy."""
    unpriced: int = 0
    """Requests whose model has no price. No sum of dollars has them."""
    without_usage: int = 0
    """Requests whose answer reported no usage. They are in no sum of dollars."""
    failed: int = 0
    """Requests that got no answer, an error without usage, or whose end is not stored. No sum of dollars has them."""
    unpriced_models: list[str] = field(default_factory=list)
    more: bool = False
    """True if there are more sessions than are added up."""


async def sum_savings(services: Services, tenant: str | None, since: float) -> Savings:
    """Add up the requests that began at `since` or later. tenant: None for all tenants."""
    rows = await services.store.list_sessions(tenant, None, MAX_SESSIONS + 1, SessionFilter("", since, None, ""))
    savings = Savings(since, more=len(rows) > MAX_SESSIONS)
    unpriced: set[str] = set()
    for row in rows[:MAX_SESSIONS]:
        exchanges = await _read_since(services, row.tenant, row.session, since)
        points, _ = await run_off_loop(len(exchanges), partial(build_points, services, exchanges))
        for exchange, point in zip(exchanges, points, strict=True):
            if point.started_at < since or not is_request(exchange):
                continue  # an earlier one is there for the cache that the next one found
            savings.requests += 1
            savings.tokens_before += point.tokens_before
            savings.tokens_after += point.tokens_after
            savings.cost += point.cost or 0.0
            savings.cost_without += point.cost_without or 0.0
            if point.status == "open":
                savings.open_requests += 1
            elif point.prompt_tokens is None and point.status in FAILED_STATUSES:
                savings.failed += 1
            elif point.prompt_tokens is None:
                savings.without_usage += 1
            elif point.cost is None:
                savings.unpriced += 1
                unpriced.add(exchange.model)
    savings.unpriced_models = sorted(unpriced)
    return savings


async def _read_since(services: Services, tenant: str, session: str, since: float) -> list[ExchangeRecord]:
    """Return the exchanges since a moment, oldest first, with up to a page of those before it."""
    exchanges: list[ExchangeRecord] = []
    before: float | None = None
    while len(exchanges) < MAX_EXCHANGES and (
        page := await services.store.read_exchanges(tenant, session, PAGE_SIZE, before)
    ):
        exchanges += page
        before = page[-1].started_at
        if before < since:
            break
    return exchanges[::-1]
