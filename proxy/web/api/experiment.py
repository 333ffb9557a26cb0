"""`GET /api/report`: the arms of an experiment, compared."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from msgspec.structs import replace

from proxy.errors import TooMany
from proxy.operator.experiment_report import ExperimentReport, MeasureCache, build_report
from proxy.operator.session_titles import read_title
from proxy.web.api import json_answers
from proxy.web.api.admin_context import AdminContextDep
from proxy.web.api.json_answers import ERROR_RESPONSES
from proxy.web.routes import READ
from proxy.web.session_address import write_address

router = APIRouter(prefix="/api", tags=["figures"], responses=ERROR_RESPONSES)


@router.get("/report", openapi_extra=READ, response_model=json_answers.describe(ExperimentReport))
async def show_report(
    admin: AdminContextDep,
    request: Request,
    since: Annotated[float, Query(ge=0, le=1e12, description="Unix seconds.")] = 0.0,
) -> Response:
    """Compare the arms of the experiment over the sessions used since then: dollars, requests, errors, latency, and the
    sessions in which the proxy cost money. One report is made at a time."""
    state = request.app.state
    if state.reporting.locked():
        raise TooMany("a report is being made", hint="Try again in a few seconds.")
    async with state.reporting:
        cache: MeasureCache = state.measure_cache
        report = await build_report(admin.services, cache, admin.tenant, since)
    losses = [
        replace(
            loss,
            address=write_address(loss.session),
            title=await read_title(admin.services, loss.tenant, loss.session),
        )
        for loss in report.losses
    ]
    return json_answers.render(replace(report, losses=losses))
