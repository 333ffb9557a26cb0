"""Settings of one session, and actions on it as a whole: window, prune, compress, undo, rebuild."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from proxy.context.analysis.iteration import Urgency
from proxy.context.policy import ScheduleName
from proxy.operator import edit_messages, prune, rebuild_state, session_settings
from proxy.operator.response_models import DecisionResult, RebuildResult
from proxy.sessions.operator_decisions import SessionSettings
from proxy.web.api import json_answers
from proxy.web.api.admin_context import SessionContextDep
from proxy.web.api.error_model import ERROR_RESPONSES
from proxy.web.routes import READ

router = APIRouter(prefix="/api/sessions/{session}", tags=["steering"], responses=ERROR_RESPONSES)

MAX_SETTING = session_settings.MAX_SETTING
ID_PATTERN = r"^[^\x00]*$"
"""Pattern of a thread, group or message id in a body: no database stores a NUL in a text."""


class SettingsBody(BaseModel):
    """The settings of a session; null: as the policy says. window: groups that stay in the prompt, 0 for all of them.
    They hold from the next request on, in this process and every other one."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"policy": "thrifty", "window": 5, "urgency": "gentle"}]}
    )

    policy: Annotated[str | None, Field(max_length=64)] = None
    schedule: ScheduleName | None = None
    window: Annotated[int | None, Field(ge=0, le=MAX_SETTING)] = None
    max_iterations: Annotated[int | None, Field(ge=1, le=MAX_SETTING)] = None
    urgency: Urgency | None = None


class WindowBody(BaseModel):
    """groups: the number of last groups that stay, 0 for all."""

    model_config = ConfigDict(extra="forbid")

    groups: Annotated[int, Field(ge=0, le=MAX_SETTING, examples=[5])]


class ThreadBody(BaseModel):
    """thread: the thread to change; without it the one that was last used."""

    model_config = ConfigDict(extra="forbid")

    thread: Annotated[str | None, Field(max_length=64, pattern=ID_PATTERN)] = None


@router.get("/settings", openapi_extra=READ, response_model=json_answers.describe(SessionSettings))
async def show_settings(context: SessionContextDep) -> Response:
    """Show the settings of the session. `force` and `ask` are the pending actions of its next request."""
    return json_answers.render(await session_settings.load_settings(context.services, context.tenant, context.session))


@router.put("/settings", response_model=json_answers.describe(SessionSettings))
async def replace_settings(context: SessionContextDep, body: SettingsBody) -> Response:
    """Set all settings: an omitted one is as the policy says."""
    return json_answers.render(
        await session_settings.change_settings(context.services, context.tenant, context.session, body.model_dump())
    )


@router.patch("/settings", response_model=json_answers.describe(SessionSettings))
async def change_settings(context: SessionContextDep, body: SettingsBody) -> Response:
    """Set the named settings, and nothing else."""
    changes = body.model_dump(exclude_unset=True)
    return json_answers.render(
        await session_settings.change_settings(context.services, context.tenant, context.session, changes)
    )


@router.post("/window", response_model=json_answers.describe(SessionSettings))
async def set_window(context: SessionContextDep, body: WindowBody) -> Response:
    """Keep only the last groups in the prompt."""
    return json_answers.render(
        await session_settings.set_window(context.services, context.tenant, context.session, body.groups)
    )


@router.post("/prune", response_model=json_answers.describe(SessionSettings))
async def prune_prompt(context: SessionContextDep) -> Response:
    """Prune the next prompt as if its budget were smaller than its size. The removed messages stay out."""
    return json_answers.render(await prune.prune_next_prompt(context.services, context.tenant, context.session))


@router.post("/compress", response_model=json_answers.describe(SessionSettings))
async def compress_prompt(context: SessionContextDep) -> Response:
    """Make every edit that the policy proposes with the next request, even an edit that does not pay."""
    return json_answers.render(
        await session_settings.request_compress(context.services, context.tenant, context.session)
    )


@router.post("/undo", response_model=json_answers.describe(DecisionResult))
async def undo(context: SessionContextDep, body: ThreadBody | None = None) -> Response:
    """Remove the last group. The state returns to the one before it, or is written again."""
    thread = body.thread if body is not None else None
    return json_answers.render(
        await edit_messages.undo(context.services, context.tenant, context.session, thread=thread)
    )


@router.post("/rebuild", response_model=json_answers.describe(RebuildResult))
async def rebuild(context: SessionContextDep, body: ThreadBody | None = None) -> Response:
    """Have the state written again from the current prompt. The helper writes it, or the upstream with its own key;
    else it comes with the next request."""
    thread = body.thread if body is not None else None
    return json_answers.render(
        await rebuild_state.rebuild(context.services, context.tenant, context.session, thread=thread)
    )
