"""Branches as the store has them: the edits of their rows, and a branch that is read back."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from proxy.context.branch_state import BranchState, StateRequest, count_losses
from proxy.context.plan import Edit
from proxy.sessions.branch import MAX_MOVES, Branch, ForkPoint, LastRequest, LiveSession, StorePosition
from proxy.sessions.tool_offer import ToolOffer
from proxy.store.base import BranchRecord, EditRow


def adopt_stored_edits(branch: Branch, rows: Sequence[tuple[EditRow, int]], own_edits: Mapping[bytes, Edit]) -> bool:
    """Put the stored edits, with their numbers, into the branch. True if an edit that this process has made (by chain
    key) is stored as another process made it, or not at all."""
    stored = _read_edits(rows)
    branch.store_position.edit_versions, branch.store_position.edit_number = stored.versions, stored.number
    branch.refused_reasoning |= stored.refused
    if all(stored.edits.get(k) == edit for k, edit in own_edits.items()):
        return False
    branch.state = msgspec.structs.replace(branch.state, edits=stored.edits, pins=stored.pins)
    return True


def read_edit(row: EditRow) -> Edit | None:
    """Return the edit of a stored row; None for a row that edits nothing."""
    if row.action == "withdrawn" or row.action == "pin" or row.action == "unpin" or row.action == "strip":
        return None
    return Edit(row.key, row.action, row.text, row.stage, row.reason, row.before, row.after)


class _StoredEdits(NamedTuple):
    """The edits of a branch as its stored rows have them. Keys are chain keys of messages."""

    edits: dict[bytes, Edit]
    versions: dict[bytes, int]
    """The newest version of each edited message."""
    pins: frozenset[bytes]
    refused: frozenset[bytes]
    """Hashes of the tokens of refused reasoning."""
    number: int
    """The highest number of a row; 0 for none."""


def _read_edits(rows: Sequence[tuple[EditRow, int]]) -> _StoredEdits:
    """Read the rows of a branch's edits, each with its number."""
    edits: dict[bytes, Edit] = {}
    versions: dict[bytes, int] = {}
    pins, refused = set[bytes](), set[bytes]()
    for row, _ in rows:
        versions[row.key] = max(row.version, versions.get(row.key, 0))
        if row.action == "pin":
            pins.add(row.key)
        elif row.action == "strip":
            refused.add(row.key)
        elif (edit := read_edit(row)) is not None:
            edits[row.key] = edit
    number = max((at for _, at in rows), default=0)
    return _StoredEdits(edits, versions, frozenset(pins), frozenset(refused), number)


def restore_branch(live_session: LiveSession, record: BranchRecord, offer: ToolOffer | None) -> Branch:
    """Return the branch as it was stored."""
    stored = _read_edits(record.edits)
    states = tuple((state.key, state.text) for state in record.states)
    lasting = None if record.lasting is None else _read_edits(record.lasting).edits
    asked = StateRequest.parse(record.asked)
    if asked is None:  # the state was written after the last edits, or is asked for after the next
        asked = StateRequest(count_losses(stored.edits if lasting is None else lasting) if states else 0)
    live_session.stored = True
    return Branch(
        tenant=live_session.tenant,
        session=live_session.session,
        name=record.branch,
        kind=record.kind,
        system=record.system,
        live_session=live_session,
        state=BranchState(
            edits=stored.edits,
            states=states,
            sent_at=record.last_at,
            last_state_request=asked,
            stopped=record.stopped or None,
            helper_answers=record.helper_answers,
            pins=stored.pins,
            lasting_edits=lasting,
        ),
        fork_point=ForkPoint(record.parent, record.fork_key),
        last_request=LastRequest(record.tip or None, record.answer, failed=None),
        store_position=StorePosition(
            deque([(record.tip, record.answer, record.last_at)], MAX_MOVES), stored.versions, stored.number
        ),
        stored=True,
        is_confirmed=True,
        tool_offer=offer,
        refused_reasoning=stored.refused,
    )
