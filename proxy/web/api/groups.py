"""Groups and messages in the next prompt, and an operator's decisions about them: drop, restore, remove, pin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from proxy.exchange.parts import Parts
from proxy.exchange.steering import deciding, showing
from proxy.exchange.steering.deciding import Only
from proxy.exchange.steering.shapes import Changed, GroupLine, ShownMessage, ShownPrompt
from proxy.web.api import pages, wire
from proxy.web.api.desk import AtPlace, Place
from proxy.web.api.pages import Cursor, Limit, Page
from proxy.web.api.problems import EVERY
from proxy.web.api.settings import NAME
from proxy.web.doors import READ

router = APIRouter(prefix="/api/sessions/{session}", tags=["groups"], responses=EVERY)

Thread = Annotated[str | None, Query(max_length=64, description="The thread; without it the one last spoken in.")]
Id = Annotated[str, Path(max_length=64, description="Its id, as lists and prompts have it.")]
Action = Literal["drop", "restore", "remove", "pin", "unpin"]


class Decide(Protocol):
    """A function that decides about groups and messages."""

    async def __call__(
        self,
        parts: Parts,
        tenant: str,
        session: str,
        ids: Sequence[str],
        *,
        thread: str | None = None,
        only: Only = "",
    ) -> Changed:
        """Return the decisions made. Raises NotFound, Conflict and Unprocessable."""
        ...


DECIDE: dict[Action, Decide] = {
    "drop": deciding.drop,
    "restore": deciding.restore,
    "remove": deciding.remove,
    "pin": deciding.pin,
    "unpin": deciding.unpin,
}


class IdsBody(BaseModel):
    """The selected groups or messages. ids: of groups or messages; a group has the id of the prompt that it begins
    with."""

    model_config = ConfigDict(extra="forbid")

    ids: Annotated[
        list[Annotated[str, Field(max_length=64, pattern=NAME)]],
        Field(min_length=1, max_length=deciding.MOST, examples=[["nbswy3dpeb"]]),
    ]
    thread: Annotated[str | None, Field(max_length=64, pattern=NAME)] = None


@router.get("/groups", openapi_extra=READ, response_model=Page[wire.described(GroupLine)])  # type: ignore[misc]  # made
async def list_groups(
    place: AtPlace,
    limit: Limit = 200,
    cursor: Cursor = None,
    thread: Thread = None,
    status: Annotated[Literal["", "in", "changed", "out", "dropped", "removed"], Query(description="Those.")] = "",
) -> Response:
    """List the groups of a thread, oldest first, with their tokens as they came and as they would go out next."""
    at = pages.place(cursor, int)
    found = await showing.listing(place.parts, place.tenant, place.session, thread=thread)
    rows = [one for one in found if (not status or one.status == status) and (at is None or one.first > at[0])]
    more = pages.cursor([rows[limit - 1].first]) if len(rows) > limit else None
    return wire.answer({"items": rows[:limit], "next": more})


@router.get("/groups/{group}", openapi_extra=READ, response_model=list[wire.described(ShownMessage)])  # type: ignore[misc]
async def show_group(place: AtPlace, group: Id, thread: Thread = None) -> Response:
    """Show a group's messages in full, as they came and as they would go out next, with the reason for each
    difference."""
    return wire.answer(await showing.group(place.parts, place.tenant, place.session, group, thread=thread))


@router.post("/groups/{group}/{action}", response_model=wire.described(Changed))
async def decide_group(place: AtPlace, group: Id, action: Action, thread: Thread = None) -> Response:
    """Decide about one group. `drop`: out of every prompt from the next on, and still in the store. `restore`: whole in
    the prompt again, whoever dropped it. `remove`: out of the prompt, and its content out of the store. `pin`: no
    policy edits it. `unpin`: policies may edit it again."""
    return await _decide(place, action, [group], thread, "group")


@router.post("/messages/{message}/{action}", response_model=wire.described(Changed))
async def decide_message(place: AtPlace, message: Id, action: Action, thread: Thread = None) -> Response:
    """Decide about one message in the same way; calls and their results go together."""
    return await _decide(place, action, [message], thread, "message")


@router.post("/decide/{action}", response_model=wire.described(Changed))
async def decide(place: AtPlace, action: Action, body: IdsBody) -> Response:
    """Decide about several groups and messages at once, in the same way."""
    return await _decide(place, action, body.ids, body.thread, "")


async def _decide(place: Place, action: Action, ids: Sequence[str], thread: str | None, only: Only) -> Response:
    run = DECIDE[action]
    return wire.answer(await run(place.parts, place.tenant, place.session, ids, thread=thread, only=only))


@router.get("/prompt", openapi_extra=READ, response_model=wire.described(ShownPrompt))
async def next_prompt(place: AtPlace, thread: Thread = None) -> Response:
    """Show the prompt that would go out now, with the reason for each message left out or shortened."""
    return wire.answer(await showing.next_prompt(place.parts, place.tenant, place.session, thread=thread))


@router.get("/exchanges/{exchange}/prompt", openapi_extra=READ, response_model=wire.described(ShownPrompt))
async def prompt(place: AtPlace, exchange: Id) -> Response:
    """Show the exact prompt of a past exchange, with the reason for each message left out or shortened."""
    return wire.answer(await showing.prompt(place.parts, place.tenant, place.session, exchange))
