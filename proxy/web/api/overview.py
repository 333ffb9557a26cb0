"""The choices of the proxy, and its state in numbers: policies, models, tenants, stats, and data for the dashboard."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict

from proxy.chat import chain
from proxy.context.models import Model
from proxy.context.policy import Policy
from proxy.errors import Forbidden, NotFound
from proxy.exchange.services import Services
from proxy.metrics import Metrics
from proxy.operator import savings, timeline
from proxy.operator.find_session import read_newest_exchanges, run_off_loop
from proxy.operator.response_models import RemovalResult
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
from proxy.version import VERSION
from proxy.web.api import json_answers, pagination, stored_text
from proxy.web.api.admin_context import AdminContextDep, SessionContextDep, read_tenants
from proxy.web.api.json_answers import ERROR_RESPONSES
from proxy.web.api.pagination import Cursor, Limit, Page
from proxy.web.api.sessions import SessionListItem
from proxy.web.api.sessions import describe_session as session_line
from proxy.web.routes import READ

router = APIRouter(prefix="/api", tags=["proxy"], responses=ERROR_RESPONSES)


class PolicyDetails(BaseModel):
    """A policy. stages and injections: its parts, in order. is_default: true if it applies to requests that name
    none."""

    name: str
    mode: str
    schedule: str
    budget: float
    window: int
    stages: list[str]
    injections: list[str]
    tools: list[str]
    is_default: bool


class ModelDetails(BaseModel):
    """The known facts of a model. input, output: dollars per million tokens. w, r: prices of an uncached and of a
    cached token in units of `input`."""

    model_config = ConfigDict(protected_namespaces=())

    name: str
    window: int | None
    max_output: int | None
    tokenizer: str
    input: float | None
    output: float | None
    w: float
    r: float
    cache: str


class UpstreamDetails(BaseModel):
    """An upstream. models: patterns of the model names that go there."""

    name: str
    base_url: str
    models: list[str]


class TenantListItem(BaseModel):
    """A tenant with sessions in the store."""

    tenant: str


class ProxyOverview(BaseModel):
    """The proxy since its start, and its store.

    targets: the upstreams with their addresses. figures: its counters, for a caller that sees every tenant.
    dollars_spent_today: those of helper models for all tenants. For a caller that sees one tenant those for that
    tenant, null where tenants have no budget of their own. added_ms, added_ms_p99: milliseconds that a chat request
    spent in the proxy, the median and 99 of 100; null before the first one."""

    version: str
    policy: str
    upstreams: list[str]
    targets: list[UpstreamDetails]
    healthy: bool
    trouble: str
    queued: int
    dropped: int
    live_branches: int
    dollars_spent_today: float | None
    figures: dict[str, float]
    added_ms: float | None
    added_ms_p99: float | None


@router.get("/policies", openapi_extra=READ)
async def list_policies(
    admin: AdminContextDep, limit: Limit = 200, cursor: Cursor = None, q: Annotated[str, Query(max_length=64)] = ""
) -> Page[PolicyDetails]:
    """List the policies that can be named, by name."""
    at = pagination.read_cursor(cursor, str)
    usual = admin.services.settings.policy
    found = [p for name, p in sorted(admin.services.policies.items()) if q in name and (at is None or name > at[0])]
    return pagination.make_page(found[: limit + 1], limit, lambda p: _describe_policy(p, usual), lambda p: [p.name])


def _describe_policy(policy: Policy, usual: str) -> PolicyDetails:
    return PolicyDetails(
        name=policy.name, mode=policy.mode, schedule=policy.schedule, budget=policy.budget, window=policy.window,
        stages=[_find_part_name(stage) for stage in policy.stages],
        injections=[_find_part_name(injection) for injection in policy.injections],
        tools=list(policy.tools), is_default=policy.name == usual,
    )  # fmt: skip


def _find_part_name(part: object) -> str:
    return type(part).__module__.rpartition(".")[2]


@router.get("/models", openapi_extra=READ)
async def list_models(
    admin: AdminContextDep, limit: Limit = 200, cursor: Cursor = None, q: Annotated[str, Query(max_length=256)] = ""
) -> Page[ModelDetails]:
    """List the known models, in the order in which they are searched."""
    start = pagination.read_offset(cursor)
    found = [model for model in admin.services.models if q in model.name]
    shown, more = pagination.slice_page(found, start, limit)
    return Page(items=[_describe_model(model) for model in shown], next=more)


def _describe_model(model: Model) -> ModelDetails:
    return ModelDetails(
        name=model.name, window=model.window, max_output=model.max_output, tokenizer=model.tokenizer,
        input=model.input, output=model.output, w=model.w, r=model.r, cache=model.cache,
    )  # fmt: skip


@router.get("/stats", openapi_extra=READ)
async def show_overview(admin: AdminContextDep) -> ProxyOverview:
    """Show the whole proxy: the state of its store, and its counters since its start."""
    store, parts = admin.services.store, admin.services
    everybody = admin.caller.one_tenant is None
    return ProxyOverview(
        version=VERSION,
        policy=parts.settings.policy,
        upstreams=[target.name for target in parts.client.targets],
        targets=[
            UpstreamDetails(name=name, base_url=one.base_url, models=list(one.models))
            for name, one in parts.settings.active_upstreams.items()
        ],
        healthy=store.healthy,
        trouble=store.trouble,
        queued=store.queued,
        dropped=store.dropped,
        live_branches=len(parts.live_sessions),
        dollars_spent_today=await store.sum_spending(int(parts.now() // 86400), admin.caller.one_tenant or "")
        if everybody or parts.settings.helper.tenant_dollars_a_day
        else None,
        figures=_sum_counters(parts.metrics.registry) if everybody else {},
        added_ms=_estimate_added_ms(parts.metrics, 0.5),
        added_ms_p99=_estimate_added_ms(parts.metrics, 0.99),
    )


def _estimate_added_ms(metrics: Metrics, share: float) -> float | None:
    """Return the milliseconds that this share of the chat requests spent in the proxy at most, by the histogram."""
    buckets = [
        (float(sample.labels["le"]), sample.value)
        for family in metrics.request_seconds.collect()
        for sample in family.samples
        if sample.name.endswith("_bucket") and sample.labels["route"] == "chat"
    ]
    wanted = share * buckets[-1][1] if buckets else 0.0
    low, before = 0.0, 0.0
    for bound, count in buckets:
        if wanted and count >= wanted:
            high = bound if bound != math.inf else low
            return round(1000 * (low + (high - low) * (wanted - before) / (count - before)), 2)
        low, before = bound, count
    return None


REQUESTS = "context_proxy_requests"


def _sum_counters(registry: Any) -> dict[str, float]:
    """Return counters summed over their labels, except `kind`: the cost paid and the cost avoided are two figures.
    Requests are those of clients: a look at these figures is none."""
    found: dict[str, float] = {}
    for metric in registry.collect():
        for sample in metric.samples:
            if sample.labels.get("route") == "api" and metric.name == REQUESTS:
                continue
            if sample.name.endswith("_total"):
                name = sample.name.removeprefix("context_proxy_").removesuffix("_total")
                name += "." + sample.labels["kind"] if sample.labels.get("kind") else ""
                found[name] = found.get(name, 0.0) + sample.value
    return found


@router.get("/tenants", openapi_extra=READ)
async def list_tenants(admin: AdminContextDep, limit: Limit = 50, cursor: Cursor = None) -> Page[TenantListItem]:
    """List the tenants with sessions in the store, by name; for a key of one tenant, only that tenant."""
    at = pagination.read_cursor(cursor, str)
    if admin.tenant is not None:
        found = [name for name in [admin.tenant] if await _exists(admin, name)]
    else:
        found = await read_tenants(admin.services.store, at[0] if at else "", limit + 1)
    return pagination.make_page(found, limit, lambda name: TenantListItem(tenant=name), lambda name: [name])


async def _exists(admin: AdminContextDep, tenant: str) -> bool:
    return bool(await admin.services.store.list_sessions(tenant, limit=1))


@router.delete("/tenants/{name}", response_model=json_answers.describe(RemovalResult))
async def delete_tenant(admin: AdminContextDep, name: Annotated[str, Path(max_length=128)]) -> Response:
    """Remove all that is stored of a tenant, memos included."""
    own = admin.caller.one_tenant
    if own is not None and name != own:
        raise Forbidden("the key is another tenant's")
    if not (await _exists(admin, name) or await admin.services.store.read_memos(name, limit=1)):
        raise NotFound("there is no such tenant", hint="GET /api/tenants lists them.")
    admin.services.live_sessions.forget_tenant(name)
    removed = await admin.services.store.delete_tenant(name)
    left = await _exists(admin, name) or await admin.services.store.read_memos(name, limit=1)
    return json_answers.render(RemovalResult(removed, verified=not left))


# Data for the dashboard: the caller, sessions with figures, exchanges over time, money.


figures_router = APIRouter(prefix="/api", tags=["figures"], responses=ERROR_RESPONSES)

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


@figures_router.get("/me", openapi_extra=READ)
async def show_caller(admin: AdminContextDep) -> CallerDetails:
    """Show the owner of this key, and the planes that it opens."""
    caller = admin.caller
    changes = caller.plane in ("admin", "any")
    return CallerDetails(name=caller.name, tenant=caller.tenant, plane=caller.plane, may_change=changes)


@figures_router.get("/live", openapi_extra=READ, response_model=Page[SessionWithFigures])
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
        found_timeline = await _get_timeline_cache(request).find(admin.services, row)
        figured = found_timeline.figures if found_timeline is not None else None
        title = await read_title(admin.services, row.tenant, row.session)
        made.append({**session_line(row).model_dump(), "figures": figured, "title": title})
    more = pagination.write_cursor(rows[limit - 1].cursor) if len(rows) > limit else None
    return json_answers.render({"items": made, "next": more})


@figures_router.get("/sessions/{session}/points", openapi_extra=READ, response_model=POINTS)
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


@figures_router.get("/money", openapi_extra=READ, response_model=CostReport)
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
    found: list[tuple[SessionItem, SessionTimeline]] = []
    for row in rows[:MAX_SESSIONS]:
        found_timeline = await _get_timeline_cache(request).find(admin.services, row)
        if found_timeline is not None:
            found.append((row, found_timeline))
    sums = await run_off_loop(
        sum(len(found_timeline.periods) for _, found_timeline in found), partial(_add_up, found, since, step)
    )
    spent = [(row, _sum_since(found_timeline, since)) for row, found_timeline in found]
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


@figures_router.get("/savings", openapi_extra=READ, response_model=json_answers.describe(Savings))
async def show_savings(
    admin: AdminContextDep, since: Annotated[float, Query(ge=0, le=1e12, description="Unix seconds.")] = 0.0
) -> Response:
    """Show what the requests since then have cost and saved, in tokens and in dollars, exact to the request."""
    return json_answers.render(await savings.sum_savings(admin.services, admin.tenant, since))


def _add_up(found: Sequence[tuple[SessionItem, SessionTimeline]], since: float, step: str) -> dict[str, Any]:
    """Return the sums of the periods that ended after `since`, under the names of `CostReport`."""
    periods = [
        (row.tenant, one)
        for row, found_timeline in found
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
    """Return the step in which a chart of so many seconds has some tens of points."""
    steps = ((6 * HOUR_S, PERIOD_S), (3 * DAY_S, HOUR_S), (14 * DAY_S, 6 * HOUR_S))
    return next((step for longest, step in steps if span <= longest), DAY_S)


def _sum_since(found: SessionTimeline, since: float) -> SessionFigures:
    """Return the session's figures with the requests and dollars of the periods that ended after `since`."""
    if not since:
        return found.figures
    sums = PeriodFigures(int(since))
    for one in found.periods:
        if one.figures.at + PERIOD_S > since:
            sums.add(one.figures)
    billed = sums.exchanges > sums.unpriced
    return msgspec.structs.replace(
        found.figures,
        exchanges=sums.exchanges,
        cost=sums.cost if billed else None,
        cost_without=sums.cost_without if billed else None,
    )


async def _build_session_cost(services: Services, row: SessionItem, figures: SessionFigures) -> dict[str, object]:
    line = {**session_line(row).model_dump(), "figures": figures}
    line["title"] = await read_title(services, row.tenant, row.session)
    return {name: line[name] for name in SessionCost.model_fields}


# Search over what was said in all sessions.

SEARCHED_SESSIONS, MATCHES_EACH = 20, 3
SEARCH_S = 0.1
"""Seconds after which a page of a search ends with the sessions that it has looked at."""


class SessionMatch(BaseModel):
    """A message or summary that has words of the query. role, group: of a message, "" for a summary."""

    id: str
    kind: str
    role: str
    group: str
    text: str


class SearchedSession(BaseModel):
    """A session in which words of the query were said. title: the beginning of its first prompt."""

    tenant: str
    session: str
    address: str
    last_at: float
    title: str
    matches: list[SessionMatch]


class SearchPage(BaseModel):
    """The sessions of one page that match. looked: number of sessions that were searched for this page."""

    items: list[SearchedSession]
    looked: int
    next: str | None


@figures_router.get("/search", openapi_extra=READ)
async def search_sessions(
    admin: AdminContextDep,
    q: Annotated[str, Query(min_length=1, max_length=1000, description="Words.")],
    cursor: Cursor = None,
) -> SearchPage:
    """Search the messages and summaries of sessions, the one used last first. A page may be empty and have a next."""
    after = pagination.read_cursor(cursor, float, str, str)
    store = admin.services.store
    rows = await store.list_sessions(admin.tenant, after, SEARCHED_SESSIONS + 1)
    items: list[SearchedSession] = []
    looked, until = 0, time.monotonic() + SEARCH_S
    for row in rows[:SEARCHED_SESSIONS]:
        if looked and time.monotonic() > until:
            break
        looked += 1
        matches = []
        for match in await store.search(row.tenant, row.session, q, MATCHES_EACH):
            name = chain.public_id(match.key)
            message = await store.find_message(row.tenant, row.session, name) if match.kind == "message" else None
            role, group = (message.role, message.group_id) if message is not None else ("", "")
            text = stored_text.cut_excerpt(match.text, q)
            matches.append(SessionMatch(id=name, kind=match.kind, role=role, group=group, text=text))
        if matches:
            title = await read_title(admin.services, row.tenant, row.session)
            line = session_line(row)
            items.append(
                SearchedSession(
                    tenant=line.tenant, session=line.session, address=line.address, last_at=line.last_at, title=title,
                    matches=matches,
                )
            )  # fmt: skip
    more = pagination.write_cursor(rows[looked - 1].cursor) if len(rows) > looked else None
    return SearchPage(items=items, looked=looked, next=more)
