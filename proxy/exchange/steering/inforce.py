"""What the operator has decided for a session: read from the store, kept with the session's memory, put into its plans.

Decisions are filed under the session and the chain keys of messages, not under a thread: a branch that the client
leaves later, or has left before, has them for the messages that it shares.
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
"""In the place of a thread's name: what is decided for the whole session."""
REMOVED = "removed"
"""The stage of what is gone for good."""
RELEASED = "released"
"""The stage of what was restored once, and is the policy's again."""


@dataclass(frozen=True, slots=True)
class InForce:
    """The decisions of one session. dropped: why, by chain key. removed: those of them that are gone for good. pinned,
    unpinned: by the operator. versions: of the newest row of each message."""

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
        """As a plan needs it."""
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
        """Whether nothing was ever decided."""
        return not (self.versions or self.notes) and self.settings == SessionSettings()

    def pins(self, thread: frozenset[bytes]) -> frozenset[bytes]:
        """What no policy edits, beside what the thread's client has pinned itself."""
        return ((thread - self.unpinned) | self.pinned | self.restored) - self.dropped.keys()

    def put_into(self, state: Session, *, side: bool) -> Session:
        """A thread's session as it is planned with. side: a side call is none of the conversation: nothing is told in
        it, and it uses up nothing."""
        if self.is_empty:
            return state
        steering = self.steering
        if side:
            steering = replace(steering, window=None, notes=(), force="", ask=False)
        return replace(
            state,
            steering=steering,
            pins=self.pins(state.pins),
            # What was written in an answer that is out, or about it, is no state of the conversation without it.
            states=tuple(one for one in state.states if one[0][:SIZE] not in self.dropped),
        )


def read_settings(text: str) -> SessionSettings:
    """A session's settings; the usual ones where they cannot be read."""
    try:
        return msgspec.json.decode(text, type=SessionSettings)
    except ValueError:
        return SessionSettings()


async def read(store: Store, tenant: str, session: str) -> InForce:
    """What is stored of a session's decisions. StoreUnavailable passes through."""
    found = await store.decided(tenant, session, WIDE)
    told = tuple(OperatorNote(note.note, note.text) for note in found.notes if note.kind == "note")
    return with_rows(InForce(read_settings(found.settings), notes=told), [row for row, _ in found.edits])


def with_rows(known: InForce, rows: list[EditRow]) -> InForce:
    """The decisions with these made after them, in their order."""
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
