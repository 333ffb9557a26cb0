"""`/api/sessions/{session}/exchanges`: every request that was answered, with its plan and its cost."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict

from proxy.errors import NotFound, Unavailable
from proxy.exchange import rebuild_prompt
from proxy.store.base import ExchangeRecord
from proxy.web.api import pagination
from proxy.web.api.admin_context import SessionContext, SessionContextDep
from proxy.web.api.error_model import ERROR_RESPONSES
from proxy.web.api.pagination import Cursor, Limit, Page
from proxy.web.routes import READ

router = APIRouter(prefix="/api/sessions/{session}/exchanges", tags=["exchanges"], responses=ERROR_RESPONSES)


class ExchangeDetails(BaseModel):
    """A request and its answer. tokens_before, tokens_after: of the prompt by the proxy's own count, as it came and as
    it went out. predicted: cached tokens as planned; cached_tokens: as the provider reported. fallback: the reason for
    sending the original. status: open, complete, partial, client_gone, failed, rejected or deferred."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "exchange": "ovzwk4tjmqxha3dp", "thread": "krugs4zanfzsa43f", "policy": "thrifty",
                    "schedule": "when_it_pays", "model": "gpt-5", "upstream": "main", "messages": 120,
                    "tokens_before": 61200, "tokens_after": 22800, "predicted": 22100, "started_at": 1767225600.0,
                    "status": "complete", "http_status": 200, "finish": "tool_calls", "prompt_tokens": 22910,
                    "completion_tokens": 212, "cached_tokens": 22016, "fallback": None, "first_byte_ms": 812.5,
                    "ended_at": 1767225603.4, "note": None,
                }
            ]
        }
    )  # fmt: skip

    exchange: str
    thread: str
    policy: str
    schedule: str
    model: str
    upstream: str
    messages: int
    tokens_before: int
    tokens_after: int
    predicted: int | None
    started_at: float
    status: str
    http_status: int | None
    finish: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    fallback: str | None
    first_byte_ms: float | None
    ended_at: float | None
    note: str | None


Id = Annotated[str, Path(max_length=64, description="The exchange's id.")]


@router.get("", openapi_extra=READ)
async def list_exchanges(
    context: SessionContextDep,
    limit: Limit = 50,
    cursor: Cursor = None,
    thread: Annotated[str, Query(max_length=64, description="Those of this thread.")] = "",
    status: Annotated[str, Query(max_length=32, description="Those that ended so.")] = "",
) -> Page[ExchangeDetails]:
    """List exchanges, newest first."""
    at = pagination.read_cursor(cursor, float)
    found: list[ExchangeRecord] = []
    before = at[0] if at else None
    # Filtered rows are skipped a page at a time, so that no read grows with the session.
    for _ in range(20):
        rows = await context.services.store.read_exchanges(context.tenant, context.session, limit + 1, before)
        found += [r for r in rows if (not thread or r.thread == thread) and (not status or r.status == status)]
        if len(found) > limit or len(rows) <= limit:
            return pagination.make_page(found, limit, describe_exchange, lambda row: [row.started_at])
        before = rows[-1].started_at
    more = (
        pagination.write_cursor([before])
        if len(found) <= limit
        else pagination.write_cursor([found[limit - 1].started_at])
    )
    return Page(items=[describe_exchange(row) for row in found[:limit]], next=more)


@router.get("/{exchange}", openapi_extra=READ)
async def show_exchange(context: SessionContextDep, exchange: Id) -> ExchangeDetails:
    """Show one exchange."""
    return describe_exchange(await _found(context, exchange))


@router.get(
    "/{exchange}/body",
    openapi_extra=READ,
    response_class=Response,
    responses={200: {"content": {"application/json": {}}, "description": "The body, byte for byte."}},
)
async def read_exchange_body(
    context: SessionContextDep,
    exchange: Id,
    which: Annotated[
        Literal["sent", "original"], Query(description="As upstream got it, or as the client sent it.")
    ] = ("sent"),
) -> Response:
    """Return the exact bytes of a request, built again from the stored data."""
    await _found(context, exchange)
    built = await rebuild_prompt.rebuild_prompt(context.services.store, context.tenant, context.session, exchange)
    if built is None:
        raise Unavailable("a part of this exchange is missing in the store")
    return Response(built.sent_body if which == "sent" else built.original_body, media_type="application/json")


async def _found(context: SessionContext, exchange: str) -> ExchangeRecord:
    row = await context.services.store.read_exchange(context.tenant, context.session, exchange)
    if row is None:
        raise NotFound(f"there is no exchange {exchange!r} in this session")
    return row


def describe_exchange(row: ExchangeRecord) -> ExchangeDetails:
    """Return a row as it is shown."""
    return ExchangeDetails(
        exchange=row.exchange, thread=row.thread, policy=row.policy, schedule=row.schedule, model=row.model,
        upstream=row.upstream, messages=row.messages, tokens_before=row.tokens_before, tokens_after=row.tokens_after,
        predicted=row.predicted, started_at=row.started_at, status=row.status, http_status=row.http_status,
        finish=row.finish, prompt_tokens=row.prompt_tokens, completion_tokens=row.completion_tokens,
        cached_tokens=row.cached_tokens, fallback=row.fallback, first_byte_ms=row.first_byte_ms,
        ended_at=row.ended_at, note=row.note,
    )  # fmt: skip
