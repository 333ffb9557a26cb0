"""Statistics of a session: the fill of its next prompt, the messages left out, its cost, and its cost without the
proxy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from proxy.context.policy import Policy
from proxy.context.prices import Model
from proxy.exchange import money, planning, windows
from proxy.exchange.money import Bill, Meter
from proxy.exchange.parts import Parts
from proxy.exchange.record import Sent
from proxy.exchange.steering.foreseeing import Foreseen, foresee
from proxy.exchange.steering.place import PAGE, Here, find
from proxy.exchange.steering.pruned import is_prunable
from proxy.exchange.steering.shapes import SessionStats
from proxy.store.base import ExchangeRecord

MOST = 10_000
"""Limit on the exchanges that are added up, the newest; a session has some hundreds."""
SUMMARIES = frozenset({"summarize_old", "compress_levels"})
"""Stages whose texts stand for more messages than the one that bears them."""


@dataclass(slots=True)
class Sums:
    """Sums over all exchanges of a session. Dollars are None once one of its models has no price."""

    exchanges: int = 0
    prompt: int = 0
    completion: int = 0
    predicted: int = 0
    reported: int = 0
    before: int = 0
    after: int = 0
    cost: float | None = 0.0
    without: float | None = 0.0
    played: float = 0.0
    rehearsed: bool = False
    """True if some exchanges went out as they came while a plan was observed; `played` has dollars as if those plans
    had gone out."""
    compressed: float | None = None
    refetched: Counter[str] = field(default_factory=Counter)
    """Cut results that were fetched again, by kind."""
    _last: dict[str, ExchangeRecord] = field(default_factory=dict)

    @property
    def planned(self) -> float | None:
        """Dollars if the observed plans had gone out; None where none was observed."""
        return self.played if self.rehearsed and self.cost is not None else None

    def add(self, one: ExchangeRecord, model: Model) -> Bill | None:
        """Add one exchange, oldest first; return its cost, None where that is not known."""
        sent = sent_tokens(one)
        self.exchanges += 1
        self.before += one.tokens_before
        self.after += sent
        previous = self._last.get(one.thread)
        if one.edits > (previous.edits if previous is not None else 0):
            self.compressed = one.started_at
        self._last[one.thread] = one
        if b'"refetched"' in one.inserts:
            self.refetched.update(msgspec.json.decode(one.inserts, type=Sent).refetched)
        if one.prompt_tokens is None:
            return None
        meter = meter_of(one, model, sent, previous)
        self.prompt += meter.prompt
        self.completion += one.completion_tokens or 0
        if one.cached_tokens is not None:
            self.predicted += one.predicted or 0
            self.reported += one.cached_tokens
        bill = money.bill(model, meter)
        if bill is None or self.cost is None or self.without is None:
            self.cost = self.without = None
        else:
            self.cost += bill.paid
            self.without += bill.without
            self.played += bill.planned if bill.planned is not None else bill.paid
            self.rehearsed = self.rehearsed or bill.planned is not None
        return bill


def sent_tokens(one: ExchangeRecord) -> int:
    """Tokens of the prompt that went out."""
    if one.fallback:
        return one.tokens_before
    return one.tokens_before if msgspec.json.decode(one.inserts, type=Sent).original else one.tokens_after


def meter_of(one: ExchangeRecord, model: Model, sent: int, previous: ExchangeRecord | None) -> Meter:
    """Return the meter of an exchange: the stored one, else one made from the row's figures of its last round."""
    if one.meter is not None:
        return money.read_meter(one.meter)
    # Without the proxy, the provider's cache would hold all of the prompt before, for the cache's lifetime.
    held = 0
    if previous is not None and one.started_at - previous.started_at <= model.ttl_s:
        held = min(previous.tokens_before, one.tokens_before)
    cached = one.cached_tokens if one.cached_tokens is not None else -1
    return Meter(
        rounds=[(one.prompt_tokens or 0, cached)],
        completion=one.completion_tokens or 0,
        before=one.tokens_before,
        held=money.cacheable(model, held),
        sent=sent,
        expected=one.predicted or 0,
    )


async def stats(parts: Parts, tenant: str, session: str, *, thread: str | None = None) -> SessionStats:
    """Return the statistics of a session, with the next prompt of one of its threads. Raises NotFound; StoreUnavailable
    passes through."""
    here = await find(parts, tenant, session, thread)
    seen = await foresee(parts, here)
    sums = added_up(parts, await _exchanges(parts, here))
    made = _stats(parts, here, seen, sums)
    prunable = await is_prunable(parts, here, seen)
    return msgspec.structs.replace(made, planned_as=planned_as(parts, seen.turn.policy), prunable=prunable)


def planned_as(parts: Parts, policy: Policy) -> str:
    """Return the policy whose plans an observing policy makes: its own name where no other policy makes them, "" where
    it does not observe."""
    if policy.mode != "observe":
        return ""
    alike = (p.name for p in parts.policies.values() if p.mode == "rewrite" and p.stages == policy.stages)
    return next(alike, policy.name)


async def _exchanges(parts: Parts, here: Here) -> list[ExchangeRecord]:
    found: list[ExchangeRecord] = []
    before: float | None = None
    while page := await parts.store.exchanges(here.record.tenant, here.record.session, PAGE, before):
        found += page
        before = page[-1].started_at
        if len(found) >= MOST:
            break
    return found[::-1]


def added_up(parts: Parts, exchanges: Iterable[ExchangeRecord]) -> Sums:
    """Add up these exchanges, oldest first."""
    sums = Sums()
    for one in exchanges:
        sums.add(one, planning.model_of(parts, one.model))
    return sums


def _stats(parts: Parts, here: Here, seen: Foreseen, sums: Sums) -> SessionStats:
    turn, plan = seen.turn, seen.turn.plan
    limit = turn.policy.limit_of(turn.model, windows.named(parts, turn.upstream, turn.request.model))
    sent = plan.before if turn.observed else plan.after
    edits = {} if turn.observed else seen.edits
    gone = sum(edit.action == "gone" for edit in edits.values())
    levels = next((note.figures for note in plan.notes if note.kind == "levels"), {})
    budgets = next((note.figures for note in plan.notes if note.kind == "level_budgets"), {})
    return SessionStats(
        session=here.record.session,
        thread=here.thread.name,
        policy=turn.policy.name,
        model=turn.request.model,
        items=len(here.keys),
        messages_stored=here.record.counts.get("messages", 0),
        groups=len(here.groups),
        tokens=plan.before,
        sent=sent,
        limit=limit,
        utilisation=sent / limit if limit else None,
        needs_pruning=bool(limit and sent > turn.policy.budget * limit),
        left_out=gone,
        shortened=sum(edit.action in ("text", "text_only") for edit in edits.values()),
        exchanges=sums.exchanges,
        prompt_tokens=sums.prompt,
        completion_tokens=sums.completion,
        cost=sums.cost if sums.exchanges else None,
        cost_without=sums.without if sums.exchanges else None,
        cost_planned=sums.planned,
        cached_predicted=sums.predicted,
        cached_reported=sums.reported,
        summaries=sum(edit.stage in SUMMARIES and edit.action != "gone" for edit in edits.values()),
        ratio=round(sums.before / sums.after, 3) if sums.after else 1.0,
        last_compression=sums.compressed,
        levels={name: int(tokens) for name, tokens in levels.items()},
        level_budgets={name: int(tokens) for name, tokens in budgets.items()},
        over_budget=turn.over_budget,
        retrieved=sum(int(note.figures.get("items", 0)) for note in plan.notes if note.kind == "retrieve"),
        refetched=dict(sums.refetched),
    )
