"""What has not been used for `store.retention_days` is removed, in small steps beside live traffic.

Of many replicas one does it at a time. What it begins and does not end, because it stops or the store goes away, the
next round ends.
"""

from __future__ import annotations

import asyncio
import logging
import random

from proxy.errors import StoreUnavailable
from proxy.exchange.parts import Parts

log = logging.getLogger(__name__)

DAY_S = 86400.0
FIRST_S = 60.0
"""From the start to the first round, up to twice as long: replicas that start together do not all look at once."""
EVERY_S = 3600.0
STEP = 20
"""Sessions or threads that are looked up together."""
PAUSE_S = 0.05
"""Between two such steps."""
LOCK = "retention"


async def keep(parts: Parts, first_s: float = FIRST_S, every_s: float = EVERY_S) -> None:
    """A round now and then, until it is cancelled; nothing where nothing is ever to be removed."""
    if not parts.settings.store.retention_days:
        return
    await asyncio.sleep(first_s * random.uniform(1, 2))
    while True:
        try:
            await sweep(parts)
        except StoreUnavailable as problem:
            parts.metrics.swallowed_total.labels(where="retention").inc()
            log.warning("retention waits for its next round: %s", problem)
        except Exception:  # nobody awaits this task, and it must not end: counted and logged
            parts.metrics.swallowed_total.labels(where="retention").inc()
            log.exception("a round of retention failed")
        await asyncio.sleep(every_s * random.uniform(0.9, 1.1))


async def sweep(parts: Parts) -> int:
    """One round: how many sessions and threads were removed; 0 where another replica is at it. StoreUnavailable passes
    through."""
    removed = 0
    before = parts.now() - parts.settings.store.retention_days * DAY_S
    async with parts.store.alone(LOCK) as mine:
        while mine:
            parts.threads.forget_idle(before)
            count = await parts.store.retention(before, STEP)
            if not count:
                break
            removed += count
            parts.metrics.retired_total.inc(count)
            await asyncio.sleep(PAUSE_S)
    if removed:
        log.info("retention: %d sessions and threads removed", removed)
    return removed
