"""A session's exchanges as figures over time: what each cost and would have cost, and all of them in a line of a list.

A line is made of every exchange of its session, and lists are read again every few seconds: so it is remembered until
the session is used again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

import msgspec
from msgspec import Struct

from proxy.exchange import planning, windows
from proxy.exchange.parts import Parts
from proxy.exchange.record import Sent
from proxy.exchange.steering import place
from proxy.exchange.steering.counting import Sums, sent_tokens
from proxy.store.base import ExchangeRecord
from proxy.store.listing import SessionItem

MOST = 2000
"""Exchanges of a session that are added up, the newest."""
REMEMBERED = 1000
"""Sessions whose figures are kept."""
LOOP = "warn_of_loops"
HOUR = 3600


class Point(Struct, frozen=True):
    """An exchange. Tokens by our own count but for prompt, completion and cached, which the provider reports. cost,
    cost_without: dollars, None without prices; cost_planned: of the plan that was observed, None where it was not.
    loop: the model was told that it goes round in circles. edited: it was the first to go out with a new edit."""

    exchange: str
    thread: str
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
    """Tokens by which the prompt was over its budget."""


class Hour(Struct):
    """The exchanges that began in an hour. at: its beginning, Unix seconds."""

    at: int
    exchanges: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    predicted: int = 0
    cached_tokens: int = 0
    cost: float = 0.0
    cost_without: float = 0.0
    unpriced: int = 0
    """Exchanges whose model has no price: they are in neither sum."""
    loops: int = 0
    fallbacks: int = 0
    cost_planned: float = 0.0
    """As cost, but for exchanges whose plan was only observed: had it gone out."""

    def add(self, one: Point | Hour) -> None:
        """One exchange more, or all of another hour."""
        if isinstance(one, Hour):
            self.exchanges += one.exchanges
            self.unpriced += one.unpriced
            self.loops += one.loops
            self.fallbacks += one.fallbacks
        else:
            self.exchanges += 1
            self.unpriced += one.cost is None
            self.loops += one.loop
            self.fallbacks += one.fallback is not None
        self.tokens_before += one.tokens_before
        self.tokens_after += one.tokens_after
        if one.cached_tokens is not None:
            self.predicted += one.predicted or 0
            self.cached_tokens += one.cached_tokens
        self.cost += one.cost or 0.0
        self.cost_without += one.cost_without or 0.0
        self.cost_planned += (one.cost if one.cost_planned is None else one.cost_planned) or 0.0


class Figures(Struct, frozen=True):
    """A session in a line. tokens_before, tokens_after, limit, model: of its newest request; utilisation: of the limit,
    0 to 1. cost, cost_without: dollars so far, None where a model has no price. cost_planned: had the
    plans gone out that were only observed, None where none was."""

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
    """Tokens by which its newest prompt was over its budget."""


class Told(Struct, frozen=True):
    """A session's figures, and its hours."""

    figures: Figures
    hours: list[Hour]


class Remembered:
    """What was told of sessions that nobody has used since."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], tuple[tuple[float, int], Told | None]] = OrderedDict()

    async def of(self, parts: Parts, item: SessionItem) -> Told | None:
        """The session's figures, None before anything was said in it."""
        name, stamp = (item.tenant, item.session), (item.last_at, item.exchanges)
        found = self._known.get(name)
        if found is not None and found[0] == stamp:
            self._known.move_to_end(name)
            return found[1]
        exchanges = await newest(parts, *name, MOST)
        several = len({one.thread for one in exchanges}) > 1
        kinds = await parts.store.thread_kinds(*name) if several else []
        made = told(parts, exchanges, {one.thread for one in kinds if one.kind == "side"}) if exchanges else None
        if not exchanges or exchanges[-1].status != "open":
            self._known[name] = (stamp, made)
            self._known.move_to_end(name)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return made


async def newest(parts: Parts, tenant: str, session: str, most: int) -> list[ExchangeRecord]:
    """A session's last exchanges, oldest first."""
    found: list[ExchangeRecord] = []
    before: float | None = None
    while len(found) < most and (page := await parts.store.exchanges(tenant, session, place.PAGE, before)):
        found += page
        before = page[-1].started_at
    return found[:most][::-1]


def points(parts: Parts, exchanges: Iterable[ExchangeRecord]) -> tuple[list[Point], Sums]:
    """One for each of these exchanges, which come oldest first; and what they add up to."""
    sums, made, edits = Sums(), [], dict[str, int]()
    for one in exchanges:
        paid = sums.add(one, planning.model_of(parts, one.model))
        went = msgspec.json.decode(one.inserts, type=Sent)
        sent = sent_tokens(one)
        made.append(
            Point(
                exchange=one.exchange,
                thread=one.thread,
                started_at=one.started_at,
                status=one.status,
                policy=one.policy,
                tokens_before=one.tokens_before,
                tokens_after=sent,
                prompt_tokens=one.prompt_tokens,
                completion_tokens=one.completion_tokens,
                predicted=one.predicted,
                cached_tokens=one.cached_tokens,
                cost=paid.paid if paid is not None else None,
                cost_without=paid.without if paid is not None else None,
                cost_planned=paid.planned if paid is not None else None,
                fallback=one.fallback,
                loop=any(source == LOOP for _, source, _ in went.inserts),
                edited=one.edits > edits.get(one.thread, 0),
                over_budget=max(0, sent - went.limit) if went.limit else 0,
            )
        )
        edits[one.thread] = one.edits
    return made, sums


def told(parts: Parts, exchanges: list[ExchangeRecord], side: AbstractSet[str] = frozenset()) -> Told:
    """The figures of a session with these exchanges, oldest first, of which there is at least one. side: its threads
    that are side calls."""
    made, sums = points(parts, exchanges)
    hours: dict[int, Hour] = {}
    for point in made:
        at = int(point.started_at // HOUR) * HOUR
        hours.setdefault(at, Hour(at)).add(point)
    last = next((one for one in reversed(exchanges) if one.thread not in side), exchanges[-1])
    sent = sent_tokens(last)
    policy = parts.policies.get(last.policy)
    model = planning.model_of(parts, last.model)
    named = windows.named(parts, last.upstream, last.model)
    limit = policy.limit_of(model, named) if policy is not None else named or model.window
    figures = Figures(
        exchanges=sums.exchanges,
        model=last.model,
        status=last.status,
        tokens_before=last.tokens_before,
        tokens_after=sent,
        limit=limit,
        utilisation=sent / limit if limit else None,
        needs_pruning=bool(limit and policy is not None and sent > policy.budget * limit),
        cost=sums.cost,
        cost_without=sums.without,
        cost_planned=sums.planned,
        cached_predicted=sums.predicted,
        cached_reported=sums.reported,
        fallbacks=sum(point.fallback is not None for point in made),
        loops=sum(point.loop for point in made),
        over_budget=next(point.over_budget for point in reversed(made) if point.exchange == last.exchange),
    )
    return Told(figures, list(hours.values()))
