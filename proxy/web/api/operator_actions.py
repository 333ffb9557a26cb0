"""Routes of the operator actions: made from the table of actions, except for lists in pages and decisions."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import StreamingResponse

from proxy.operator import edit_memos, show
from proxy.operator.actions import ACTIONS, ACTIONS_BY_NAME, DECISION_PATH, REQUIRED, Action, IdsBody, make_signature
from proxy.operator.edit_messages import IdKind
from proxy.operator.response_models import DecisionResult, GroupListItem, MemoDetails
from proxy.web.api import json_answers, pagination
from proxy.web.api.admin_context import AdminContextDep, SessionContext, SessionContextDep, find_tenant, require_tenant
from proxy.web.api.json_answers import ERROR_RESPONSES
from proxy.web.api.pagination import Cursor, Limit, Page
from proxy.web.routes import READ

router = APIRouter(responses=ERROR_RESPONSES)

WATCHED_SWITCH_S: Final = 0.0001
"""Seconds for which a thread may keep the others waiting while an action runs. A view of a long session is computed in
worker threads for some 0.3 s. Beside such a thread, the event loop waits so long for each socket that is ready: with
1 ms, tokens of 16 streams came up to 58 ms late. As the usual interval it made new requests of 1 KB 27 % dearer, and of
218 KB 41 %, on a busy machine."""
SESSION: Final = "/api/sessions/{session}"
Branch = Annotated[str | None, Query(max_length=64, description="The branch; without it the one last spoken in.")]
Project = Annotated[str | None, Query(max_length=100, description="Those of this project; empty: of none.")]
Id = Annotated[str, Path(max_length=64, description="Its id, as lists and prompts have it.")]
First = Annotated[
    int, Query(ge=-1_000_000, le=1_000_000, description="The message that a page begins with; negative: from the end.")
]
PageLimit = Annotated[
    int | None,
    Query(ge=1, le=1000, description="Messages of a page; without it all that follow. A page has no bodies."),
]
Changed = Annotated[
    bool, Query(description="The page begins at the first message from `first` on that differs from the client's own.")
]
ARGUMENTS: Final[dict[str, tuple[Any, Any]]] = {
    "branch": (Branch, None),
    "first": (First, 0),
    "limit": (PageLimit, None),
    "changed": (Changed, False),
    "group": (Id, REQUIRED),
    "exchange": (Id, REQUIRED),
    "memo": (Annotated[str, Path(max_length=64, description="The memo's id.")], REQUIRED),
    "note": (Annotated[str, Path(max_length=64, description="The note's id.")], REQUIRED),
}
"""Arguments in a path or a query: their type, and their default."""
DECISIONS: Final = tuple(one.name for one in ACTIONS if one.path == DECISION_PATH)
DECISION_RESULT: Final = json_answers.describe(DecisionResult)
GROUP_PAGE: Final = Page[json_answers.describe(GroupListItem)]  # type: ignore[misc]  # the class is made at import
MEMO_PAGE: Final = Page[json_answers.describe(MemoDetails)]  # type: ignore[misc]  # the class is made at import
Decision = Literal[DECISIONS]  # type: ignore[valid-type]  # the class is made at import


@router.get(SESSION + "/groups", tags=["groups"], openapi_extra=READ, response_model=GROUP_PAGE)
async def list_groups(
    context: SessionContextDep,
    limit: Limit = 200,
    cursor: Cursor = None,
    branch: Branch = None,
    status: Annotated[Literal["", "in", "changed", "out", "dropped", "removed"], Query(description="Those.")] = "",
) -> Response:
    """List the groups of a branch, oldest first, with their tokens as received and as they would go out next."""
    at = pagination.read_cursor(cursor, int)
    async with ACTIONS_BY_NAME["list_groups"].take_turn(context.services, context.tenant):
        found = await show.list_groups(context.services, context.tenant, context.session, branch=branch, status=status)
    rows = [one for one in found if at is None or one.first > at[0]]
    more = pagination.write_cursor([rows[limit - 1].first]) if len(rows) > limit else None
    return json_answers.render({"items": rows[:limit], "next": more})


@router.post(SESSION + "/groups/{group}/{action}", tags=["groups"], response_model=DECISION_RESULT)
async def decide_group(context: SessionContextDep, group: Id, action: Decision, branch: Branch = None) -> Response:
    """Decide about one group. `drop`: out of every prompt from the next on, and still in the store. `restore`: whole in
    the prompt again, whoever dropped it. `remove`: out of the prompt, and its content out of the store. `pin`: no
    policy edits it. `unpin`: policies may edit it again."""
    return await _run_decision(context, action, [group], branch, "group")


@router.post(SESSION + "/messages/{message}/{action}", tags=["groups"], response_model=DECISION_RESULT)
async def decide_message(context: SessionContextDep, message: Id, action: Decision, branch: Branch = None) -> Response:
    """Decide about one message in the same way; calls and their results go together."""
    return await _run_decision(context, action, [message], branch, "message")


@router.post(SESSION + DECISION_PATH, tags=["groups"], response_model=DECISION_RESULT)
async def decide_several(context: SessionContextDep, action: Decision, body: IdsBody) -> Response:
    """Decide about several groups and messages at once, in the same way."""
    return await _run_decision(context, action, body.ids, body.branch, "")


async def _run_decision(
    context: SessionContext, action: str, ids: Sequence[str], branch: str | None, id_kind: IdKind
) -> Response:
    decision = ACTIONS_BY_NAME[action]
    async with decision.take_turn(context.services, context.tenant):
        made = await decision.function(
            context.services, context.tenant, context.session, ids, branch=branch, id_kind=id_kind
        )
    return json_answers.render(made)


@router.get("/api/memos", tags=["memos"], openapi_extra=READ, response_model=MEMO_PAGE)
async def list_memos(
    admin: AdminContextDep,
    limit: Limit = 50,
    cursor: Cursor = None,
    project: Project = None,
    q: Annotated[str, Query(max_length=256, description="Those that have this in text or tags.")] = "",
) -> Response:
    """List a tenant's memos, in the order of their ids."""
    at = pagination.read_cursor(cursor, str)
    memos = []
    tenant = await find_tenant(admin)
    async for memo in edit_memos.iterate_memos(
        admin.services, tenant, project=project, text=q, after=at[0] if at else ""
    ):
        memos.append(memo)
        if len(memos) > limit:
            break
    next_cursor = pagination.write_cursor([memos[limit - 1].memo]) if len(memos) > limit else None
    return json_answers.render({"items": memos[:limit], "next": next_cursor})


@router.get(
    "/api/memos/export",
    tags=["memos"],
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-ndjson": {}}}},
)
async def export_memos(admin: AdminContextDep, project: Project = None) -> StreamingResponse:
    """Export all memos of a tenant, one JSON object a line."""
    tenant = await require_tenant(admin)

    async def render_lines() -> AsyncIterator[bytes]:
        async for memo in edit_memos.iterate_memos(admin.services, tenant, project=project):
            yield bytes(json_answers.render(memo).body) + b"\n"

    return StreamingResponse(render_lines(), media_type="application/x-ndjson")


class FrequentSwitches:
    """Lets threads take turns often while at least one action runs. The usual interval is restored after the last one.
    Used by the event loop alone."""

    def __init__(self) -> None:
        self._running = 0
        self._usual = 0.0

    @contextmanager
    def shorten_interval(self) -> Iterator[None]:
        """Shorten the interval until the block ends."""
        if not self._running:
            self._usual = sys.getswitchinterval()
            sys.setswitchinterval(min(self._usual, WATCHED_SWITCH_S))
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                sys.setswitchinterval(self._usual)


_switches: Final = FrequentSwitches()


def add_routes(to: APIRouter, actions: Sequence[Action]) -> None:
    """Add a route for each action whose path and method have none yet."""
    for action in actions:
        path = action.route_path
        if any(getattr(one, "path", "") == path and action.method in getattr(one, "methods", ()) for one in to.routes):
            continue
        to.add_api_route(
            path,
            _make_endpoint(action),
            methods=[action.method],
            tags=[action.tag],
            description=action.summary,
            response_model=json_answers.describe(action.result),
            openapi_extra=READ if "read" in action.planes else None,
        )


def _make_endpoint(action: Action) -> Any:
    async def endpoint(context: Any, body: Any = None, **given: object) -> Response:
        arguments = given | (body.model_dump(exclude_unset=True) if body is not None else {})
        place = (context.tenant, context.session) if of_session else (await find_tenant(context),)
        async with action.take_turn(context.services, place[0]):
            with _switches.shorten_interval():
                return json_answers.render(await action.function(context.services, *place, **arguments))

    of_session = action.scope == "session"
    parameters: dict[str, tuple[Any, Any]] = {
        "context": (SessionContextDep if of_session else AdminContextDep, REQUIRED)
    }
    if action.body is not None:
        optional = action.is_body_optional
        parameters["body"] = (action.body | None, None) if optional else (action.body, REQUIRED)
    in_body = action.body.model_fields if action.body is not None else {}
    parameters |= {name: ARGUMENTS[name] for name in action.arguments if name not in in_body}
    endpoint.__name__ = action.name
    endpoint.__signature__ = make_signature(parameters)  # type: ignore[attr-defined]  # FastAPI reads it
    return endpoint


add_routes(router, ACTIONS)
