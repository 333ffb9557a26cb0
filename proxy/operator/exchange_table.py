"""Exchanges as lines of a table, for an analytics store: one line an exchange, with its tokens, dollars and times. An
exchange that is no request of a client has no line.

Sessions are read in the order of their names, and each session's exchanges in the order of time, a page at a time. So
the memory that is used depends on neither. Dollars are those that the session's statistics add up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import cache

import msgspec
from msgspec import Struct

from proxy.context.models import Model, find_model
from proxy.exchange.exchange_rows import SentTexts
from proxy.operator.session_stats import SessionTotals, count_sent_tokens, is_request
from proxy.store.base import ExchangeRecord
from proxy.store.reads import Store

PAGE_SIZE = 500
"""Exchanges, or names of sessions, that are read at once."""


class ExchangeLine(Struct, frozen=True, gc=False):
    """One exchange. The fields are the columns of the table, in their order. Times are Unix seconds."""

    tenant: str
    session: str
    branch: str
    exchange: str
    started_at: float
    ended_at: float | None
    first_byte_ms: float | None
    total_ms: float | None
    status: str
    http_status: int | None
    finish: str | None
    fallback: str | None
    """The reason why the request went out as received, if it did."""
    model: str
    upstream: str
    wire_format: str
    """The `strategy` of the upstream: the kind of provider that answered."""
    policy: str
    schedule: str
    arm: str
    """The arm of the experiment, "" for none."""
    messages: int
    edits: int
    """Edits in force."""
    tokens_before: int
    """Tokens of the prompt as received, by the proxy's count."""
    tokens_after: int
    """Tokens of the prompt as it was sent, by the proxy's count."""
    predicted_cached: int | None
    prompt_tokens: int | None
    """Tokens of all rounds' prompts, as the provider reports them."""
    completion_tokens: int | None
    cached_tokens: int | None
    """Tokens of all rounds' prompts that the provider's cache served, as it reports them."""
    cost: float | None
    """Dollars paid; None without prices or usage."""
    cost_without: float | None
    """Dollars that it would have cost without the proxy."""
    cost_planned: float | None
    """Dollars of a plan that was only observed."""
    pings: int = 0
    """Pings after it that kept the provider's cache warm; `cost` has their dollars."""


async def read_exchange_lines(
    store: Store, models: Sequence[Model], since: float, until: float, tenant: str
) -> AsyncIterator[list[ExchangeLine]]:
    """Yield the exchanges that began at `since` or later and before `until`, a page at a time. tenant: "" for all.
    StoreUnavailable passes through."""

    @cache
    def look_up(name: str) -> Model:
        return find_model(models, name)

    after = (tenant, "")
    while names := await store.read_sessions_used_since(since, after, PAGE_SIZE):
        for place in names:
            if tenant and place[0] != tenant:
                return
            totals, last = SessionTotals(), (since, "")
            while page := await store.read_exchanges_after(*place, last, until, PAGE_SIZE):
                yield [_make_line(one, totals, look_up(one.model)) for one in page if is_request(one)]
                last = page[-1].started_at, page[-1].exchange
        after = names[-1]


def _make_line(exchange: ExchangeRecord, totals: SessionTotals, model: Model) -> ExchangeLine:
    bill = totals.add_exchange(exchange, model)
    meter = totals.meter
    return ExchangeLine(
        tenant=exchange.tenant,
        session=exchange.session,
        branch=exchange.branch,
        exchange=exchange.exchange,
        started_at=exchange.started_at,
        ended_at=exchange.ended_at,
        first_byte_ms=exchange.first_byte_ms,
        total_ms=exchange.total_ms,
        status=exchange.status,
        http_status=exchange.http_status,
        finish=exchange.finish,
        fallback=exchange.fallback,
        model=exchange.model,
        upstream=exchange.upstream,
        wire_format=exchange.strategy,
        policy=exchange.policy,
        schedule=exchange.schedule,
        arm=msgspec.json.decode(exchange.inserts, type=SentTexts).arm,
        messages=exchange.messages,
        edits=exchange.edits,
        tokens_before=exchange.tokens_before,
        tokens_after=count_sent_tokens(exchange),
        predicted_cached=meter.predicted if meter is not None else exchange.predicted,
        prompt_tokens=meter.prompt if meter is not None else None,
        completion_tokens=meter.completion if meter is not None else None,
        cached_tokens=meter.cached if meter is not None else None,
        cost=bill.paid if bill is not None else None,
        cost_without=bill.without_proxy if bill is not None else None,
        cost_planned=bill.planned if bill is not None else None,
        pings=len(meter.pings) if meter is not None else 0,
    )
