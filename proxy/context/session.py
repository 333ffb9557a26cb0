"""The memory of one thread between two requests, and its next value after a request and after an answer.

A Session is a value: planning never changes it; `after_sending` and `after_answer` return the next one. Any replica can
read its content back from the store, except the marks of the last prompt. These marks only serve to predict the content
of the provider's cache.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from proxy.chat.key import SIZE
from proxy.context.operator import Steering
from proxy.context.plan import Edit, Insert, Plan

BY_MODEL, BY_OPERATOR = b"\0\0\0\0from", b"\0\0\0\0told"
"""Ends of the keys of states that a thread begins with. They say who wrote the state in the thread before."""
DRIFT_LIMIT = 3
"""Exchanges in a row with fewer than half of the predicted cached tokens reported, after which new edits stop."""


def cuts(edits: Mapping[bytes, Edit]) -> int:
    """Number of edits that take something out of the prompt. A note of the model's that was put back does not count."""
    return sum(edit.action != "append" for edit in edits.values())


def losses(edits: Mapping[bytes, Edit]) -> int:
    """Number of edits that take out something that stands nowhere else in the prompt. A note has to make up for
    these."""
    return sum(edit.loses for edit in edits.values())


@dataclass(frozen=True, slots=True)
class Asked:
    """The last request that asked the model for its state and got an answer with text."""

    losses: int = 0
    """Number of edits that had taken something out by then."""
    states: int = 0
    """Number of states before that request."""
    head: bytes = b""
    """The chain key of the request's newest message, empty if it is not known."""

    def write(self) -> str | None:
        """The stored form; None if nothing was asked yet."""
        return f"{self.losses} {self.states} {self.head.hex()}" if self.head else None

    @classmethod
    def read(cls, text: str | None) -> Asked | None:
        """Read the form that `write` made; None for None."""
        if text is None:
            return None
        losses, states, head = text.split(" ")
        return cls(int(losses), int(states), bytes.fromhex(head))


@dataclass(frozen=True, slots=True)
class Session:
    """The memory of a thread that a rewrite may use in addition to the request itself."""

    edits: Mapping[bytes, Edit] = field(default_factory=dict)
    """Edits in force, by chain key."""
    states: tuple[tuple[bytes, str], ...] = ()
    """The model's STATE blocks as (key of the answer, text), oldest first."""
    sent: tuple[bytes, ...] = ()
    """A 16-byte mark of each message of the last prompt."""
    sizes: tuple[int, ...] = ()
    """Tokens of each message of the last prompt."""
    sent_at: float | None = None
    """Time of the last prompt, in seconds."""
    asked: Asked = Asked()
    """The last request that asked the model for its state and got an answer with text."""
    drift: int = 0
    """Exchanges in a row in which the cache served less than half of the predicted tokens."""
    served: bool = False
    """True if the upstream has reported cached tokens at least once."""
    stopped: str | None = None
    """The reason why this thread is not rewritten any more."""
    limit: int | None = None
    """A context window that the upstream named, in tokens."""
    answers: Mapping[str, str] = field(default_factory=dict)
    """Answers of a helper model, by the id of the Ask."""
    said: Mapping[str, int] = field(default_factory=dict)
    """Count of each kind of note when it was last given."""
    pins: frozenset[bytes] = frozenset()
    """Chain keys of messages that must stay."""
    steering: Steering | None = None
    """The operator's decisions for the session, as far as they are known here."""
    owed: tuple[Insert, ...] = ()
    """Notes that had no place in the last prompt. They are given in the next prompt that has one."""
    lasting: Mapping[bytes, Edit] | None = None
    """While a literal policy's edits are in force: the edits that are in force under any other policy; else None."""

    def under(self, *, literal: bool) -> Session:
        """The session as a policy sees it. Edits of literal policies do not concern other policies."""
        if literal or self.lasting is None:
            return self
        return replace(self, edits=self.lasting, lasting=None)

    def with_edits(self, plan: Plan) -> Session:
        """The session with the plan's edits in force. Edits of a literal policy do not last: the edits that they
        replace are put aside."""
        if not plan.literal:
            return replace(self, edits=plan.edits, lasting=None)
        return replace(self, edits=plan.edits, lasting=self.edits if self.lasting is None else self.lasting)

    refetched: Mapping[str, int] = field(default_factory=dict)
    """Cut results that were fetched again, by sort (see `page_faults`)."""
    exposed: Mapping[str, int] = field(default_factory=dict)
    """Cut results in the session's requests, summed over these requests, by sort."""
    looked: int = 0
    """Number of messages of the history when these were last counted."""

    @property
    def state(self) -> str | None:
        """The newest STATE block."""
        return self.states[-1][1] if self.states else None

    @property
    def is_told(self) -> bool:
        """True if the newest STATE block was not written in an answer of this thread.

        It was set or rebuilt for the operator, or written in an earlier thread. Then its key is longer than the chain
        key that it begins with.
        """
        return bool(self.states) and len(self.states[-1][0]) > SIZE

    @property
    def may_edit(self) -> bool:
        """True if edits may be made because they pay, which needs a provider's cache that behaves as predicted.

        The budget is kept in any case.
        """
        return self.stopped is None and (self.drift < DRIFT_LIMIT or self.uncached)

    @property
    def uncached(self) -> bool:
        """True if the upstream reports cached tokens and has never had any: then an edit can spoil no cache."""
        return self.drift >= DRIFT_LIMIT and not self.served

    def after_sending(self, plan: Plan, now: float) -> Session:
        """The session after the plan's bytes have gone out."""
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
        """The session after an answer has ended.

        cached: None if the upstream reported no count, which proves nothing. settled: the chain key of the request's
        newest message, if the model was asked for its state and has answered with text. An answer with calls alone
        leaves the question open.
        """
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
        """The session as it was before the request, if that request comes again.

        head: the chain key of the request's newest message. The question for a state is open again. States of answers
        from which the client did not continue are left out.
        """
        if self.asked.head != head:
            return self
        at = self.asked.states
        states = (*self.states[:at], *(state for state in self.states[at:] if len(state[0]) > SIZE))
        return replace(self, asked=Asked(), states=states)

    def forked(self, keys: Sequence[bytes], others: Container[bytes] | None = None) -> Session:
        """The session of a thread that leaves this one, with the facts about the shared messages only.

        others: keys of the client's messages. An edit of a message that is not among them is kept too, because hidden
        messages stand among the shared ones. None: there are no hidden messages.
        """
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
