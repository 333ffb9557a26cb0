"""Operator's decisions on messages and groups: drop, remove, undo, restore, pin and unpin.

A decision is tried on the next prompt before it is stored. So the operator learns at once if upstreams would refuse
the prompt, or if the message is never touched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from proxy.chat.chain import public_id
from proxy.chat.group import find_last_user, join_steps, split_steps
from proxy.context.operator_edits import NAME
from proxy.errors import Conflict, NotFound, Unprocessable
from proxy.exchange import lookups, publish_events
from proxy.exchange.services import Services
from proxy.operator import erase, rebuild_state
from proxy.operator.find_session import SelectedBranch, find_branch
from proxy.operator.preview import Preview, preview_prompt
from proxy.operator.response_models import DecisionResult
from proxy.sessions import load_sessions
from proxy.sessions.operator_decisions import RELEASED_STAGE, REMOVED_STAGE, apply_rows
from proxy.store.base import WHOLE_SESSION, EditAction, EditRow

REASONS = {
    "drop": "dropped by the operator",
    "undo": "undone by the operator",
    "remove": "removed by the operator",
    "restore": "restored by the operator",
    "pin": "pinned by the operator",
    "unpin": "unpinned by the operator",
}
IdKind = Literal["", "group", "message"]
"""Meaning of an id that may name a group or a message: a group bears the id of the prompt that it begins with. "": the
group."""
MAX_IDS = 1000
"""Limit on the messages and groups that one call may name."""


@dataclass(frozen=True, slots=True)
class DecisionFunction:
    """A decision about groups and messages, as a function of their public ids."""

    decide: Callable[[Services, SelectedBranch, Sequence[int]], Awaitable[DecisionResult]]
    """The decision about these messages of the history: with each call its results are among them."""

    @property
    def name(self) -> str:
        """The name of the action."""
        return self.decide.__name__

    async def __call__(
        self,
        services: Services,
        tenant: str,
        session: str,
        ids: Sequence[str],
        *,
        branch: str | None = None,
        id_kind: IdKind = "",
    ) -> DecisionResult:
        """Return the decision as it was stored. Raises NotFound, Conflict and Unprocessable."""
        selected = await find_branch(services, tenant, session, branch)
        return await self.decide(services, selected, _complete_steps(selected, _resolve_ids(selected, ids, id_kind)))


@DecisionFunction
async def drop(services: Services, selected: SelectedBranch, chosen: Sequence[int]) -> DecisionResult:
    """Drop groups or messages from every prompt from the next on; they stay in the store."""
    return await _take_out(services, selected, chosen, "drop")


@DecisionFunction
async def remove(services: Services, selected: SelectedBranch, chosen: Sequence[int]) -> DecisionResult:
    """Drop groups or messages permanently: their text is also taken out of the store, and cannot be restored."""
    changed = await _take_out(services, selected, chosen, "remove")
    await erase.erase_messages(services, selected, chosen)
    return changed


async def undo(services: Services, tenant: str, session: str, *, branch: str | None = None) -> DecisionResult:
    """Drop the last group that is there. The state goes back to the one before the group, or is rebuilt."""
    async with services.read_slots.hold(tenant):  # and not while a model answers
        selected = await find_branch(services, tenant, session, branch)
        changed = await _undo_last_group(services, selected)
        has_state = bool(selected.branch.state.states)
        del selected
    if not has_state:
        return changed
    rebuilt = await rebuild_state.rebuild(services, tenant, session, branch=changed.branch)
    return msgspec.structs.replace(changed, note=f"state: {rebuilt.how}, {rebuilt.outcome}")


async def _undo_last_group(services: Services, selected: SelectedBranch) -> DecisionResult:
    dropped = selected.operator_decisions.dropped
    for group in reversed(selected.groups):
        chosen = [n for n in range(group.start, group.end) if _may_be_decided(selected, n)]
        if chosen and not all(selected.keys[n] in dropped for n in chosen):
            return await _take_out(services, selected, chosen, "undo", prompted=True)
    raise Conflict("there is no group left to undo")


@DecisionFunction
async def restore(services: Services, selected: SelectedBranch, chosen: Sequence[int]) -> DecisionResult:
    """Bring back messages that were dropped, left out or shortened: whole, and edited by no policy again."""
    if any(selected.keys[n] in selected.operator_decisions.removed for n in chosen):
        raise Conflict("what was removed for good cannot be restored")
    rows = _make_rows(services, selected, chosen, "withdrawn", "restore")
    preview = await preview_prompt(services, selected, apply_rows(selected.operator_decisions, rows))
    refused = preview.turn.prompt.plan.refusal
    if refused:
        raise Conflict(f"the prompt would break rule {refused}", hint="Restore the whole group.")
    still = [n for n in chosen if _is_out(preview, selected.keys[n])]
    if still:
        raise Conflict(f"message {public_id(selected.keys[still[0]])} stays out", hint="Restore the whole group.")
    return await _store_decision(services, selected, chosen, rows, "restore")


@DecisionFunction
async def pin(services: Services, selected: SelectedBranch, chosen: Sequence[int]) -> DecisionResult:
    """Pin messages: no policy edits them from now on. Earlier edits stay until a `restore`."""
    if any(selected.keys[n] in selected.operator_decisions.dropped for n in chosen):
        raise Conflict("what is dropped cannot be pinned", hint="Restore it: then it stays, too.")
    return await _store_decision(
        services, selected, chosen, _make_rows(services, selected, chosen, "pin", "pin"), "pin"
    )


@DecisionFunction
async def unpin(services: Services, selected: SelectedBranch, chosen: Sequence[int]) -> DecisionResult:
    """Let policies edit messages again that were pinned or restored, by the operator or the client."""
    rows = _make_rows(services, selected, chosen, "unpin", "unpin")
    back = [n for n in chosen if selected.keys[n] in selected.operator_decisions.restored]
    versions = {row.key: row.version for row in rows}
    rows += _make_rows(services, selected, back, "withdrawn", "unpin", stage=RELEASED_STAGE, versions=versions)
    return await _store_decision(services, selected, chosen, rows, "unpin")


async def _take_out(
    services: Services, selected: SelectedBranch, chosen: Sequence[int], action: str, *, prompted: bool = False
) -> DecisionResult:
    """Take messages out, if the next prompt is valid without them."""
    if selected.branch.state.stopped is not None:
        raise Conflict(
            f"this branch goes out as it comes ({selected.branch.state.stopped}):"
            " the upstream refused a changed prompt",
            hint="Begin a new conversation.",
        )
    rows = _make_rows(services, selected, chosen, "gone", action, stage=REMOVED_STAGE if action == "remove" else NAME)
    preview = await preview_prompt(services, selected, apply_rows(selected.operator_decisions, rows), prompted=prompted)
    staying = [n for n in chosen if not _is_out(preview, selected.keys[n])]
    if staying:
        _raise_conflict(selected, staying[0])
    return await _store_decision(services, selected, chosen, rows, action)


def _raise_conflict(selected: SelectedBranch, index: int) -> None:
    name, messages = public_id(selected.keys[index]), selected.request.messages
    last_user = find_last_user(messages)
    if index >= last_user:
        raise Conflict(
            f"message {name} belongs to the prompt that is being answered, whose user message is never touched",
            hint="Undo takes it out as soon as the user speaks again.",
        )
    raise Conflict(
        f"without message {name} two messages would follow each other that upstreams refuse",
        hint="Take the whole group.",
    )


def _is_out(preview: Preview, chain_key: bytes) -> bool:
    edit = preview.turn.prompt.plan.edits.get(chain_key)
    return edit is not None and edit.action == "gone"


def _resolve_ids(selected: SelectedBranch, ids: Sequence[str], id_kind: IdKind) -> list[int]:
    """Return the messages that are named by themselves or by their group. Raises NotFound, Unprocessable."""
    if not ids or len(ids) > MAX_IDS:
        raise Unprocessable(f"name between 1 and {MAX_IDS} groups or messages")
    by_group = {group.id: group for group in selected.groups}
    chosen: set[int] = set()
    for name in ids:
        group, index = by_group.get(name), selected.find_index(name)
        group = None if id_kind == "message" else group
        if group is not None:
            chosen |= {n for n in range(group.start, group.end) if _may_be_decided(selected, n)}
        elif index is not None and id_kind != "group":
            chosen.add(index)
        else:
            raise NotFound(f"this branch has no group or message {name!r}", hint="List its groups.")
    return sorted(chosen)


def _may_be_decided(selected: SelectedBranch, index: int) -> bool:
    """True for a message that may be decided on: a system message has the key of the one before it."""
    return not selected.request.messages[index].is_system


def _complete_steps(selected: SelectedBranch, chosen: Sequence[int]) -> list[int]:
    """Return the chosen messages with the rest of their steps: calls and their results go together."""
    complete = set(chosen)
    for step in join_steps(selected.request, split_steps(selected.request.messages)):
        if complete & set(range(step.start, step.end)):
            complete |= set(range(step.start, step.end))
    return sorted(complete)


def _make_rows(
    services: Services,
    selected: SelectedBranch,
    chosen: Sequence[int],
    action: EditAction,
    why: str,
    *,
    stage: str = NAME,
    versions: Mapping[bytes, int] | None = None,
) -> list[EditRow]:
    """Return one row for each message. versions: those of rows that are stored together with these."""
    known = {**selected.operator_decisions.versions, **(versions or {})}
    token_counter = services.find_token_counter(lookups.look_up_model(services, selected.exchange.model))
    rows = []
    for n in chosen:
        k, size = selected.keys[n], token_counter(selected.request.messages[n])
        sent_size = 0 if action == "gone" else size
        place = (selected.record.tenant, selected.record.session, WHOLE_SESSION, k, known.get(k, 0) + 1)
        rows.append(EditRow(*place, stage, REASONS[why], action, None, size, sent_size, "", services.now()))
    return rows


async def _store_decision(
    services: Services, selected: SelectedBranch, chosen: Sequence[int], rows: list[EditRow], action: str
) -> DecisionResult:
    """Store the decisions before they act. StoreUnavailable passes through, and then nothing was decided."""
    await services.store.put(rows)
    await load_sessions.reload_decisions(services.live_sessions, selected.record.tenant, selected.record.session)
    indexes = set(chosen)
    changed = DecisionResult(
        session=selected.record.session,
        branch=selected.branch.name,
        action=action,
        messages=[public_id(selected.keys[n]) for n in chosen],
        groups=[group.id for group in selected.groups if indexes & set(range(group.start, group.end))],
        tokens=sum({row.key: row.before for row in rows}.values()),
    )
    publish_events.publish_decision(
        services, selected.record.tenant, changed.session, action, branch=changed.branch,
        messages=changed.messages, groups=changed.groups, count=len(chosen), tokens=changed.tokens,
    )  # fmt: skip
    return changed
