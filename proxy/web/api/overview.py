"""The choices of the proxy, and its state in numbers: policies, models, tenants, stats, and data for the dashboard."""

from __future__ import annotations

import math
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict

from proxy.context.models import Model
from proxy.context.policy import Policy
from proxy.errors import Forbidden, NotFound
from proxy.metrics import Metrics
from proxy.operator.response_models import RemovalResult
from proxy.version import VERSION
from proxy.web.api import json_answers, pagination
from proxy.web.api.admin_context import AdminContextDep, read_tenants
from proxy.web.api.json_answers import ERROR_RESPONSES
from proxy.web.api.pagination import Cursor, Limit, Page
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
    rank = share * buckets[-1][1] if buckets else 0.0
    low, before = 0.0, 0.0
    for bound, count in buckets:
        if rank and count >= rank:
            high = bound if bound != math.inf else low
            return round(1000 * (low + (high - low) * (rank - before) / (count - before)), 2)
        low, before = bound, count
    return None


REQUESTS = "context_proxy_requests"


def _sum_counters(registry: Any) -> dict[str, float]:
    """Return counters summed over their labels, except `kind`: the cost paid and the cost avoided are two figures.
    Requests are those of clients: a look at these figures is none."""
    sums: dict[str, float] = {}
    for metric in registry.collect():
        for sample in metric.samples:
            if sample.labels.get("route") == "api" and metric.name == REQUESTS:
                continue
            if sample.name.endswith("_total"):
                name = sample.name.removeprefix("context_proxy_").removesuffix("_total")
                name += "." + sample.labels["kind"] if sample.labels.get("kind") else ""
                sums[name] = sums.get(name, 0.0) + sample.value
    return sums


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
