"""Texts that an operator gives to a session's model, and views of them: state, scratchpad, notes, feedback."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from proxy.chat.chain import DIGEST_BYTES
from proxy.context.branch_state import MODEL_STATE_SUFFIX
from proxy.errors import Conflict, NotFound, Unprocessable
from proxy.exchange import iteration_records, publish_events
from proxy.exchange.lookups import forget_notes
from proxy.exchange.services import Services
from proxy.notes import reflection
from proxy.notes import scratchpad as pad
from proxy.notes import state_block as grammar
from proxy.operator import find_session
from proxy.operator.find_session import SelectedBranch, find_branch
from proxy.operator.response_models import NoteDetails, ScratchpadDetails, StateAuthor, StateDetails, WithdrawnNote
from proxy.sessions import load_sessions
from proxy.sessions.locate import make_id
from proxy.sessions.operator_decisions import make_settings_row, parse_settings
from proxy.store.base import WHOLE_SESSION, StateRow
from proxy.store.session_notes import NoteRow, ScratchpadRow

MAX_NOTE_CHARS = 8000
"""Limit in characters on a note: it is in every prompt from then on."""
MAX_NOTES = 50
"""Limit on the notes that are in force at once."""
MAX_WITHDRAWN = 100
"""Limit on the withdrawn notes that are remembered, so that they leave prompts that were not sent since."""
MAX_TRIES = 4


async def read_state(services: Services, tenant: str, session: str, *, branch: str | None = None) -> StateDetails:
    """Return the next prompt's state. Raises NotFound; StoreUnavailable passes through, here and below."""
    return _make_details(await find_branch(services, tenant, session, branch))


def _make_details(selected: SelectedBranch) -> StateDetails:
    state = selected.operator_decisions.apply_to(selected.branch.state, side=False)
    by: StateAuthor = (
        ""
        if state.state is None
        else "operator"
        if state.is_state_external and not state.states[-1][0].endswith(MODEL_STATE_SUFFIX)
        else "model"
    )
    return StateDetails(selected.branch.name, state.state, by, len(state.states))


async def set_state(
    services: Services, tenant: str, session: str, text: str, *, branch: str | None = None
) -> StateDetails:
    """Put a state in the place of the model's own. Raises Unprocessable for a state longer than `state.max_chars`: it
    is not cut; Conflict if every message is dropped."""
    text, most = text.strip(), services.settings.state.max_chars
    if not text or len(text) > most:
        raise Unprocessable(f"a state has between 1 and {most} characters")
    selected = await find_branch(services, tenant, session, branch)
    await store_state(services, selected, text)
    return _make_details(await find_branch(services, tenant, session, selected.branch.name))


async def store_state(services: Services, selected: SelectedBranch, text: str) -> None:
    """Store a state that is in no answer, under the newest message that is there, and a number."""
    text = grammar.shorten_body(text, services.settings.state.max_chars)
    number = sum(len(one[0]) > DIGEST_BYTES for one in selected.branch.state.states) + 1
    name = _find_anchor(selected) + number.to_bytes(4, "big") + make_id().encode()[-4:]
    await services.store.put(
        [StateRow(selected.record.tenant, selected.record.session, selected.branch.name, name, text, services.now())]
    )
    publish_events.publish_state(services, selected.record.tenant, selected.record.session, selected.branch.name, text)
    live = services.live_sessions.find_session(selected.record.tenant, selected.record.session)
    found = live.branches.get(selected.branch.name) if live is not None else None
    if found is not None:
        found.state = replace(found.state, states=(*found.state.states, (name, text)))


def _find_anchor(selected: SelectedBranch) -> bytes:
    """Return the key of the newest message that is not dropped: a state written now is about everything up to it.

    Raises Conflict if all are dropped: the next prompt would not have the state."""
    dropped = selected.operator_decisions.dropped
    conversation_keys = [k for k, m in zip(selected.keys, selected.request.messages, strict=True) if not m.is_system]
    if conversation_keys and all(k in dropped for k in conversation_keys):
        raise Conflict(
            "every message of the branch is dropped, and a state stands with a message that is not",
            hint="Restore a group first, or set the state after the next request.",
        )
    return next((k for k in reversed(conversation_keys) if k not in dropped), selected.keys[-1])


async def read_scratchpad(services: Services, tenant: str, session: str) -> ScratchpadDetails:
    """Return the session's scratchpad, empty where there is none yet."""
    await find_session.read_session(services, tenant, session)
    row = await services.store.read_scratchpad(tenant, session)
    return ScratchpadDetails("", 0, "", None) if row is None else _describe_scratchpad(row)


def _describe_scratchpad(row: ScratchpadRow) -> ScratchpadDetails:
    return ScratchpadDetails(row.text, row.number, row.author, row.created_at)


async def set_scratchpad(services: Services, tenant: str, session: str, text: str) -> ScratchpadDetails:
    """Replace the scratchpad by a text. Raises Unprocessable if it is too long, Conflict if others keep writing."""
    await find_session.read_session(services, tenant, session)
    try:
        new_text = pad.replace_text(text, services.settings.tools.scratchpad_chars)
    except pad.ScratchpadTooLong as problem:
        raise Unprocessable(str(problem)) from problem
    for _ in range(MAX_TRIES):
        known = await services.store.read_scratchpad(tenant, session)
        number = known.number + 1 if known is not None else 1
        mine = ScratchpadRow(tenant, session, number, new_text, "operator", services.now())
        await services.store.put([mine])
        stands = await services.store.read_scratchpad_versions(tenant, session, 1, number + 1)
        if stands and stands[0] == mine:
            forget_notes(services.live_sessions, tenant, session)
            publish_events.publish_decision(services, tenant, session, "scratchpad", characters=len(new_text))
            return _describe_scratchpad(mine)
    raise Conflict("the scratchpad is being changed by others", hint="Read it and try again.")


async def add_note(services: Services, tenant: str, session: str, text: str) -> NoteDetails:
    """Add a note, which is at the tail of the next prompt, and stays there."""
    await find_session.read_session(services, tenant, session)
    text = _check_text(text)
    if len(await list_notes(services, tenant, session)) >= MAX_NOTES:
        raise Conflict(f"there are {MAX_NOTES} notes already", hint="Withdraw one.")
    row = NoteRow(tenant, session, WHOLE_SESSION, make_id()[-8:], "note", text, services.now())
    await services.store.put([row])
    await load_sessions.reload_decisions(services.live_sessions, tenant, session)
    publish_events.publish_decision(services, tenant, session, "note", note=row.note)
    return NoteDetails(row.note, row.kind, row.text, row.created_at)


async def list_notes(services: Services, tenant: str, session: str) -> list[NoteDetails]:
    """Return the notes in force, oldest first."""
    await find_session.read_session(services, tenant, session)
    found = await services.store.read_notes(tenant, session, WHOLE_SESSION)
    return [NoteDetails(one.note, one.kind, one.text, one.created_at) for one in found if one.kind == "note"]


async def withdraw_note(services: Services, tenant: str, session: str, note: str) -> WithdrawnNote:
    """Withdraw a note from the prompts. Raises NotFound."""
    record = await find_session.read_session(services, tenant, session)
    known = next(
        (one for one in await services.store.read_notes(tenant, session, WHOLE_SESSION) if one.note == note), None
    )
    if known is None:
        raise NotFound(f"session {session!r} has no note {note!r}", hint="List its notes.")
    settings = parse_settings(record.settings)
    left = msgspec.structs.replace(settings, withdrawn=[*settings.withdrawn, note][-MAX_WITHDRAWN:])
    blank = msgspec.structs.replace(known, text="")
    await services.store.put([blank, make_settings_row(tenant, session, left)])
    await load_sessions.reload_decisions(services.live_sessions, tenant, session)
    publish_events.publish_decision(services, tenant, session, "withdraw", note=note)
    return WithdrawnNote(note)


async def add_feedback(
    services: Services, tenant: str, session: str, text: str, *, branch: str | None = None
) -> NoteDetails:
    """Store the user's feedback on the iterations so far: it is in the next iteration's record."""
    record = await find_session.read_session(services, tenant, session)
    exchange = await find_session.find_last_exchange(services, record, branch)
    row = await iteration_records.store_feedback(
        services, (tenant, session, exchange.branch), _check_text(text, reflection.MAX_RESULT_CHARS)
    )
    return NoteDetails(row.note, row.kind, row.text, row.created_at)


async def list_feedback(
    services: Services, tenant: str, session: str, *, branch: str | None = None
) -> list[NoteDetails]:
    """Return a branch's feedback, oldest first."""
    record = await find_session.read_session(services, tenant, session)
    exchange = await find_session.find_last_exchange(services, record, branch)
    found = await services.store.read_notes(tenant, session, exchange.branch)
    return [NoteDetails(one.note, one.kind, one.text, one.created_at) for one in found if one.kind == "feedback"]


def _check_text(text: str, most: int = MAX_NOTE_CHARS) -> str:
    text = text.strip()
    if not text or len(text) > most:
        raise Unprocessable(f"a text has between 1 and {most} characters")
    return text
