"""Data for the dashboard: the caller, sessions with figures, exchanges over time, money."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from proxy.operator import timeline
from proxy.operator.timeline import HOUR_S, ExchangePoint, HourlyFigures, SessionFigures, TimelineCache
from proxy.store.session_lists import SessionFilter
from proxy.web.api import json_answers, pagination
from proxy.web.api.admin_context import AdminContextDep, SessionContextDep
from proxy.web.api.error_model import ERROR_RESPONSES
from proxy.web.api.pagination import Cursor, Limit, Page
from proxy.web.api.sessions import SessionListItem
from proxy.web.api.sessions import describe_session as session_line
from proxy.web.routes import READ

router = APIRouter(prefix="/api", tags=["figures"], responses=ERROR_RESPONSES)

MAX_SESSIONS = 500
"""Sessions, used last, whose cost is added up."""
DAY_S = 24 * HOUR_S

FiguresShown = json_answers.describe(SessionFigures)
HourShown = json_answers.describe(HourlyFigures)


class CallerDetails(BaseModel):
    """The caller. plane: the purpose of the key, `any` on loopback without keys. may_change: true if it may change
    something."""

    name: str
    tenant: str
    plane: str
    may_change: bool


class SessionWithFigures(SessionListItem):
    """A session in the list, with its figures; null before anything was said in it."""

    figures: FiguresShown | None  # type: ignore[valid-type]  # made


class SessionCost(BaseModel):
    """The cost of one session."""

    tenant: str
    session: str
    address: str
    last_at: float
    figures: FiguresShown  # type: ignore[valid-type]  # made


class CostReport(BaseModel):
    """The cost of all sessions together, by hours or days. over: the number of sessions added up, used last. more: true
    if there are others in that time. spenders: the sessions that cost most."""

    since: float
    step: int
    over: int
    more: bool
    total: HourShown  # type: ignore[valid-type]  # made
    steps: list[HourShown]  # type: ignore[valid-type]  # made
    spenders: list[SessionCost]


def _timeline_cache(request: Request) -> TimelineCache:
    found: TimelineCache = request.app.state.timeline_cache
    return found


@router.get("/me", openapi_extra=READ)
async def show_caller(admin: AdminContextDep) -> CallerDetails:
    """Show the owner of this key, and what it opens."""
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
    made = []
    for row in rows[:limit]:
        told = await _timeline_cache(request).find_timeline(admin.services, row)
        figured = told.figures if told is not None else None
        made.append({**session_line(row).model_dump(), "figures": figured})
    more = pagination.write_cursor(rows[limit - 1].cursor) if len(rows) > limit else None
    return json_answers.render({"items": made, "next": more})


@router.get("/sessions/{session}/points", openapi_extra=READ, response_model=list[json_answers.describe(ExchangePoint)])  # type: ignore[misc]  # made
async def list_points(
    context: SessionContextDep,
    limit: Limit = 200,
    thread: Annotated[str, Query(max_length=64, description="Those of this thread.")] = "",
) -> Response:
    """List a session's last exchanges, oldest first, each with its tokens, cached tokens and cost."""
    # More than requested, because the hypothetical cost of an exchange depends on the one before.
    found = await timeline.read_newest_exchanges(context.services, context.tenant, context.session, limit * 5)
    made, _ = timeline.build_points(context.services, [row for row in found if not thread or row.thread == thread])
    return json_answers.render(made[-limit:])


@router.get("/money", openapi_extra=READ, response_model=CostReport)
async def show_costs(
    admin: AdminContextDep,
    request: Request,
    since: Annotated[float, Query(ge=0, le=1e12, description="Unix seconds.")] = 0.0,
    step: Annotated[Literal["hour", "day"], Query(description="What is added up to one.")] = "day",
) -> Response:
    """Show the cost of the sessions used since then, and their cost without the proxy, step by step."""
    size = DAY_S if step == "day" else HOUR_S
    rows = await admin.services.store.list_sessions(
        admin.tenant, None, MAX_SESSIONS + 1, SessionFilter("", since, None, "")
    )
    steps: dict[int, HourlyFigures] = {}
    total, spenders = HourlyFigures(int(since)), []
    for row in rows[:MAX_SESSIONS]:
        told = await _timeline_cache(request).find_timeline(admin.services, row)
        if told is None:
            continue
        spenders.append({**session_line(row).model_dump(), "figures": told.figures})
        for hour in told.hours:
            if hour.at + HOUR_S > since:
                at = hour.at // size * size
                steps.setdefault(at, HourlyFigures(at)).add(hour)
                total.add(hour)
    spenders.sort(key=lambda one: -(one["figures"].cost or 0.0))
    return json_answers.render(
        {
            "since": since,
            "step": size,
            "over": min(len(rows), MAX_SESSIONS),
            "more": len(rows) > MAX_SESSIONS,
            "total": total,
            "steps": [steps[at] for at in sorted(steps)],
            "spenders": [_spender(one) for one in spenders[:20]],
        }
    )


def _spender(one: dict[str, object]) -> dict[str, object]:
    return {name: one[name] for name in SessionCost.model_fields}
