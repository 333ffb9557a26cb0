"""Search over what was said in all sessions of a tenant."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from proxy.chat import chain
from proxy.operator.session_titles import read_title
from proxy.web.api import pagination, stored_text
from proxy.web.api.admin_context import AdminContextDep
from proxy.web.api.json_answers import ERROR_RESPONSES
from proxy.web.api.pagination import Cursor
from proxy.web.api.sessions import describe_session
from proxy.web.routes import READ

router = APIRouter(prefix="/api", tags=["figures"], responses=ERROR_RESPONSES)

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


@router.get("/search", openapi_extra=READ)
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
        async with admin.services.read_slots.hold(row.tenant):
            found = await store.search(row.tenant, row.session, q, MATCHES_EACH)
        for match in found:
            name = chain.public_id(match.key)
            message = await store.find_message(row.tenant, row.session, name) if match.kind == "message" else None
            role, group = (message.role, message.group_id) if message is not None else ("", "")
            text = stored_text.cut_excerpt(match.text, q)
            matches.append(SessionMatch(id=name, kind=match.kind, role=role, group=group, text=text))
        if matches:
            title = await read_title(admin.services, row.tenant, row.session)
            line = describe_session(row)
            items.append(
                SearchedSession(
                    tenant=line.tenant, session=line.session, address=line.address, last_at=line.last_at, title=title,
                    matches=matches,
                )
            )  # fmt: skip
    more = pagination.write_cursor(rows[looked - 1].cursor) if len(rows) > looked else None
    return SearchPage(items=items, looked=looked, next=more)
