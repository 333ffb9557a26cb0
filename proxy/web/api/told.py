"""Texts for a session's model in addition to its history: state, scratchpad, the operator's notes, feedback."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from proxy.exchange.steering import telling
from proxy.exchange.steering.shapes import ShownNote, ShownScratchpad, ShownState
from proxy.web.api import wire
from proxy.web.api.desk import AtPlace
from proxy.web.api.problems import EVERY
from proxy.web.doors import READ

router = APIRouter(prefix="/api/sessions/{session}", tags=["told"], responses=EVERY)

Thread = Annotated[str | None, Query(max_length=64, description="The thread; without it the one last spoken in.")]
STATE = "Goal: mend the build\nContext: tests fail on 3.13\nResolved: 3.11\nTechnical Anchors: Makefile"


class StateBody(BaseModel):
    """text: the state, as the model would write it under `### STATE`."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(min_length=1, max_length=100_000, examples=[STATE])]


class ScratchpadBody(BaseModel):
    """text: the whole scratchpad, in Markdown; empty to clear it."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(max_length=1_000_000, examples=["- [x] reproduce\n- [ ] mend"])]


class TextBody(BaseModel):
    """text: the text of the note or feedback."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(min_length=1, max_length=telling.LONGEST, examples=["Leave the lock file as it is."])]


class Withdrawn(BaseModel):
    """The withdrawn note."""

    note: str


@router.get("/state", openapi_extra=READ, response_model=wire.described(ShownState))
async def state(place: AtPlace, thread: Thread = None) -> Response:
    """Show the state that the next prompt carries."""
    return wire.answer(await telling.state(place.parts, place.tenant, place.session, thread=thread))


@router.put("/state", response_model=wire.described(ShownState))
async def set_state(place: AtPlace, body: StateBody, thread: Thread = None) -> Response:
    """Replace the model's own state."""
    return wire.answer(await telling.set_state(place.parts, place.tenant, place.session, body.text, thread=thread))


@router.get("/scratchpad", openapi_extra=READ, response_model=wire.described(ShownScratchpad))
async def scratchpad(place: AtPlace) -> Response:
    """Show the session's scratchpad, empty if there is none yet."""
    return wire.answer(await telling.scratchpad(place.parts, place.tenant, place.session))


@router.put("/scratchpad", response_model=wire.described(ShownScratchpad))
async def set_scratchpad(place: AtPlace, body: ScratchpadBody) -> Response:
    """Replace the text of the scratchpad."""
    return wire.answer(await telling.set_scratchpad(place.parts, place.tenant, place.session, body.text))


@router.get("/notes", openapi_extra=READ, response_model=list[wire.described(ShownNote)])  # type: ignore[misc]  # made
async def notes(place: AtPlace) -> Response:
    """List the operator's notes in force, oldest first."""
    return wire.answer(await telling.notes(place.parts, place.tenant, place.session))


@router.post("/notes", response_model=wire.described(ShownNote))
async def add(place: AtPlace, body: TextBody) -> Response:
    """Add a note at the tail of the next prompt, where it stays."""
    return wire.answer(await telling.add(place.parts, place.tenant, place.session, body.text))


@router.delete("/notes/{note}")
async def withdraw(
    place: AtPlace, note: Annotated[str, Path(max_length=64, description="The note's id.")]
) -> Withdrawn:
    """Withdraw a note from the prompts."""
    await telling.withdraw(place.parts, place.tenant, place.session, note)
    return Withdrawn(note=note)


@router.get("/feedback", openapi_extra=READ, response_model=list[wire.described(ShownNote)])  # type: ignore[misc]  # made
async def feedbacks(place: AtPlace, thread: Thread = None) -> Response:
    """List the feedback of users on a thread's iterations, oldest first."""
    return wire.answer(await telling.feedbacks(place.parts, place.tenant, place.session, thread=thread))


@router.post("/feedback", response_model=wire.described(ShownNote))
async def feedback(place: AtPlace, body: TextBody, thread: Thread = None) -> Response:
    """Give feedback on the iterations so far: it stands in the next iteration's record."""
    return wire.answer(await telling.feedback(place.parts, place.tenant, place.session, body.text, thread=thread))
