"""Operator's decisions for a session: read from the store, kept with the session's memory, put into its plans.

Decisions are filed under the session and the chain keys of messages, not under a thread. So a branch that the client
leaves later, or has left before, has the decisions on the messages that it shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from proxy.chat.key import SIZE
from proxy.context.operator import NAME, OperatorNote, Steering
from proxy.context.session import Session
from proxy.exchange.steering.shapes import SessionSettings
from proxy.store.base import EditRow, Store

WIDE = ""
"""Stands in the place of a thread's name for decisions on the whole session."""
REMOVED = "removed"
"""The stage of messages that are removed for good."""
RELEASED = "released"
"""The stage of messages that were restored once, and that policies may edit again."""


@dataclass(frozen=True, slots=True)
class InForce:
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
    def steering(self) -> Steering:
        """The decisions in the form that a plan needs."""
        told = self.settings
        limits = {"max_iterations": told.max_iterations, "urgency": told.urgency or None}
        return Steering(
            dropped=self.dropped,
            restored=self.restored,
            window=told.window,
            notes=self.notes,
            withdrawn=tuple(told.withdrawn),
            fields={name: value for name, value in limits.items() if value is not None},
            force=told.force,
            ask=told.ask,
        )

    @property
    def is_empty(self) -> bool:
        """True if nothing was ever decided."""
        return not (self.versions or self.notes) and self.settings == SessionSettings()

    def pins(self, thread: frozenset[bytes]) -> frozenset[bytes]:
        """Return the messages that no policy edits. thread: those that the thread's client has pinned itself."""
        return ((thread - self.unpinned) | self.pinned | self.restored) - self.dropped.keys()

    def put_into(self, state: Session, *, side: bool) -> Session:
        """Return a thread's state with the decisions, for planning. side: a side call is no part of the conversation:
        it gets no notes, and uses up no one-time setting."""
        if self.is_empty:
            return state
        steering = self.steering
        if side:
            steering = replace(steering, window=None, notes=(), force="", ask=False)
        return replace(
            state,
            steering=steering,
            pins=self.pins(state.pins),
            # A state that was written in a dropped answer, or about it, is no state of the conversation without that
            # answer.
            states=tuple(one for one in state.states if one[0][:SIZE] not in self.dropped),
        )


def read_settings(text: str) -> SessionSettings:
    """Return a session's settings; the defaults where they cannot be read."""
    try:
        return msgspec.json.decode(text, type=SessionSettings)
    except ValueError:
        return SessionSettings()


async def read(store: Store, tenant: str, session: str) -> InForce:
    """Read a session's decisions from the store. StoreUnavailable passes through."""
    found = await store.decided(tenant, session, WIDE)
    told = tuple(OperatorNote(note.note, note.text) for note in found.notes if note.kind == "note")
    return with_rows(InForce(read_settings(found.settings), notes=told), [row for row, _ in found.edits])


def with_rows(known: InForce, rows: list[EditRow]) -> InForce:
    """Return the decisions with these rows applied after them, in their order."""
    dropped, versions = dict(known.dropped), dict(known.versions)
    removed, restored = set(known.removed), set(known.restored)
    pinned, unpinned = set(known.pinned), set(known.unpinned)
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
            removed |= {k} if row.stage == REMOVED else set()
        elif k not in removed:
            dropped.pop(k, None)
            if row.stage == NAME:
                restored.add(k)
            else:
                restored.discard(k)
    return replace(
        known,
        dropped=dropped,
        removed=frozenset(removed),
        restored=frozenset(restored),
        pinned=frozenset(pinned),
        unpinned=frozenset(unpinned),
        versions=versions,
    )
