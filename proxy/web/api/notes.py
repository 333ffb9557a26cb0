"""Texts for a session's model in addition to its history: state, scratchpad, the operator's notes, feedback."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from proxy.operator import give_notes
from proxy.operator.response_models import NoteDetails, ScratchpadDetails, StateDetails
from proxy.web.api import json_answers
from proxy.web.api.admin_context import SessionContextDep
from proxy.web.api.error_model import ERROR_RESPONSES
from proxy.web.routes import READ

router = APIRouter(prefix="/api/sessions/{session}", tags=["told"], responses=ERROR_RESPONSES)

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

    text: Annotated[
        str, Field(min_length=1, max_length=give_notes.MAX_NOTE_CHARS, examples=["Leave the lock file as it is."])
    ]


class WithdrawnNote(BaseModel):
    """The withdrawn note."""

    note: str


@router.get("/state", openapi_extra=READ, response_model=json_answers.describe(StateDetails))
async def show_state(context: SessionContextDep, thread: Thread = None) -> Response:
    """Show the state that the next prompt carries."""
    return json_answers.render(
        await give_notes.read_state(context.services, context.tenant, context.session, thread=thread)
    )


@router.put("/state", response_model=json_answers.describe(StateDetails))
async def set_state(context: SessionContextDep, body: StateBody, thread: Thread = None) -> Response:
    """Replace the model's own state."""
    return json_answers.render(
        await give_notes.set_state(context.services, context.tenant, context.session, body.text, thread=thread)
    )


@router.get("/scratchpad", openapi_extra=READ, response_model=json_answers.describe(ScratchpadDetails))
async def show_scratchpad(context: SessionContextDep) -> Response:
    """Show the session's scratchpad, empty if there is none yet."""
    return json_answers.render(await give_notes.read_scratchpad(context.services, context.tenant, context.session))


@router.put("/scratchpad", response_model=json_answers.describe(ScratchpadDetails))
async def set_scratchpad(context: SessionContextDep, body: ScratchpadBody) -> Response:
    """Replace the text of the scratchpad."""
    return json_answers.render(
        await give_notes.set_scratchpad(context.services, context.tenant, context.session, body.text)
    )


@router.get("/notes", openapi_extra=READ, response_model=list[json_answers.describe(NoteDetails)])  # type: ignore[misc]  # made
async def list_notes(context: SessionContextDep) -> Response:
    """List the operator's notes in force, oldest first."""
    return json_answers.render(await give_notes.list_notes(context.services, context.tenant, context.session))


@router.post("/notes", response_model=json_answers.describe(NoteDetails))
async def add_note(context: SessionContextDep, body: TextBody) -> Response:
    """Add a note at the tail of the next prompt, where it stays."""
    return json_answers.render(await give_notes.add_note(context.services, context.tenant, context.session, body.text))


@router.delete("/notes/{note}")
async def withdraw_note(
    context: SessionContextDep, note: Annotated[str, Path(max_length=64, description="The note's id.")]
) -> WithdrawnNote:
    """Withdraw a note from the prompts."""
    await give_notes.withdraw_note(context.services, context.tenant, context.session, note)
    return WithdrawnNote(note=note)


@router.get("/feedback", openapi_extra=READ, response_model=list[json_answers.describe(NoteDetails)])  # type: ignore[misc]  # made
async def list_feedback(context: SessionContextDep, thread: Thread = None) -> Response:
    """List the feedback of users on a thread's iterations, oldest first."""
    return json_answers.render(
        await give_notes.list_feedback(context.services, context.tenant, context.session, thread=thread)
    )


@router.post("/feedback", response_model=json_answers.describe(NoteDetails))
async def add_feedback(context: SessionContextDep, body: TextBody, thread: Thread = None) -> Response:
    """Give feedback on the iterations so far: it stands in the next iteration's record."""
    return json_answers.render(
        await give_notes.add_feedback(context.services, context.tenant, context.session, body.text, thread=thread)
    )
