"""Records of a thread in addition to its messages: iterations, summaries, the threads themselves."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel

from proxy.chat import key
from proxy.errors import NotFound
from proxy.memory.reflection import Iteration, reflected
from proxy.store.base import ThreadRecord
from proxy.store.derived import IterationRecord
from proxy.web.api import pages, wire
from proxy.web.api.desk import AtPlace, Place, newest_thread
from proxy.web.api.messages import EditShown, shown_edit
from proxy.web.api.pages import Cursor, Limit, Page
from proxy.web.api.problems import EVERY
from proxy.web.doors import READ

router = APIRouter(prefix="/api/sessions/{session}", tags=["records"], responses=EVERY)

SUMMARIES = frozenset({"summarize_old", "compress_levels", "distil_results"})
"""Stages that replace messages by their own words."""


class ThreadShown(BaseModel):
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


class Summary(BaseModel):
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
async def list_threads(place: AtPlace, limit: Limit = 50, cursor: Cursor = None) -> Page[ThreadShown]:
    """List the threads of a session, oldest first."""
    at = pages.place(cursor, int)
    start = max(0, at[0]) if at else 0
    names = [row.thread for row in place.record.threads[start : start + limit + 1]]
    newest = await newest_thread(place)
    rows = [row for name in names if (row := await _record(place, name)) is not None]
    more = pages.cursor([start + limit]) if len(names) > limit else None
    return Page(items=[_shown(row, newest.thread) for row in rows[:limit]], next=more)


@router.get("/threads/{thread}", openapi_extra=READ)
async def show_thread(place: AtPlace, thread: Annotated[str, Path(max_length=64)]) -> ThreadShown:
    """Show one thread."""
    return _shown(await found(place, thread), (await newest_thread(place)).thread)


@router.get("/threads/{thread}/edits", openapi_extra=READ)
async def edits(
    place: AtPlace, thread: Annotated[str, Path(max_length=64)], limit: Limit = 50, cursor: Cursor = None
) -> Page[EditShown]:
    """List every decision in force on a thread, in the order in which they were made."""
    at = pages.place(cursor, int)
    row = await found(place, thread)
    rows = [one for one in row.edits if at is None or one[1] > at[0]]
    return pages.page(rows[: limit + 1], limit, lambda one: shown_edit(one[0]), lambda one: [one[1]])


async def _record(place: Place, thread: str) -> ThreadRecord | None:
    return await place.parts.store.thread(place.tenant, place.session, thread)


async def found(place: Place, thread: str | None) -> ThreadRecord:
    """Return the thread of this name; the one used last if none is named. Raises NotFound."""
    if thread is None:
        return await newest_thread(place)
    row = await _record(place, thread)
    if row is None:
        raise NotFound(f"there is no thread {thread!r} in this session")
    return row


def _shown(row: ThreadRecord, newest: str) -> ThreadShown:
    return ThreadShown(
        thread=row.thread, parent=row.parent, kind=row.kind, created_at=row.created_at, last_at=row.last_at,
        stopped=row.stopped, edits=len(row.edits), states=len(row.states), is_newest=row.thread == newest,
    )  # fmt: skip


@router.get("/iterations", openapi_extra=READ, response_model=Page[wire.described(Iteration)])  # type: ignore[misc]  # made
async def list_iterations(place: AtPlace, thread: Thread = None, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """List the records of a thread's iterations, oldest first: the calls, their results, and the lessons."""
    at = pages.place(cursor, int)
    row = await found(place, thread)
    rows = await place.parts.store.iterations(place.tenant, place.session, row.thread)
    start = at[0] if at else 0
    made: list[Any] = [_iteration(one) for one in rows[max(0, start) : max(0, start) + limit]]
    more = pages.cursor([start + limit]) if len(rows) > start + limit else None
    return wire.answer({"items": made, "next": more})


def _iteration(row: IterationRecord) -> Iteration:
    one = msgspec.json.decode(row.body, type=Iteration)
    return reflected(one, row.reflection) if row.reflection is not None else one


@router.get("/summaries", openapi_extra=READ)
async def list_summaries(
    place: AtPlace, thread: Thread = None, limit: Limit = 50, cursor: Cursor = None
) -> Page[Summary]:
    """List the summaries in force on a thread, and the answers of helper models in the session."""
    at = pages.place(cursor, int)
    row = await found(place, thread)
    made = [
        Summary(
            by=edit.stage, message=key.public_id(edit.key), text=edit.text or "", tokens_before=edit.before,
            tokens_after=edit.after, exchange=edit.exchange, created_at=edit.created_at,
        )
        for edit, _ in row.edits
        if edit.stage in SUMMARIES and edit.text
    ]  # fmt: skip
    made += [Summary(by="helper", message=None, text=text) for text in row.answers.values()]
    start = max(0, at[0]) if at else 0
    more = pages.cursor([start + limit]) if len(made) > start + limit else None
    return Page(items=made[start : start + limit], next=more)
