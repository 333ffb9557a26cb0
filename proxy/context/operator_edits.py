"""Decisions of a session's operator, in force in every policy: messages that are out or stay, and the window.

A policy decides when its own edits pay. An operator's decision acts with the next request, whatever the policy and its
schedule. It is put before the policy's own stages. So steps stay whole, turns stay in order, and protected
messages stay as they are, as for any other edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from proxy.context.plan import Edit, Insert, Proposal
from proxy.context.policy import Policy
from proxy.context.stage import Injection, Stage, When, apply_settings
from proxy.context.view import View

NAME = "operator"
"""The stage's name in edits and notes."""
ForcedAction = Literal["", "prune", "compress"]


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
class OperatorDecisions:
    """The operator's decisions in force."""

    dropped: Mapping[bytes, str] = field(default_factory=dict)
    """The reason why each message is out, by chain key (`remove_dropped_messages` takes these messages out)."""
    restored: frozenset[bytes] = frozenset()
    """Keys of messages that are back and stay whole."""
    window: int | None = None
    """Number of groups that stay (0: all). -1: the policy's own window counts again. None: it always has."""
    notes: tuple[OperatorNote, ...] = ()
    """Notes that are written at the tail."""
    withdrawn_notes: tuple[str, ...] = ()
    """Ids of notes that are to leave again."""
    setting_overrides: Mapping[str, object] = field(default_factory=dict)
    """Settings of stages and injections by their names."""
    forced_action: ForcedAction = ""
    """Action of the next request, whatever the schedule says."""
    ask_for_state: bool = False
    """True if the next request asks the model for its state."""
    dropped_ids: frozenset[str] = frozenset()
    """The public ids of the dropped messages."""

    @property
    def may_change_prompt(self) -> bool:
        """True if a prompt may have to change because of these decisions, even if the policy changes nothing."""
        return bool(
            self.dropped
            or self.restored
            or self.notes
            or self.withdrawn_notes
            or self.window is not None
            or self.ask_for_state
        )


@dataclass(frozen=True, slots=True)
class OperatorWindowStage(Stage):
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
class OperatorNoteInjection(Injection):
    """Injection that writes each of the operator's notes at the tail once. The note is kept where it is."""

    notes: tuple[OperatorNote, ...]

    def __call__(self, view: View) -> Iterable[Insert]:
        """The notes that are not in the prompt yet."""
        texts = [edit.text for edit in view.edits.values() if edit.text and edit.action != "gone"]
        for note in self.notes:
            if not any(note.mark in text for text in texts):
                yield Insert("tail", NAME, f"\n\n{note.mark} {note.text}", persistent=not view.literal)


def is_note(edit: Edit) -> bool:
    """True if the edit holds a note that is kept where it is. Only a withdrawal of the note ends it."""
    return edit.stage == NAME and edit.action == "append"


def allow_rewrite(policy: Policy, decisions: OperatorDecisions | None) -> Policy:
    """The policy that carries out the operator's decisions, with its own edits if it makes any."""
    if decisions is None or policy.mode == "rewrite" or not decisions.may_change_prompt:
        return policy
    return replace(policy, mode="rewrite", schedule="when_it_pays", stages=(), injections=(), ask="never")


def apply_to_policy(policy: Policy, decisions: OperatorDecisions) -> Policy:
    """The policy with the operator's decisions in force."""
    stages = policy.stages
    if decisions.window is not None and decisions.window >= 0:
        stages = tuple(_remove_limits(stage) for stage in stages)
    return replace(
        policy,
        stages=(
            OperatorWindowStage(decisions.window or 0),
            *(apply_settings(stage, decisions.setting_overrides, NAME) for stage in stages),
        ),
        injections=(
            *(apply_settings(injection, decisions.setting_overrides, NAME) for injection in policy.injections),
            OperatorNoteInjection(decisions.notes),
        ),
        ask="always" if decisions.ask_for_state else policy.ask,
    )


def _remove_limits(stage: Stage) -> Stage:
    """The stage without its limit on groups and tokens, if it has one: the operator's number of groups replaces it."""
    limits = {"groups": 0, "tokens": 0}
    return apply_settings(stage, limits, NAME) if set(limits) <= set(getattr(stage, "__slots__", ())) else stage


def compute_prune_budget(view: View, policy: Policy) -> int:
    """The budget in tokens of a prompt that is to be pruned now.

    It is the policy's low share of the window, or of the prompt if the prompt is smaller than the window.
    """
    window = int(view.budget / policy.budget) if view.budget else view.total
    return int(policy.low * min(window, view.total))


def find_revoked_edits(edits: Mapping[bytes, Edit], decisions: OperatorDecisions) -> set[bytes]:
    """Keys of edits that the operator has taken back.

    These are edits of restored messages, of withdrawn notes, and of references to messages that are out.
    """
    revoked = {key for key in decisions.restored if key in edits and edits[key].action != "append"}
    if decisions.dropped_ids:
        revoked |= {
            key
            for key, edit in edits.items()
            if edit.stage == "refer_repeats" and any(name in (edit.text or "") for name in decisions.dropped_ids)
        }
    marks = [OperatorNote(note_id, "").mark for note_id in decisions.withdrawn_notes]
    if marks:
        revoked |= {key for key, edit in edits.items() if edit.text and any(mark in edit.text for mark in marks)}
    return revoked
