"""`/api/sessions`: the list, one session, its branches, and their iterations and summaries."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from proxy.chat import chain
from proxy.context.plan import REWORDING_STAGES
from proxy.errors import NotFound
from proxy.exchange import iteration_records
from proxy.notes.reflection import IterationReport
from proxy.operator.session_titles import read_title
from proxy.store.base import BranchRecord, SessionRecord
from proxy.store.session_lists import SessionFilter, SessionItem
from proxy.web.api import json_answers, pagination, stored_text
from proxy.web.api.admin_context import (
    AdminContextDep,
    SessionContext,
    SessionContextDep,
    find_newest_branch,
)
from proxy.web.api.json_answers import ERROR_RESPONSES
from proxy.web.api.messages import EditDetails, describe_edit
from proxy.web.api.pagination import Cursor, Limit, Page
from proxy.web.routes import READ
from proxy.web.session_address import write_address

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
                    "messages": 212, "exchanges": 48, "branches": 2,
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
    branches: int


class BranchListItem(BaseModel):
    """One branch of history in a session. kind: main, fork (the client rewrote its history), twin, or side (a separate
    call, for example for a title)."""

    branch: str
    parent: str | None
    kind: Literal["main", "fork", "twin", "side"]
    created_at: float


class SessionDetails(BaseModel):
    """One session. rows: the number of its stored rows by kind. settings: its own settings. title: the beginning of its
    first prompt."""

    tenant: str
    session: str
    address: str
    explicit: bool
    created_at: float
    settings: dict[str, Any]
    rows: Annotated[dict[str, int], Field(examples=[{"messages": 212, "exchanges": 48, "edits": 31}])]
    branches: list[BranchListItem]
    title: str = ""


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
        exchanges=row.exchanges, branches=row.branches,
    )  # fmt: skip


@router.get("/{session}", openapi_extra=READ)
async def show_session(context: SessionContextDep) -> SessionDetails:
    """Show one session: its branches, and the amount of its stored data."""
    title = await read_title(context.services, context.tenant, context.session)
    return _make_details(context.record).model_copy(update={"title": title})


def _make_details(row: SessionRecord) -> SessionDetails:
    branches = [
        BranchListItem(branch=t.branch, parent=t.parent, kind=t.kind, created_at=t.created_at) for t in row.branches
    ]
    settings = stored_text.decode_json(row.settings.encode("utf-8", "replace"))
    return SessionDetails(
        tenant=row.tenant, session=row.session, address=write_address(row.session), explicit=row.explicit,
        created_at=row.created_at, settings=settings if isinstance(settings, dict) else {}, rows=row.counts,
        branches=branches,
    )  # fmt: skip


# Records of a branch in addition to its messages: iterations, summaries, the branches themselves.


records_router = APIRouter(prefix="/api/sessions/{session}", tags=["records"], responses=ERROR_RESPONSES)


class BranchDetails(BaseModel):
    """One branch of history. edits: decisions in force. stopped: the reason if rewriting has stopped for it."""

    branch: str
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


Branch = Annotated[str | None, Query(max_length=64, description="The branch; without it the one used last.")]


@records_router.get("/branches", openapi_extra=READ)
async def list_branches(context: SessionContextDep, limit: Limit = 50, cursor: Cursor = None) -> Page[BranchDetails]:
    """List the branches of a session, oldest first."""
    start = pagination.read_offset(cursor)
    shown, more = pagination.slice_page(context.record.branches, start, limit)
    newest = await find_newest_branch(context)
    rows = [row for one in shown if (row := await _read_branch_record(context, one.branch)) is not None]
    return Page(items=[_describe_branch(row, newest.branch) for row in rows], next=more)


@records_router.get("/branches/{branch}", openapi_extra=READ)
async def show_branch(context: SessionContextDep, branch: Annotated[str, Path(max_length=64)]) -> BranchDetails:
    """Show one branch."""
    return _describe_branch(await find_branch(context, branch), (await find_newest_branch(context)).branch)


@records_router.get("/branches/{branch}/edits", openapi_extra=READ)
async def list_edits(
    context: SessionContextDep, branch: Annotated[str, Path(max_length=64)], limit: Limit = 50, cursor: Cursor = None
) -> Page[EditDetails]:
    """List every decision in force on a branch, in the order in which they were made."""
    at = pagination.read_cursor(cursor, int)
    row = await find_branch(context, branch)
    rows = [one for one in row.edits if at is None or one[1] > at[0]]
    return pagination.make_page(rows[: limit + 1], limit, lambda one: describe_edit(one[0]), lambda one: [one[1]])


async def _read_branch_record(context: SessionContext, branch: str) -> BranchRecord | None:
    return await context.services.store.read_branch(context.tenant, context.session, branch)


async def find_branch(context: SessionContext, branch: str | None) -> BranchRecord:
    """Return the branch of this name; the one used last if none is named. Raises NotFound."""
    if branch is None:
        return await find_newest_branch(context)
    row = await _read_branch_record(context, branch)
    if row is None:
        raise NotFound(f"there is no branch {branch!r} in this session", hint="List its branches.")
    return row


def _describe_branch(row: BranchRecord, newest: str) -> BranchDetails:
    return BranchDetails(
        branch=row.branch, parent=row.parent, kind=row.kind, created_at=row.created_at, last_at=row.last_at,
        stopped=row.stopped, edits=len(row.edits), states=len(row.states), is_newest=row.branch == newest,
    )  # fmt: skip


@records_router.get("/iterations", openapi_extra=READ, response_model=Page[json_answers.describe(IterationReport)])  # type: ignore[misc]  # the class is made at import
async def list_iterations(
    context: SessionContextDep, branch: Branch = None, limit: Limit = 50, cursor: Cursor = None
) -> Response:
    """List the records of a branch's iterations, oldest first: the calls, their results, and the lessons."""
    start = pagination.read_offset(cursor)
    row = await find_branch(context, branch)
    branch_id = (context.tenant, context.session, row.branch)
    found = await iteration_records.read_iterations(context.services.store, branch_id)
    shown, more = pagination.slice_page(found, start, limit)
    return json_answers.render({"items": shown, "next": more})


@records_router.get("/summaries", openapi_extra=READ)
async def list_summaries(
    context: SessionContextDep, branch: Branch = None, limit: Limit = 50, cursor: Cursor = None
) -> Page[SummaryDetails]:
    """List the summaries in force on a branch, and the answers of helper models in the session."""
    start = pagination.read_offset(cursor)
    row = await find_branch(context, branch)
    summaries = [
        SummaryDetails(
            by=edit.stage, message=chain.public_id(edit.key), text=edit.text or "", tokens_before=edit.before,
            tokens_after=edit.after, exchange=edit.exchange, created_at=edit.created_at,
        )
        for edit, _ in row.edits
        if edit.stage in REWORDING_STAGES and edit.text
    ]  # fmt: skip
    summaries += [SummaryDetails(by="helper", message=None, text=text) for text in row.helper_answers.values()]
    shown, more = pagination.slice_page(summaries, start, limit)
    return Page(items=shown, next=more)
