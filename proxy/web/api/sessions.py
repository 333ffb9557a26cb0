"""`/api/sessions`: the list, one session, what is set for it, and its end."""

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
    """A session in the list. address: how its name is written in a path. explicit: the client named it; else its
    messages told which it is. Times are Unix seconds."""

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
    """One line of history in a session. kind: main, fork (the client rewrote its history), twin, or side (a call on the
    side, such as for a title)."""

    thread: str
    parent: str | None
    kind: Literal["main", "fork", "twin", "side"]
    created_at: float


class SessionShown(BaseModel):
    """One session. rows: how much of it is stored. settings: what was set for it."""

    tenant: str
    session: str
    address: str
    explicit: bool
    created_at: float
    settings: dict[str, Any]
    rows: Annotated[dict[str, int], Field(examples=[{"messages": 212, "exchanges": 48, "edits": 31}])]
    threads: list[ThreadLine]


class Removed(BaseModel):
    """What is gone. verified: nothing of it was found in any table afterwards."""

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
    """Sessions, used last first."""
    after = pages.place(cursor, float, str, str)
    only = SessionFilter(q, since, explicit, policy)
    rows = await desk.parts.store.list_sessions(desk.tenant, after, limit + 1, only)
    return pages.page(rows, limit, line, lambda row: row.place)


def line(row: SessionItem) -> SessionLine:
    """A row as it is shown."""
    return SessionLine(
        tenant=row.tenant, session=row.session, address=address(row.session), explicit=row.explicit,
        created_at=row.created_at, last_at=row.last_at, policy=row.policy, messages=row.messages,
        exchanges=row.exchanges, threads=row.threads,
    )  # fmt: skip


@router.get("/{session}", openapi_extra=READ)
async def show(place: AtPlace) -> SessionShown:
    """One session: its threads, and how much of it is stored."""
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
    """Remove all that is stored of a session. Memos that were written in it stay, without its name."""
    parts = place.parts
    removed = await parts.store.delete_session(place.tenant, place.session)
    memory = parts.threads.session(place.tenant, place.session)
    if memory is not None:  # a request that came meanwhile has not brought it back: what is remembered is not there
        parts.threads.forget(memory)
    return Removed(removed=removed, verified=await parts.store.session(place.tenant, place.session) is None)


@router.get("/{session}/stats", openapi_extra=READ, response_model=wire.described(SessionStats))
async def stats(
    place: AtPlace,
    thread: Annotated[str | None, Query(max_length=64, description="Without it the one last spoken in.")] = None,
) -> Response:
    """Where a session stands: how full its next prompt is, what it has cost, and would have cost without the proxy."""
    return wire.answer(await counting.stats(place.parts, place.tenant, place.session, thread=thread))
