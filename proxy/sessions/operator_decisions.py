"""Operator's decisions for a session: read from the store, kept with the session's memory, put into its plans.

Decisions are filed under the session and the chain keys of messages, not under a thread. So a branch that the client
leaves later, or has left before, has the decisions on the messages that it shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec
from msgspec import Struct

from proxy.chat.chain import DIGEST_BYTES
from proxy.context.branch_state import BranchState
from proxy.context.operator_edits import NAME, OperatorDecisions, OperatorNote
from proxy.store.base import EditRow, Store

WHOLE_SESSION = ""
"""Stands in the place of a thread's name for decisions on the whole session."""
REMOVED_STAGE = "removed"
"""The stage of messages that are removed for good."""
RELEASED_STAGE = "released"
"""The stage of messages that were restored once, and that policies may edit again."""


class SessionSettings(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Settings of a session, stored as JSON in its row; a setting that is not set is as the policy says.

    policy, schedule: "" for the usual one. window: groups that stay, 0 for all, -1 for the policy's again. force: the
    one-time action of the next request. ask: the next request asks the model for its state. withdrawn: ids of notes
    that are to leave the prompt.
    """

    policy: str = ""
    schedule: str = ""
    window: int | None = None
    max_iterations: int | None = None
    urgency: str = ""
    force: Literal["", "prune", "compress"] = ""
    ask: bool = False
    withdrawn: list[str] = []


@dataclass(frozen=True, slots=True)
class StoredDecisions:
    """The decisions of one session. dropped: the reasons, by chain key. removed: those of the dropped messages that are
    removed for good. restored, pinned, unpinned: chain keys, by the operator. versions: that of the newest row of each
    message."""

    settings: SessionSettings = field(default_factory=SessionSettings)
    dropped: Mapping[bytes, str] = field(default_factory=dict)
    removed: frozenset[bytes] = frozenset()
    restored: frozenset[bytes] = frozenset()
    pinned: frozenset[bytes] = frozenset()
    unpinned: frozenset[bytes] = frozenset()
    notes: tuple[OperatorNote, ...] = ()
    versions: Mapping[bytes, int] = field(default_factory=dict)

    @property
    def planning_decisions(self) -> OperatorDecisions:
        """The decisions in the form that a plan needs."""
        told = self.settings
        limits = {"max_iterations": told.max_iterations, "urgency": told.urgency or None}
        return OperatorDecisions(
            dropped=self.dropped,
            restored=self.restored,
            window=told.window,
            notes=self.notes,
            withdrawn_notes=tuple(told.withdrawn),
            setting_overrides={name: value for name, value in limits.items() if value is not None},
            forced_action=told.force,
            ask_for_state=told.ask,
        )

    @property
    def is_empty(self) -> bool:
        """True if nothing was ever decided."""
        return not (self.versions or self.notes) and self.settings == SessionSettings()

    def find_pins(self, client_pins: frozenset[bytes]) -> frozenset[bytes]:
        """Return the messages that no policy edits. client_pins: those that the thread's client has pinned itself."""
        return ((client_pins - self.unpinned) | self.pinned | self.restored) - self.dropped.keys()

    def apply_to(self, state: BranchState, *, side: bool) -> BranchState:
        """Return a thread's state with the decisions, for planning. side: a side call is no part of the conversation:
        it gets no notes, and uses up no one-time setting."""
        if self.is_empty:
            return state
        steering = self.planning_decisions
        if side:
            steering = replace(steering, window=None, notes=(), forced_action="", ask_for_state=False)
        return replace(
            state,
            decisions=steering,
            pins=self.find_pins(state.pins),
            # A state that was written in a dropped answer, or about it, is no state of the conversation without that
            # answer.
            states=tuple(one for one in state.states if one[0][:DIGEST_BYTES] not in self.dropped),
        )


def parse_settings(text: str) -> SessionSettings:
    """Return a session's settings; the defaults where they cannot be read."""
    try:
        return msgspec.json.decode(text, type=SessionSettings)
    except ValueError:
        return SessionSettings()


async def read_decisions(store: Store, tenant: str, session: str) -> StoredDecisions:
    """Read a session's decisions from the store. StoreUnavailable passes through."""
    found = await store.read_decisions(tenant, session, WHOLE_SESSION)
    told = tuple(OperatorNote(note.note, note.text) for note in found.notes if note.kind == "note")
    return apply_rows(StoredDecisions(parse_settings(found.settings), notes=told), [row for row, _ in found.edits])


def apply_rows(decisions: StoredDecisions, rows: list[EditRow]) -> StoredDecisions:
    """Return the decisions with these rows applied after them, in their order."""
    dropped, versions = dict(decisions.dropped), dict(decisions.versions)
    removed, restored = set(decisions.removed), set(decisions.restored)
    pinned, unpinned = set(decisions.pinned), set(decisions.unpinned)
    for row in rows:
        k = row.key
        versions[k] = max(row.version, versions.get(k, 0))
        if row.action == "pin":
            pinned.add(k)
            unpinned.discard(k)
        elif row.action == "unpin":
            unpinned.add(k)
            pinned.discard(k)
        elif row.action == "gone":
            dropped[k] = row.reason
            restored.discard(k)
            removed |= {k} if row.stage == REMOVED_STAGE else set()
        elif k not in removed:
            dropped.pop(k, None)
            if row.stage == NAME:
                restored.add(k)
            else:
                restored.discard(k)
    return replace(
        decisions,
        dropped=dropped,
        removed=frozenset(removed),
        restored=frozenset(restored),
        pinned=frozenset(pinned),
        unpinned=frozenset(unpinned),
        versions=versions,
    )
