"""Decisions of a session's operator, in force in every policy: messages that are out or stay, and the window.

A policy decides when its own edits pay. An operator's decision acts with the next request, whatever the policy and its
schedule. It is put in front of the policy's own stages. So steps stay whole, turns stay in order, and protected
messages stay as they are, as for any other edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from proxy.context.plan import Edit, Insert, Proposal, View
from proxy.context.policy import Policy
from proxy.context.stage import Stage, When, changed

NAME = "operator"
"""The stage's name in edits and notes: the name of its module."""
Force = Literal["", "prune", "compress"]


@dataclass(frozen=True, slots=True)
class OperatorNote:
    """A text of the operator for the model."""

    id: str
    """The name of the note in the prompt and for the operator."""
    text: str

    @property
    def mark(self) -> str:
        """The beginning of the note in a prompt."""
        return f"[Operator's note {self.id}]"


@dataclass(frozen=True, slots=True)
class Steering:
    """The operator's decisions in force."""

    dropped: Mapping[bytes, str] = field(default_factory=dict)
    """The reason why each message is out, by chain key (`steered` takes these messages out)."""
    restored: frozenset[bytes] = frozenset()
    """Keys of messages that are back and stay whole."""
    window: int | None = None
    """Number of groups that stay (0: all). -1: the policy's own window counts again. None: it always has."""
    notes: tuple[OperatorNote, ...] = ()
    """Notes that are written at the tail."""
    withdrawn: tuple[str, ...] = ()
    """Ids of notes that are to leave again."""
    fields: Mapping[str, object] = field(default_factory=dict)
    """Settings of stages and voices by their names."""
    force: Force = ""
    """Action of the next request, whatever the schedule says."""
    ask: bool = False
    """True if the next request asks the model for its state."""
    lost: frozenset[str] = frozenset()
    """The public ids of the dropped messages."""

    @property
    def changes(self) -> bool:
        """True if a prompt may have to change because of these decisions, even if the policy changes nothing."""
        return bool(
            self.dropped or self.restored or self.notes or self.withdrawn or self.window is not None or self.ask
        )


@dataclass(frozen=True, slots=True)
class Windowed:
    """Stage that removes the groups outside the operator's window. They come back when the window is opened again."""

    groups: int
    when: ClassVar[When] = "always"

    def __call__(self, view: View) -> Iterable[Proposal]:
        """At most one proposal for a message: the message is gone."""
        if not 0 < self.groups < len(view.groups):
            return
        reason = f"outside the operator's window of {self.groups} groups"
        for n in range(view.groups[-self.groups].start):
            yield Proposal(n, "gone", NAME, reason, 0)


@dataclass(frozen=True, slots=True)
class Told:
    """Voice that writes each of the operator's notes at the tail once. The note is kept where it is."""

    notes: tuple[OperatorNote, ...]

    def __call__(self, view: View) -> Iterable[Insert]:
        """The notes that do not stand in the prompt yet."""
        standing = [edit.text for edit in view.edits.values() if edit.text and edit.action != "gone"]
        for note in self.notes:
            if not any(note.mark in text for text in standing):
                yield Insert("tail", NAME, f"\n\n{note.mark} {note.text}", kept=not view.literal)


def opened(policy: Policy, steering: Steering | None) -> Policy:
    """The policy that carries out the operator's decisions. A policy that changes nothing itself carries out these
    alone."""
    if steering is None or policy.mode == "rewrite" or not steering.changes:
        return policy
    return replace(policy, mode="rewrite", schedule="when_it_pays", stages=(), voices=(), ask="never")


def applied(policy: Policy, steering: Steering | None) -> Policy:
    """The policy with the operator's decisions in force."""
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
    """The stage without its limit on groups and tokens, if it has one: the operator's number of groups replaces it."""
    limits = {"groups": 0, "tokens": 0}
    return changed(stage, limits, NAME) if set(limits) <= set(getattr(stage, "__slots__", ())) else stage


def pruned(view: View, policy: Policy) -> int:
    """The budget in tokens of a prompt that is to be pruned now.

    It is the policy's low share of the window, or of the prompt if the prompt is smaller than the window.
    """
    window = int(view.budget / policy.budget) if view.budget else view.total
    return int(policy.low * min(window, view.total))


def over(edits: Mapping[bytes, Edit], steering: Steering | None) -> set[bytes]:
    """Keys of edits that the operator has taken back.

    These are edits of restored messages, of withdrawn notes, and of references to messages that are out.
    """
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
