"""Keep a provider's prompt cache warm while a user thinks: the last prompt is sent again, without an answer.

Anthropic's cache lives five minutes from the beginning of the request that used it last. A ping shortly before that
reads the prompt at a tenth of its price, and the cache lives on. `cache.keep_alive_pings` limits the pings after each
answer. The next request of the branch cancels them. So does a refusal, a ping that the cache did not serve, the removal
of the session, and the stop of the proxy. Numbers and bytes are bounded.

A ping is no turn of the conversation. Its usage joins the meter of the exchange before it, so that each sum of dollars
has it. The client's credentials are held by the waiting task alone. What pings save is in
docs/concepts/cache-economics.md.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from proxy.context.models import Model
from proxy.dialects.messages.cache_ping import build_ping
from proxy.dialects.usage import Usage, read_usage
from proxy.errors import ProxyError
from proxy.exchange import cost, result_clearing
from proxy.exchange.cost import Meter
from proxy.exchange.services import ERROR_BODY_BYTES, CachePings, Incoming, ModelKey, Services, WaitingTask
from proxy.exchange.turn import Turn
from proxy.sessions.branch import Branch, BranchId
from proxy.store.base import OutcomeRow
from proxy.upstream.client import SUCCESS_STATUSES, Target, UpstreamRequest

log = logging.getLogger(__name__)

MARGIN_S = 20.0
"""Seconds before the end of the cache's lifetime at which a ping is sent."""
LONGEST_LIFETIME_S: Final = 600.0
"""Lifetime of a cache above which none is kept warm: the pings were measured for five minutes."""
MAX_WAITING_BRANCHES = 64
"""Branches whose cache is kept warm. The one that has waited longest is dropped first."""
MAX_WAITING_BYTES = 64 << 20
"""Limit in bytes on the prompts that are held for pings."""
MAX_STOPPED_SESSIONS: Final = 1000
"""Sessions without pings that are remembered."""
BUSY_CHECK_S: Final = 0.2
"""Seconds between two looks at whether another ping of the session is over."""
PATH_END: Final = "/messages"
"""End of the path of Anthropic's own Messages. Clouds that have other paths take no `max_tokens` 0."""


class _Usages(msgspec.Struct):
    """The members of an answer to a ping that are read."""

    usage: object = None
    service_tier: object = None


class _Pinged(NamedTuple):
    """The exchange whose prompt is sent again."""

    branch: Branch
    target: Target
    request: UpstreamRequest
    outcome: OutcomeRow
    meter: Meter
    model: Model
    model_key: ModelKey
    tip_key: bytes
    """The chain key of the request's end."""
    labels: tuple[str, str, str]
    """Labels of the metrics of tokens and dollars."""
    started_at: float
    """Time of the request, in seconds."""


def schedule_pings(services: Services, turn: Turn, target: Target, incoming: Incoming) -> None:
    """Schedule the pings of the turn's prompt, if it can have any, in place of earlier ones of the branch."""
    pings, branch = services.cache_pings, turn.located.branch
    if branch.last_request.tip_key != turn.tip_key:
        return  # a newer request came before this answer had ended
    pings.end([branch.id])
    pinged = _find_pinged(services, turn, target, incoming)
    if pinged is None or pings.is_closed or branch.id[:2] in pings.stopped or turn.model_key in pings.answering:
        return
    # Without the context of the request: its trace and its log line are over.
    task = asyncio.create_task(_keep_alive(services, pinged), context=contextvars.Context())
    pings.waiting[branch.id] = WaitingTask(task, len(turn.prompt.outgoing))
    services.background_tasks.add(task)
    task.add_done_callback(services.background_tasks.discard)
    while len(pings.waiting) > MAX_WAITING_BRANCHES or _count_bytes(pings) > MAX_WAITING_BYTES:
        pings.end([next(iter(pings.waiting))])
        services.metrics.cache_pings_total.labels(outcome="dropped").inc()


def _count_bytes(pings: CachePings) -> int:
    return sum(one.size for one in pings.waiting.values())


def _find_pinged(services: Services, turn: Turn, target: Target, incoming: Incoming) -> _Pinged | None:
    """The exchange for pings; None for a prompt that has no short-lived cache, or that cannot be sent again."""
    outcome, model = turn.pending.outcome, turn.model
    if outcome is None or outcome.status != "complete" or outcome.meter is None or outcome.http_status != 200:
        return None
    branch = turn.located.branch
    if turn.enriched.arm == "control" or branch.kind == "side" or branch.may_become_side_call:
        return None  # a sub-agent begins while another branch works: it ends, and nobody comes back to it
    if turn.wire_request is None or not incoming.path.endswith(PATH_END):
        return None
    if model.cache != "breakpoint" or not MARGIN_S < model.ttl_s <= LONGEST_LIFETIME_S:
        return None
    if not (turn.client_marks.lifetime or turn.prompt.unmarked):
        return None
    meter = cost.read_meter(outcome.meter)
    body = build_ping(turn.prompt.outgoing) if _is_cached(model, meter) else None
    if body is None:
        return None
    headers = [one for one in result_clearing.add_beta(turn, incoming.headers, body) if one[0] != b"idempotency-key"]
    return _Pinged(
        branch,
        target,
        UpstreamRequest(incoming.method, incoming.path, incoming.query, headers, body),
        outcome,
        meter,
        services.models_by_name.get(turn.request.model, model),
        turn.model_key,
        turn.tip_key,
        services.metrics.limit_usage_labels(turn.request.model, turn.enriched.policy.name, turn.upstream),
        turn.started_at,
    )


def _is_cached(model: Model, meter: Meter) -> bool:
    """True if the provider's cache holds the last round's prompt for five minutes. What stands behind the last
    breakpoint has its full price in each ping: it may cost as much as the rest at most."""
    (prompt, cached), (written, long) = meter.rounds[-1], meter.writes[-1] if meter.writes else (0, 0)
    held = max(cached, 0) + max(written, 0)
    return long == 0 and held > 0 and prompt - held <= model.r * held


async def _keep_alive(services: Services, pinged: _Pinged) -> None:
    """Send the pings, one after the other, until one ends them."""
    name = pinged.branch.id
    used_at, ttl_s = pinged.started_at, pinged.model.ttl_s
    try:
        for _ in range(services.settings.cache.keep_alive_pings):
            await asyncio.sleep(used_at + ttl_s - MARGIN_S - services.now())
            while name[:2] in services.cache_pings.sending:  # noqa: ASYNC110  # rare, and short
                await asyncio.sleep(BUSY_CHECK_S)
            began = services.now()
            if began >= used_at + ttl_s or pinged.branch.last_request.tip_key != pinged.tip_key:
                return  # the answer took longer, the machine slept, or another request came meanwhile
            used_at = began
            pinged = await _ping(services, pinged, began)
    except _PingsEnded:
        _stop_session(services.cache_pings, name)
    except Exception:  # nobody awaits this task: counted and logged, and the cache expires as it would without it
        services.metrics.internal_errors_total.labels(where="cache_ping").inc()
        log.exception("a prompt cache cannot be kept warm")
    finally:
        waiting = services.cache_pings.waiting.get(name)
        if waiting is not None and waiting.task is asyncio.current_task():
            del services.cache_pings.waiting[name]


def _stop_session(pings: CachePings, name: BranchId) -> None:
    """End the pings of this branch's session. Later requests of the session get none."""
    pings.stopped[name[:2]] = None
    while len(pings.stopped) > MAX_STOPPED_SESSIONS:
        del pings.stopped[next(iter(pings.stopped))]
    del pings.waiting[name]  # its own task is at its end
    pings.end_session(*name[:2])


class _PingsEnded(Exception):
    """No more pings in this session."""


async def _ping(services: Services, pinged: _Pinged, began: float) -> _Pinged:
    """Send one ping. Return the exchange with its usage. Raises _PingsEnded if the session gets no more."""
    outcomes, owner = services.metrics.cache_pings_total, pinged.branch.id[:2]
    services.cache_pings.sending.add(owner)
    try:
        usage = await _send(services, pinged)
    except asyncio.CancelledError:
        outcomes.labels(outcome="cancelled").inc()
        raise
    except _PingRefused:
        outcomes.labels(outcome="refused").inc()
        raise _PingsEnded from None
    except (ProxyError, ValueError, TimeoutError):
        outcomes.labels(outcome="failed").inc()
        raise _PingsEnded from None
    finally:
        services.cache_pings.sending.discard(owner)
    pinged = _record(services, pinged, usage)
    if usage.completion:
        outcomes.labels(outcome="answered").inc()
        services.cache_pings.answering.add(pinged.model_key)
        raise _PingsEnded
    if not usage.cached:
        outcomes.labels(outcome="cold").inc()
        raise _PingsEnded
    outcomes.labels(outcome="warm").inc()
    _renew(pinged.branch, began)
    return pinged


class _PingRefused(Exception):
    """The upstream answered with an error."""


async def _send(services: Services, pinged: _Pinged) -> Usage:
    """Send a ping and read its usage. Raises _PingRefused, and ValueError for an answer without usage."""
    async with asyncio.timeout(pinged.model.ttl_s):
        reply = await services.client.send(pinged.target, pinged.request)
        try:
            if reply.status not in SUCCESS_STATUSES:
                raise _PingRefused
            body = await reply.read_body(ERROR_BODY_BYTES)
        finally:
            await reply.close()
    answer = msgspec.json.decode(body, type=_Usages)
    usage = read_usage(answer.usage, answer.service_tier)
    if usage is None:
        raise ValueError("an answer to a ping without usage")
    return usage


def _record(services: Services, pinged: _Pinged, usage: Usage) -> _Pinged:
    """Add the usage to the meter of the exchange, in the store and in the metrics."""
    meter = replace(pinged.meter, pings=[*pinged.meter.pings, usage])
    outcome = replace(pinged.outcome, meter=cost.write_meter(meter))
    services.store.put([outcome]).add_done_callback(lambda done: _count_lost(services, done))
    dollars = cost.price_pings(pinged.model, meter) - cost.price_pings(pinged.model, pinged.meter)
    services.metrics.cost_dollars_total.labels(*pinged.labels, "paid").inc(dollars)
    return pinged._replace(meter=meter, outcome=outcome)


def _count_lost(services: Services, done: asyncio.Future[None]) -> None:
    if not done.cancelled() and done.exception() is not None:
        services.metrics.persist_dropped_total.inc()


def _renew(branch: Branch, began: float) -> None:
    """Note that the cache lives on from this time: plans must not take it for a cold one."""
    branch.unstored = replace(branch.unstored, pinged_at=began)
    if branch.state.sent_at is not None:
        branch.state = replace(branch.state, sent_at=began)
    simulated = branch.unstored.simulated_state
    if simulated is not None and simulated.sent_at is not None:
        branch.unstored = replace(branch.unstored, simulated_state=replace(simulated, sent_at=began))
