"""Figures of sessions for the dashboard: the caller, sessions with figures, exchanges over time, costs and savings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from proxy.exchange.services import Services
from proxy.operator import savings, timeline
from proxy.operator.find_session import read_newest_exchanges, run_off_loop
from proxy.operator.savings import Savings
from proxy.operator.session_stats import is_request
from proxy.operator.session_titles import read_title
from proxy.operator.timeline import (
    HOUR_S,
    PERIOD_S,
    ExchangePoint,
    PeriodFigures,
    SessionFigures,
    SessionTimeline,
    TimelineCache,
)
from proxy.store.session_lists import SessionFilter, SessionItem
from proxy.web.api import json_answers, pagination
from proxy.web.api.admin_context import AdminContextDep, SessionContextDep
from proxy.web.api.json_answers import ERROR_RESPONSES
from proxy.web.api.pagination import Cursor, Limit, Page
from proxy.web.api.sessions import SessionListItem, describe_session
from proxy.web.routes import READ

router = APIRouter(prefix="/api", tags=["figures"], responses=ERROR_RESPONSES)

MAX_SESSIONS = 500
"""Sessions, used last, whose cost is added up."""
MAX_SPENDERS, MAX_SHARES = 20, 50
DAY_S = 24 * HOUR_S
STEPS: Final = {"auto": 0, "minutes": PERIOD_S, "hour": HOUR_S, "day": DAY_S}

FiguresShown = json_answers.describe(SessionFigures)
PeriodShown = json_answers.describe(PeriodFigures)
POINTS: Final = list[json_answers.describe(ExchangePoint)]  # type: ignore[misc]  # the class is made at import


class CallerDetails(BaseModel):
    """The caller. plane: the purpose of the key, `any` on loopback without keys. may_change: true if it may change
    something."""

    name: str
    tenant: str
    plane: str
    may_change: bool


class SessionWithFigures(SessionListItem):
    """A session in the list, with its figures; null before anything was said in it. title: the beginning of its first
    prompt."""

    figures: FiguresShown | None  # type: ignore[valid-type]  # the class is made at import
    title: str


class SessionCost(BaseModel):
    """The cost of one session."""

    tenant: str
    session: str
    address: str
    last_at: float
    title: str
    figures: FiguresShown  # type: ignore[valid-type]  # the class is made at import


class CostShare(BaseModel):
    """The cost of all requests with one policy, with one model or of one tenant."""

    name: str
    figures: PeriodShown  # type: ignore[valid-type]  # the class is made at import


class CostReport(BaseModel):
    """The cost of all sessions together, by periods of `step` seconds. over: the number of sessions that were added up.
    more: true if there are others in that time. spenders: the sessions that cost most in
    that time."""

    since: float
    step: int
    over: int
    more: bool
    total: PeriodShown  # type: ignore[valid-type]  # the class is made at import
    steps: list[PeriodShown]  # type: ignore[valid-type]  # the class is made at import
    policies: list[CostShare]
    models: list[CostShare]
    tenants: list[CostShare]
    spenders: list[SessionCost]


def _get_timeline_cache(request: Request) -> TimelineCache:
    found: TimelineCache = request.app.state.timeline_cache
    return found


@router.get("/me", openapi_extra=READ)
async def show_caller(admin: AdminContextDep) -> CallerDetails:
    """Show the owner of this key, and the planes that it opens."""
    caller = admin.caller
    changes = caller.plane in ("admin", "any")
    return CallerDetails(name=caller.name, tenant=caller.tenant, plane=caller.plane, may_change=changes)


@router.get("/live", openapi_extra=READ, response_model=Page[SessionWithFigures])
async def list_session_figures(
    admin: AdminContextDep,
    request: Request,
    limit: Annotated[int, Query(ge=1, le=50, description="Lines of a page.")] = 25,
    cursor: Cursor = None,
    q: Annotated[str, Query(max_length=256, description="A part of the name.")] = "",
    since: Annotated[float, Query(ge=0, le=1e12, description="Used at this time (Unix seconds) or later.")] = 0.0,
    policy: Annotated[str, Query(max_length=64, description="The policy of the newest request.")] = "",
    explicit: Annotated[bool | None, Query(description="Named by the client, or not.")] = None,
) -> Response:
    """List sessions as `/api/sessions` does, each with its context use, cost, loops and fallbacks."""
    after = pagination.read_cursor(cursor, float, str, str)
    rows = await admin.services.store.list_sessions(
        admin.tenant, after, limit + 1, SessionFilter(q, since, explicit, policy)
    )
    items = []
    for row in rows[:limit]:
        found_timeline = await _get_timeline_cache(request).find(admin.services, row)
        figured = found_timeline.figures if found_timeline is not None else None
        title = await read_title(admin.services, row.tenant, row.session)
        items.append({**describe_session(row).model_dump(), "figures": figured, "title": title})
    next_cursor = pagination.write_cursor(rows[limit - 1].cursor) if len(rows) > limit else None
    return json_answers.render({"items": items, "next": next_cursor})


@router.get("/sessions/{session}/points", openapi_extra=READ, response_model=POINTS)
async def list_points(
    context: SessionContextDep,
    limit: Limit = 200,
    branch: Annotated[str, Query(max_length=64, description="Those of this branch.")] = "",
) -> Response:
    """List a session's last exchanges, oldest first, each with its tokens, cached tokens and cost."""
    # More than requested, because the hypothetical cost of an exchange depends on the one before.
    found = await read_newest_exchanges(context.services, context.tenant, context.session, limit * 5)
    wanted = [row for row in found if (not branch or row.branch == branch) and is_request(row)]
    made, _ = await run_off_loop(len(wanted), partial(timeline.build_points, context.services, wanted))
    return json_answers.render(made[-limit:])


@router.get("/money", openapi_extra=READ, response_model=CostReport)
async def show_costs(
    admin: AdminContextDep,
    request: Request,
    since: Annotated[float, Query(ge=0, le=1e12, description="Unix seconds.")] = 0.0,
    step: Annotated[
        Literal["auto", "minutes", "hour", "day"],
        Query(description="What is added up to one: five minutes, an hour, a day, or by the time that there is."),
    ] = "day",
) -> Response:
    """Show the cost of the sessions used since then, and their cost without the proxy. Sums are in all, step by step,
    and by policy, model and tenant."""
    rows = await admin.services.store.list_sessions(
        admin.tenant, None, MAX_SESSIONS + 1, SessionFilter("", since, None, "")
    )
    timelines: list[tuple[SessionItem, SessionTimeline]] = []
    for row in rows[:MAX_SESSIONS]:
        found_timeline = await _get_timeline_cache(request).find(admin.services, row)
        if found_timeline is not None:
            timelines.append((row, found_timeline))
    sums = await run_off_loop(
        sum(len(found_timeline.periods) for _, found_timeline in timelines), partial(_add_up, timelines, since, step)
    )
    spent = [(row, _sum_since(found_timeline, since)) for row, found_timeline in timelines]
    spenders = sorted(spent, key=lambda one: -(one[1].cost or 0.0))[:MAX_SPENDERS]
    return json_answers.render(
        {
            "since": since,
            "over": min(len(rows), MAX_SESSIONS),
            "more": len(rows) > MAX_SESSIONS,
            **sums,
            "spenders": [await _build_session_cost(admin.services, row, figures) for row, figures in spenders],
        }
    )


@router.get("/savings", openapi_extra=READ, response_model=json_answers.describe(Savings))
async def show_savings(
    admin: AdminContextDep, since: Annotated[float, Query(ge=0, le=1e12, description="Unix seconds.")] = 0.0
) -> Response:
    """Show what the requests since then have cost and saved, in tokens and in dollars, exact to the request."""
    return json_answers.render(await savings.sum_savings(admin.services, admin.tenant, since))


def _add_up(timelines: Sequence[tuple[SessionItem, SessionTimeline]], since: float, step: str) -> dict[str, Any]:
    """Return the sums of the periods that ended after `since`, under the names of `CostReport`."""
    periods = [
        (row.tenant, one)
        for row, found_timeline in timelines
        for one in found_timeline.periods
        if one.figures.at + PERIOD_S > since
    ]
    times = [one.figures.at for _, one in periods]
    size = STEPS[step] or _choose_step(max(times, default=0) - min(times, default=0))
    total, steps = PeriodFigures(int(since)), dict[int, PeriodFigures]()
    named: dict[str, dict[str, PeriodFigures]] = {"policies": {}, "models": {}, "tenants": {}}
    for tenant, one in periods:
        at = one.figures.at // size * size
        steps.setdefault(at, PeriodFigures(at)).add(one.figures)
        total.add(one.figures)
        for by, name in (("policies", one.policy), ("models", one.model), ("tenants", tenant)):
            named[by].setdefault(name, PeriodFigures(int(since))).add(one.figures)
    shares = {by: [{"name": name, "figures": sums} for name, sums in of.items()] for by, of in named.items()}
    for listed in shares.values():
        listed.sort(key=lambda one: (-one["figures"].cost, -one["figures"].tokens_before))  # type: ignore[attr-defined]
    return {
        "step": size,
        "total": total,
        "steps": [steps[at] for at in sorted(steps)],
        **{by: listed[:MAX_SHARES] for by, listed in shares.items()},
    }


def _choose_step(span: int) -> int:
    """Return the step with which a chart of `span` seconds has some tens of points."""
    steps = ((6 * HOUR_S, PERIOD_S), (3 * DAY_S, HOUR_S), (14 * DAY_S, 6 * HOUR_S))
    return next((step for longest, step in steps if span <= longest), DAY_S)


def _sum_since(session_timeline: SessionTimeline, since: float) -> SessionFigures:
    """Return the session's figures with the requests and dollars of the periods that ended after `since`."""
    if not since:
        return session_timeline.figures
    sums = PeriodFigures(int(since))
    for one in session_timeline.periods:
        if one.figures.at + PERIOD_S > since:
            sums.add(one.figures)
    billed = sums.exchanges > sums.unpriced
    return msgspec.structs.replace(
        session_timeline.figures,
        exchanges=sums.exchanges,
        cost=sums.cost if billed else None,
        cost_without=sums.cost_without if billed else None,
    )


async def _build_session_cost(services: Services, row: SessionItem, figures: SessionFigures) -> dict[str, object]:
    line = {**describe_session(row).model_dump(), "figures": figures}
    line["title"] = await read_title(services, row.tenant, row.session)
    return {name: line[name] for name in SessionCost.model_fields}
