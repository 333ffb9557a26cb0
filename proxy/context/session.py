"""All that is remembered of one thread between two requests, and how it moves on.

A Session is a value: planning never changes it, `sent` and `answered` return the next one. What it holds can
be read back from the store by any replica; the marks of the last prompt cannot, and are only used to predict
what the provider's cache holds.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from proxy.chat.key import SIZE
from proxy.context.operator import Steering
from proxy.context.plan import Edit, Insert, Plan

BY_MODEL, BY_OPERATOR = b"\0\0\0\0from", b"\0\0\0\0told"
"""Ends of the keys of states that a thread begins with: who had written them in the thread before."""
DRIFT_LIMIT = 3
"""Exchanges in a row with fewer cached tokens reported than half of those predicted, until new edits stop."""


def cuts(edits: Mapping[bytes, Edit]) -> int:
    """How many edits take something out of the prompt: a note of the model's that was put back is none of them."""
    return sum(edit.action != "append" for edit in edits.values())


def losses(edits: Mapping[bytes, Edit]) -> int:
    """How many edits take something out of the prompt that stands nowhere else in it: what a note has to make up
    for."""
    return sum(edit.loses for edit in edits.values())


@dataclass(frozen=True, slots=True)
class Asked:
    """The last request that asked the model for its state and got an answer with text.

    losses: how many edits had taken something out by then. states: how many states there were before it. head: the
    request's head, empty where it is not known.
    """

    losses: int = 0
    states: int = 0
    head: bytes = b""

    def write(self) -> str | None:
        """As it is stored; None where nothing was asked yet."""
        return f"{self.losses} {self.states} {self.head.hex()}" if self.head else None

    @classmethod
    def read(cls, text: str | None) -> Asked | None:
        """As `write` made it."""
        if text is None:
            return None
        losses, states, head = text.split(" ")
        return cls(int(losses), int(states), bytes.fromhex(head))


@dataclass(frozen=True, slots=True)
class Session:
    """What a rewrite may know beside the request itself.

    edits: in force, by chain key. states: the model's STATE blocks as (key of the answer, text), oldest first.
    sent, sizes: a 16-byte mark and the size in tokens of each message of the last prompt. sent_at: when, in seconds.
    asked: when an answer last settled that the model had been asked for its state. drift: exchanges in a row in
    which the cache served less than predicted. stopped: why this thread is not rewritten any more. limit: a context
    window that the upstream named. answers: what a helper model has answered, by the id of the Ask. said: how often a
    kind of note had occurred when it was last given. pins: chain keys of messages that must stay. steering: what the
    operator has decided for the session, as far as it is known here. refetched: cut results that were fetched again, by
    sort (see `page_faults`). exposed: cut results in its requests, added up over these, by sort. looked: how many
    messages the history had when these were last counted.
    """

    edits: Mapping[bytes, Edit] = field(default_factory=dict)
    states: tuple[tuple[bytes, str], ...] = ()
    sent: tuple[bytes, ...] = ()
    sizes: tuple[int, ...] = ()
    sent_at: float | None = None
    asked: Asked = Asked()
    drift: int = 0
    served: bool = False
    """The upstream has reported cached tokens at least once."""
    stopped: str | None = None
    limit: int | None = None
    answers: Mapping[str, str] = field(default_factory=dict)
    said: Mapping[str, int] = field(default_factory=dict)
    pins: frozenset[bytes] = frozenset()
    steering: Steering | None = None
    owed: tuple[Insert, ...] = ()
    """Notes that had no place in the last prompt: told in the next one that has."""
    lasting: Mapping[bytes, Edit] | None = None
    """While the edits in force are a literal policy's: those that are in force under any other; else None."""

    def under(self, *, literal: bool) -> Session:
        """The session as a policy sees it: edits of literal policies are no others' business."""
        if literal or self.lasting is None:
            return self
        return replace(self, edits=self.lasting, lasting=None)

    def with_edits(self, plan: Plan) -> Session:
        """The session with the plan's edits in force. Those of a literal policy do not last: what they stand in for is
        put aside."""
        if not plan.literal:
            return replace(self, edits=plan.edits, lasting=None)
        return replace(self, edits=plan.edits, lasting=self.edits if self.lasting is None else self.lasting)

    refetched: Mapping[str, int] = field(default_factory=dict)
    exposed: Mapping[str, int] = field(default_factory=dict)
    looked: int = 0

    @property
    def state(self) -> str | None:
        """The newest STATE block."""
        return self.states[-1][1] if self.states else None

    @property
    def is_told(self) -> bool:
        """Whether that block was not written in an answer of this thread, but set or rebuilt for the operator, or
        written in a thread before it: then its key is longer than the chain key that it begins with."""
        return bool(self.states) and len(self.states[-1][0]) > SIZE

    @property
    def may_edit(self) -> bool:
        """Whether edits may be made because they pay: not while the provider's cache behaves otherwise than predicted.
        The budget is kept to in any case."""
        return self.stopped is None and (self.drift < DRIFT_LIMIT or self.uncached)

    @property
    def uncached(self) -> bool:
        """Whether the upstream reports cached tokens and never has any: there is no cache that an edit could spoil."""
        return self.drift >= DRIFT_LIMIT and not self.served

    def after_sending(self, plan: Plan, now: float) -> Session:
        """The session once the plan's bytes have gone out."""
        return replace(
            self.with_edits(plan),
            owed=plan.owed,
            sent=plan.marks,
            sizes=plan.sizes,
            sent_at=now,
            said={**self.said, **dict(i.said for _, i in plan.placed if i.said)} if plan.placed else self.said,
            refetched=plan.refetched or self.refetched,
            exposed=plan.exposed or self.exposed,
            looked=len(plan.keys),
        )

    def after_answer(
        self, *, predicted: int, cached: int | None, state: tuple[bytes, str] | None, settled: bytes | None = None
    ) -> Session:
        """The session once an answer has ended. `cached` is None where the upstream reported none: that says
        nothing. settled: the head of the request, where the model was asked for its state and has answered with
        text; calls alone leave that open."""
        drift = self.drift
        if cached is not None and (predicted > 0 or cached > 0):
            drift = drift + 1 if cached < predicted // 2 else 0
        return replace(
            self,
            drift=drift,
            served=self.served or bool(cached),
            states=(*self.states, state) if state else self.states,
            asked=self.asked if settled is None else self._settled(settled),
        )

    def _settled(self, head: bytes) -> Asked:
        before = self.asked.states if head == self.asked.head else len(self.states)
        return Asked(losses(self.edits), before, head)

    def before(self, head: bytes) -> Session:
        """The session as the request with this head found it, where it comes again: asked as it was, and without the
        states of answers that its client has not gone on from."""
        if self.asked.head != head:
            return self
        at = self.asked.states
        states = (*self.states[:at], *(state for state in self.states[at:] if len(state[0]) > SIZE))
        return replace(self, asked=Asked(), states=states)

    def forked(self, keys: Sequence[bytes], others: Container[bytes] | None = None) -> Session:
        """The session of a thread that leaves this one: only what belongs to the messages that both share. others: keys
        of the client's messages; edits of what is none of these are kept too, since hidden messages stand among those
        that are shared. None: there are none of these."""
        shared = set(keys)

        def stays(key: bytes) -> bool:
            return key in shared or (others is not None and key not in others)

        return replace(
            self,
            edits={key: edit for key, edit in self.edits.items() if stays(key)},
            lasting=None if self.lasting is None else {k: e for k, e in self.lasting.items() if stays(k)},
            states=tuple(state for state in self.states if state[0][:SIZE] in shared),
            pins=self.pins & shared,
            looked=min(self.looked, len(keys)),
        )
