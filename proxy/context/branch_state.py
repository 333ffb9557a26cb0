"""The memory of one branch between two requests, and its next value after a request and after an answer.

A BranchState is a value: planning never changes it; `after_sending` and `after_answer` return the next one. Any replica
can read its content back from the store, except the marks of the last prompt. These marks only serve to predict the
content of the provider's cache.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from proxy.chat.chain import DIGEST_BYTES
from proxy.context.operator_edits import OperatorDecisions
from proxy.context.plan import SUMMARY_STAGES, Edit, Insert, Plan

MODEL_STATE_SUFFIX, OPERATOR_STATE_SUFFIX = b"\0\0\0\0from", b"\0\0\0\0told"
"""Ends of the keys of states that a branch begins with. They say who wrote the state in the branch before."""
CACHE_MISS_LIMIT = 3
"""Exchanges in a row with fewer than half of the predicted cached tokens reported, after which new edits stop."""
_NO_POSITIONS: frozenset[int] = frozenset()
"""One object for all branches: Python makes a new one of 200 bytes at each call."""


def count_losses(edits: Mapping[bytes, Edit]) -> int:
    """Edits that take out something that is nowhere else in the prompt, for which a note has to make up."""
    return sum(edit.is_lossy for edit in edits.values())


class StateRequest(msgspec.Struct, frozen=True):
    """The last request that asked the model for its state and got an answer with text."""

    lossy_edits: int = 0
    """Number of edits that had taken something out by then."""
    state_count: int = 0
    """Number of states before that request."""
    tip: bytes = b""
    """The chain key of the request's newest message, empty if it is not known."""

    def serialize(self) -> str | None:
        """The stored form; None if nothing was asked yet."""
        return f"{self.lossy_edits} {self.state_count} {self.tip.hex()}" if self.tip else None

    @classmethod
    def parse(cls, text: str | None) -> StateRequest | None:
        """Read the form that `serialize` made; None for None."""
        if text is None:
            return None
        losses, states, tip = text.split(" ")
        return cls(int(losses), int(states), bytes.fromhex(tip))


class BranchState(msgspec.Struct, frozen=True):
    """The memory of a branch that a rewrite may use in addition to the request itself."""

    edits: Mapping[bytes, Edit] = {}
    """Edits in force, by chain key."""
    states: tuple[tuple[bytes, str], ...] = ()
    """The model's STATE blocks as (key of the answer, text), oldest first."""
    sent_marks: tuple[bytes, ...] = ()
    """A 16-byte mark of each message of the last prompt."""
    sent_sizes: tuple[int, ...] = ()
    """Tokens of each message of the last prompt."""
    sent_at: float | None = None
    """Time of the last prompt, in seconds."""
    breakpoints: frozenset[int] = _NO_POSITIONS
    """The positions in the last prompt at which a breakpoint of the proxy stood (`breakpoints`)."""
    boundary: bytes = b""
    """The chain key of the last message that the newest batch of edits has changed; b"" if none is known."""
    last_state_request: StateRequest = StateRequest()
    """The last request that asked the model for its state and got an answer with text."""
    cache_miss_streak: int = 0
    """Exchanges in a row in which the cache served less than half of the predicted tokens."""
    cache_hit_seen: bool = False
    """True if the upstream has reported cached tokens at least once."""
    stopped: str | None = None
    """The reason why this branch is not rewritten any more."""
    learned_window: int | None = None
    """A context window that the upstream named, in tokens."""
    helper_answers: Mapping[str, str] = {}
    """Answers of a helper model, by the id of the Ask."""
    note_counts: Mapping[str, int] = {}
    """Count of each kind of note when it was last given."""
    pins: frozenset[bytes] = frozenset()
    """Chain keys of messages that must stay."""
    decisions: OperatorDecisions | None = None
    """The operator's decisions for the session, as far as they are known here."""
    deferred_inserts: tuple[Insert, ...] = ()
    """Notes that had no place in the last prompt. They are given in the next prompt that has one."""
    lasting_edits: Mapping[bytes, Edit] | None = None
    """While a literal policy's edits are in force: the edits that are in force under any other policy; else None."""
    refetched: Mapping[str, int] = {}
    """Cut results that were fetched again, by sort (see `page_faults`)."""
    refetched_keys: frozenset[bytes] = frozenset()
    """Chain keys of the results that fetched a cut result again: without the proxy they would not be there."""
    exposed: Mapping[str, int] = {}
    """Cut results in the session's requests, summed over these requests, by sort."""
    counted_messages: int = 0
    """Number of messages of the history when these were last counted."""
    is_new_fork: bool = False
    """True before the first prompt of a branch that has left another one: edits that it has inherited may say what came
    later in the other one."""

    def for_policy(self, *, literal: bool) -> BranchState:
        """The state as a policy sees it. Edits of literal policies do not concern other policies."""
        if literal or self.lasting_edits is None:
            return self
        return replace(self, edits=self.lasting_edits, lasting_edits=None)

    def with_edits(self, plan: Plan) -> BranchState:
        """The state with the plan's edits in force."""
        return replace(self, edits=plan.edits, lasting_edits=self._find_lasting_edits(plan))

    def _find_lasting_edits(self, plan: Plan) -> Mapping[bytes, Edit] | None:
        """The `lasting_edits` after a plan: a literal policy puts the edits that its own replace aside."""
        if not plan.literal:
            return None
        return self.edits if self.lasting_edits is None else self.lasting_edits

    @property
    def state(self) -> str | None:
        """The newest STATE block."""
        return self.states[-1][1] if self.states else None

    @property
    def is_state_external(self) -> bool:
        """True if the newest STATE block was not written in an answer of this branch.

        It was set or rebuilt for the operator, or written in an earlier branch. Then its key is longer than the chain
        key that it begins with.
        """
        return bool(self.states) and len(self.states[-1][0]) > DIGEST_BYTES

    @property
    def may_edit(self) -> bool:
        """True if edits may be made because they pay, which needs a provider's cache that behaves as predicted.

        The budget is kept in any case.
        """
        return self.stopped is None and (self.cache_miss_streak < CACHE_MISS_LIMIT or self.is_never_cached)

    @property
    def is_never_cached(self) -> bool:
        """True if the upstream reports cached tokens and has never had any: then an edit can spoil no cache."""
        return self.cache_miss_streak >= CACHE_MISS_LIMIT and not self.cache_hit_seen

    def after_sending(self, plan: Plan, now: float, *, has_breakpoints: bool = False) -> BranchState:
        """The state after the plan's bytes have gone out. has_breakpoints: with the plan's breakpoints."""
        return replace(
            self,
            edits=plan.edits,
            lasting_edits=self._find_lasting_edits(plan),
            deferred_inserts=plan.deferred_inserts,
            sent_marks=plan.marks,
            sent_sizes=plan.sizes,
            sent_at=now,
            breakpoints=plan.breakpoint_positions if has_breakpoints else _NO_POSITIONS,
            boundary=plan.boundary or self.boundary,
            note_counts={**self.note_counts, **dict(i.note_count for _, i in plan.placed_inserts if i.note_count)}
            if plan.placed_inserts
            else self.note_counts,
            refetched=plan.refetched or self.refetched,
            refetched_keys=plan.refetched_keys or self.refetched_keys,
            exposed=plan.exposed or self.exposed,
            counted_messages=len(plan.keys),
            is_new_fork=False,
        )

    def after_answer(
        self, *, predicted: int, cached: int | None, state: tuple[bytes, str] | None, answered_tip: bytes | None = None
    ) -> BranchState:
        """The state after an answer has ended.

        cached: None if the upstream reported no count, which proves nothing. answered_tip: the chain key of the
        request's newest message, if the model was asked for its state and has answered with text. An answer with calls
        alone leaves the question open."""
        streak = self.cache_miss_streak
        if cached is not None and (predicted > 0 or cached > 0):
            streak = streak + 1 if cached < predicted // 2 else 0
        hit_seen = self.cache_hit_seen or bool(cached)
        is_same = streak == self.cache_miss_streak and hit_seen == self.cache_hit_seen
        if is_same and state is None and answered_tip is None:
            return self  # as after most answers
        return replace(
            self,
            cache_miss_streak=streak,
            cache_hit_seen=hit_seen,
            states=(*self.states, state) if state else self.states,
            last_state_request=self.last_state_request
            if answered_tip is None
            else self._record_state_request(answered_tip),
        )

    def _record_state_request(self, tip: bytes) -> StateRequest:
        before = self.last_state_request.state_count if tip == self.last_state_request.tip else len(self.states)
        return StateRequest(count_losses(self.edits), before, tip)

    def rewind(self, tip: bytes) -> BranchState:
        """The state as it was before the request, if that request comes again.

        tip: the chain key of the request's newest message. The question for a state is open again. States of answers
        from which the client did not continue are left out.
        """
        if self.last_state_request.tip != tip:
            return self
        at = self.last_state_request.state_count
        states = (*self.states[:at], *(state for state in self.states[at:] if len(state[0]) > DIGEST_BYTES))
        return replace(self, last_state_request=StateRequest(), states=states)

    def without_notes(self) -> BranchState:
        """The state without STATE blocks of answers, which another conversation may have got. An operator's stay."""
        kept = tuple(state for state in self.states if len(state[0]) > DIGEST_BYTES)
        return self if kept == self.states else replace(self, states=kept, last_state_request=StateRequest())

    def fork(self, shared_keys: Sequence[bytes], client_keys: Container[bytes] | None = None) -> BranchState:
        """The state of a branch that leaves this one, with the facts about the shared messages only.

        A summary that also stands for other messages is dropped with all that it replaces. So are notes that were to be
        given in the next prompt: they may be about other messages, too.

        client_keys: keys of the client's messages. An edit of a message that is not among them is kept too, because
        hidden messages are among the shared ones. None: there are no hidden messages."""
        shared = set(shared_keys)

        def select(edits: Mapping[bytes, Edit]) -> dict[bytes, Edit]:
            kept = {k: e for k, e in edits.items() if k in shared or (client_keys and k not in client_keys)}
            torn = SUMMARY_STAGES & {e.stage for k, e in edits.items() if k not in kept}
            return {k: e for k, e in kept.items() if e.stage not in torn} if torn else kept

        states = tuple(state for state in self.states if state[0][:DIGEST_BYTES] in shared)
        return replace(
            self,
            edits=select(self.edits),
            lasting_edits=None if self.lasting_edits is None else select(self.lasting_edits),
            states=states,
            last_state_request=self.last_state_request if states == self.states else StateRequest(),
            deferred_inserts=(),
            note_counts={},
            is_new_fork=True,
            pins=self.pins & shared,
            boundary=self.boundary if self.boundary in shared else b"",
            refetched_keys=self.refetched_keys & shared,
            counted_messages=min(self.counted_messages, len(shared_keys)),
        )
