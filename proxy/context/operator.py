"""What the operator of a session has decided, in force in every policy: what is out, what stays, how wide the window is.

A policy decides when its own edits pay; an operator's word acts with the next request, whatever the policy and its
schedule. It is put in front of the policy's own stages, so that steps stay whole, turns stay in order and what must
never be touched is not, as for any other edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from proxy.context.plan import Edit, Insert, Proposal, View
from proxy.context.policy import Policy
from proxy.context.stage import When, changed

NAME = "operator"
"""The stage's name in edits and notes: its module's."""
Force = Literal["", "prune", "compress"]


@dataclass(frozen=True, slots=True)
class OperatorNote:
    """A text that the operator has the model told. id: names it in the prompt and to the operator."""

    id: str
    text: str

    @property
    def mark(self) -> str:
        """What it begins with in a prompt."""
        return f"[Operator's note {self.id}]"


@dataclass(frozen=True, slots=True)
class Steering:
    """The decisions in force.

    dropped: why each message is out, by chain key. restored: keys of messages that are back and stay whole. window: how
    many groups stay (0: all), -1 where the policy's own window counts again, None where it always has. notes: told at
    the tail. withdrawn: ids of notes that are to leave again. fields: settings of stages and voices by their names.
    force: what the next request does whatever the schedule says. ask: it asks the model for its state.
    """

    dropped: Mapping[bytes, str] = field(default_factory=dict)
    restored: frozenset[bytes] = frozenset()
    window: int | None = None
    notes: tuple[OperatorNote, ...] = ()
    withdrawn: tuple[str, ...] = ()
    fields: Mapping[str, object] = field(default_factory=dict)
    force: Force = ""
    ask: bool = False

    @property
    def changes(self) -> bool:
        """Whether a prompt may have to differ because of it, even where the policy changes nothing."""
        return bool(self.dropped or self.notes or self.withdrawn or self.window is not None or self.ask)


@dataclass(frozen=True, slots=True)
class Decided:
    """The stage: what the operator has dropped or removed, and what is outside the operator's window."""

    steering: Steering
    when: ClassVar[When] = "always"
    overrules: ClassVar[bool] = True
    """A mark in a message's text keeps policies off it, not the operator."""

    def __call__(self, view: View) -> Iterable[Proposal]:
        """At most one proposal a message: it is gone."""
        first = self._first(view)
        dropped = self.steering.dropped
        reason = f"outside the operator's window of {self.steering.window} groups"
        pins = view.pins
        for n, k in enumerate(view.keys):
            if k in dropped:
                yield Proposal(n, "gone", NAME, dropped[k], 0)
            elif n < first and k not in pins:
                yield Proposal(n, "gone", NAME, reason, 0)

    def _first(self, view: View) -> int:
        window = self.steering.window or 0
        return view.groups[-window].start if 0 < window < len(view.groups) else 0


@dataclass(frozen=True, slots=True)
class Told:
    """The voice: the operator's notes, each written at the tail once and kept where it is."""

    notes: tuple[OperatorNote, ...]

    def __call__(self, view: View) -> Iterable[Insert]:
        """Those that do not stand in the prompt."""
        standing = [edit.text for edit in view.edits.values() if edit.text and edit.action != "gone"]
        for note in self.notes:
            if not any(note.mark in text for text in standing):
                yield Insert("tail", NAME, f"\n\n{note.mark} {note.text}", kept=not view.literal)


def applied(policy: Policy, steering: Steering | None) -> Policy:
    """The policy as it is under these decisions. One that changes nothing itself does what the operator wants alone."""
    if steering is None:
        return policy
    if policy.mode != "rewrite":
        if not steering.changes:
            return policy
        policy = replace(policy, mode="rewrite", schedule="when_it_pays", stages=(), voices=(), ask="never")
    table = dict(steering.fields)
    if steering.window is not None and steering.window >= 0:
        stages = tuple(_unlimited(stage) for stage in policy.stages)
    else:
        stages = policy.stages
    where = "settings"
    return replace(
        policy,
        stages=(Decided(steering), *(changed(stage, table, where) for stage in stages)),
        voices=(*(changed(voice, table, where) for voice in policy.voices), Told(steering.notes)),
        ask="always" if steering.ask else policy.ask,
    )


def _unlimited(stage: object) -> object:
    """A stage that keeps a number of groups keeps all: the operator's number is in force in its place."""
    return changed(stage, {"groups": 0, "tokens": 0}, "") if type(stage).__name__ == "CloseWindow" else stage


def over(edits: Mapping[bytes, Edit], steering: Steering | None) -> set[bytes]:
    """Keys of edits that the operator has taken back: of what is restored, and of notes that were withdrawn."""
    if steering is None:
        return set()
    found = {k for k in steering.restored if k in edits and edits[k].action != "append"}
    marks = [OperatorNote(note, "").mark for note in steering.withdrawn]
    if marks:
        found |= {k for k, e in edits.items() if e.text and any(mark in e.text for mark in marks)}
    return found
