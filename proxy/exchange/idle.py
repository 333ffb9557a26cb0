"""Compress a branch ahead of its next request, while the process is idle.

The stages of a policy may have `ages`, in seconds. When an age has passed and no request is being answered, the branch
is planned again. The helper model is asked for its summaries then, and the extracts are made. Nothing is sent and
nothing is decided. The next request plans for itself and finds the work done. The number of waiting branches and their
memory are bounded, and the tasks end with the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from proxy.exchange.plan_request import find_current_state, make_plan
from proxy.exchange.services import Headers, Services, WaitingTask
from proxy.exchange.turn import PendingRows, Turn
from proxy.helper.helper_client import lend_credential

log = logging.getLogger(__name__)

MAX_WAITING_BRANCHES = 64
"""Branches that wait to be compressed. The branch that has waited longest is dropped first."""
MAX_WAITING_BYTES = 64 << 20
"""Limit in bytes on the requests that the waiting branches hold in memory."""
IDLE_CHECK_S = 0.2
"""Seconds between two looks at whether the process is idle, once an age has passed."""
AGE_MARGIN_S = 0.05
"""Seconds added to an age, so that the age has passed by any clock."""


def schedule_compression(services: Services, turn: Turn, headers: Headers) -> None:
    """Schedule the compression of the turn's branch as of this request, in place of an earlier one."""
    name = turn.located.branch.id
    if (old := services.idle_compressions.pop(name, None)) is not None:
        old.task.cancel()
    ages = turn.enriched.policy.idle_ages
    if turn.enriched.policy.mode != "rewrite" or not ages:
        return
    size = len(turn.enriched.spliced.request.body)
    kept = lend_credential(services.client, turn.upstream, services.settings.helper.upstream, headers)
    task = asyncio.create_task(_wait(services, turn, kept, ages))
    services.idle_compressions[name] = WaitingTask(task, size)
    services.background_tasks.add(task)
    task.add_done_callback(services.background_tasks.discard)
    while len(services.idle_compressions) > MAX_WAITING_BRANCHES or (
        sum(one.size for one in services.idle_compressions.values()) > MAX_WAITING_BYTES and services.idle_compressions
    ):
        services.idle_compressions.pop(next(iter(services.idle_compressions))).task.cancel()
        services.metrics.idle_compressions_total.labels(outcome="dropped").inc()


async def _wait(services: Services, turn: Turn, headers: Headers, ages: Sequence[int]) -> None:
    began = asyncio.get_running_loop().time()
    try:
        for age in ages:
            await asyncio.sleep(began + age + AGE_MARGIN_S - asyncio.get_running_loop().time())
            while services.open_requests:  # noqa: ASYNC110  # an Event would wake all that wait at once, at the worst moment
                await asyncio.sleep(IDLE_CHECK_S)
            await _compress(services, turn, headers)
    except Exception:  # nobody awaits this task: counted and logged, and the next request does the work itself
        services.metrics.internal_errors_total.labels(where="idle").inc()
        log.exception("a branch cannot be compressed ahead")
    finally:
        # The task is in no local variable: the traceback of a cancelled task keeps those, and so the task itself.
        if _is_waiting(services, turn):
            del services.idle_compressions[turn.located.branch.id]


def _is_waiting(services: Services, turn: Turn) -> bool:
    """True if this task is the one that waits for the turn's branch."""
    waiting = services.idle_compressions.get(turn.located.branch.id)
    return waiting is not None and waiting.task is asyncio.current_task()


async def _compress(services: Services, turn: Turn, headers: Headers) -> None:
    branch = turn.located.branch
    again = turn.with_values(started_at=services.now(), pending=PendingRows())
    plan = await make_plan(services, again, find_current_state(services, again), frozen=True)
    asked = services.helper_queue is not None and bool(plan.asks)
    if services.helper_queue is not None:
        services.helper_queue.submit_asks(branch, plan.asks, headers)
    services.metrics.idle_compressions_total.labels(outcome="asked" if asked else "planned").inc()
