"""`/api/sessions`: the list, one session, its settings, and its removal."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from proxy.exchange.steering import counting
from proxy.exchange.steering.shapes import SessionStats
from proxy.store.base import SessionRecord
from proxy.store.listing import SessionFilter, SessionItem
from proxy.web.api import pages, wire
from proxy.web.api.desk import AtDesk, AtPlace, address
from proxy.web.api.pages import Cursor, Limit, Page
from proxy.web.api.problems import EVERY
from proxy.web.doors import READ

router = APIRouter(prefix="/api/sessions", tags=["sessions"], responses=EVERY)


class SessionLine(BaseModel):
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


class ThreadLine(BaseModel):
    """One branch of history in a session. kind: main, fork (the client rewrote its history), twin, or side (a separate
    call, for example for a title)."""

    thread: str
    parent: str | None
    kind: Literal["main", "fork", "twin", "side"]
    created_at: float


class SessionShown(BaseModel):
    """One session. rows: the number of its stored rows by kind. settings: its own settings."""

    tenant: str
    session: str
    address: str
    explicit: bool
    created_at: float
    settings: dict[str, Any]
    rows: Annotated[dict[str, int], Field(examples=[{"messages": 212, "exchanges": 48, "edits": 31}])]
    threads: list[ThreadLine]


class Removed(BaseModel):
    """The result of a removal. verified: true if no row of it was found in any table afterwards."""

    removed: int
    verified: bool


@router.get("", openapi_extra=READ)
async def list_sessions(
    desk: AtDesk,
    limit: Limit = 50,
    cursor: Cursor = None,
    q: Annotated[str, Query(max_length=256, description="A part of the name.")] = "",
    since: Annotated[float, Query(ge=0, le=1e12, description="Used at this time (Unix seconds) or later.")] = 0.0,
    explicit: Annotated[bool | None, Query(description="Named by the client, or not.")] = None,
    policy: Annotated[str, Query(max_length=64, description="The policy of the newest request.")] = "",
) -> Page[SessionLine]:
    """List sessions, the one used last first."""
    after = pages.place(cursor, float, str, str)
    only = SessionFilter(q, since, explicit, policy)
    rows = await desk.parts.store.list_sessions(desk.tenant, after, limit + 1, only)
    return pages.page(rows, limit, line, lambda row: row.place)


def line(row: SessionItem) -> SessionLine:
    """Return a row as it is shown."""
    return SessionLine(
        tenant=row.tenant, session=row.session, address=address(row.session), explicit=row.explicit,
        created_at=row.created_at, last_at=row.last_at, policy=row.policy, messages=row.messages,
        exchanges=row.exchanges, threads=row.threads,
    )  # fmt: skip


@router.get("/{session}", openapi_extra=READ)
async def show(place: AtPlace) -> SessionShown:
    """Show one session: its threads, and the amount of its stored data."""
    return _shown(place.record)


def _shown(row: SessionRecord) -> SessionShown:
    threads = [ThreadLine(thread=t.thread, parent=t.parent, kind=t.kind, created_at=t.created_at) for t in row.threads]
    settings = pages.shown(row.settings.encode("utf-8", "replace"))
    return SessionShown(
        tenant=row.tenant, session=row.session, address=address(row.session), explicit=row.explicit,
        created_at=row.created_at, settings=settings if isinstance(settings, dict) else {}, rows=row.counts,
        threads=threads,
    )  # fmt: skip


@router.delete("/{session}")
async def delete(place: AtPlace) -> Removed:
    """Remove all stored data of a session. Memos that were written in it stay, without its name."""
    parts = place.parts
    removed = await parts.store.delete_session(place.tenant, place.session)
    memory = parts.threads.session(place.tenant, place.session)
    if memory is not None:  # its rows are gone, also if a request came meanwhile
        parts.threads.forget(memory)
    return Removed(removed=removed, verified=await parts.store.session(place.tenant, place.session) is None)


@router.get("/{session}/stats", openapi_extra=READ, response_model=wire.described(SessionStats))
async def stats(
    place: AtPlace,
    thread: Annotated[str | None, Query(max_length=64, description="Without it the one last spoken in.")] = None,
) -> Response:
    """Show the state of a session: the size of its next prompt, its cost, and its cost without the proxy."""
    return wire.answer(await counting.stats(place.parts, place.tenant, place.session, thread=thread))
