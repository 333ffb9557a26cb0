"""Where a session stands: how full its next prompt is, what was left out, what it cost, and what it would have cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from proxy.context.prices import Model
from proxy.exchange import planning
from proxy.exchange.parts import Parts
from proxy.exchange.steering.foreseeing import Foreseen, foresee
from proxy.exchange.steering.place import PAGE, Here, find
from proxy.exchange.steering.shapes import SessionStats
from proxy.store.base import ExchangeRecord

MOST = 10_000
"""Exchanges that are added up, the newest; a session has some hundreds."""
MILLION = 1_000_000
SUMMARIES = frozenset({"summarize_old", "compress_levels"})
"""Stages whose texts stand for more than the message that bears them."""


class Paid(NamedTuple):
    """Dollars of one exchange: as it went, and had the proxy not been there."""

    cost: float
    without: float


@dataclass(slots=True)
class Sums:
    """What all exchanges of a session add up to. Dollars are None once one of its models has no price."""

    exchanges: int = 0
    prompt: int = 0
    completion: int = 0
    predicted: int = 0
    reported: int = 0
    before: int = 0
    after: int = 0
    cost: float | None = 0.0
    without: float | None = 0.0
    compressed: float | None = None
    _last: dict[str, ExchangeRecord] = field(default_factory=dict)

    def add(self, one: ExchangeRecord, model: Model) -> Paid | None:
        """One more, oldest first; what it cost, None where that is not known."""
        sent = one.tokens_before if one.fallback else one.tokens_after
        self.exchanges += 1
        self.before += one.tokens_before
        self.after += sent
        previous = self._last.get(one.thread)
        if one.edits > (previous.edits if previous is not None else 0):
            self.compressed = one.started_at
        self._last[one.thread] = one
        if one.prompt_tokens is None:
            return None
        self.prompt += one.prompt_tokens
        self.completion += one.completion_tokens or 0
        if one.cached_tokens is not None:
            self.predicted += one.predicted or 0
            self.reported += one.cached_tokens
        paid = _paid(one, model, sent, previous)
        if paid is None or self.cost is None or self.without is None:
            self.cost = self.without = None
        else:
            self.cost += paid.cost
            self.without += paid.without
        return paid


def _paid(one: ExchangeRecord, model: Model, sent: int, previous: ExchangeRecord | None) -> Paid | None:
    if model.input is None or one.prompt_tokens is None:
        return None
    prompt = one.prompt_tokens
    cached = min(prompt, one.cached_tokens if one.cached_tokens is not None else one.predicted or 0)
    answer = (one.completion_tokens or 0) * (model.output or 0.0) / MILLION
    paid = model.cost(prompt, cached) * model.input / MILLION + answer
    if sent == one.tokens_before:
        return Paid(paid, paid)
    # What the provider's cache would hold had every prompt gone out as it came: all of the one before, for a while.
    held = 0
    if previous is not None and one.started_at - previous.started_at <= model.ttl_s:
        held = min(previous.tokens_before, one.tokens_before) // model.block * model.block
    held = held if held >= model.min and model.cache != "none" else 0
    factor = prompt / max(sent, 1)
    return Paid(paid, factor * model.cost(one.tokens_before, held) * model.input / MILLION + answer)


async def stats(parts: Parts, tenant: str, session: str, *, thread: str | None = None) -> SessionStats:
    """Where a session stands, one of its threads in the next prompt. Raises NotFound; StoreUnavailable passes."""
    here = await find(parts, tenant, session, thread)
    seen = await foresee(parts, here)
    sums = added_up(parts, await _exchanges(parts, here))
    return _stats(here, seen, sums)


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
    """What these exchanges, oldest first, add up to."""
    sums = Sums()
    for one in exchanges:
        sums.add(one, planning.model_of(parts, one.model))
    return sums


def _stats(here: Here, seen: Foreseen, sums: Sums) -> SessionStats:
    turn, plan = seen.turn, seen.turn.plan
    limit = turn.policy.window_of(turn.model)
    sent = plan.before if turn.observed else plan.after
    edits = {} if turn.observed else seen.edits
    gone = sum(edit.action == "gone" for edit in edits.values())
    levels = next((note.figures for note in plan.notes if note.kind == "levels"), {})
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
        cached_predicted=sums.predicted,
        cached_reported=sums.reported,
        summaries=sum(edit.stage in SUMMARIES and edit.action != "gone" for edit in edits.values()),
        ratio=round(sums.before / sums.after, 3) if sums.after else 1.0,
        last_compression=sums.compressed,
        levels={name: int(tokens) for name, tokens in levels.items()},
        retrieved=sum(int(note.figures.get("items", 0)) for note in plan.notes if note.kind == "retrieve"),
    )
