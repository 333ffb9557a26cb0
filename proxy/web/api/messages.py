"""Messages of a session, with the decisions about each, and its exchanges: requests with their plan and cost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict

from proxy.chat import chain
from proxy.errors import NotFound, Unavailable
from proxy.exchange import rebuild_prompt
from proxy.store.base import WHOLE_SESSION, EditRow, ExchangeRecord, MessageRecord, is_last_page
from proxy.store.session_lists import MessageFilter
from proxy.web.api import pagination, stored_text
from proxy.web.api.admin_context import SessionContext, SessionContextDep
from proxy.web.api.json_answers import ERROR_RESPONSES
from proxy.web.api.pagination import Cursor, Limit, Page
from proxy.web.routes import READ

router = APIRouter(prefix="/api/sessions/{session}", tags=["messages"], responses=ERROR_RESPONSES)


class MessageListItem(BaseModel):
    """A message in a list. id: its name in prompts, hints and paths. seq: its number in the session. answer: true if
    the proxy itself gave it. text: its beginning. tokens: by the proxy's own count. snapshot: of an answer, and of the
    results of its calls, the tokens of its prompt and of itself as the provider reported them."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "mfzwizltoq", "seq": 7, "position": 6, "group": "nbswy3dpeb", "branch": "krugs4zanfzsa43f",
                    "role": "tool", "status": "completed", "strategy": "openai", "tokens": 812, "snapshot": 14250,
                    "answer": False, "call_id": "call_1", "created_at": 1767225600.0, "text": "total 48 drwxr-xr-x",
                }
            ]
        }
    )  # fmt: skip

    id: str
    seq: int
    position: int
    group: str
    branch: str
    role: str
    status: str
    strategy: str
    tokens: int
    snapshot: int | None
    answer: bool
    call_id: str | None
    created_at: float
    text: str


class EditDetails(BaseModel):
    """A decision about a message that is in force: its stage, its reason, and the content that it left. action: text
    (shortened to `text`), gone, text_only (its calls left), append, arguments, images (`text` in their place), pin."""

    branch: str
    stage: str
    reason: str
    action: str
    text: str | None
    before: int
    after: int
    exchange: str
    created_at: float


class MessageDetails(MessageListItem):
    """One message as it was stored, with the decisions about it. message: the whole message, as the client or model
    sent it."""

    message: Any
    edits: list[EditDetails]


class FoundMessage(BaseModel):
    """A message or summary that has words of the query. text: the part with them; empty where the matches before it
    have 16 MiB."""

    id: str
    kind: str
    text: str


REVOKING_ACTIONS = frozenset({"withdrawn", "unpin"})
"""Actions that revoke an earlier decision."""

MessageId = Annotated[str, Path(max_length=64, description="The message's id, as hints and lists name it.")]


@router.get("/messages", openapi_extra=READ)
async def list_messages(
    context: SessionContextDep,
    limit: Limit = 50,
    cursor: Cursor = None,
    branch: Annotated[str, Query(max_length=64, description="Those of this branch's line.")] = "",
    group: Annotated[str, Query(max_length=64, description="Those of this group.")] = "",
    role: Annotated[str, Query(max_length=32, description="Those of this role.")] = "",
    q: Annotated[str, Query(max_length=256, description="Those that have this in their text.")] = "",
    newest: Annotated[bool, Query(description="Newest first.")] = False,
) -> Page[MessageListItem]:
    """List messages in the order in which they were stored. A page ends early where its messages reach 16 MiB."""
    at = pagination.read_cursor(cursor, int)
    after = at[0] if at else (1 << 62 if newest else 0)
    only = MessageFilter(role, group, branch, q)
    async with context.services.read_slots.hold(context.tenant):
        rows = await context.services.store.read_messages(
            context.tenant, context.session, after, limit + 1, only, newest=newest
        )
        snapshots = await _read_snapshots(context, rows)
        return await asyncio.to_thread(  # reading a page of long messages takes a while
            pagination.make_page,
            rows,
            limit,
            lambda row: MessageListItem(**_build_fields(row, snapshots)),
            lambda row: [row.seq],
            is_cut=not is_last_page(rows, limit + 1),
        )


async def _read_snapshots(context: SessionContext, rows: Sequence[MessageRecord]) -> dict[bytes, int]:
    keys = [row.key for row in rows if row.role in ("assistant", "tool", "function")]
    return await context.services.store.read_token_snapshots(context.tenant, context.session, keys) if keys else {}


def _build_fields(row: MessageRecord, snapshots: Mapping[bytes, int]) -> dict[str, Any]:
    return {
        "id": chain.public_id(row.key), "seq": row.seq, "position": row.position, "group": row.group_id,
        "branch": row.branch, "role": row.role, "status": row.status, "strategy": row.strategy, "tokens": row.tokens,
        "snapshot": snapshots.get(row.key), "answer": row.answer, "call_id": row.call_id, "created_at": row.created_at,
        "text": stored_text.cut_preview(stored_text.render_text(row.body)),
    }  # fmt: skip


@router.get("/messages/{message}", openapi_extra=READ)
async def show_message(context: SessionContextDep, message: MessageId) -> MessageDetails:
    """Show one message, whole, with every decision about it that is in force."""
    row = await find_message(context, message)
    edits = []
    # The operator's decisions hold in every branch, and are stored under none.
    for branch in (WHOLE_SESSION, *(one.branch for one in context.record.branches)):
        for edit, _ in await context.services.store.read_edits(context.tenant, context.session, branch):
            if edit.key == row.key and edit.action not in REVOKING_ACTIONS:
                edits.append(describe_edit(edit))
    return MessageDetails(
        **_build_fields(row, await _read_snapshots(context, [row])),
        message=stored_text.decode_json(row.body),
        edits=edits,
    )


async def find_message(context: SessionContext, message: str) -> MessageRecord:
    """Return the message of this id. Raises NotFound."""
    row = await context.services.store.find_message(context.tenant, context.session, message)
    if row is None:
        raise NotFound(f"there is no message {message!r} in this session", hint="List its messages.")
    return row


def describe_edit(edit: EditRow) -> EditDetails:
    """Return a decision as it is shown."""
    return EditDetails.model_validate(edit, from_attributes=True)


@router.get("/search", openapi_extra=READ)
async def search_messages(
    context: SessionContextDep,
    q: Annotated[str, Query(min_length=1, max_length=1000, description="Words.")],
    limit: Annotated[int, Query(ge=1, le=50)] = 10,
) -> list[FoundMessage]:
    """Search the session for messages and summaries that have words of the query, best first."""
    async with context.services.read_slots.hold(context.tenant):
        matches = await context.services.store.search(context.tenant, context.session, q, limit)
        return [
            FoundMessage(id=chain.public_id(m.key), kind=m.kind, text=stored_text.cut_excerpt(m.text, q))
            for m in matches
        ]


# `/api/sessions/{session}/exchanges`: every request that was answered, with its plan and its cost.


exchanges_router = APIRouter(prefix="/api/sessions/{session}/exchanges", tags=["exchanges"], responses=ERROR_RESPONSES)


class ExchangeDetails(BaseModel):
    """A request and its answer. tokens_before, tokens_after: of the prompt by the proxy's own count, as received and as
    it went out. predicted: cached tokens as planned; cached_tokens: as the provider reported. fallback: the reason for
    sending the original. status: open, complete, partial, client_gone, failed, rejected, deferred, or lost. A request
    is lost if the proxy was killed while it answered, or could not store the end."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "exchange": "ovzwk4tjmqxha3dp", "branch": "krugs4zanfzsa43f", "policy": "thrifty",
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
    branch: str
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


ExchangeId = Annotated[str, Path(max_length=64, description="The exchange's id.")]


@exchanges_router.get("", openapi_extra=READ)
async def list_exchanges(
    context: SessionContextDep,
    limit: Limit = 50,
    cursor: Cursor = None,
    branch: Annotated[str, Query(max_length=64, description="Those of this branch.")] = "",
    status: Annotated[str, Query(max_length=32, description="Those that ended so.")] = "",
) -> Page[ExchangeDetails]:
    """List exchanges, newest first."""
    at = pagination.read_cursor(cursor, float)
    matching: list[ExchangeRecord] = []
    before = at[0] if at else None
    # Filtered rows are skipped a page at a time, so that no read grows with the session.
    for _ in range(20):
        rows = await context.services.store.read_exchanges(context.tenant, context.session, limit + 1, before)
        matching += [r for r in rows if (not branch or r.branch == branch) and (not status or r.status == status)]
        if len(matching) > limit or len(rows) <= limit:
            return pagination.make_page(matching, limit, describe_exchange, lambda row: [row.started_at])
        before = rows[-1].started_at
    return Page(items=[describe_exchange(row) for row in matching], next=pagination.write_cursor([before]))


@exchanges_router.get("/{exchange}", openapi_extra=READ)
async def show_exchange(context: SessionContextDep, exchange: ExchangeId) -> ExchangeDetails:
    """Show one exchange."""
    return describe_exchange(await _find_exchange(context, exchange))


@exchanges_router.get(
    "/{exchange}/body",
    openapi_extra=READ,
    response_class=Response,
    responses={200: {"content": {"application/json": {}}, "description": "The body."}},
)
async def read_exchange_body(
    context: SessionContextDep,
    exchange: ExchangeId,
    which: Annotated[
        Literal["sent", "original"], Query(description="As it was planned for upstream, or as the client sent it.")
    ] = ("sent"),
) -> Response:
    """Return the bytes of a request, built again from the stored data: of chat completions exactly, and of other
    formats as chat completions."""
    await _find_exchange(context, exchange)
    async with context.services.read_slots.hold(context.tenant):
        built = await rebuild_prompt.rebuild_prompt(context.services.store, context.tenant, context.session, exchange)
    if built is None:
        raise Unavailable("a part of this exchange is missing in the store")
    return Response(built.sent_body if which == "sent" else built.original_body, media_type="application/json")


async def _find_exchange(context: SessionContext, exchange: str) -> ExchangeRecord:
    row = await context.services.store.read_exchange(context.tenant, context.session, exchange)
    if row is None:
        raise NotFound(f"there is no exchange {exchange!r} in this session", hint="List its requests.")
    return row


def describe_exchange(row: ExchangeRecord) -> ExchangeDetails:
    """Return a row as it is shown."""
    return ExchangeDetails.model_validate(row, from_attributes=True)
