"""`/api/sessions`: the list, one session, its settings, and its removal."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from proxy.store.base import SessionRecord
from proxy.store.session_lists import SessionFilter, SessionItem
from proxy.web.api import pagination
from proxy.web.api.admin_context import AdminContextDep, SessionContextDep, write_address
from proxy.web.api.error_model import ERROR_RESPONSES
from proxy.web.api.pagination import Cursor, Limit, Page
from proxy.web.routes import READ

router = APIRouter(prefix="/api/sessions", tags=["sessions"], responses=ERROR_RESPONSES)


class SessionListItem(BaseModel):
    """A session in the list. address: the form of its name in a path. explicit: true if the client named it; else its
    messages identified it. Times are Unix seconds."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "tenant": "acme", "session": "fix-the-build", "address": "fix-the-build", "explicit": True,
                    "created_at": 1767225600.0, "last_at": 1767229200.0, "policy": "thrifty",
                    "messages": 212, "exchanges": 48, "threads": 2,
                }
            ]
        }
    )  # fmt: skip

    tenant: str
    session: str
    address: str
    explicit: bool
    created_at: float
    last_at: float
    policy: str
    messages: int
    exchanges: int
    threads: int


class BranchListItem(BaseModel):
    """One branch of history in a session. kind: main, fork (the client rewrote its history), twin, or side (a separate
    call, for example for a title)."""

    thread: str
    parent: str | None
    kind: Literal["main", "fork", "twin", "side"]
    created_at: float


class SessionDetails(BaseModel):
    """One session. rows: the number of its stored rows by kind. settings: its own settings."""

    tenant: str
    session: str
    address: str
    explicit: bool
    created_at: float
    settings: dict[str, Any]
    rows: Annotated[dict[str, int], Field(examples=[{"messages": 212, "exchanges": 48, "edits": 31}])]
    threads: list[BranchListItem]


@router.get("", openapi_extra=READ)
async def list_sessions(
    admin: AdminContextDep,
    limit: Limit = 50,
    cursor: Cursor = None,
    q: Annotated[str, Query(max_length=256, description="A part of the name.")] = "",
    since: Annotated[float, Query(ge=0, le=1e12, description="Used at this time (Unix seconds) or later.")] = 0.0,
    explicit: Annotated[bool | None, Query(description="Named by the client, or not.")] = None,
    policy: Annotated[str, Query(max_length=64, description="The policy of the newest request.")] = "",
) -> Page[SessionListItem]:
    """List sessions, the one used last first."""
    after = pagination.read_cursor(cursor, float, str, str)
    only = SessionFilter(q, since, explicit, policy)
    rows = await admin.services.store.list_sessions(admin.tenant, after, limit + 1, only)
    return pagination.make_page(rows, limit, describe_session, lambda row: row.cursor)


def describe_session(row: SessionItem) -> SessionListItem:
    """Return a row as it is shown."""
    return SessionListItem(
        tenant=row.tenant, session=row.session, address=write_address(row.session), explicit=row.explicit,
        created_at=row.created_at, last_at=row.last_at, policy=row.policy, messages=row.messages,
        exchanges=row.exchanges, threads=row.threads,
    )  # fmt: skip


@router.get("/{session}", openapi_extra=READ)
async def show_session(context: SessionContextDep) -> SessionDetails:
    """Show one session: its threads, and the amount of its stored data."""
    return _shown(context.record)


def _shown(row: SessionRecord) -> SessionDetails:
    threads = [
        BranchListItem(thread=t.thread, parent=t.parent, kind=t.kind, created_at=t.created_at) for t in row.threads
    ]
    settings = pagination.decode_json(row.settings.encode("utf-8", "replace"))
    return SessionDetails(
        tenant=row.tenant, session=row.session, address=write_address(row.session), explicit=row.explicit,
        created_at=row.created_at, settings=settings if isinstance(settings, dict) else {}, rows=row.counts,
        threads=threads,
    )  # fmt: skip
