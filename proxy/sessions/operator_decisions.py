"""The operator's decisions on a session: read from the store, kept with the live session, put into its plans.

Decisions are filed under the session and the chain keys of messages, not under a branch. So a branch that the client
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
from proxy.store.base import WHOLE_SESSION, EditRow
from proxy.store.reads import Store
from proxy.store.session_notes import SettingsRow

REMOVED_STAGE = "removed"
"""The stage of messages that are removed permanently."""
RELEASED_STAGE = "released"
"""The stage of messages that were restored once, and that policies may edit again."""


class SessionSettings(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Settings of a session, stored as JSON in its row; a setting that is not set is as the policy says."""

    policy: str = ""
    """The policy's name, empty for the usual one."""
    schedule: str = ""
    """The schedule's name, empty for the policy's own."""
    window: int | None = None
    """Groups that stay, 0 for all, -1 for the policy's again."""
    max_iterations: int | None = None
    urgency: str = ""
    force: Literal["", "prune", "compress"] = ""
    """The one-time action of the next request."""
    ask: bool = False
    """The next request asks the model for its state."""
    withdrawn: list[str] = []
    """Ids of notes that are to leave the prompt."""


@dataclass(frozen=True, slots=True)
class StoredDecisions:
    """The decisions of one session. Messages are given by their chain keys."""

    settings: SessionSettings = field(default_factory=SessionSettings)
    dropped: Mapping[bytes, str] = field(default_factory=dict)
    """The reasons why messages were dropped."""
    removed: frozenset[bytes] = frozenset()
    """The dropped messages that are removed permanently."""
    restored: frozenset[bytes] = frozenset()
    """Messages that were brought back, which no policy edits again."""
    pinned: frozenset[bytes] = frozenset()
    """Messages that the operator has pinned."""
    unpinned: frozenset[bytes] = frozenset()
    """Messages whose pin the operator has lifted, the client's own pins too."""
    notes: tuple[OperatorNote, ...] = ()
    versions: Mapping[bytes, int] = field(default_factory=dict)
    """The version of the newest row of each message."""
    is_empty: bool = field(init=False)
    """True if nothing was ever decided."""

    def __post_init__(self) -> None:
        nothing = not (self.versions or self.notes) and self.settings == SessionSettings()
        object.__setattr__(self, "is_empty", nothing)

    @property
    def planning_decisions(self) -> OperatorDecisions:
        """The decisions in the form that a plan needs."""
        settings = self.settings
        limits = {"max_iterations": settings.max_iterations, "urgency": settings.urgency or None}
        return OperatorDecisions(
            dropped=self.dropped,
            restored=self.restored,
            window=settings.window,
            notes=self.notes,
            withdrawn_notes=tuple(settings.withdrawn),
            setting_overrides={name: value for name, value in limits.items() if value is not None},
            forced_action=settings.force,
            ask_for_state=settings.ask,
        )

    def find_pins(self, client_pins: frozenset[bytes]) -> frozenset[bytes]:
        """Return the messages that no policy edits. client_pins: those that the branch's client has pinned."""
        return ((client_pins - self.unpinned) | self.pinned | self.restored) - self.dropped.keys()

    def apply_to(self, state: BranchState, *, side: bool) -> BranchState:
        """Return a branch's state with the decisions, for planning. side: a side call is no part of the conversation:
        it gets no notes, and uses up no one-time setting."""
        if self.is_empty:
            return state
        decisions = self.planning_decisions
        if side:
            decisions = replace(decisions, window=None, notes=(), forced_action="", ask_for_state=False)
        return msgspec.structs.replace(
            state,
            decisions=decisions,
            pins=self.find_pins(state.pins),
            # A state that was written in a dropped answer, or about it, is no state of the conversation without that
            # answer.
            states=tuple(one for one in state.states if one[0][:DIGEST_BYTES] not in self.dropped),
        )


NO_DECISIONS = StoredDecisions()
"""The decisions of a session of which nothing was decided, as of most."""


def parse_settings(text: str) -> SessionSettings:
    """Return a session's settings; the defaults where they cannot be read."""
    try:
        return msgspec.json.decode(text, type=SessionSettings)
    except ValueError:
        return SessionSettings()


def make_settings_row(tenant: str, session: str, settings: SessionSettings) -> SettingsRow:
    """Return the row that stores a session's settings."""
    return SettingsRow(tenant, session, msgspec.json.encode(settings).decode())


async def read_decisions(store: Store, tenant: str, session: str) -> StoredDecisions:
    """Read a session's decisions from the store. StoreUnavailable passes through."""
    found = await store.read_decisions(tenant, session, WHOLE_SESSION)
    notes = tuple(OperatorNote(note.note, note.text) for note in found.notes if note.kind == "note")
    read = apply_rows(StoredDecisions(parse_settings(found.settings), notes=notes), [row for row, _ in found.edits])
    return NO_DECISIONS if read.is_empty else read


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
