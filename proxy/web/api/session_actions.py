"""Routes of the operator actions on a session: made from the table of actions, but for lists in pages and decisions."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query, Response

from proxy.operator import session_settings, show
from proxy.operator.actions import ACTIONS, ACTIONS_BY_NAME, DECISION_PATH, Action, IdsBody, SettingsBody
from proxy.operator.edit_messages import IdKind
from proxy.operator.response_models import DecisionResult, GroupListItem
from proxy.sessions.branch import SessionSettings
from proxy.web.api import json_answers, pagination
from proxy.web.api.admin_context import SessionContext, SessionContextDep
from proxy.web.api.error_model import ERROR_RESPONSES
from proxy.web.api.pagination import Cursor, Limit, Page
from proxy.web.routes import READ

router = APIRouter(prefix="/api/sessions/{session}", responses=ERROR_RESPONSES)

Thread = Annotated[str | None, Query(max_length=64, description="The thread; without it the one last spoken in.")]
Id = Annotated[str, Path(max_length=64, description="Its id, as lists and prompts have it.")]
REQUIRED: Final = inspect.Parameter.empty
ARGUMENTS: Final[dict[str, tuple[Any, Any]]] = {
    "thread": (Thread, None),
    "group": (Id, REQUIRED),
    "exchange": (Id, REQUIRED),
    "note": (Annotated[str, Path(max_length=64, description="The note's id.")], REQUIRED),
}
"""Arguments in a path or a query: their type, and their default."""
DECISIONS: Final = tuple(one.name for one in ACTIONS if one.path == DECISION_PATH)
Decision = Literal[DECISIONS]  # type: ignore[valid-type]  # made


@router.get("/groups", tags=["groups"], openapi_extra=READ, response_model=Page[json_answers.describe(GroupListItem)])  # type: ignore[misc]  # made
async def list_groups(
    context: SessionContextDep,
    limit: Limit = 200,
    cursor: Cursor = None,
    thread: Thread = None,
    status: Annotated[Literal["", "in", "changed", "out", "dropped", "removed"], Query(description="Those.")] = "",
) -> Response:
    """List the groups of a thread, oldest first, with their tokens as they came and as they would go out next."""
    at = pagination.read_cursor(cursor, int)
    found = await show.list_groups(context.services, context.tenant, context.session, thread=thread, status=status)
    rows = [one for one in found if at is None or one.first > at[0]]
    more = pagination.write_cursor([rows[limit - 1].first]) if len(rows) > limit else None
    return json_answers.render({"items": rows[:limit], "next": more})


@router.put("/settings", tags=["steering"], response_model=json_answers.describe(SessionSettings))
async def replace_settings(context: SessionContextDep, body: SettingsBody) -> Response:
    """Set all settings: an omitted one is as the policy says."""
    made = await session_settings.change_settings(
        context.services, context.tenant, context.session, **body.model_dump()
    )
    return json_answers.render(made)


@router.post("/groups/{group}/{action}", tags=["groups"], response_model=json_answers.describe(DecisionResult))
async def decide_group(context: SessionContextDep, group: Id, action: Decision, thread: Thread = None) -> Response:
    """Decide about one group. `drop`: out of every prompt from the next on, and still in the store. `restore`: whole in
    the prompt again, whoever dropped it. `remove`: out of the prompt, and its content out of the store. `pin`: no
    policy edits it. `unpin`: policies may edit it again."""
    return await _decide(context, action, [group], thread, "group")


@router.post("/messages/{message}/{action}", tags=["groups"], response_model=json_answers.describe(DecisionResult))
async def decide_message(context: SessionContextDep, message: Id, action: Decision, thread: Thread = None) -> Response:
    """Decide about one message in the same way; calls and their results go together."""
    return await _decide(context, action, [message], thread, "message")


@router.post(DECISION_PATH, tags=["groups"], response_model=json_answers.describe(DecisionResult))
async def decide_several(context: SessionContextDep, action: Decision, body: IdsBody) -> Response:
    """Decide about several groups and messages at once, in the same way."""
    return await _decide(context, action, body.ids, body.thread, "")


async def _decide(
    context: SessionContext, action: str, ids: Sequence[str], thread: str | None, id_kind: IdKind
) -> Response:
    decide = ACTIONS_BY_NAME[action].function
    made = await decide(context.services, context.tenant, context.session, ids, thread=thread, id_kind=id_kind)
    return json_answers.render(made)


def add_routes(to: APIRouter, actions: Sequence[Action]) -> None:
    """Add a route for each action whose path and method have none yet."""
    for action in actions:
        path = to.prefix + action.path
        if any(getattr(one, "path", "") == path and action.method in getattr(one, "methods", ()) for one in to.routes):
            continue
        to.add_api_route(
            action.path,
            _make_endpoint(action),
            methods=[action.method],
            tags=[action.tag],
            description=action.summary,
            response_model=json_answers.describe(action.result),
            openapi_extra=READ if "read" in action.planes else None,
        )


def _make_endpoint(action: Action) -> Any:
    async def endpoint(context: SessionContext, body: Any = None, **given: object) -> Response:
        arguments = given | (body.model_dump(exclude_unset=True) if body is not None else {})
        made = await action.function(context.services, context.tenant, context.session, **arguments)
        return json_answers.render(made)

    parameters: dict[str, tuple[Any, Any]] = {"context": (SessionContextDep, REQUIRED)}
    if action.body is not None:
        optional = action.is_body_optional
        parameters["body"] = (action.body | None, None) if optional else (action.body, REQUIRED)
    in_body = action.body.model_fields if action.body is not None else {}
    parameters |= {name: ARGUMENTS[name] for name in action.arguments if name not in in_body}
    endpoint.__name__ = action.name
    endpoint.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # FastAPI reads it
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for name, (kind, default) in parameters.items()
        ]
    )
    return endpoint


add_routes(router, ACTIONS)
