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
from proxy.exchange import record_outcome
from proxy.notes import memo_matching
from proxy.notes.memo_matching import Memo
from proxy.store.session_notes import MemoRow
from proxy.tools import stored_memos
from proxy.web.api import pagination
from proxy.web.api.admin_context import AdminContext, AdminContextDep, require_tenant
from proxy.web.api.error_model import ERROR_RESPONSES
from proxy.web.api.pagination import Cursor, Limit, Page
from proxy.web.routes import READ

router = APIRouter(prefix="/api/memos", tags=["memos"], responses=ERROR_RESPONSES)


class MemoDetails(BaseModel):
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
        str | None, Field(max_length=memo_matching.MAX_BYTES, examples=["The tests need PostgreSQL 14 or newer."])
    ] = None
    tags: Annotated[
        list[Annotated[str, Field(max_length=200)]] | None, Field(max_length=50, examples=[["tests", "postgresql"]])
    ] = None


class NewMemo(BaseModel):
    """A new memo."""

    model_config = ConfigDict(extra="forbid")

    content: Annotated[
        str, Field(max_length=memo_matching.MAX_BYTES, examples=["The tests need PostgreSQL 14 or newer."])
    ]
    tags: Annotated[
        list[Annotated[str, Field(max_length=200)]], Field(max_length=50, examples=[["tests", "postgresql"]])
    ] = []
    project: Annotated[str, Field(max_length=100)] = ""


class DeletedMemo(BaseModel):
    """The deleted memo."""

    memo: str


Id = Annotated[str, Path(max_length=64, description="The memo's id.")]
Project = Annotated[str | None, Query(max_length=100, description="Those of this project; empty: of none.")]


@router.get("", openapi_extra=READ)
async def list_memos(
    admin: AdminContextDep,
    limit: Limit = 50,
    cursor: Cursor = None,
    project: Project = None,
    q: Annotated[str, Query(max_length=256, description="Those that have this in text or tags.")] = "",
) -> Page[MemoDetails]:
    """List a tenant's memos, in the order of their ids."""
    at = pagination.read_cursor(cursor, str)
    found = [row async for row in _all(admin, project, q, after=at[0] if at else "", most=limit + 1)]
    return pagination.make_page(found, limit, _shown, lambda row: [row.memo])


async def _all(
    admin: AdminContext, project: str | None, q: str, *, after: str, most: int | None
) -> AsyncIterator[MemoRow]:
    tenant = await require_tenant(admin)
    wanted, left = q.casefold(), most
    while left is None or left > 0:
        rows = await admin.services.store.read_memos(tenant, project, 200, after)
        for row in rows:
            if wanted in f"{row.content} {row.tags}".casefold() and (left is None or left > 0):
                yield row
                left = None if left is None else left - 1
        if len(rows) < 200:
            return
        after = rows[-1].memo


@router.get("/export", response_class=StreamingResponse, responses={200: {"content": {"application/x-ndjson": {}}}})
async def export_memos(admin: AdminContextDep, project: Project = None) -> StreamingResponse:
    """Export all memos of a tenant, one JSON object a line."""
    await require_tenant(admin)

    async def lines() -> AsyncIterator[bytes]:
        async for row in _all(admin, project, "", after="", most=None):
            yield json.dumps(_shown(row).model_dump()).encode() + b"\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


@router.get("/{memo}", openapi_extra=READ)
async def show_memo(admin: AdminContextDep, memo: Id) -> MemoDetails:
    """Show one memo."""
    return _shown(await _found(admin, memo))


@router.post("")
async def save_memo(admin: AdminContextDep, body: NewMemo) -> MemoDetails:
    """Save a memo, as an operator or from elsewhere. A memo that says nearly the same is updated instead."""
    tenant, parts = await require_tenant(admin), admin.services
    content, project, now = (
        memo_matching.normalize_text(body.content),
        memo_matching.normalize_project(body.project),
        parts.now(),
    )
    reason = memo_matching.find_refusal_reason(content)
    if reason is not None:
        raise Unprocessable(f"the memo would be {reason}")
    most = parts.settings.memos.keep
    known = await stored_memos.load_project_memos(parts.store, tenant, project, most)
    new = Memo(secrets.token_hex(5), content, memo_matching.normalize_tags(body.tags), "", now, now, project)
    old = await asyncio.to_thread(
        memo_matching.find_duplicate, known, new
    )  # a thousand comparisons, and chat goes on meanwhile
    if old is None and len(known) >= most:
        raise Conflict(f"{len(known)} memos are kept in a project, and no more can be", hint="Delete one.")
    row = stored_memos.make_memo_row(tenant, new if old is None else memo_matching.merge_memos(old, new))
    await parts.store.put([row])
    return _shown(row)


@router.put("/{memo}")
async def edit_memo(admin: AdminContextDep, memo: Id, body: MemoBody) -> MemoDetails:
    """Edit a memo."""
    old = stored_memos.read_memo(await _found(admin, memo))
    content = old.content if body.content is None else memo_matching.normalize_text(body.content)
    tags = old.tags if body.tags is None else memo_matching.normalize_tags(body.tags)
    reason = memo_matching.find_refusal_reason(content)
    if reason is not None:
        raise Unprocessable(f"the memo would be {reason}")
    now = max(admin.services.now(), old.updated_at)
    new = Memo(old.id, content, tags, old.session, old.created_at, now, old.project)
    row = stored_memos.make_memo_row(await require_tenant(admin), new)
    await admin.services.store.put([row])
    record_outcome.publish_memo_changed(admin.services, row.tenant, row.memo)
    return _shown(row)


@router.delete("/{memo}")
async def delete_memo(admin: AdminContextDep, memo: Id) -> DeletedMemo:
    """Remove a memo. It does not come back, whoever writes to it."""
    row = await _found(admin, memo)
    gone = MemoRow(
        row.tenant, row.session, row.memo, row.project, "", "[]", "", row.created_at, admin.services.now(), deleted=True
    )
    await admin.services.store.put([gone])
    return DeletedMemo(memo=memo)


async def _found(admin: AdminContext, memo: str) -> MemoRow:
    row = await admin.services.store.read_memo(await require_tenant(admin), memo)
    if row is None:
        raise NotFound(f"there is no memo {memo!r}", hint="GET /api/memos lists them.")
    return row


def _shown(row: MemoRow) -> MemoDetails:
    memo = stored_memos.read_memo(row)
    return MemoDetails(
        memo=memo.id, project=memo.project, content=memo.content, tags=list(memo.tags), session=memo.session,
        created_at=memo.created_at, updated_at=memo.updated_at,
    )  # fmt: skip
