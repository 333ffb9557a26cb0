"""Statistics of a session: the fill of its next prompt, the messages left out, its cost, and its cost without the
proxy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from proxy.context.fit import find_limit
from proxy.context.models import Model
from proxy.context.plan import SHORTENING_ACTIONS, SUMMARY_STAGES
from proxy.context.policy import Policy
from proxy.exchange import cost as exchange_cost
from proxy.exchange import learned_windows, lookups
from proxy.exchange.cost import Bill, Meter
from proxy.exchange.exchange_rows import SentTexts
from proxy.exchange.services import Services
from proxy.operator.find_session import SelectedBranch, find_branch, read_newest_exchanges, run_off_loop
from proxy.operator.preview import Preview, preview_prompt
from proxy.operator.prune import is_prunable
from proxy.operator.response_models import SessionStats
from proxy.store.base import ExchangeRecord
from proxy.store.session_lists import IMPORTED_NOTE, REPLANNED_NOTE

MAX_EXCHANGES = 10_000
"""Limit on the exchanges of a session that any sum adds up, the newest; a session has some hundreds."""
UNPAID_STATUSES = frozenset({"open", "failed", "rejected"})
"""Statuses of exchanges that cost nothing if they report no usage, or nothing yet."""


@dataclass(slots=True)
class SessionTotals:
    """Sums over a session's exchanges. Dollars are None once a price is missing, or without any usage."""

    exchanges: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_predicted: int = 0
    cached_reported: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    billed: int = 0
    """Exchanges that are in the sums of dollars."""
    unbilled: int = 0
    """Exchanges that were worked on and reported no usage. Their dollars are unknown and in no sum."""
    pings: int = 0
    """Pings that kept the provider's cache warm. They are no exchanges."""
    pings_cost: float = 0.0
    """Dollars of these pings, which are in `cost` too."""
    observed_cost: float = 0.0
    has_observed_plans: bool = False
    """True if plans were observed only; `observed_cost` has dollars as if they had gone out."""
    last_compression: float | None = None
    refetched: Counter[str] = field(default_factory=Counter)
    """Cut results that were fetched again, by kind."""
    meter: Meter | None = None
    """The meter of the exchange that was added last; None where it has none."""
    _last: dict[str, ExchangeRecord] = field(default_factory=dict)
    _paid: float = 0.0
    _without: float = 0.0
    _is_unpriced: bool = False

    @property
    def is_cost_known(self) -> bool:
        """True if the sums of dollars stand for the session."""
        return not self._is_unpriced and (self.billed > 0 or not self.unbilled)

    @property
    def cost(self) -> float | None:
        """Dollars paid."""
        return self._paid if self.is_cost_known else None

    @property
    def cost_without(self) -> float | None:
        """Dollars that the same exchanges would have cost without the proxy."""
        return self._without if self.is_cost_known else None

    @property
    def cost_planned(self) -> float | None:
        """Dollars if the observed plans had gone out; None where none was observed."""
        return self.observed_cost if self.has_observed_plans and self.cost is not None else None

    def add_exchange(self, exchange: ExchangeRecord, model: Model) -> Bill | None:
        """Add one exchange, oldest first; return its cost, None if unknown. One without a request adds nothing."""
        self.meter = None
        if not is_request(exchange):
            return None
        sent = count_sent_tokens(exchange)
        self.exchanges += 1
        self.tokens_before += exchange.tokens_before
        self.tokens_after += sent
        previous = self._last.get(exchange.branch)
        if exchange.edits > (previous.edits if previous is not None else 0):
            self.last_compression = exchange.started_at
        self._last[exchange.branch] = exchange
        if b'"refetched"' in exchange.inserts:
            self.refetched.update(msgspec.json.decode(exchange.inserts, type=SentTexts).refetched)
        if exchange.prompt_tokens is None and exchange.meter is None:
            self.unbilled += exchange.status not in UNPAID_STATUSES
            return None
        self.meter = meter = build_meter(exchange, model, sent, previous)
        self.prompt_tokens += meter.prompt
        self.completion_tokens += meter.completion
        if meter.cached is not None:
            self.cached_predicted += meter.predicted
            self.cached_reported += meter.cached
        if meter.pings:
            self.pings += len(meter.pings)
            self.pings_cost += exchange_cost.price_pings(model, meter)
        bill = exchange_cost.compute_bill(model, meter)
        if bill is None:
            self._is_unpriced = True
        else:
            self.billed += 1
            self._paid += bill.paid
            self._without += bill.without_proxy
            self.observed_cost += bill.planned if bill.planned is not None else bill.paid
            self.has_observed_plans = self.has_observed_plans or bill.planned is not None
        return bill


def is_request(exchange: ExchangeRecord) -> bool:
    """True for an exchange that is one request of a client. An imported conversation is none, nor is a prompt that the
    upstream found too long, where the client got the answer to a shorter one."""
    return exchange.note not in (IMPORTED_NOTE, REPLANNED_NOTE)


def count_sent_tokens(exchange: ExchangeRecord) -> int:
    """Tokens of the prompt that went out."""
    if exchange.fallback:
        return exchange.tokens_before
    sent = msgspec.json.decode(exchange.inserts, type=SentTexts)
    return exchange.tokens_before if sent.is_unchanged else exchange.tokens_after


def build_meter(exchange: ExchangeRecord, model: Model, sent: int, previous: ExchangeRecord | None) -> Meter:
    """Return the meter of an exchange: the stored one, else one made from the row's figures of its last round."""
    if exchange.meter is not None:
        return exchange_cost.read_meter(exchange.meter)
    # Without the proxy, the provider's cache would hold all of the prompt before, for the cache's lifetime.
    held = 0
    if previous is not None and exchange.started_at - previous.started_at <= model.ttl_s:
        held = min(previous.tokens_before, exchange.tokens_before)
    cached = exchange.cached_tokens if exchange.cached_tokens is not None else -1
    return Meter(
        rounds=[(exchange.prompt_tokens or 0, cached)],
        completion=exchange.completion_tokens or 0,
        before=exchange.tokens_before,
        held=exchange_cost.count_cacheable(model, held),
        sent=sent,
        expected=exchange.predicted or 0,
    )


async def compute_stats(services: Services, tenant: str, session: str, *, branch: str | None = None) -> SessionStats:
    """Return the statistics of a session, with the next prompt of one of its branches. Raises NotFound;
    StoreUnavailable passes through."""
    selected = await find_branch(services, tenant, session, branch)
    preview = await preview_prompt(services, selected)
    exchanges = await read_newest_exchanges(services, tenant, session, MAX_EXCHANGES)
    sums = await run_off_loop(len(exchanges), partial(sum_exchanges, services, exchanges))
    stats = _build_stats(services, selected, preview, sums)
    prunable = await is_prunable(services, selected, preview)
    return msgspec.structs.replace(
        stats,
        planned_as=find_observed_policy(services, preview.turn.enriched.policy),
        prunable=prunable,
        more=selected.record.counts.get("exchanges", 0) > len(exchanges),
    )


def find_observed_policy(services: Services, policy: Policy) -> str:
    """Return the policy whose plans an observing one makes, or its own name; "" if it does not observe."""
    if policy.mode != "observe":
        return ""
    alike = (p.name for p in services.policies.values() if p.mode == "rewrite" and p.stages == policy.stages)
    return next(alike, policy.name)


def sum_exchanges(services: Services, exchanges: Iterable[ExchangeRecord]) -> SessionTotals:
    """Add up these exchanges, oldest first."""
    sums = SessionTotals()
    for one in exchanges:
        sums.add_exchange(one, lookups.look_up_model(services, one.model))
    return sums


def _build_stats(services: Services, selected: SelectedBranch, preview: Preview, sums: SessionTotals) -> SessionStats:
    turn, plan = preview.turn, preview.turn.prompt.plan
    limit = find_limit(turn.enriched.policy, turn.model, learned_windows.find_window(services, turn.model_key))
    sent = turn.prompt.sent_tokens
    edits = {} if turn.prompt.observed else preview.edits
    gone = sum(edit.action == "gone" for edit in edits.values())
    levels = next((note.figures for note in plan.notes if note.kind == "levels"), {})
    budgets = next((note.figures for note in plan.notes if note.kind == "level_budgets"), {})
    return SessionStats(
        session=selected.record.session,
        branch=selected.branch.name,
        policy=turn.enriched.policy.name,
        model=turn.request.model,
        items=len(selected.keys),
        messages_stored=selected.record.counts.get("messages", 0),
        groups=len(selected.groups),
        tokens=plan.before,
        sent=sent,
        limit=limit,
        utilisation=sent / limit if limit else None,
        needs_pruning=bool(limit and sent > turn.enriched.policy.budget * limit),
        left_out=gone,
        shortened=sum(edit.action in SHORTENING_ACTIONS for edit in edits.values()),
        exchanges=sums.exchanges,
        prompt_tokens=sums.prompt_tokens,
        completion_tokens=sums.completion_tokens,
        cost=sums.cost,
        cost_without=sums.cost_without,
        cost_planned=sums.cost_planned,
        unbilled=sums.unbilled,
        cached_predicted=sums.cached_predicted,
        cached_reported=sums.cached_reported,
        summaries=sum(edit.stage in SUMMARY_STAGES and edit.action != "gone" for edit in edits.values()),
        ratio=round(sums.tokens_before / sums.tokens_after, 3) if sums.tokens_after else 1.0,
        last_compression=sums.last_compression,
        levels={name: int(tokens) for name, tokens in levels.items()},
        level_budgets={name: int(tokens) for name, tokens in budgets.items()},
        over_budget=turn.prompt.over_budget,
        retrieved=sum(int(note.figures.get("items", 0)) for note in plan.notes if note.kind == "retrieve"),
        refetched=dict(sums.refetched),
        pings=sums.pings,
        pings_cost=sums.pings_cost,
    )
