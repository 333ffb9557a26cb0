"""State of one conversation in this process, and its reading from the store."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from proxy.chat.message import Message
from proxy.chat.tokens import TokenCounter
from proxy.context.branch_state import BranchState, StateRequest, count_losses
from proxy.context.plan import Edit, RetrievedText
from proxy.notes.memo_matching import Memo
from proxy.sessions import packing
from proxy.sessions.hidden_rounds import HiddenRound
from proxy.sessions.operator_decisions import StoredDecisions
from proxy.sessions.packing import Node
from proxy.sessions.tool_offer import ToolOffer
from proxy.store.base import BranchRecord, BranchTipRow, EditRow
from proxy.store.bindings import BindingRow
from proxy.store.branch_positions import BranchKind, BranchPosition

BranchId = tuple[str, str, str]
"""(tenant, session, branch)"""

MAX_POSITIONS = 64
"""Limit on the remembered moves of a branch. They distinguish its own moves from the moves of another process."""

NODE_BYTES = 250
"""Bytes of memory of a message: its keys, its node, its places in the dictionaries and in the marks of the last
prompt."""
BINDING_BYTES = 500
"""Bytes of memory of a binding: its row with five hashes, and its place in the dictionary."""
EDIT_BYTES = 400
"""Bytes of memory of an edit without its text. The reason and the mark are included."""
INDEX_BYTES = 110
"""Bytes of memory of a message behind an answer of the proxy in the index of live sessions, which is not packed."""
PACKED_BYTES = 3_500
"""Bytes of memory of a packed branch and its session in addition to the packed bytes."""

_packing = threading.RLock()
"""Held while memory is packed or unpacked: a worker thread may look at it while the event loop packs it."""


def _has_value(owner: object, name: str) -> bool:
    """True if an attribute is not packed."""
    try:
        object.__getattribute__(owner, name)
    except AttributeError:
        return False
    return True


@dataclass(slots=True, eq=False)
class LiveSession:
    """A session's stored nodes, and the forms and branches of it that are known to be stored."""

    tenant: str
    session: str
    explicit: bool
    nodes: dict[bytes, Node] = field(default_factory=dict)
    forms: set[bytes] = field(default_factory=set)
    branches: dict[str, Branch] = field(default_factory=dict)
    stored: bool = False
    partial: bool = False
    """The store may hold branches that are not here. The session was read back for the messages of one request, or
    other processes write to it too."""
    stored_decisions: StoredDecisions | None = None
    """The operator's decisions; None while they have not been read."""
    hidden_rounds: dict[bytes, tuple[HiddenRound, ...]] = field(default_factory=dict)
    """The hidden rounds behind the answers to a request, by the chain key of that request's end. Other keys are known
    to the store only. `put_rounds` and `forget_rounds` change the rounds."""
    hidden_bytes: int = 0
    """Bytes of the hidden rounds."""
    bindings: dict[bytes, BindingRow] = field(default_factory=dict)
    """The prompts that reasoning is bound to, by the hash of its token (`exchange.prefix_bindings`)."""
    bindings_read: bool = False
    """True if `bindings` has those of the store."""
    has_foreign_reasoning: bool = False
    """True if a request had reasoning that was made past this store; this process alone knows it."""
    token_counter: TokenCounter | None = None
    """The token counter of its nodes: that of its first request."""
    serial: int = field(default_factory=itertools.count().__next__)
    """Number that tells this object from others of the same session: facts noted for one object do not hold for the
    next."""
    counted_size: int = 0
    """Its `size` when the live branches were last counted."""
    _indexed_count: int = field(default=0, init=False, repr=False)
    """Nodes behind an answer of the proxy, counted when they are packed."""
    packed: bytes | None = field(default=None, init=False, repr=False)
    """`nodes`, `forms` and `hidden_rounds` while they are packed; they are no attributes then. Rounds with messages are
    not packed."""

    @property
    def size(self) -> int:
        """Bytes of memory that the session takes, estimated: a tenth off for conversations of agents."""
        packed = self.packed  # a worker thread may unpack it meanwhile
        nodes = NODE_BYTES * len(self.nodes) if packed is None else len(packed) + INDEX_BYTES * self._indexed_count
        own = nodes + BINDING_BYTES * len(self.bindings) + self.hidden_bytes
        return own + sum(branch.size for branch in self.branches.values())

    def pack(self) -> None:
        """Pack what only the next request needs: a fifth of the memory. It unpacks itself when it is looked at, so
        that a request that has the session may go on. Only the event loop's thread may pack."""
        for branch in self.branches.values():
            branch.pack()
        with _packing:
            if self.packed is None:
                has_rounds = any(self.hidden_rounds.values())
                self._indexed_count = sum(node.reached for node in self.nodes.values())
                self.packed = packing.pack_nodes(self.nodes, self.forms, () if has_rounds else self.hidden_rounds)
                del self.nodes, self.forms
                if not has_rounds:
                    del self.hidden_rounds

    def unpack(self) -> None:
        """Unpack all that is packed."""
        self._unpack_nodes()
        for branch in self.branches.values():
            branch.unpack()

    def _unpack_nodes(self) -> None:
        with _packing:
            if self.packed is not None:
                self.nodes, self.forms, tips = packing.unpack_nodes(self.packed)
                if not _has_value(self, "hidden_rounds"):
                    self.hidden_rounds = dict.fromkeys(tips, ())
                self.packed = None

    if not TYPE_CHECKING:  # for the type checker the class would have any attribute

        def __getattr__(self, name: str) -> Any:
            """Unpack. Python calls this for an attribute that is not there."""
            if name not in ("nodes", "forms", "hidden_rounds"):
                raise AttributeError(name)
            with _packing:
                self._unpack_nodes()
                return object.__getattribute__(self, name)

    def put_rounds(self, request_tip: bytes, rounds: tuple[HiddenRound, ...]) -> None:
        """Remember the hidden rounds behind the answers to a request."""
        self.hidden_bytes += sum(one.size for one in rounds) - sum(
            one.size for one in self.hidden_rounds.get(request_tip, ())
        )
        self.hidden_rounds[request_tip] = rounds

    def forget_rounds(self) -> None:
        """Forget the hidden rounds, so that they are read from the store again."""
        self.hidden_rounds.clear()
        self.hidden_bytes = 0

    def restore_token_count(self, chain_key: bytes, message: Message, token_counter: TokenCounter) -> bool:
        """Give `token_counter` the tokens of a message from its node. True if they are known."""
        node = self.nodes.get(chain_key)
        if node is None or not node.tokens or node.form != message.form or self.token_counter is not token_counter:
            return False
        token_counter.remember_count(message, node.tokens)
        return True


class _PackedBranch(NamedTuple):
    """The memory of a branch while it is packed."""

    parts: bytes
    """The bytes that `packing.pack_state` makes of it."""
    small_state: BranchState
    """The state without these parts."""
    moved_at: float | None


_PACKED_NAMES = ("state", "edit_versions", "positions")
_NO_TEXTS: tuple[Mapping[bytes, Edit], Mapping[str, str], int] = {}, {}, 0


class LoadedNotes(NamedTuple):
    """Notes that the store had for a prompt."""

    prompt_key: bytes
    """The chain key of the prompt."""
    hidden_count: int
    """Number of hidden messages in the history then, which are calls of our tools and their results."""
    scratchpad: str
    memos: tuple[Memo, ...]


@dataclass(slots=True, eq=False)
class Branch:
    """One line of history as this process knows it."""

    tenant: str
    session: str
    name: str
    kind: BranchKind
    system: bytes
    live_session: LiveSession
    state: BranchState = field(default_factory=BranchState)
    parent: str | None = None
    fork_key: bytes | None = None
    tip_key: bytes | None = None
    """The chain key of the last request's end."""
    answer_key: bytes | None = None
    """The chain key of our answer to that request."""
    answer_call_ids: frozenset[str] = frozenset()
    """The ids of the calls in that answer."""
    edit_versions: dict[bytes, int] = field(default_factory=dict)
    """The number of edits of each edited message."""
    edit_number: int = 0
    """The version of the newest stored edit."""
    first_tip_key: bytes | None = None
    """The key at which the first request of the branch ended."""
    failed: bool = False
    """The last attempt had no answer."""
    stored: bool = False
    last_exchange: str = ""
    """The last exchange that was recorded."""
    other_forms: dict[int, bytes] = field(default_factory=dict)
    """The messages of that exchange received in another form than the first stored one, by position."""
    read_back: bool = False
    """The branch comes from the store, and it is not known yet if the last attempt failed."""
    is_working: bool = False
    """True if its answers have called tools, or its client has continued after one (`side_calls`). False after it was
    read back, until its next request."""
    may_become_side_call: bool = False
    """True if the branch began while another branch worked. An answer without calls makes a side call of it."""
    positions: deque[tuple[bytes, bytes | None, float]] = field(default_factory=lambda: deque(maxlen=MAX_POSITIONS))
    """Positions at which this process has seen or left the branch in the store."""
    is_confirmed: bool = False
    """The branch is, or was, stored."""
    search_hits: tuple[bytes, tuple[RetrievedText, ...]] | None = None
    """The chain key of the newest prompt that the store was searched for, and the results of the search."""
    relevance: tuple[bytes, dict[bytes, float]] | None = None
    """The form of the present task, and how near messages are to it, by their forms."""
    relevance_task: asyncio.Task[None] | None = None
    loaded_notes: LoadedNotes | None = None
    """The scratchpad and memos that its prompt is given."""
    body_sizes: tuple[int, int] = 0, 0
    """Bytes of the last request: as received, and as it went out."""
    simulated_state: BranchState | None = None
    """Its state as it would be if the prompts that `observe` planned had gone out; this process alone knows it."""
    refused_reasoning: frozenset[bytes] = frozenset()
    """Hashes of the tokens of refused reasoning: an upstream found it bound to another prompt. It is left out of every
    later request (`exchange.bound_reasoning`)."""
    has_long_cache: bool | None = None
    """True if the last write to the provider's cache that was reported was for the longer lifetime, None if none was
    reported. This process alone knows it."""
    tool_offer: ToolOffer | None = None
    """The tools of the proxy that it offers its model; None while that is undecided."""
    planning: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from the time at which a request's messages count as sent until its new edits are in force, or undone."""
    last_beginning: tuple[bytes, int, float] | None = None
    """The beginning of its last request: a digest of the system messages, a hash of the tools, and when it came."""
    _texts: tuple[Mapping[bytes, Edit], Mapping[str, str], int] = field(default=_NO_TEXTS, repr=False)
    """Edits and answers, and the bytes that they take."""
    _packed: _PackedBranch | None = field(default=None, init=False, repr=False)
    """`state`, `edit_versions` and `positions` while they are packed; they are no attributes then."""

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
        if self.simulated_state is not None:
            texts += [edit.text or "" for edit in self.simulated_state.edits.values()]
        if state.lasting_edits:
            texts += [edit.text or "" for edit in state.lasting_edits.values()]
            known += EDIT_BYTES * len(state.lasting_edits)
        if self.search_hits is not None:
            texts += [one.text for one in self.search_hits[1]]
        if self.loaded_notes is not None:
            texts += [self.loaded_notes.scratchpad, *(memo.content for memo in self.loaded_notes.memos)]
        return known + sum(map(getsizeof, texts))

    @property
    def moved_at(self) -> float | None:
        """The time of its last move that this process has seen, in seconds; None for a branch that was just begun."""
        packed = self._packed
        if packed is not None:
            return packed.moved_at
        return self.positions[-1][2] if self.positions else None

    def pack(self) -> None:
        """Pack the edits, the moves, and what is known of the last prompt, as `LiveSession.pack` does. A branch with
        other edits beside these stays as it is, which is rare."""
        with _packing:
            self._pack()

    def _pack(self) -> None:
        if self._packed is not None:
            if not any(_has_value(self, name) for name in _PACKED_NAMES):
                return
            self.unpack()
        if self.simulated_state is not None or self.state.lasting_edits is not None:
            return
        try:
            parts = packing.pack_state(self.state, self.edit_versions, self.positions)
        except UnicodeEncodeError:  # the text of an edit has a lone surrogate, which JSON can carry
            return
        small_state = msgspec.structs.replace(self.state, edits={}, sent_marks=(), sent_sizes=())
        self._packed = _PackedBranch(parts, small_state, self.moved_at)
        self._texts = _NO_TEXTS
        del self.state, self.edit_versions, self.positions

    def unpack(self) -> None:
        """Unpack what is packed."""
        with _packing:
            if self._packed is not None:
                state, versions, positions = packing.unpack_state(self._packed.parts, self._packed.small_state)
                values = state, versions, deque(positions, MAX_POSITIONS)
                for name, value in zip(_PACKED_NAMES, values, strict=True):
                    # A request that has gone on meanwhile may have set it: then its value counts.
                    if not _has_value(self, name):
                        setattr(self, name, value)
                self._packed = None

    if not TYPE_CHECKING:  # as in LiveSession

        def __getattr__(self, name: str) -> Any:
            """Unpack. Python calls this for an attribute that is not there."""
            if name not in _PACKED_NAMES:
                raise AttributeError(name)
            with _packing:
                self.unpack()
                return object.__getattribute__(self, name)

    def has_given(self, message: Message) -> bool:
        """True if the calls of an answer that a client sends are those of the last answer here, by their ids. Ids of
        less than nine characters may be counters; others that only count are not among those of the answer."""
        ids = frozenset(call.id for call in message.calls if len(call.id) >= 9)
        return bool(ids) and self.answer_call_ids.issuperset(ids)

    def record_position(self, tip: bytes, answer: bytes | None, now: float) -> BranchTipRow:
        """Return the row of its new position."""
        self.positions.append((tip, answer, now))
        place, asked = (self.tenant, self.session, self.name), self.state.last_state_request
        return BranchTipRow(*place, tip, answer, now, self.state.stopped, asked.serialize() if asked.tip else None)

    def is_at(self, position: BranchPosition) -> bool:
        """True if no other process has moved the branch, or if memory is ahead of the store."""
        if position.edits > self.edit_number or position.states > len(self.state.states):
            return False
        return not position.tip or (position.tip, position.answer, position.last_at) in self.positions


def find_simulated_state(branch: Branch) -> BranchState:
    """A branch's state as it would be if the prompts that were only planned had gone out."""
    state, simulated = branch.state, branch.simulated_state
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


def adopt_stored_edits(branch: Branch, rows: Sequence[tuple[EditRow, int]], own_edits: Mapping[bytes, Edit]) -> bool:
    """Put the stored edits, with their numbers, into the branch. True if an edit that this process has made (by chain
    key) is stored as another process made it, or not at all."""
    stored = _read_edits(rows)
    branch.edit_versions, branch.edit_number = stored.versions, stored.number
    branch.refused_reasoning |= stored.refused
    if all(stored.edits.get(k) == edit for k, edit in own_edits.items()):
        return False
    branch.state = msgspec.structs.replace(branch.state, edits=stored.edits, pins=stored.pins)
    return True


def read_edit(row: EditRow) -> Edit | None:
    """Return the edit of a stored row; None for a row that edits nothing."""
    if row.action == "withdrawn" or row.action == "pin" or row.action == "unpin" or row.action == "strip":
        return None
    return Edit(row.key, row.action, row.text, row.stage, row.reason, row.before, row.after)


class _StoredEdits(NamedTuple):
    """The edits of a branch as its stored rows have them. Keys are chain keys of messages."""

    edits: dict[bytes, Edit]
    versions: dict[bytes, int]
    """The newest version of each edited message."""
    pins: frozenset[bytes]
    refused: frozenset[bytes]
    """Hashes of the tokens of refused reasoning."""
    number: int
    """The highest number of a row; 0 for none."""


def _read_edits(rows: Sequence[tuple[EditRow, int]]) -> _StoredEdits:
    """Read the rows of a branch's edits, each with its number."""
    edits: dict[bytes, Edit] = {}
    versions: dict[bytes, int] = {}
    pins, refused = set[bytes](), set[bytes]()
    for row, _ in rows:
        versions[row.key] = max(row.version, versions.get(row.key, 0))
        if row.action == "pin":
            pins.add(row.key)
        elif row.action == "strip":
            refused.add(row.key)
        elif (edit := read_edit(row)) is not None:
            edits[row.key] = edit
    number = max((at for _, at in rows), default=0)
    return _StoredEdits(edits, versions, frozenset(pins), frozenset(refused), number)


def restore_branch(live_session: LiveSession, record: BranchRecord, offer: ToolOffer | None) -> Branch:
    """Return the branch as it was stored."""
    stored = _read_edits(record.edits)
    states = tuple((state.key, state.text) for state in record.states)
    lasting = None if record.lasting is None else _read_edits(record.lasting).edits
    asked = StateRequest.parse(record.asked)
    if asked is None:  # the state was written after the last edits, or is asked for after the next
        asked = StateRequest(count_losses(stored.edits if lasting is None else lasting) if states else 0)
    live_session.stored = True
    return Branch(
        tenant=live_session.tenant,
        session=live_session.session,
        name=record.branch,
        kind=record.kind,
        system=record.system,
        live_session=live_session,
        state=BranchState(
            edits=stored.edits,
            states=states,
            sent_at=record.last_at,
            last_state_request=asked,
            stopped=record.stopped or None,
            helper_answers=record.helper_answers,
            pins=stored.pins,
            lasting_edits=lasting,
        ),
        parent=record.parent,
        fork_key=record.fork_key,
        tip_key=record.tip or None,
        answer_key=record.answer,
        edit_versions=stored.versions,
        edit_number=stored.number,
        stored=True,
        read_back=True,
        positions=deque([(record.tip, record.answer, record.last_at)], MAX_POSITIONS),
        is_confirmed=True,
        tool_offer=offer,
        refused_reasoning=stored.refused,
    )
