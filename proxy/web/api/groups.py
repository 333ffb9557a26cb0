"""Groups and messages in the next prompt, and an operator's decisions about them: drop, restore, remove, pin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from proxy.exchange.services import Services
from proxy.operator import edit_messages, show
from proxy.operator.edit_messages import IdKind
from proxy.operator.response_models import DecisionResult, GroupListItem, PromptDetails, PromptMessage
from proxy.web.api import json_answers, pagination
from proxy.web.api.admin_context import SessionContext, SessionContextDep
from proxy.web.api.error_model import ERROR_RESPONSES
from proxy.web.api.pagination import Cursor, Limit, Page
from proxy.web.api.settings import ID_PATTERN
from proxy.web.routes import READ

router = APIRouter(prefix="/api/sessions/{session}", tags=["groups"], responses=ERROR_RESPONSES)

Thread = Annotated[str | None, Query(max_length=64, description="The thread; without it the one last spoken in.")]
Id = Annotated[str, Path(max_length=64, description="Its id, as lists and prompts have it.")]
Action = Literal["drop", "restore", "remove", "pin", "unpin"]


class DecisionFunction(Protocol):
    """A function that decides about groups and messages."""

    async def __call__(
        self,
        services: Services,
        tenant: str,
        session: str,
        ids: Sequence[str],
        *,
        thread: str | None = None,
        id_kind: IdKind = "",
    ) -> DecisionResult:
        """Return the decisions made. Raises NotFound, Conflict and Unprocessable."""
        ...


DECISION_FUNCTIONS: dict[Action, DecisionFunction] = {
    "drop": edit_messages.drop,
    "restore": edit_messages.restore,
    "remove": edit_messages.remove,
    "pin": edit_messages.pin,
    "unpin": edit_messages.unpin,
}


class IdsBody(BaseModel):
    """The selected groups or messages. ids: of groups or messages; a group has the id of the prompt that it begins
    with."""

    model_config = ConfigDict(extra="forbid")

    ids: Annotated[
        list[Annotated[str, Field(max_length=64, pattern=ID_PATTERN)]],
        Field(min_length=1, max_length=edit_messages.MAX_IDS, examples=[["nbswy3dpeb"]]),
    ]
    thread: Annotated[str | None, Field(max_length=64, pattern=ID_PATTERN)] = None


@router.get("/groups", openapi_extra=READ, response_model=Page[json_answers.describe(GroupListItem)])  # type: ignore[misc]  # made
async def list_groups(
    context: SessionContextDep,
    limit: Limit = 200,
    cursor: Cursor = None,
    thread: Thread = None,
    status: Annotated[Literal["", "in", "changed", "out", "dropped", "removed"], Query(description="Those.")] = "",
) -> Response:
    """List the groups of a thread, oldest first, with their tokens as they came and as they would go out next."""
    at = pagination.read_cursor(cursor, int)
    found = await show.list_groups(context.services, context.tenant, context.session, thread=thread)
    rows = [one for one in found if (not status or one.status == status) and (at is None or one.first > at[0])]
    more = pagination.write_cursor([rows[limit - 1].first]) if len(rows) > limit else None
    return json_answers.render({"items": rows[:limit], "next": more})


@router.get("/groups/{group}", openapi_extra=READ, response_model=list[json_answers.describe(PromptMessage)])  # type: ignore[misc]
async def show_group(context: SessionContextDep, group: Id, thread: Thread = None) -> Response:
    """Show a group's messages in full, as they came and as they would go out next, with the reason for each
    difference."""
    return json_answers.render(
        await show.read_group(context.services, context.tenant, context.session, group, thread=thread)
    )


@router.post("/groups/{group}/{action}", response_model=json_answers.describe(DecisionResult))
async def decide_group(context: SessionContextDep, group: Id, action: Action, thread: Thread = None) -> Response:
    """Decide about one group. `drop`: out of every prompt from the next on, and still in the store. `restore`: whole in
    the prompt again, whoever dropped it. `remove`: out of the prompt, and its content out of the store. `pin`: no
    policy edits it. `unpin`: policies may edit it again."""
    return await _decide(context, action, [group], thread, "group")


@router.post("/messages/{message}/{action}", response_model=json_answers.describe(DecisionResult))
async def decide_message(context: SessionContextDep, message: Id, action: Action, thread: Thread = None) -> Response:
    """Decide about one message in the same way; calls and their results go together."""
    return await _decide(context, action, [message], thread, "message")


@router.post("/decide/{action}", response_model=json_answers.describe(DecisionResult))
async def decide_several(context: SessionContextDep, action: Action, body: IdsBody) -> Response:
    """Decide about several groups and messages at once, in the same way."""
    return await _decide(context, action, body.ids, body.thread, "")


async def _decide(
    context: SessionContext, action: Action, ids: Sequence[str], thread: str | None, id_kind: IdKind
) -> Response:
    run = DECISION_FUNCTIONS[action]
    return json_answers.render(
        await run(context.services, context.tenant, context.session, ids, thread=thread, id_kind=id_kind)
    )


@router.get("/prompt", openapi_extra=READ, response_model=json_answers.describe(PromptDetails))
async def show_next_prompt(context: SessionContextDep, thread: Thread = None) -> Response:
    """Show the prompt that would go out now, with the reason for each message left out or shortened."""
    return json_answers.render(
        await show.preview_next_prompt(context.services, context.tenant, context.session, thread=thread)
    )


@router.get("/exchanges/{exchange}/prompt", openapi_extra=READ, response_model=json_answers.describe(PromptDetails))
async def show_past_prompt(context: SessionContextDep, exchange: Id) -> Response:
    """Show the exact prompt of a past exchange, with the reason for each message left out or shortened."""
    return json_answers.render(await show.read_past_prompt(context.services, context.tenant, context.session, exchange))
