"""Removal of sessions and branches that were not used for `store.retention_days`, in small steps during live traffic;
and the maintenance that a store needs at intervals.

Of many replicas one runs it at a time. If it stops, or the store goes away, the next round finishes its work.
"""

from __future__ import annotations

import asyncio
import logging
import random

from proxy.errors import StoreUnavailable
from proxy.exchange.services import Services

log = logging.getLogger(__name__)

DAY_S = 86400.0
FIRST_S = 60.0
"""Seconds to the first round, up to twice as long: replicas that start together do not begin at once."""
EVERY_S = 3600.0
STEP = 20
"""Limit on the sessions or branches that are read together."""
PAUSE_S = 0.05
"""Seconds between two such steps."""
LOCK = "retention"


async def run_retention(services: Services, first_s: float = FIRST_S, every_s: float = EVERY_S) -> None:
    """Run a round at intervals until it is cancelled, or return at once where there is nothing to do."""
    if not (services.settings.store.retention_days or services.store.shared):
        return
    await asyncio.sleep(first_s * random.uniform(1, 2))
    while True:
        try:
            await services.store.maintain()
            if services.settings.store.retention_days:
                await remove_expired(services)
        except StoreUnavailable as problem:
            services.metrics.internal_errors_total.labels(where="retention").inc()
            log.warning("retention waits for its next round: %s", problem)
        except Exception:  # nobody awaits this task, and it must not end: counted and logged
            services.metrics.internal_errors_total.labels(where="retention").inc()
            log.exception("a round of retention failed")
        await asyncio.sleep(every_s * random.uniform(0.9, 1.1))


async def remove_expired(services: Services) -> int:
    """Run one round: return the number of sessions and branches removed, 0 where another replica runs it.
    StoreUnavailable passes through."""
    removed = 0
    before = services.now() - services.settings.store.retention_days * DAY_S
    async with services.store.try_lock(LOCK) as mine:
        while mine:
            services.live_sessions.forget_idle(before)
            places = await services.store.remove_expired(before, STEP)
            if not places:
                break
            for place in places:  # a request may have read one of them back meanwhile
                services.forget_session(*place)
            removed += len(places)
            services.metrics.retired_total.inc(len(places))
            await asyncio.sleep(PAUSE_S)
    if removed:
        log.info("retention: %d sessions and branches removed", removed)
    return removed
