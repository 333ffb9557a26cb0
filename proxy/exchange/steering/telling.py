"""Texts that an operator gives to a session's model, and views of them: state, scratchpad, notes, feedback."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from proxy.chat.key import SIZE
from proxy.context.session import BY_MODEL
from proxy.errors import Conflict, NotFound, Unprocessable
from proxy.exchange import announcing, reflecting
from proxy.exchange.identify import new_id
from proxy.exchange.parts import Parts
from proxy.exchange.recollect import forget
from proxy.exchange.steering import keeping, place
from proxy.exchange.steering.inforce import WIDE, read_settings
from proxy.exchange.steering.place import Here, find
from proxy.exchange.steering.shapes import By, ShownNote, ShownScratchpad, ShownState
from proxy.memory import reflection
from proxy.memory import scratchpad as pad
from proxy.memory import state as grammar
from proxy.store.base import StateRow
from proxy.store.written import NoteRow, ScratchpadRow

LONGEST = 8000
"""Limit in characters on a note: it stands in every prompt from then on."""
NOTES = 50
"""Limit on the notes that are in force at once."""
WITHDRAWN = 100
"""Limit on the withdrawn notes that are remembered, so that they leave prompts that were not sent since."""
TRIES = 4


async def state(parts: Parts, tenant: str, session: str, *, thread: str | None = None) -> ShownState:
    """Return the state that the next prompt is given. Raises NotFound; StoreUnavailable passes through, here and
    below."""
    return _shown(await find(parts, tenant, session, thread))


def _shown(here: Here) -> ShownState:
    told = here.steered.put_into(here.thread.state, side=False)
    by: By = (
        ""
        if told.state is None
        else "operator"
        if told.is_told and not told.states[-1][0].endswith(BY_MODEL)
        else "model"
    )
    return ShownState(here.thread.name, told.state, by, len(told.states))


async def set_state(parts: Parts, tenant: str, session: str, text: str, *, thread: str | None = None) -> ShownState:
    """Put a state in the place of the model's own. Raises Unprocessable for a state longer than `state.max_chars`: it
    is not cut."""
    text, most = text.strip(), parts.settings.state.max_chars
    if not text or len(text) > most:
        raise Unprocessable(f"a state has between 1 and {most} characters")
    here = await find(parts, tenant, session, thread)
    await put_state(parts, here, text)
    return _shown(await find(parts, tenant, session, here.thread.name))


async def put_state(parts: Parts, here: Here, text: str) -> None:
    """Store a state that stands in no answer, under the newest message that is there, and a number."""
    text = grammar.shorten(text, parts.settings.state.max_chars)
    number = sum(len(one[0]) > SIZE for one in here.thread.state.states) + 1
    name = _anchor(here) + number.to_bytes(4, "big") + new_id().encode()[:4]
    await parts.store.put(
        [StateRow(here.record.tenant, here.record.session, here.thread.name, name, text, parts.now())]
    )
    announcing.stated(parts, here.record.tenant, here.record.session, here.thread.name, text)
    live = parts.threads.session(here.record.tenant, here.record.session)
    found = live.threads.get(here.thread.name) if live is not None else None
    if found is not None:
        found.state = replace(found.state, states=(*found.state.states, (name, text)))


def _anchor(here: Here) -> bytes:
    """Return the key of the newest message that is not dropped: a state written now is about everything up to it."""
    pairs = zip(reversed(here.keys), reversed(here.request.messages), strict=True)
    dropped = here.steered.dropped
    return next((k for k, m in pairs if not m.is_system and k not in dropped), here.keys[-1])


async def scratchpad(parts: Parts, tenant: str, session: str) -> ShownScratchpad:
    """Return the session's scratchpad, empty where there is none yet."""
    await place.session(parts, tenant, session)
    row = await parts.store.scratchpad(tenant, session)
    return ShownScratchpad("", 0, "", None) if row is None else _pad(row)


def _pad(row: ScratchpadRow) -> ShownScratchpad:
    return ShownScratchpad(row.text, row.number, row.author, row.created_at)


async def set_scratchpad(parts: Parts, tenant: str, session: str, text: str) -> ShownScratchpad:
    """Replace the scratchpad by a text. Raises Unprocessable if it is too long, Conflict if others keep writing."""
    await place.session(parts, tenant, session)
    try:
        made = pad.updated(text, parts.settings.tools.scratchpad_chars)
    except pad.TooLong as problem:
        raise Unprocessable(str(problem)) from problem
    for _ in range(TRIES):
        known = await parts.store.scratchpad(tenant, session)
        number = known.number + 1 if known is not None else 1
        mine = ScratchpadRow(tenant, session, number, made, "operator", parts.now())
        await parts.store.put([mine])
        stands = await parts.store.scratchpads(tenant, session, 1, number + 1)
        if stands and stands[0] == mine:
            forget(parts.threads, tenant, session)
            announcing.decided(parts, tenant, session, "scratchpad", characters=len(made))
            return _pad(mine)
    raise Conflict("the scratchpad is being changed by others", hint="Read it and try again.")


async def add(parts: Parts, tenant: str, session: str, text: str) -> ShownNote:
    """Add a note, which stands at the tail of the next prompt, and stays there."""
    await place.session(parts, tenant, session)
    text = _text(text)
    if len(await notes(parts, tenant, session)) >= NOTES:
        raise Conflict(f"there are {NOTES} notes already", hint="Withdraw one.")
    row = NoteRow(tenant, session, WIDE, new_id()[:8], "note", text, parts.now())
    await parts.store.put([row])
    await keeping.reload(parts, tenant, session)
    announcing.decided(parts, tenant, session, "note", note=row.note)
    return ShownNote(row.note, row.kind, row.text, row.created_at)


async def notes(parts: Parts, tenant: str, session: str) -> list[ShownNote]:
    """Return the notes in force, oldest first."""
    await place.session(parts, tenant, session)
    found = await parts.store.notes(tenant, session, WIDE)
    return [ShownNote(one.note, one.kind, one.text, one.created_at) for one in found if one.kind == "note"]


async def withdraw(parts: Parts, tenant: str, session: str, note: str) -> None:
    """Withdraw a note from the prompts. Raises NotFound."""
    record = await place.session(parts, tenant, session)
    known = next((one for one in await parts.store.notes(tenant, session, WIDE) if one.note == note), None)
    if known is None:
        raise NotFound(f"session {session!r} has no note {note!r}")
    told = read_settings(record.settings)
    left = msgspec.structs.replace(told, withdrawn=[*told.withdrawn, note][-WITHDRAWN:])
    blank = msgspec.structs.replace(known, text="")
    await parts.store.put([blank, keeping.settings_row(tenant, session, left)])
    await keeping.reload(parts, tenant, session)
    announcing.decided(parts, tenant, session, "withdraw", note=note)


async def feedback(parts: Parts, tenant: str, session: str, text: str, *, thread: str | None = None) -> ShownNote:
    """Store the user's feedback on the iterations so far: it stands in the next iteration's record (FEATURES.md C1)."""
    record = await place.session(parts, tenant, session)
    exchange = await place.last_exchange(parts, record, thread)
    row = await reflecting.feedback(parts, (tenant, session, exchange.thread), _text(text, reflection.RAW))
    return ShownNote(row.note, row.kind, row.text, row.created_at)


async def feedbacks(parts: Parts, tenant: str, session: str, *, thread: str | None = None) -> list[ShownNote]:
    """Return a thread's feedback, oldest first."""
    record = await place.session(parts, tenant, session)
    exchange = await place.last_exchange(parts, record, thread)
    found = await parts.store.notes(tenant, session, exchange.thread)
    return [ShownNote(one.note, one.kind, one.text, one.created_at) for one in found if one.kind == "feedback"]


def _text(text: str, most: int = LONGEST) -> str:
    text = text.strip()
    if not text or len(text) > most:
        raise Unprocessable(f"a text has between 1 and {most} characters")
    return text
