"""Records of a thread in addition to its messages: iterations, summaries, the threads themselves."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel

from proxy.chat import chain
from proxy.errors import NotFound
from proxy.notes.reflection import IterationReport, add_reflection
from proxy.store.base import BranchRecord
from proxy.store.derived import IterationRecord
from proxy.web.api import json_answers, pagination
from proxy.web.api.admin_context import SessionContext, SessionContextDep, find_newest_branch
from proxy.web.api.error_model import ERROR_RESPONSES
from proxy.web.api.messages import EditDetails, describe_edit
from proxy.web.api.pagination import Cursor, Limit, Page
from proxy.web.routes import READ

router = APIRouter(prefix="/api/sessions/{session}", tags=["records"], responses=ERROR_RESPONSES)

SUMMARIES = frozenset({"summarize_old", "compress_levels", "distil_results"})
"""Stages that replace messages by their own words."""


class BranchDetails(BaseModel):
    """One branch of history. edits: decisions in force. stopped: the reason if rewriting has stopped for it."""

    thread: str
    parent: str | None
    kind: str
    created_at: float
    last_at: float
    stopped: str | None
    edits: int
    states: int
    is_newest: bool


class SummaryDetails(BaseModel):
    """A text that replaces others. by: the stage that put it there, or `helper` for an answer of a helper model that a
    plan may use. message: the id of the message that it replaces."""

    by: str
    message: str | None
    text: str
    tokens_before: int | None = None
    tokens_after: int | None = None
    exchange: str | None = None
    created_at: float | None = None


Thread = Annotated[str | None, Query(max_length=64, description="The thread; without it the one used last.")]


@router.get("/threads", openapi_extra=READ)
async def list_threads(context: SessionContextDep, limit: Limit = 50, cursor: Cursor = None) -> Page[BranchDetails]:
    """List the threads of a session, oldest first."""
    at = pagination.read_cursor(cursor, int)
    start = max(0, at[0]) if at else 0
    names = [row.thread for row in context.record.threads[start : start + limit + 1]]
    newest = await find_newest_branch(context)
    rows = [row for name in names if (row := await _record(context, name)) is not None]
    more = pagination.write_cursor([start + limit]) if len(names) > limit else None
    return Page(items=[_shown(row, newest.thread) for row in rows[:limit]], next=more)


@router.get("/threads/{thread}", openapi_extra=READ)
async def show_thread(context: SessionContextDep, thread: Annotated[str, Path(max_length=64)]) -> BranchDetails:
    """Show one thread."""
    return _shown(await find_branch(context, thread), (await find_newest_branch(context)).thread)


@router.get("/threads/{thread}/edits", openapi_extra=READ)
async def list_edits(
    context: SessionContextDep, thread: Annotated[str, Path(max_length=64)], limit: Limit = 50, cursor: Cursor = None
) -> Page[EditDetails]:
    """List every decision in force on a thread, in the order in which they were made."""
    at = pagination.read_cursor(cursor, int)
    row = await find_branch(context, thread)
    rows = [one for one in row.edits if at is None or one[1] > at[0]]
    return pagination.make_page(rows[: limit + 1], limit, lambda one: describe_edit(one[0]), lambda one: [one[1]])


async def _record(context: SessionContext, thread: str) -> BranchRecord | None:
    return await context.services.store.read_branch(context.tenant, context.session, thread)


async def find_branch(context: SessionContext, thread: str | None) -> BranchRecord:
    """Return the thread of this name; the one used last if none is named. Raises NotFound."""
    if thread is None:
        return await find_newest_branch(context)
    row = await _record(context, thread)
    if row is None:
        raise NotFound(f"there is no thread {thread!r} in this session")
    return row


def _shown(row: BranchRecord, newest: str) -> BranchDetails:
    return BranchDetails(
        thread=row.thread, parent=row.parent, kind=row.kind, created_at=row.created_at, last_at=row.last_at,
        stopped=row.stopped, edits=len(row.edits), states=len(row.states), is_newest=row.thread == newest,
    )  # fmt: skip


@router.get("/iterations", openapi_extra=READ, response_model=Page[json_answers.describe(IterationReport)])  # type: ignore[misc]  # made
async def list_iterations(
    context: SessionContextDep, thread: Thread = None, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """List the records of a thread's iterations, oldest first: the calls, their results, and the lessons."""
    at = pagination.read_cursor(cursor, int)
    row = await find_branch(context, thread)
    rows = await context.services.store.read_iterations(context.tenant, context.session, row.thread)
    start = at[0] if at else 0
    made: list[Any] = [_iteration(one) for one in rows[max(0, start) : max(0, start) + limit]]
    more = pagination.write_cursor([start + limit]) if len(rows) > start + limit else None
    return json_answers.render({"items": made, "next": more})


def _iteration(row: IterationRecord) -> IterationReport:
    one = msgspec.json.decode(row.body, type=IterationReport)
    return add_reflection(one, row.reflection) if row.reflection is not None else one


@router.get("/summaries", openapi_extra=READ)
async def list_summaries(
    context: SessionContextDep, thread: Thread = None, limit: Limit = 50, cursor: Cursor = None
) -> Page[SummaryDetails]:
    """List the summaries in force on a thread, and the answers of helper models in the session."""
    at = pagination.read_cursor(cursor, int)
    row = await find_branch(context, thread)
    made = [
        SummaryDetails(
            by=edit.stage, message=chain.public_id(edit.key), text=edit.text or "", tokens_before=edit.before,
            tokens_after=edit.after, exchange=edit.exchange, created_at=edit.created_at,
        )
        for edit, _ in row.edits
        if edit.stage in SUMMARIES and edit.text
    ]  # fmt: skip
    made += [SummaryDetails(by="helper", message=None, text=text) for text in row.answers.values()]
    start = max(0, at[0]) if at else 0
    more = pagination.write_cursor([start + limit]) if len(made) > start + limit else None
    return Page(items=made[start : start + limit], next=more)
