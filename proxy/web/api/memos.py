"""`/api/memos`: notes of models for later sessions of a tenant, which people can read, edit and remove."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from proxy.errors import Conflict, NotFound, Unprocessable
from proxy.exchange import announcing
from proxy.memory import memos
from proxy.memory.memos import Memo
from proxy.store.written import MemoRow
from proxy.tools import notebook
from proxy.web.api import pages
from proxy.web.api.desk import AtDesk, Desk, one_tenant
from proxy.web.api.pages import Cursor, Limit, Page
from proxy.web.api.problems import EVERY
from proxy.web.doors import READ

router = APIRouter(prefix="/api/memos", tags=["memos"], responses=EVERY)


class MemoShown(BaseModel):
    """A memo. session: the session that wrote it last, "" if that session was deleted."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "memo": "mfzwizltoq", "project": "", "content": "The tests need PostgreSQL 14 or newer.",
                    "tags": ["tests", "postgresql"], "session": "fix-the-build", "created_at": 1767225600.0,
                    "updated_at": 1767225600.0,
                }
            ]
        }
    )  # fmt: skip

    memo: str
    project: str
    content: str
    tags: list[str]
    session: str
    created_at: float
    updated_at: float


class MemoBody(BaseModel):
    """The new content of a memo; omitted fields stay."""

    model_config = ConfigDict(extra="forbid")

    content: Annotated[
        str | None, Field(max_length=memos.MOST_BYTES, examples=["The tests need PostgreSQL 14 or newer."])
    ] = None
    tags: Annotated[
        list[Annotated[str, Field(max_length=200)]] | None, Field(max_length=50, examples=[["tests", "postgresql"]])
    ] = None


class NewMemo(BaseModel):
    """A new memo."""

    model_config = ConfigDict(extra="forbid")

    content: Annotated[str, Field(max_length=memos.MOST_BYTES, examples=["The tests need PostgreSQL 14 or newer."])]
    tags: Annotated[
        list[Annotated[str, Field(max_length=200)]], Field(max_length=50, examples=[["tests", "postgresql"]])
    ] = []
    project: Annotated[str, Field(max_length=100)] = ""


class Gone(BaseModel):
    """The deleted memo."""

    memo: str


Id = Annotated[str, Path(max_length=64, description="The memo's id.")]
Project = Annotated[str | None, Query(max_length=100, description="Those of this project; empty: of none.")]


@router.get("", openapi_extra=READ)
async def list_memos(
    desk: AtDesk,
    limit: Limit = 50,
    cursor: Cursor = None,
    project: Project = None,
    q: Annotated[str, Query(max_length=256, description="Those that have this in text or tags.")] = "",
) -> Page[MemoShown]:
    """List a tenant's memos, in the order of their ids."""
    at = pages.place(cursor, str)
    found = [row async for row in _all(desk, project, q, after=at[0] if at else "", most=limit + 1)]
    return pages.page(found, limit, _shown, lambda row: [row.memo])


async def _all(desk: Desk, project: str | None, q: str, *, after: str, most: int | None) -> AsyncIterator[MemoRow]:
    tenant = await one_tenant(desk)
    wanted, left = q.casefold(), most
    while left is None or left > 0:
        rows = await desk.parts.store.memos(tenant, project, 200, after)
        for row in rows:
            if wanted in f"{row.content} {row.tags}".casefold() and (left is None or left > 0):
                yield row
                left = None if left is None else left - 1
        if len(rows) < 200:
            return
        after = rows[-1].memo


@router.get("/export", response_class=StreamingResponse, responses={200: {"content": {"application/x-ndjson": {}}}})
async def export(desk: AtDesk, project: Project = None) -> StreamingResponse:
    """Export all memos of a tenant, one JSON object a line."""
    await one_tenant(desk)

    async def lines() -> AsyncIterator[bytes]:
        async for row in _all(desk, project, "", after="", most=None):
            yield json.dumps(_shown(row).model_dump()).encode() + b"\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


@router.get("/{memo}", openapi_extra=READ)
async def show(desk: AtDesk, memo: Id) -> MemoShown:
    """Show one memo."""
    return _shown(await _found(desk, memo))


@router.post("")
async def save(desk: AtDesk, body: NewMemo) -> MemoShown:
    """Save a memo, as an operator or from elsewhere. A memo that says nearly the same is updated instead."""
    tenant, parts = await one_tenant(desk), desk.parts
    content, project, now = memos.tidy(body.content), memos.tidy_project(body.project), parts.now()
    reason = memos.junk(content)
    if reason is not None:
        raise Unprocessable(f"the memo would be {reason}")
    most = parts.settings.memos.keep
    known = await notebook.all_of(parts.store, tenant, project, most)
    new = Memo(secrets.token_hex(5), content, memos.tidy_tags(body.tags), "", now, now, project)
    old = await asyncio.to_thread(memos.twin, known, new)  # a thousand comparisons, and chat goes on meanwhile
    if old is None and len(known) >= most:
        raise Conflict(f"{len(known)} memos are kept in a project, and no more can be", hint="Delete one.")
    row = notebook.write(tenant, new if old is None else memos.merged(old, new))
    await parts.store.put([row])
    return _shown(row)


@router.put("/{memo}")
async def edit(desk: AtDesk, memo: Id, body: MemoBody) -> MemoShown:
    """Edit a memo."""
    old = notebook.read(await _found(desk, memo))
    content = old.content if body.content is None else memos.tidy(body.content)
    tags = old.tags if body.tags is None else memos.tidy_tags(body.tags)
    reason = memos.junk(content)
    if reason is not None:
        raise Unprocessable(f"the memo would be {reason}")
    now = max(desk.parts.now(), old.updated_at)
    new = Memo(old.id, content, tags, old.session, old.created_at, now, old.project)
    row = notebook.write(await one_tenant(desk), new)
    await desk.parts.store.put([row])
    announcing.mended(desk.parts, row.tenant, row.memo)
    return _shown(row)


@router.delete("/{memo}")
async def delete(desk: AtDesk, memo: Id) -> Gone:
    """Remove a memo. It does not come back, whoever writes to it."""
    row = await _found(desk, memo)
    gone = MemoRow(
        row.tenant, row.session, row.memo, row.project, "", "[]", "", row.created_at, desk.parts.now(), deleted=True
    )
    await desk.parts.store.put([gone])
    return Gone(memo=memo)


async def _found(desk: Desk, memo: str) -> MemoRow:
    row = await desk.parts.store.memo(await one_tenant(desk), memo)
    if row is None:
        raise NotFound(f"there is no memo {memo!r}", hint="GET /api/memos lists them.")
    return row


def _shown(row: MemoRow) -> MemoShown:
    memo = notebook.read(row)
    return MemoShown(
        memo=memo.id, project=memo.project, content=memo.content, tags=list(memo.tags), session=memo.session,
        created_at=memo.created_at, updated_at=memo.updated_at,
    )  # fmt: skip
