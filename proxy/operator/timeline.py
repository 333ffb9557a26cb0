"""Figures of a session over time: the cost of each exchange with and without the proxy, and their sum in a list line.

A line is made of every exchange of its session, and lists are read again every few seconds. So a line is remembered
until the session is used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

import msgspec
from msgspec import Struct

from proxy.context.fit import find_limit
from proxy.exchange import learned_windows, lookups
from proxy.exchange.exchange_rows import SentTexts
from proxy.exchange.publish_events import LOOP_SOURCE
from proxy.exchange.services import Services
from proxy.exchange.turn import make_model_key
from proxy.operator import find_session
from proxy.operator.session_cache import SessionCache
from proxy.operator.session_stats import SessionTotals, count_sent_tokens, is_request
from proxy.store.base import ExchangeRecord
from proxy.store.session_lists import SessionItem

MAX_CACHED_SESSIONS = 1000
"""Limit on the sessions whose figures are kept."""
PERIOD_S = 300
"""Seconds of the periods in which the exchanges of a session are added up."""
HOUR_S = 3600
FAILED_STATUSES = frozenset({"failed", "partial", "rejected", "lost"})
"""Statuses of exchanges that ended without the whole answer, and not because the client left."""


class ExchangePoint(Struct, frozen=True):
    """Figures of an exchange. Tokens are by our own count; prompt, completion and cached are as the provider
    reports them, of all its rounds. cost, cost_without: dollars, None without prices. cost_planned: dollars of the
    plan that was observed, None where there was none. loop: the model was warned of a loop. edited: it was
    the first exchange to go out with a new edit."""

    exchange: str
    branch: str
    started_at: float
    status: str
    policy: str
    tokens_before: int
    tokens_after: int
    prompt_tokens: int | None
    completion_tokens: int | None
    predicted: int | None
    cached_tokens: int | None
    cost: float | None
    cost_without: float | None
    cost_planned: float | None
    fallback: str | None
    loop: bool
    edited: bool
    over_budget: int = 0
    pings: int = 0
    """Pings after it that kept the provider's cache warm; `cost` has their dollars."""
    """Tokens by which the prompt was over its budget."""
    model: str = ""
    messages: int = 0
    first_byte_ms: float | None = None
    """Milliseconds until the answer's first byte, None where there was none."""
    total_ms: float | None = None
    """Milliseconds until the answer's end, None where it has not ended."""


class PeriodFigures(Struct):
    """Figures of the exchanges that began in a period. at: the beginning of the period, Unix seconds."""

    at: int
    exchanges: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    predicted: int = 0
    cached_tokens: int = 0
    cost: float = 0.0
    cost_without: float = 0.0
    unpriced: int = 0
    """Exchanges without a bill, which are in no sum of dollars: no price is known, or no usage was reported."""
    loops: int = 0
    fallbacks: int = 0
    cost_planned: float = 0.0
    """Dollars as in `cost`, but exchanges with an observed plan count as if that plan had gone out."""
    observed: int = 0
    """Exchanges with an observed plan."""
    errors: int = 0
    """Exchanges that ended without the whole answer, and not because the client left."""
    prompt_tokens: int = 0
    """Tokens of the prompts of which the provider reported cached tokens."""
    answered: int = 0
    """Exchanges with a first byte."""
    first_byte_ms: float = 0.0
    """Sum of the milliseconds until the first byte."""

    def add(self, added: ExchangePoint | PeriodFigures) -> None:
        """Add one exchange, or all of another period."""
        if isinstance(added, PeriodFigures):
            self.observed += added.observed
            self.errors += added.errors
            self.prompt_tokens += added.prompt_tokens
            self.answered += added.answered
            self.first_byte_ms += added.first_byte_ms
            self.exchanges += added.exchanges
            self.unpriced += added.unpriced
            self.loops += added.loops
            self.fallbacks += added.fallbacks
        else:
            self.exchanges += 1
            self.observed += added.cost_planned is not None
            self.errors += added.status in FAILED_STATUSES
            self.prompt_tokens += (added.prompt_tokens or 0) if added.cached_tokens is not None else 0
            self.answered += added.first_byte_ms is not None
            self.first_byte_ms += added.first_byte_ms or 0.0
            self.unpriced += added.cost is None
            self.loops += added.loop
            self.fallbacks += added.fallback is not None
        self.tokens_before += added.tokens_before
        self.tokens_after += added.tokens_after
        if added.cached_tokens is not None:
            self.predicted += added.predicted or 0
            self.cached_tokens += added.cached_tokens
        self.cost += added.cost or 0.0
        self.cost_without += added.cost_without or 0.0
        self.cost_planned += (added.cost if added.cost_planned is None else added.cost_planned) or 0.0


class SessionFigures(Struct, frozen=True):
    """Figures of a session in one line. tokens_before, tokens_after, limit, model: those of its newest request.
    utilisation: share of the limit, 0 to 1. cost, cost_without: dollars so far, None where a model has no price.
    cost_planned: dollars if the observed plans had gone out, None where none was observed."""

    exchanges: int
    model: str
    status: str
    tokens_before: int
    tokens_after: int
    limit: int | None
    utilisation: float | None
    needs_pruning: bool
    cost: float | None
    cost_without: float | None
    cost_planned: float | None
    cached_predicted: int
    cached_reported: int
    fallbacks: int
    loops: int
    over_budget: int = 0
    """Tokens by which the session's newest prompt was over its budget."""
    more: bool = False
    """True if the session has older exchanges than those that are added up."""
    unbilled: int = 0
    """Exchanges whose answer reported no usage: what they cost is in no sum of dollars."""


class SessionPeriod(Struct, frozen=True):
    """The exchanges of a session in a period that had one policy and one model."""

    policy: str
    model: str
    figures: PeriodFigures


class SessionTimeline(Struct, frozen=True):
    """A session's figures, in one line and by periods."""

    figures: SessionFigures
    periods: list[SessionPeriod]


TimelineCache = SessionCache[SessionTimeline | None]
"""The figures of sessions; None for a session without an exchange."""


def make_timeline_cache() -> TimelineCache:
    """Make an empty cache of the figures of sessions."""
    return SessionCache(_read_timeline, MAX_CACHED_SESSIONS)


async def _read_timeline(
    services: Services, item: SessionItem, exchanges: Sequence[ExchangeRecord]
) -> SessionTimeline | None:
    """Return the figures of a session. item: its row in the list, which counts exchanges that were not read too."""
    if not exchanges:
        return None
    several = len({one.branch for one in exchanges}) > 1
    kinds = await services.store.read_branch_kinds(item.tenant, item.session) if several else []
    side_calls = {one.branch for one in kinds if one.kind == "side"}
    made = await find_session.run_off_loop(len(exchanges), partial(build_timeline, services, exchanges, side_calls))
    more = item.exchanges > len(exchanges)
    return msgspec.structs.replace(made, figures=msgspec.structs.replace(made.figures, more=more))


def build_points(services: Services, exchanges: Iterable[ExchangeRecord]) -> tuple[list[ExchangePoint], SessionTotals]:
    """Return a point for each of these exchanges, which come oldest first, and their sums."""
    sums, points, edits = SessionTotals(), [], dict[str, int]()
    for exchange in exchanges:
        paid = sums.add_exchange(exchange, lookups.look_up_model(services, exchange.model))
        meter = sums.meter
        sent_texts = msgspec.json.decode(exchange.inserts, type=SentTexts)
        sent = count_sent_tokens(exchange)
        points.append(
            ExchangePoint(
                exchange=exchange.exchange,
                branch=exchange.branch,
                started_at=exchange.started_at,
                status=exchange.status,
                policy=exchange.policy,
                tokens_before=exchange.tokens_before,
                tokens_after=sent,
                prompt_tokens=meter.prompt if meter is not None else None,
                completion_tokens=meter.completion if meter is not None else None,
                predicted=meter.predicted if meter is not None else exchange.predicted,
                cached_tokens=meter.cached if meter is not None else None,
                cost=paid.paid if paid is not None else None,
                cost_without=paid.without_proxy if paid is not None else None,
                cost_planned=paid.planned if paid is not None else None,
                fallback=exchange.fallback,
                loop=any(source == LOOP_SOURCE for _, source, _ in sent_texts.inserts),
                edited=exchange.edits > edits.get(exchange.branch, 0),
                over_budget=max(0, sent - sent_texts.limit) if sent_texts.limit else 0,
                pings=len(meter.pings) if meter is not None else 0,
                model=exchange.model,
                messages=exchange.messages,
                first_byte_ms=exchange.first_byte_ms,
                total_ms=exchange.total_ms,
            )
        )
        edits[exchange.branch] = exchange.edits
    return points, sums


def build_timeline(
    services: Services, exchanges: Sequence[ExchangeRecord], side_calls: AbstractSet[str] = frozenset()
) -> SessionTimeline:
    """Return the figures of a session with these exchanges, oldest first; there is at least one. side_calls: names of
    its branches that are side calls."""
    points, sums = build_points(services, exchanges)
    periods: dict[tuple[int, str, str], PeriodFigures] = {}
    for exchange, point in zip(exchanges, points, strict=True):
        if not is_request(exchange):
            continue
        at = int(point.started_at // PERIOD_S) * PERIOD_S
        periods.setdefault((at, point.policy, point.model), PeriodFigures(at)).add(point)
    last = next((exchange for exchange in reversed(exchanges) if exchange.branch not in side_calls), exchanges[-1])
    sent = count_sent_tokens(last)
    policy = services.policies.get(last.policy)
    model = lookups.look_up_model(services, last.model)
    named = learned_windows.find_window(services, make_model_key(last.tenant, last.upstream, last.model))
    limit = find_limit(policy, model, named) if policy is not None else named or model.window
    figures = SessionFigures(
        exchanges=sums.exchanges,
        model=last.model,
        status=last.status,
        tokens_before=last.tokens_before,
        tokens_after=sent,
        limit=limit,
        utilisation=sent / limit if limit else None,
        needs_pruning=bool(limit and policy is not None and sent > policy.budget * limit),
        cost=sums.cost,
        cost_without=sums.cost_without,
        cost_planned=sums.cost_planned,
        unbilled=sums.unbilled,
        cached_predicted=sums.cached_predicted,
        cached_reported=sums.cached_reported,
        fallbacks=sum(point.fallback is not None for point in points),
        loops=sum(point.loop for point in points),
        over_budget=next(point.over_budget for point in reversed(points) if point.exchange == last.exchange),
    )
    made_periods = [SessionPeriod(policy, model, added) for (_, policy, model), added in periods.items()]
    return SessionTimeline(figures, made_periods)
