"""What the operator of a session has decided, in force in every policy: what is out, what stays, how wide it is open.

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
from proxy.context.stage import Stage, When, changed

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

    dropped: why each message is out, by chain key (`steered` takes them out). lost: the public ids of those. restored:
    keys of messages that are back and stay whole. window: how many groups stay (0: all), -1 where the policy's own
    window counts again, None where it always has. notes: told at the tail. withdrawn: ids of notes that are to leave
    again. fields: settings of stages and voices by their names. force: what the next request does whatever the schedule
    says. ask: it asks the model for its state.
    """

    dropped: Mapping[bytes, str] = field(default_factory=dict)
    restored: frozenset[bytes] = frozenset()
    window: int | None = None
    notes: tuple[OperatorNote, ...] = ()
    withdrawn: tuple[str, ...] = ()
    fields: Mapping[str, object] = field(default_factory=dict)
    force: Force = ""
    ask: bool = False
    lost: frozenset[str] = frozenset()

    @property
    def changes(self) -> bool:
        """Whether a prompt may have to differ because of it, even where the policy changes nothing."""
        return bool(
            self.dropped or self.restored or self.notes or self.withdrawn or self.window is not None or self.ask
        )


@dataclass(frozen=True, slots=True)
class Windowed:
    """The stage: what is outside the operator's window leaves, and comes back when it is opened again."""

    groups: int
    when: ClassVar[When] = "always"

    def __call__(self, view: View) -> Iterable[Proposal]:
        """At most one proposal a message: it is gone."""
        if not 0 < self.groups < len(view.groups):
            return
        reason = f"outside the operator's window of {self.groups} groups"
        for n in range(view.groups[-self.groups].start):
            yield Proposal(n, "gone", NAME, reason, 0)


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


def opened(policy: Policy, steering: Steering | None) -> Policy:
    """The policy for an operator who wants something of it: one that changes nothing itself does that alone."""
    if steering is None or policy.mode == "rewrite" or not steering.changes:
        return policy
    return replace(policy, mode="rewrite", schedule="when_it_pays", stages=(), voices=(), ask="never")


def applied(policy: Policy, steering: Steering | None) -> Policy:
    """The policy as it is under these decisions."""
    if steering is None:
        return policy
    stages = policy.stages
    if steering.window is not None and steering.window >= 0:
        stages = tuple(_unlimited(stage) for stage in stages)
    return replace(
        policy,
        stages=(Windowed(steering.window or 0), *(changed(stage, steering.fields, NAME) for stage in stages)),
        voices=(*(changed(voice, steering.fields, NAME) for voice in policy.voices), Told(steering.notes)),
        ask="always" if steering.ask else policy.ask,
    )


def _unlimited(stage: Stage) -> Stage:
    """A stage that keeps a number of groups keeps all: the operator's number is in force in its place."""
    limits = {"groups": 0, "tokens": 0}
    return changed(stage, limits, NAME) if set(limits) <= set(getattr(stage, "__slots__", ())) else stage


def pruned(view: View, policy: Policy) -> int:
    """The budget of a prompt that is to be pruned now: the low mark of the window, where it is over that, and in any
    case that share of what it has."""
    window = int(view.budget / policy.budget) if view.budget else view.total
    return int(policy.low * min(window, view.total))


def over(edits: Mapping[bytes, Edit], steering: Steering | None) -> set[bytes]:
    """Keys of edits that the operator has taken back: of what is restored, of notes that were withdrawn, and
    of references to what is out."""
    if steering is None:
        return set()
    found = {k for k in steering.restored if k in edits and edits[k].action != "append"}
    if steering.lost:
        found |= {
            k
            for k, e in edits.items()
            if e.stage == "refer_repeats" and any(i in (e.text or "") for i in steering.lost)
        }
    marks = [OperatorNote(note, "").mark for note in steering.withdrawn]
    if marks:
        found |= {k for k, e in edits.items() if e.text and any(mark in e.text for mark in marks)}
    return found
