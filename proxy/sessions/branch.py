"""State of one conversation in this process: a session, its branches, and what is known of each branch.

Values that change together are one small value: `LastRequest`, `StorePosition`, `Lookups`, `UnstoredValues`. All but
`StorePosition` are frozen and are replaced as a whole. So a copy of a branch, as a preview makes it, changes nothing of
the branch in use.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import NamedTuple

import msgspec

from proxy.chat.message import Message
from proxy.chat.tokens import TokenCounter
from proxy.context.branch_state import BranchState
from proxy.context.plan import Edit, RetrievedText
from proxy.notes.memo_matching import Memo
from proxy.sessions import packing
from proxy.sessions.given_answer import GivenAnswer
from proxy.sessions.hidden_rounds import HiddenRound
from proxy.sessions.operator_decisions import StoredDecisions
from proxy.sessions.packing import Node, Packable
from proxy.sessions.tool_offer import ToolOffer
from proxy.store.base import BranchTipRow
from proxy.store.bindings import BindingRow
from proxy.store.branch_positions import BranchKind, BranchPosition

BranchId = tuple[str, str, str]
"""(tenant, session, branch)"""

MAX_MOVES = 64
"""Limit on the remembered moves of a branch. They distinguish its own moves from the moves of another process."""

NODE_BYTES = 250
"""Bytes of memory of a message: its keys, its node, its places in dictionaries and marks."""
BINDING_BYTES = 500
"""Bytes of memory of a binding: its row with five hashes, and its place in the dictionary."""
EDIT_BYTES = 400
"""Bytes of memory of an edit without its text. The reason and the mark are included."""
INDEX_BYTES = 110
"""Bytes of memory of a message after an answer of the proxy in the index of live sessions, which is not packed."""
PACKED_BYTES = 3_500
"""Bytes of memory of a packed branch and its session in addition to the packed bytes."""


@dataclass(slots=True)
class ReasoningBindings:
    """The prompts that the reasoning in a session is bound to (`exchange.prefix_bindings`)."""

    rows: dict[bytes, BindingRow] = field(default_factory=dict)
    """By the hash of the reasoning's token."""
    are_read: bool = False
    """True if `rows` has those of the store."""
    has_foreign: bool = False
    """True if a request had reasoning that was made past this store; this process alone knows it."""


class _PackedNodes(NamedTuple):
    """The memory of a session while it is packed. `hidden_rounds` with messages are not packed."""

    parts: bytes
    """The bytes that `packing.pack_nodes` makes of it."""
    indexed_count: int
    """Nodes after an answer of the proxy."""


@dataclass(slots=True, eq=False)
class LiveSession(Packable):
    """A session's stored nodes, and the forms and branches of it that are known to be stored."""

    packed_names = "nodes", "forms", "hidden_rounds"

    tenant: str
    session: str
    explicit: bool
    """True if a client has named the session."""
    nodes: dict[bytes, Node] = field(default_factory=dict)
    """Its stored messages, by chain key."""
    forms: set[bytes] = field(default_factory=set)
    """The forms of messages whose bytes are stored."""
    branches: dict[str, Branch] = field(default_factory=dict)
    stored: bool = False
    """The store has messages of it, or was given its row."""
    has_row: bool = False
    """Its row was given to the store for this object. A row that is there stays as it is."""
    partial: bool = False
    """The store may hold branches that are not here. The session was read back for the messages of one request, or
    other processes write to it too."""
    stored_decisions: StoredDecisions | None = None
    """The operator's decisions; None while they have not been read."""
    hidden_rounds: dict[bytes, tuple[HiddenRound, ...]] = field(default_factory=dict)
    """The hidden rounds of the answers to a request, by the chain key of that request's end. Other keys are known
    to the store only. `put_rounds` and `forget_rounds` change the rounds."""
    hidden_rounds_size: int = 0
    """Bytes of the hidden rounds."""
    shared_answers: set[bytes] = field(default_factory=set)
    """Keys of answers that other sessions in the store have too, so that a request behind one may belong to those."""
    knows_shared: bool = False
    """True if the store was asked for others with an answer. Those behind an answer that no other has are its own."""
    bindings: ReasoningBindings = field(default_factory=ReasoningBindings)
    token_counter: TokenCounter | None = None
    """The token counter of its nodes: that of its first request."""
    serial: int = field(default_factory=itertools.count().__next__)
    """Number that tells this object from others of the session: facts noted for it hold for it alone."""
    counted_size: int = 0
    """Its `size` when the live branches were last counted."""
    packed: _PackedNodes | None = field(default=None, init=False, repr=False)
    """`nodes`, `forms` and `hidden_rounds` while they are packed; they are no attributes then."""

    @property
    def size(self) -> int:
        """Bytes of memory that the session takes, estimated within a tenth for agents."""
        packed = self.packed  # a worker thread may unpack it meanwhile
        if packed is None:
            nodes = NODE_BYTES * len(self.nodes)
        else:
            nodes = len(packed.parts) + INDEX_BYTES * packed.indexed_count
        own = nodes + BINDING_BYTES * len(self.bindings.rows) + self.hidden_rounds_size
        return own + sum(branch.size for branch in self.branches.values())

    def pack(self) -> None:
        """Pack what only the next request needs: a fifth of the memory."""
        for branch in self.branches.values():
            branch.pack()
        with packing.LOCK:
            if self.packed is None:
                has_rounds = any(self.hidden_rounds.values())
                parts = packing.pack_nodes(self.nodes, self.forms, () if has_rounds else self.hidden_rounds)
                self.packed = _PackedNodes(parts, sum(node.reached for node in self.nodes.values()))
                del self.nodes, self.forms
                if not has_rounds:
                    del self.hidden_rounds

    def unpack(self) -> None:
        """Unpack all that is packed, of the branches too."""
        self.unpack_values()
        for branch in self.branches.values():
            branch.unpack_values()

    def unpack_values(self) -> None:
        with packing.LOCK:
            if self.packed is not None:
                self.nodes, self.forms, tips = packing.unpack_nodes(self.packed.parts)
                if not self.has_value("hidden_rounds"):
                    self.hidden_rounds = dict.fromkeys(tips, ())
                self.packed = None

    def put_rounds(self, request_tip: bytes, rounds: tuple[HiddenRound, ...]) -> None:
        """Remember the hidden rounds of the answers to a request."""
        self.hidden_rounds_size += sum(one.size for one in rounds) - sum(
            one.size for one in self.hidden_rounds.get(request_tip, ())
        )
        self.hidden_rounds[request_tip] = rounds

    def forget_rounds(self) -> None:
        """Forget the hidden rounds, so that they are read from the store again."""
        self.hidden_rounds.clear()
        self.hidden_rounds_size = 0

    def restore_token_count(self, chain_key: bytes, message: Message, token_counter: TokenCounter) -> bool:
        """Give `token_counter` the tokens of a message from its node. True if they are known."""
        node = self.nodes.get(chain_key)
        if node is None or not node.tokens or node.form != message.form or self.token_counter is not token_counter:
            return False
        token_counter.remember_count(message, node.tokens)
        return True


class ForkPoint(NamedTuple):
    """The place at which a branch leaves another one."""

    parent: str | None = None
    """The name of the other branch; None for a branch that began by itself."""
    key: bytes | None = None
    """The chain key of the last message that both share."""


NO_FORK = ForkPoint()


class LastRequest(msgspec.Struct, frozen=True):
    """The last request of a branch, and what came of it. The next request puts another value in its place."""

    tip_key: bytes | None = None
    """The chain key of its end; None before the first request."""
    answer_key: bytes | None = None
    """The chain key of our answer to it."""
    untailed_tip_key: bytes | None = None
    """The chain key of the message before its last one, if the client may replace that one."""
    untailed_answer_key: bytes | None = None
    """The chain key of our answer behind the message of `untailed_tip_key`; None without one."""
    given_answer: GivenAnswer | None = None
    """That answer, as a client may reword it; None after the branch was read back."""
    failed: bool | None = False
    """True if the last attempt had no answer; None while that is not known, since the branch was read back."""
    exchange: str = ""
    """The exchange that was recorded of it; "" after the branch was read back."""
    other_forms: Mapping[int, bytes] = {}
    """Its messages that came in another form than the first stored one, by position."""

    def has_tip(self, key: bytes) -> bool:
        """True if this is the chain key of its end, or of what it is without a last message that may be replaced."""
        return key == self.tip_key or key == self.untailed_tip_key


NO_REQUEST = LastRequest()


@dataclass(slots=True)
class StorePosition:
    """The position of a branch in the store, as this process knows it: its last moves, and its stored edits."""

    moves: deque[packing.Move] = field(default_factory=lambda: deque(maxlen=MAX_MOVES))
    """Moves by which this process has seen or left the branch in the store."""
    edit_versions: dict[bytes, int] = field(default_factory=dict)
    """The number of edits of each edited message."""
    edit_number: int = 0
    """The version of the newest stored edit."""

    def number_edit(self, key: bytes) -> int:
        """Count one more edit of a message. Return the edit's version."""
        version = self.edit_versions[key] = self.edit_versions.get(key, 0) + 1
        self.edit_number += 1
        return version

    def copy(self) -> StorePosition:
        """Return a copy that changes by itself."""
        return StorePosition(self.moves.copy(), self.edit_versions.copy(), self.edit_number)


class LoadedNotes(NamedTuple):
    """Notes that the store had for a prompt."""

    prompt_key: bytes
    """The chain key of the prompt."""
    hidden_count: int
    """Number of hidden messages in the history then, which are calls of our tools and their results."""
    scratchpad: str
    memos: tuple[Memo, ...]


class SearchHits(NamedTuple):
    """The results of a search of the store for a prompt."""

    prompt_key: bytes
    """The chain key of the prompt."""
    texts: tuple[RetrievedText, ...]


class Relevance(NamedTuple):
    """The nearness of messages to a task, by their vectors."""

    task_form: bytes
    nearness: dict[bytes, float]
    """By the forms of the messages. Vectors that come later add to it."""


class Lookups(msgspec.Struct, frozen=True, eq=False):
    """Results of what was looked up for the prompts of a branch (`exchange.lookups`)."""

    search_hits: SearchHits | None = None
    """Of the newest prompt that the store was searched for."""
    notes: LoadedNotes | None = None
    """The scratchpad and memos that its prompt is given."""
    relevance: Relevance | None = None
    """The nearness of messages to the present task."""
    relevance_task: asyncio.Task[None] | None = None
    """The task that looks for more vectors."""


NO_LOOKUPS = Lookups()


class Beginning(NamedTuple):
    """The beginning of a request, which the provider's cache holds."""

    system_digest: bytes
    """A digest of the system messages."""
    tools_hash: int
    came_at: float
    """The time of the request, in seconds; 0 before an upstream has answered it."""
    caller: tuple[bytes, ...] = ()
    """As in `RequestTraits`."""


class CountedPrompt(msgspec.Struct, frozen=True):
    """The last prompt, with what the provider has counted of it."""

    sent: int
    """Tokens of the prompt that was sent, by our own count."""
    reported: int
    """The same by the count of the provider."""
    own: int
    """Tokens of the client's own prompt, by our own count."""
    counted: int
    """The same by the count of the provider, estimated."""


class UnstoredValues(msgspec.Struct, frozen=True):
    """Facts about the last requests of a branch that are not stored. A process that reads it back does without them."""

    received_bytes: int = 0
    """Bytes of the last request as received."""
    sent_bytes: int = 0
    """Bytes of the last request as it went out."""
    beginning: Beginning | None = None
    """The beginning of the last request."""
    has_long_cache: bool | None = None
    """True if the last reported write to the provider's cache was for the longer lifetime, None without one."""
    counted: CountedPrompt | None = None
    """The last prompt of which the provider has reported tokens."""
    pinged_at: float | None = None
    """Time of the newest ping that has read the last prompt from the provider's cache, in seconds."""
    simulated_state: BranchState | None = None
    """The branch's state as it would be if the prompts that `observe` planned had gone out."""


NO_UNSTORED_VALUES = UnstoredValues()


class _PackedBranch(NamedTuple):
    """The memory of a branch while it is packed."""

    parts: bytes
    """The bytes that `packing.pack_state` makes of it."""
    small_state: BranchState
    """The state without these parts."""
    edit_number: int
    moved_at: float | None


_NO_TEXTS: tuple[Mapping[bytes, Edit], Mapping[str, str], int] = {}, {}, 0


@dataclass(slots=True, eq=False)
class Branch(Packable):
    """One line of history as this process knows it."""

    packed_names = "state", "store_position"

    tenant: str
    session: str
    name: str
    kind: BranchKind
    system: bytes
    """A digest of its system messages, without dates and numbers."""
    live_session: LiveSession
    state: BranchState = field(default_factory=BranchState)
    fork_point: ForkPoint = NO_FORK
    first_tip_keys: tuple[bytes, ...] = ()
    """The key at which the first request of the branch ended, if `LiveSessions` finds the branch by it."""
    last_request: LastRequest = NO_REQUEST
    store_position: StorePosition = field(default_factory=StorePosition)
    stored: bool = False
    """Its row was given to the store."""
    is_confirmed: bool = False
    """The branch is, or was, stored."""
    has_worked: bool = False
    """True if its answers have called tools, or its client has continued after one (`side_calls`). False after it was
    read back, until its next request."""
    may_become_side_call: bool = False
    """True if the branch began while another branch worked. An answer without calls makes a side call of it."""
    lookups: Lookups = NO_LOOKUPS
    unstored: UnstoredValues = NO_UNSTORED_VALUES
    refused_reasoning: frozenset[bytes] = frozenset()
    """Hashes of the tokens of refused reasoning: an upstream found it bound to another prompt. It is left out of every
    later request (`exchange.bound_reasoning`)."""
    tool_offer: ToolOffer | None = None
    """The tools of the proxy that it offers its model; None while that is undecided."""
    planning: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from the time at which a request's messages count as sent until its new edits are in force, or undone."""
    _texts: tuple[Mapping[bytes, Edit], Mapping[str, str], int] = field(default=_NO_TEXTS, repr=False)
    """Edits and answers, and the bytes that they take."""
    _packed: _PackedBranch | None = field(default=None, init=False, repr=False)
    """`state` and `store_position` while they are packed; they are no attributes then."""

    @property
    def id(self) -> BranchId:
        """(tenant, session, branch)"""
        return self.tenant, self.session, self.name

    @property
    def offers_tools(self) -> bool:
        """True if it offers its model tools of the proxy."""
        return self.tool_offer is not None and bool(self.tool_offer.names)

    @property
    def size(self) -> int:
        """Bytes of memory that its state takes, estimated."""
        edits, answers, known = self._texts
        packed = self._packed  # a worker thread may unpack it meanwhile
        state = self.state if packed is None else packed.small_state
        if state.edits is not edits or state.helper_answers is not answers:
            edits, answers = state.edits, state.helper_answers
            known = sum(EDIT_BYTES + getsizeof(e.text) for e in edits.values()) + sum(map(getsizeof, answers.values()))
            self._texts = edits, answers, known
        if packed is not None:
            known += len(packed.parts) + PACKED_BYTES
        texts = [text for _, text in state.states]
        if self.unstored.simulated_state is not None:
            texts += [edit.text or "" for edit in self.unstored.simulated_state.edits.values()]
        if state.lasting_edits:
            texts += [edit.text or "" for edit in state.lasting_edits.values()]
            known += EDIT_BYTES * len(state.lasting_edits)
        if self.lookups is not NO_LOOKUPS:
            texts += self._list_looked_up_texts()
        return known + sum(map(getsizeof, texts))

    def _list_looked_up_texts(self) -> list[str]:
        hits, notes = self.lookups.search_hits, self.lookups.notes
        found = [one.text for one in hits.texts] if hits is not None else []
        return found if notes is None else [*found, notes.scratchpad, *(memo.content for memo in notes.memos)]

    @property
    def moved_at(self) -> float | None:
        """The time of its last move that this process has seen, in seconds; None for a branch that was just begun."""
        packed = self._packed
        if packed is not None:
            return packed.moved_at
        return self.store_position.moves[-1][2] if self.store_position.moves else None

    def pack(self) -> None:
        """Pack the edits, the moves, and what is known of the last prompt, as `LiveSession.pack` does. A branch with
        other edits beside these stays as it is, which is rare."""
        with packing.LOCK:
            self._pack()

    def _pack(self) -> None:
        if self._packed is not None:
            if not any(self.has_value(name) for name in self.packed_names):
                return
            self.unpack_values()
        if self.unstored.simulated_state is not None or self.state.lasting_edits is not None:
            return
        position = self.store_position
        try:
            parts = packing.pack_state(self.state, position.edit_versions, position.moves)
        except UnicodeEncodeError:  # the text of an edit has a lone surrogate, which JSON can carry
            return
        small_state = msgspec.structs.replace(self.state, edits={}, sent_marks=(), sent_sizes=())
        self._packed = _PackedBranch(parts, small_state, position.edit_number, self.moved_at)
        self._texts = _NO_TEXTS
        del self.state, self.store_position

    def unpack_values(self) -> None:
        with packing.LOCK:
            packed = self._packed
            if packed is not None:
                state, versions, moves = packing.unpack_state(packed.parts, packed.small_state)
                # A request that has gone on meanwhile may have set them: then its values count.
                if not self.has_value("state"):
                    self.state = state
                if not self.has_value("store_position"):
                    self.store_position = StorePosition(deque(moves, MAX_MOVES), versions, packed.edit_number)
                self._packed = None

    def inherit(self, other: Branch, shared: Sequence[bytes], length: int) -> None:
        """Begin as a fork of another branch of the session: with the edits on the messages that both share. shared:
        their chain keys. length: messages of the request that begins this branch."""
        state, simulated, nodes = other.state, other.unstored.simulated_state, other.live_session.nodes
        self.state = state.fork(shared, nodes)
        self.unstored = UnstoredValues(
            counted=other.unstored.counted,
            simulated_state=simulated.fork(shared, nodes) if simulated is not None else None,
        )
        if length < len(state.sent_marks) or not state.sent_marks:
            # The client seems to have compacted its history: the upstream may accept a prompt now that it refused
            # before.
            self.state = msgspec.structs.replace(self.state, stopped=None)
        self.fork_point = ForkPoint(other.name, shared[-1])
        self.tool_offer = other.tool_offer
        self.refused_reasoning = other.refused_reasoning
        kept = {*self.state.edits, *(self.state.lasting_edits or ())}
        versions = other.store_position.edit_versions
        self.store_position.edit_versions = {k: v for k, v in versions.items() if k in kept}

    def has_given(self, messages: Sequence[Message], n: int, tip: bytes) -> bool:
        """True if message `n` of a client is the last answer here in the client's own words. tip: the chain key of the
        message before it.

        A whole request with calls and their results is as good as a signature. Behind it the answer only has to call
        the same tools.
        """
        given = self.last_request.given_answer
        if given is None:
            return False
        if given.is_reworded_in(messages[n]):
            return True
        is_next = self.last_request.has_tip(tip) and given.calls_same_tools(messages[n])
        return is_next and any(before.calls for before in messages[:n])

    def may_have_given(self, message: Message) -> bool:
        """False if a client's message, in the place of the last answer here, is plainly another answer."""
        given = self.last_request.given_answer
        return given is None or not given.is_contradicted_by(message)

    def record_move(self, tip: bytes, answer: bytes | None, now: float) -> BranchTipRow:
        """Return the row of its new position."""
        self.store_position.moves.append((tip, answer, now))
        place, asked = (self.tenant, self.session, self.name), self.state.last_state_request
        return BranchTipRow(*place, tip, answer, now, self.state.stopped, asked.serialize() if asked.tip else None)

    def is_at(self, stored: BranchPosition) -> bool:
        """True if no other process has moved the branch, or if memory is ahead of the store."""
        if stored.edits > self.store_position.edit_number or stored.states > len(self.state.states):
            return False
        return not stored.tip or (stored.tip, stored.answer, stored.last_at) in self.store_position.moves


def find_givers(branches: Sequence[Branch], messages: Sequence[Message], n: int, tip: bytes) -> list[Branch]:
    """Return the branches whose last answer message `n` of a client shows, in other words. tip: the chain key of the
    message before it.

    Where several branches stand at that message, an answer that only calls the same tools may be that of any of them.
    So it shows none.
    """
    here = [branch for branch in branches if branch.last_request.has_tip(tip)]
    shown = [b for b in here if b.last_request.given_answer and b.last_request.given_answer.is_reworded_in(messages[n])]
    return here if len(here) == 1 and here[0].has_given(messages, n, tip) else shown


def find_simulated_state(branch: Branch) -> BranchState:
    """A branch's state as it would be if the prompts that were only planned had gone out."""
    state, simulated = branch.state, branch.unstored.simulated_state
    if simulated is None or state.stopped is not None:
        return state
    return msgspec.structs.replace(
        simulated,
        pins=state.pins,
        states=state.states,
        helper_answers=state.helper_answers,
        cache_miss_streak=state.cache_miss_streak,
        cache_hit_seen=state.cache_hit_seen,
    )
