"""`/api/sessions/{session}/messages`: the messages of a session, each once, with the decisions about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict

from proxy.chat import chain
from proxy.errors import NotFound
from proxy.sessions.branch import WHOLE_SESSION
from proxy.store.base import EditRow, MessageRecord
from proxy.store.session_lists import MessageFilter
from proxy.web.api import pagination
from proxy.web.api.admin_context import SessionContext, SessionContextDep
from proxy.web.api.error_model import ERROR_RESPONSES
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
                    "id": "mfzwizltoq", "seq": 7, "position": 6, "group": "nbswy3dpeb", "thread": "krugs4zanfzsa43f",
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
    thread: str
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
    (shortened to `text`), gone, text_only (its calls left), append, pin."""

    thread: str
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
    """A message or summary that has words of the query. score: higher is better."""

    id: str
    kind: str
    text: str


REVOKING_ACTIONS = frozenset({"withdrawn", "unpin"})
"""Actions that revoke an earlier decision."""

Id = Annotated[str, Path(max_length=64, description="The message's id, as hints and lists name it.")]


@router.get("/messages", openapi_extra=READ)
async def list_messages(
    context: SessionContextDep,
    limit: Limit = 50,
    cursor: Cursor = None,
    thread: Annotated[str, Query(max_length=64, description="Those of this thread's line.")] = "",
    group: Annotated[str, Query(max_length=64, description="Those of this group.")] = "",
    role: Annotated[str, Query(max_length=32, description="Those of this role.")] = "",
    q: Annotated[str, Query(max_length=256, description="Those that have this in their text.")] = "",
    newest: Annotated[bool, Query(description="Newest first.")] = False,
) -> Page[MessageListItem]:
    """List messages in the order in which they were stored."""
    at = pagination.read_cursor(cursor, int)
    after = at[0] if at else (1 << 62 if newest else 0)
    only = MessageFilter(role, group, thread, q)
    rows = await context.services.store.read_messages(
        context.tenant, context.session, after, limit + 1, only, newest=newest
    )
    told = await _snapshots(context, rows)
    return pagination.make_page(rows, limit, lambda row: MessageListItem(**_fields(row, told)), lambda row: [row.seq])


async def _snapshots(context: SessionContext, rows: Sequence[MessageRecord]) -> dict[bytes, int]:
    keys = [row.key for row in rows if row.role in ("assistant", "tool", "function")]
    return await context.services.store.read_token_snapshots(context.tenant, context.session, keys) if keys else {}


def _fields(row: MessageRecord, told: Mapping[bytes, int]) -> dict[str, Any]:
    return {
        "id": chain.public_id(row.key), "seq": row.seq, "position": row.position, "group": row.group_id,
        "thread": row.thread, "role": row.role, "status": row.status, "strategy": row.strategy, "tokens": row.tokens,
        "snapshot": told.get(row.key), "answer": row.answer, "call_id": row.call_id, "created_at": row.created_at,
        "text": pagination.cut_preview(pagination.render_text(row.body)),
    }  # fmt: skip


@router.get("/messages/{message}", openapi_extra=READ)
async def show_message(context: SessionContextDep, message: Id) -> MessageDetails:
    """Show one message, whole, with every decision about it that is in force."""
    row = await find_message(context, message)
    edits = []
    # The operator's decisions hold in every thread, and are stored under none.
    for thread in (WHOLE_SESSION, *(one.thread for one in context.record.threads)):
        for edit, _ in await context.services.store.read_edits(context.tenant, context.session, thread):
            if edit.key == row.key and edit.action not in REVOKING_ACTIONS:
                edits.append(describe_edit(edit))
    return MessageDetails(
        **_fields(row, await _snapshots(context, [row])), message=pagination.decode_json(row.body), edits=edits
    )


async def find_message(context: SessionContext, message: str) -> MessageRecord:
    """Return the message of this id. Raises NotFound."""
    row = await context.services.store.find_message(context.tenant, context.session, message)
    if row is None:
        raise NotFound(f"there is no message {message!r} in this session")
    return row


def describe_edit(edit: EditRow) -> EditDetails:
    """Return a decision as it is shown."""
    return EditDetails(
        thread=edit.thread, stage=edit.stage, reason=edit.reason, action=edit.action, text=edit.text,
        before=edit.before, after=edit.after, exchange=edit.exchange, created_at=edit.created_at,
    )  # fmt: skip


@router.get("/search", openapi_extra=READ)
async def search_messages(
    context: SessionContextDep,
    q: Annotated[str, Query(min_length=1, max_length=1000, description="Words.")],
    limit: Annotated[int, Query(ge=1, le=50)] = 10,
) -> list[FoundMessage]:
    """Search the session for messages and summaries that have words of the query, best first."""
    matches = await context.services.store.search(context.tenant, context.session, q, limit)
    return [FoundMessage(id=chain.public_id(m.key), kind=m.kind, text=pagination.cut_preview(m.text)) for m in matches]
