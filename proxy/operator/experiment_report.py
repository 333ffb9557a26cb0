"""The report of an experiment: both arms of the stored sessions, and the sessions in which the proxy cost money."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from proxy.chat.message import Message
from proxy.context.analysis.call_signature import CallSignature, sign_call
from proxy.context.analysis.outcome import read_outcome
from proxy.context.analysis.refetch import pair_results
from proxy.context.analysis.shell_commands import parse_call
from proxy.dialects.completions.request import read_message
from proxy.errors import NotManaged
from proxy.exchange import cost, lookups
from proxy.exchange.exchange_rows import SentTexts
from proxy.exchange.services import Services
from proxy.operator.compare_arms import (
    MAIN_FIGURE,
    WORK_FIGURE,
    FigureComparison,
    SessionMeasures,
    compare_arms,
    describe_verdict,
)
from proxy.operator.session_cache import SessionCache
from proxy.operator.session_stats import UNPAID_STATUSES, build_meter, count_sent_tokens, is_request
from proxy.store.base import ExchangeRecord
from proxy.store.session_lists import SessionFilter, SessionItem

MAX_SESSIONS = 2000
"""Limit on the sessions of a report, the last used."""
LIST_SIZE = 200
MAX_LOSSES = 20
MAX_CACHED = 4000
"""Limit on the sessions whose sums are kept."""
LOSS = 1.005
"""A session has cost money if its dollars are this many times those that it would have cost without the proxy."""


class LossCause(Struct, frozen=True):
    """One reason for which a session cost more than without the proxy, with the dollars of it where they are known."""

    cause: str
    dollars: float | None


class SessionLoss(Struct, frozen=True):
    """A managed session that cost more than it would have without the proxy."""

    tenant: str
    session: str
    dollars: float
    without: float
    causes: list[LossCause]
    address: str = ""
    """The session's name as paths of the API spell it; the API fills it in."""
    title: str = ""
    """The beginning of its first prompt; the API fills it in."""


class PredictionError(Struct, frozen=True):
    """Predicted against reported dollars of an arm. predicted: of the prompts that were sent."""

    predicted: float
    reported: float


class ExperimentReport(Struct, frozen=True):
    """Both arms compared. share: of the control arm, as it is set now. mixed: sessions that were in both arms, which
    count in neither. unpriced: sessions without a bill. partly_billed: sessions with a bill of which some requests have
    none, whose dollars are in no figure. more: there are sessions beyond the limit."""

    share: float
    verdict: str
    control_sessions: int
    managed_sessions: int
    mixed: int
    unpriced: int
    partly_billed: int
    more: bool
    figures: list[FigureComparison]
    predictions: dict[str, PredictionError]
    losses: list[SessionLoss]
    pings: int = 0
    """Pings that kept the cache of managed sessions warm."""
    pings_dollars: float = 0.0
    """Dollars of these pings, which are in all figures too."""


MeasureCache = SessionCache[SessionMeasures | None]
"""The sums of sessions; None for a session that was in no arm. The arm is `mixed` for one that was in both."""


def make_measure_cache() -> MeasureCache:
    """Make an empty cache of the sums of sessions."""
    return SessionCache(measure_session, MAX_CACHED)


async def measure_session(
    services: Services, item: SessionItem, exchanges: Sequence[ExchangeRecord]
) -> SessionMeasures | None:
    """Return the sums of these exchanges of a session, oldest first; None if they were in no arm."""
    tenant, session = item.tenant, item.session
    arms = {
        msgspec.json.decode(exchange.inserts, type=SentTexts).arm
        for exchange in exchanges
        if b'"arm"' in exchange.inserts
    }
    if not arms:
        return None
    arm = arms.pop() if len(arms) == 1 else "mixed"
    sums = _sum_exchanges(services, SessionMeasures(tenant, session, arm), exchanges)
    tips = {exchange.branch: exchange.answer or exchange.tip for exchange in exchanges}
    bodies = {
        message.key: message.body
        for tip in tips.values()
        for message in await services.store.read_chain(tenant, session, tip)
    }
    counts = await asyncio.to_thread(count_calls, bodies.values())
    return msgspec.structs.replace(sums, **counts._asdict())


def _sum_exchanges(
    services: Services, measures: SessionMeasures, exchanges: Iterable[ExchangeRecord]
) -> SessionMeasures:
    sums = msgspec.structs.asdict(measures)
    previous: dict[str, ExchangeRecord] = {}
    for exchange in exchanges:
        texts = msgspec.json.decode(exchange.inserts, type=SentTexts)
        if is_request(exchange):
            sums["requests"] += 1
            sums["turns"] += texts.prompted
        sums["refetched"] += sum(texts.refetched.values())
        sums["refused"] += exchange.http_status == 400
        if exchange.first_byte_ms is not None:
            sums["first_byte_ms"] += exchange.first_byte_ms
            sums["timed"] += 1
        if exchange.completion_tokens is not None and exchange.status == "complete":
            sums["answer_tokens"] += exchange.completion_tokens
            sums["answers"] += 1
        if exchange.prompt_tokens is not None or exchange.meter is not None:
            model = lookups.look_up_model(services, exchange.model)
            meter = build_meter(exchange, model, count_sent_tokens(exchange), previous.get(exchange.branch))
            bill, predicted = cost.compute_bill(model, meter), cost.predict_bill(model, meter)
            if bill is None or predicted is None:
                sums["unbilled"] += 1
            else:
                sums["billed"] += 1
                sums["dollars"] += bill.paid
                sums["without"] += bill.without_proxy
                sums["own"] += predicted.own
                sums["sent"] += predicted.sent
                sums["rounds"] += predicted.rounds
                sums["pings"] += len(meter.pings)
                sums["pinging"] += (pinging := cost.price_pings(model, meter))
                paid = bill.paid - predicted.rounds - pinging
                if meter.is_unchanged:  # what the cache lacks of such a prompt, it lacks without the proxy too
                    sums["offered"] += paid - bill.without_proxy
                else:
                    sums["missed"] += max(0.0, paid - predicted.sent)
                    again = cost.price_refetched(model, meter) - predicted.own
                    sums["refetching"] += again
                    sums["edits"] += predicted.sent - predicted.own - again
        elif is_request(exchange) and exchange.status not in UNPAID_STATUSES:
            sums["unbilled"] += 1
        previous[exchange.branch] = exchange
    return SessionMeasures(**sums)


class CallCounts(NamedTuple):
    """The calls of a session and their results, under the names of `SessionMeasures`."""

    calls: int
    repeats: int
    """Calls that were made before with the same arguments."""
    results: int
    tool_errors: int
    """Results that report a failure."""


def count_calls(bodies: Collection[bytes]) -> CallCounts:
    """Count the calls in messages of a session, and their results."""
    messages: list[Message] = []
    for body in bodies:
        try:
            messages.append(read_message(body))
        except NotManaged:
            continue
    seen: set[CallSignature] = set()
    calls = repeats = errors = results = 0
    for call in (call for message in messages for call in message.calls):
        name = sign_call(call)
        calls, repeats = calls + 1, repeats + (name in seen)
        seen.add(name)
    for n, call in pair_results(messages):
        results += 1
        errors += read_outcome(messages[n], parse_call(call)).verdict == "failed"
    return CallCounts(calls, repeats, results, errors)


async def build_report(
    services: Services, cache: MeasureCache, tenant: str | None, since: float = 0.0
) -> ExperimentReport:
    """Compare the arms of the sessions that were used since then."""
    measured_sessions: list[SessionMeasures] = []
    after, seen, has_more = None, 0, True
    while has_more and seen < MAX_SESSIONS:
        page = await services.store.list_sessions(tenant, after, LIST_SIZE, SessionFilter("", since, None, ""))
        for item in page:
            measured = await cache.find(services, item)
            if measured is not None:
                measured_sessions.append(measured)
        seen, has_more = seen + len(page), len(page) == LIST_SIZE
        after = page[-1].cursor if page else after
    return await asyncio.to_thread(_compare, services.settings.experiment.control, measured_sessions, has_more)


def _compare(share: float, sessions: Sequence[SessionMeasures], has_more: bool) -> ExperimentReport:
    control = [one for one in sessions if one.arm == "control"]
    managed = [one for one in sessions if one.arm == "managed"]
    billed = [[one for one in arm if one.own > 0] for arm in (control, managed)]
    figures = compare_arms(billed[0], billed[1])
    main, work = (next(one for one in figures if one.name == name) for name in (MAIN_FIGURE, WORK_FIGURE))
    return ExperimentReport(
        share=share,
        verdict=describe_verdict(main, work),
        control_sessions=len(control),
        managed_sessions=len(managed),
        mixed=sum(one.arm == "mixed" for one in sessions),
        unpriced=len(control) + len(managed) - sum(map(len, billed)),
        partly_billed=sum(one.unbilled > 0 for arm in billed for one in arm),
        more=has_more,
        figures=figures,
        predictions={
            name: PredictionError(
                sum(one.sent + one.rounds + one.pinging for one in arm), sum(one.dollars for one in arm)
            )
            for name, arm in zip(("control", "managed"), billed, strict=True)
        },
        losses=find_losses(billed[1]),
        pings=sum(one.pings for one in billed[1]),
        pings_dollars=sum(one.pinging for one in billed[1]),
    )


def find_losses(managed: Iterable[SessionMeasures]) -> list[SessionLoss]:
    """Return the managed sessions that cost money, dearest first, each with its reasons."""
    lost = [one for one in managed if one.dollars > LOSS * one.without]
    lost.sort(key=lambda one: one.without - one.dollars)
    return [
        SessionLoss(one.tenant, one.session, one.dollars, one.without, explain_loss(one)) for one in lost[:MAX_LOSSES]
    ]


def explain_loss(measures: SessionMeasures) -> list[LossCause]:
    """Return the reasons for which a session cost more than without the proxy, dearest first."""
    causes = [
        LossCause("rounds of the proxy's own tools", measures.rounds),
        LossCause(f"{measures.pings} pings that kept the cache warm", measures.pinging),
        LossCause("tokens that the cache was expected to hold and did not", measures.missed),
        LossCause("edits that have not paid back what they cost the cache", measures.edits),
        LossCause("definitions of the proxy's own tools", measures.offered),
        LossCause(
            f"{measures.refetched} cut results that were fetched again",
            measures.refetching if measures.refetched else None,
        ),
    ]
    return sorted((cause for cause in causes if (cause.dollars or 0) > 0), key=lambda cause: -(cause.dollars or 0))
