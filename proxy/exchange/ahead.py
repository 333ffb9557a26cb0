"""Compress a thread ahead of its next request, while the process is idle (FEATURES.md E9).

The stages of a policy may have `ages`, in seconds. When an age has passed and no request is being answered, the thread
is planned again. The helper model is asked for its summaries then, and the extracts are made. Nothing is sent and
nothing is decided. The next request plans for itself and finds the work done. The number of waiting threads and their
memory are bounded, and the tasks end with the process.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from proxy.exchange.parts import Headers, Parts, Waiting
from proxy.exchange.planning import planned, standing
from proxy.exchange.turn import Turn
from proxy.upstream.asks import credential

log = logging.getLogger(__name__)

MOST = 64
"""Threads that wait to be compressed. The one that has waited longest is dropped first."""
BYTES = 64 << 20
"""Limit in bytes on the requests that the waiting threads hold in memory."""
LOOK_S = 0.2
"""Seconds between two looks at whether the process is idle, once an age has passed."""
AFTER_S = 0.05
"""Seconds added to an age, so that the age has passed by any clock."""


def later(parts: Parts, turn: Turn, headers: Headers) -> None:
    """Schedule the compression of the turn's thread as of this request. A task that waits for an earlier request of it
    ends."""
    name = turn.place.thread.id
    if (old := parts.ahead.pop(name, None)) is not None:
        old.task.cancel()
    ages = sorted({age for stage in turn.policy.stages for age in getattr(stage, "ages", ())})
    if turn.policy.mode != "rewrite" or not ages:
        return
    size = len(turn.woven.request.body)
    task = asyncio.create_task(_wait(parts, turn, credential(headers), ages))
    parts.ahead[name] = Waiting(task, size)
    parts.running.add(task)
    task.add_done_callback(parts.running.discard)
    while len(parts.ahead) > MOST or (sum(one.size for one in parts.ahead.values()) > BYTES and parts.ahead):
        parts.ahead.pop(next(iter(parts.ahead))).task.cancel()
        parts.metrics.ahead_total.labels(outcome="dropped").inc()


async def _wait(parts: Parts, turn: Turn, headers: Headers, ages: list[int]) -> None:
    name, task = turn.place.thread.id, asyncio.current_task()
    began = asyncio.get_running_loop().time()
    try:
        for age in ages:
            await asyncio.sleep(began + age + AFTER_S - asyncio.get_running_loop().time())
            while parts.open:  # noqa: ASYNC110  # an Event would wake all that wait at once, at the worst moment
                await asyncio.sleep(LOOK_S)
            await _compress(parts, turn, headers)
    except Exception:  # nobody awaits this task: counted and logged, and the next request does the work itself
        parts.metrics.swallowed_total.labels(where="ahead").inc()
        log.exception("a thread cannot be compressed ahead")
    finally:
        mine = parts.ahead.get(name)
        if mine is not None and mine.task is task:
            del parts.ahead[name]


async def _compress(parts: Parts, turn: Turn, headers: Headers) -> None:
    thread = turn.place.thread
    again = replace(turn, began=parts.now(), rows=[])
    again.woven = turn.woven
    plan = await planned(parts, again, standing(parts, again), frozen=True)
    asked = parts.asking is not None and bool(plan.asks)
    if parts.asking is not None:
        parts.asking.take(thread, plan.asks, headers)
    parts.metrics.ahead_total.labels(outcome="asked" if asked else "planned").inc()
