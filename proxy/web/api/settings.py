"""Settings of one session, and actions on it as a whole: window, prune, compress, undo, rebuild."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from proxy.context.evidence.iteration import Urgency
from proxy.context.policy import ScheduleName
from proxy.exchange.steering import adjusting, deciding, pruning, rebuilding
from proxy.exchange.steering.shapes import Changed, Rebuilt, SessionSettings
from proxy.web.api import wire
from proxy.web.api.desk import AtPlace
from proxy.web.api.problems import EVERY
from proxy.web.doors import READ

router = APIRouter(prefix="/api/sessions/{session}", tags=["steering"], responses=EVERY)

MOST = adjusting.MOST
NAME = r"^[^\x00]*$"
"""Pattern of a thread, group or message id in a body: no database stores a NUL in a text."""


class SettingsBody(BaseModel):
    """The settings of a session; null: as the policy says. window: groups that stay in the prompt, 0 for all of them.
    They hold from the next request on, in this process and every other one."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"policy": "thrifty", "window": 5, "urgency": "gentle"}]}
    )

    policy: Annotated[str | None, Field(max_length=64)] = None
    schedule: ScheduleName | None = None
    window: Annotated[int | None, Field(ge=0, le=MOST)] = None
    max_iterations: Annotated[int | None, Field(ge=1, le=MOST)] = None
    urgency: Urgency | None = None


class WindowBody(BaseModel):
    """groups: the number of last groups that stay, 0 for all."""

    model_config = ConfigDict(extra="forbid")

    groups: Annotated[int, Field(ge=0, le=MOST, examples=[5])]


class ThreadBody(BaseModel):
    """thread: the thread to change; without it the one that was last used."""

    model_config = ConfigDict(extra="forbid")

    thread: Annotated[str | None, Field(max_length=64, pattern=NAME)] = None


@router.get("/settings", openapi_extra=READ, response_model=wire.described(SessionSettings))
async def show(place: AtPlace) -> Response:
    """Show the settings of the session. `force` and `ask` are the pending actions of its next request."""
    return wire.answer(await adjusting.settings(place.parts, place.tenant, place.session))


@router.put("/settings", response_model=wire.described(SessionSettings))
async def put(place: AtPlace, body: SettingsBody) -> Response:
    """Set all settings: an omitted one is as the policy says."""
    return wire.answer(await adjusting.configure(place.parts, place.tenant, place.session, body.model_dump()))


@router.patch("/settings", response_model=wire.described(SessionSettings))
async def patch(place: AtPlace, body: SettingsBody) -> Response:
    """Set the named settings, and nothing else."""
    changes = body.model_dump(exclude_unset=True)
    return wire.answer(await adjusting.configure(place.parts, place.tenant, place.session, changes))


@router.post("/window", response_model=wire.described(SessionSettings))
async def window(place: AtPlace, body: WindowBody) -> Response:
    """Keep only the last groups in the prompt."""
    return wire.answer(await adjusting.window(place.parts, place.tenant, place.session, body.groups))


@router.post("/prune", response_model=wire.described(SessionSettings))
async def prune(place: AtPlace) -> Response:
    """Prune the next prompt as if its budget were smaller than its size. The removed messages stay out."""
    return wire.answer(await pruning.prune(place.parts, place.tenant, place.session))


@router.post("/compress", response_model=wire.described(SessionSettings))
async def compress(place: AtPlace) -> Response:
    """Make every edit that the policy proposes with the next request, even an edit that does not pay."""
    return wire.answer(await adjusting.compress(place.parts, place.tenant, place.session))


@router.post("/undo", response_model=wire.described(Changed))
async def undo(place: AtPlace, body: ThreadBody | None = None) -> Response:
    """Remove the last group. The state returns to the one before it, or is written again."""
    thread = body.thread if body is not None else None
    return wire.answer(await deciding.undo(place.parts, place.tenant, place.session, thread=thread))


@router.post("/rebuild", response_model=wire.described(Rebuilt))
async def rebuild(place: AtPlace, body: ThreadBody | None = None) -> Response:
    """Have the state written again from the current prompt. The helper writes it, or the upstream with its own key;
    else it comes with the next request."""
    thread = body.thread if body is not None else None
    return wire.answer(await rebuilding.rebuild(place.parts, place.tenant, place.session, thread=thread))
