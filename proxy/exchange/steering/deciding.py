"""Operator's decisions on messages and groups: drop, remove, undo, restore, pin and unpin.

A decision is tried on the next prompt before it is stored. So the operator is told at once if upstreams would refuse
the prompt, or if the message is never touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from proxy.chat.group import steps
from proxy.chat.key import public_id
from proxy.context.operator import NAME
from proxy.context.prices import Model
from proxy.errors import Conflict, NotFound, Unprocessable
from proxy.exchange import announcing, planning
from proxy.exchange.parts import Parts
from proxy.exchange.steering import blanking, keeping, rebuilding
from proxy.exchange.steering.foreseeing import Foreseen, foresee
from proxy.exchange.steering.inforce import RELEASED, REMOVED, WIDE, with_rows
from proxy.exchange.steering.place import Here, find
from proxy.exchange.steering.shapes import Changed
from proxy.store.base import Action, EditRow

REASONS = {
    "drop": "dropped by the operator",
    "undo": "undone by the operator",
    "remove": "removed by the operator",
    "restore": "restored by the operator",
    "pin": "pinned by the operator",
    "unpin": "unpinned by the operator",
}
Only = Literal["", "group", "message"]
"""Meaning of an id that may name a group or a message: a group bears the id of the prompt that it begins with. "": the
group."""
MOST = 1000
"""Limit on the messages and groups that one call may name."""


async def drop(
    parts: Parts, tenant: str, session: str, ids: Sequence[str], *, thread: str | None = None, only: Only = ""
) -> Changed:
    """Drop groups or messages from every prompt from the next on; they stay in the store. ids: public ids of groups or
    messages."""
    here = await find(parts, tenant, session, thread)
    return await _out(parts, here, _steps(here, _named(here, ids, only)), "drop")


async def remove(
    parts: Parts, tenant: str, session: str, ids: Sequence[str], *, thread: str | None = None, only: Only = ""
) -> Changed:
    """Drop groups or messages for good: their text is also taken out of the store, and cannot be restored."""
    here = await find(parts, tenant, session, thread)
    chosen = _steps(here, _named(here, ids, only))
    changed = await _out(parts, here, chosen, "remove")
    await blanking.blank(parts, here, chosen)
    return changed


async def undo(parts: Parts, tenant: str, session: str, *, thread: str | None = None) -> Changed:
    """Drop the last group that is there. The state goes back to the one before the group, or is rebuilt."""
    here = await find(parts, tenant, session, thread)
    dropped = here.steered.dropped
    for group in reversed(here.groups):
        chosen = [n for n in range(group.start, group.end) if _is_open(here, n)]
        if chosen and not all(here.keys[n] in dropped for n in chosen):
            changed = await _out(parts, here, chosen, "undo", prompted=True)
            break
    else:
        raise Conflict("there is no group left to undo")
    if here.thread.state.states:
        rebuilt = await rebuilding.rebuild(parts, tenant, session, thread=here.thread.name)
        return msgspec.structs.replace(changed, note=f"state: {rebuilt.how}, {rebuilt.outcome}")
    return changed


async def restore(
    parts: Parts, tenant: str, session: str, ids: Sequence[str], *, thread: str | None = None, only: Only = ""
) -> Changed:
    """Bring back messages that were dropped, or left out or shortened by a policy. They come back whole, and no policy
    edits them again."""
    here = await find(parts, tenant, session, thread)
    chosen = _steps(here, _named(here, ids, only))
    if any(here.keys[n] in here.steered.removed for n in chosen):
        raise Conflict("what was removed for good cannot be restored")
    rows = _rows(parts, here, chosen, "withdrawn", "restore")
    seen = await foresee(parts, here, with_rows(here.steered, rows))
    refused = seen.turn.plan.refused
    if refused:
        raise Conflict(f"the prompt would break rule {refused}", hint="Restore the whole group.")
    still = [n for n in chosen if _is_out(seen, here.keys[n])]
    if still:
        raise Conflict(f"message {public_id(here.keys[still[0]])} stays out", hint="Restore the whole group.")
    return await _store(parts, here, chosen, rows, "restore")


async def pin(
    parts: Parts, tenant: str, session: str, ids: Sequence[str], *, thread: str | None = None, only: Only = ""
) -> Changed:
    """Pin messages: no policy edits them from now on. Earlier edits stay as they are: `restore` brings the messages
    back whole."""
    here = await find(parts, tenant, session, thread)
    chosen = _steps(here, _named(here, ids, only))
    if any(here.keys[n] in here.steered.dropped for n in chosen):
        raise Conflict("what is dropped cannot be pinned", hint="Restore it: then it stays, too.")
    return await _store(parts, here, chosen, _rows(parts, here, chosen, "pin", "pin"), "pin")


async def unpin(
    parts: Parts, tenant: str, session: str, ids: Sequence[str], *, thread: str | None = None, only: Only = ""
) -> Changed:
    """Let policies edit messages again that were pinned or restored, by the operator or the client."""
    here = await find(parts, tenant, session, thread)
    chosen = _steps(here, _named(here, ids, only))
    rows = _rows(parts, here, chosen, "unpin", "unpin")
    back = [n for n in chosen if here.keys[n] in here.steered.restored]
    versions = {row.key: row.version for row in rows}
    rows += _rows(parts, here, back, "withdrawn", "unpin", stage=RELEASED, versions=versions)
    return await _store(parts, here, chosen, rows, "unpin")


async def _out(parts: Parts, here: Here, chosen: Sequence[int], action: str, *, prompted: bool = False) -> Changed:
    """Take messages out, if the next prompt is valid without them."""
    if here.thread.state.stopped is not None:
        raise Conflict(
            f"this thread goes out as it comes ({here.thread.state.stopped}): the upstream refused a changed prompt",
            hint="Begin a new conversation.",
        )
    rows = _rows(parts, here, chosen, "gone", action, stage=REMOVED if action == "remove" else NAME)
    seen = await foresee(parts, here, with_rows(here.steered, rows), prompted=prompted)
    staying = [n for n in chosen if not _is_out(seen, here.keys[n])]
    if staying:
        _refuse(here, staying[0])
    return await _store(parts, here, chosen, rows, action)


def _refuse(here: Here, index: int) -> None:
    name, messages = public_id(here.keys[index]), here.request.messages
    last_user = max((n for n, m in enumerate(messages) if m.role == "user"), default=-1)
    if index >= last_user:
        raise Conflict(
            f"message {name} belongs to the prompt that is being answered, whose user message is never touched",
            hint="Undo takes it out as soon as the user speaks again.",
        )
    raise Conflict(
        f"without message {name} two messages would follow each other that upstreams refuse",
        hint="Take the whole group.",
    )


def _is_out(seen: Foreseen, chain_key: bytes) -> bool:
    edit = seen.turn.plan.edits.get(chain_key)
    return edit is not None and edit.action == "gone"


def _named(here: Here, ids: Sequence[str], only: Only) -> list[int]:
    """Return the messages that are named by themselves or by their group. Raises NotFound, Unprocessable."""
    if not ids or len(ids) > MOST:
        raise Unprocessable(f"name between 1 and {MOST} groups or messages")
    by_group = {group.id: group for group in here.groups}
    chosen: set[int] = set()
    for name in ids:
        group, index = by_group.get(name), here.index_of(name)
        group = None if only == "message" else group
        if group is not None:
            chosen |= {n for n in range(group.start, group.end) if _is_open(here, n)}
        elif index is not None and only != "group":
            chosen.add(index)
        else:
            raise NotFound(f"this thread has no group or message {name!r}", hint="List its groups.")
    return sorted(chosen)


def _is_open(here: Here, index: int) -> bool:
    """True for a message that may be decided on. System messages may not: they share the key of the message before
    them."""
    return not here.request.messages[index].is_system


def _steps(here: Here, chosen: Sequence[int]) -> list[int]:
    """Return the chosen messages with the rest of their steps: a call never goes without its results, nor results
    without their call."""
    wanted = set(chosen)
    for step in steps(here.request.messages):
        if wanted & set(range(step.start, step.end)):
            wanted |= set(range(step.start, step.end))
    return sorted(wanted)


def _rows(
    parts: Parts,
    here: Here,
    chosen: Sequence[int],
    action: Action,
    why: str,
    *,
    stage: str = NAME,
    versions: Mapping[bytes, int] | None = None,
) -> list[EditRow]:
    """Return one row for each message. versions: those of rows that are stored together with these."""
    known = {**here.steered.versions, **(versions or {})}
    made = []
    for n in chosen:
        k, size = here.keys[n], parts.weigh(_model(parts, here))(here.request.messages[n])
        left = 0 if action == "gone" else size
        place = (here.record.tenant, here.record.session, WIDE, k, known.get(k, 0) + 1)
        made.append(EditRow(*place, stage, REASONS[why], action, None, size, left, "", parts.now()))
    return made


def _model(parts: Parts, here: Here) -> Model:
    return planning.model_of(parts, here.exchange.model)


async def _store(parts: Parts, here: Here, chosen: Sequence[int], rows: list[EditRow], action: str) -> Changed:
    """Store the decisions before they act. StoreUnavailable passes through, and then nothing was decided."""
    await parts.store.put(rows)
    await keeping.reload(parts, here.record.tenant, here.record.session)
    there = set(chosen)
    changed = Changed(
        session=here.record.session,
        thread=here.thread.name,
        action=action,
        messages=[public_id(here.keys[n]) for n in chosen],
        groups=[group.id for group in here.groups if there & set(range(group.start, group.end))],
        tokens=sum({row.key: row.before for row in rows}.values()),
    )
    announcing.decided(
        parts, here.record.tenant, changed.session, action, thread=changed.thread,
        messages=changed.messages, groups=changed.groups, count=len(chosen), tokens=changed.tokens,
    )  # fmt: skip
    return changed
