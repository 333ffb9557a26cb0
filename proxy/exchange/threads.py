"""The live threads: what this process remembers of conversations, read back from the store when it has forgotten.

Memory is a cache, never the truth: everything here is either written to the store before it matters or can be
derived again. Both the number of threads and, with it, their keys are bounded; the least recently used leaves. Where
other processes write to the same store, what is remembered of a thread counts for as long as the store says the same.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import msgspec

from proxy.context.plan import Edit, Found
from proxy.context.session import Session, cuts
from proxy.errors import StoreUnavailable
from proxy.exchange import offer as offers
from proxy.exchange.offer import Offer
from proxy.exchange.steering.inforce import InForce
from proxy.exchange.weave import Round
from proxy.memory.memos import Memo
from proxy.store.base import EditRow, HeadRow, Kind, Store, ThreadRecord
from proxy.store.standing import Standing

T = TypeVar("T")

Name = tuple[str, str, str]
"""(tenant, session, thread)"""

MOVES = 64
"""Of its own moves of a thread, so many are told from those of another process."""


class Node(msgspec.Struct, gc=False):
    """A chain key that is stored: the first form it came in, the thread that brought it, whether an answer of ours
    stands at or before it, the wire format that it was made for, and when it was first stored, in seconds.

    There are as many as messages in live sessions, so the garbage collector is spared them: none refers to another.
    """

    form: bytes
    thread: str
    reached: bool
    strategy: str
    seen: float = 0.0


@dataclass(slots=True, eq=False)
class SessionMemory:
    """A session's stored nodes, and which forms and threads of it are known to be stored.

    partial: it was read back for the messages of one request, or other processes write to it too, so the store may
    hold branches that are not here.
    """

    tenant: str
    session: str
    explicit: bool
    nodes: dict[bytes, Node] = field(default_factory=dict)
    forms: set[bytes] = field(default_factory=set)
    threads: dict[str, Thread] = field(default_factory=dict)
    stored: bool = False
    partial: bool = False
    steered: InForce | None = None
    """What the operator has decided; None while that has not been read."""
    rounds: dict[bytes, tuple[Round, ...]] = field(default_factory=dict)
    """By the head of a request, what stands behind the answers to it; of heads that are not here, only the store
    knows."""


class Recollected(NamedTuple):
    """What the store said for a prompt. prompt: its chain key. calls: hidden messages, of calls of our tools and their
    results, that were in the history then."""

    prompt: bytes
    calls: int
    scratchpad: str
    memos: tuple[Memo, ...]


@dataclass(slots=True, eq=False)
class Thread:
    """One line of history as this process knows it.

    head: the chain key of the last request's end. answer: that of our answer to it. calls: the ids of that answer's
    calls. versions: how often each edited message was edited. number: of the newest stored edit. began: where its first
    request ended. failed: the last attempt brought no answer. exchange: the last one that was recorded. shown: by
    position, the messages that came in it in another form than the one stored first. read_back: it comes from the
    store, and whether the last attempt failed was not asked. moves: where this process has seen or left it in the
    store. confirmed: it is, or was, stored.
    """

    tenant: str
    session: str
    name: str
    kind: Kind
    system: bytes
    memory: SessionMemory
    state: Session = field(default_factory=Session)
    parent: str | None = None
    fork_key: bytes | None = None
    head: bytes | None = None
    answer: bytes | None = None
    calls: frozenset[str] = frozenset()
    versions: dict[bytes, int] = field(default_factory=dict)
    number: int = 0
    began: bytes | None = None
    failed: bool = False
    stored: bool = False
    exchange: str = ""
    shown: dict[int, bytes] = field(default_factory=dict)
    read_back: bool = False
    moves: deque[tuple[bytes, bytes | None, float]] = field(default_factory=lambda: deque(maxlen=MOVES))
    confirmed: bool = False
    found: tuple[bytes, tuple[Found, ...]] | None = None
    """The chain key of the newest prompt that the store was searched for, and what came up."""
    near: tuple[bytes, dict[bytes, float]] | None = None
    """The form of the present task, and how near messages are to it, by their forms."""
    nearing: asyncio.Task[None] | None = None
    recollected: Recollected | None = None
    """What its prompt is told of scratchpad and memos."""
    sizes: tuple[int, int] = 0, 0
    """Bytes of the last request, as it came and as it went out."""
    offer: Offer | None = None
    """The tools of ours that it offers its model; None while that is undecided."""
    opening: tuple[bytes, int, float] | None = None
    """What its last request began with: a digest of the system messages, a hash of the tools, and when it came."""

    @property
    def id(self) -> Name:
        """(tenant, session, thread)"""
        return self.tenant, self.session, self.name

    def moved(self, head: bytes, answer: bytes | None, now: float) -> HeadRow:
        """The row that says where it stands now."""
        self.moves.append((head, answer, now))
        return HeadRow(self.tenant, self.session, self.name, head, answer, now, self.state.stopped)

    def is_at(self, found: Standing) -> bool:
        """Whether nobody else has moved it, or what is remembered is ahead of the store."""
        if found.edits > self.number or found.states > len(self.state.states):
            return False
        return not found.head or (found.head, found.answer, found.last_at) in self.moves


class Threads:
    """All live threads, bounded; and an index from nodes behind an answer of ours to their session."""

    def __init__(
        self, limit: int, store: Store, *, look_s: float = 0.25, unseen: Callable[[], None] = lambda: None
    ) -> None:
        """look_s: how long the store may take to say where a thread stands, until what is remembered counts. unseen:
        called then."""
        self.limit = limit
        self.store = store
        self.look_s = look_s
        self.unseen = unseen
        self._sessions: OrderedDict[tuple[str, str], SessionMemory] = OrderedDict()
        self._by_node: dict[tuple[str, bytes], list[str]] = {}
        self._first: dict[tuple[str, bytes], list[Thread]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def session(self, tenant: str, session: str) -> SessionMemory | None:
        """The session if this process remembers it."""
        found = self._sessions.get((tenant, session))
        if found is not None:
            self._sessions.move_to_end((tenant, session))
        return found

    def open_session(self, tenant: str, session: str, explicit: bool) -> SessionMemory:
        """The session, new in memory where it is not there yet."""
        found = self.session(tenant, session)
        if found is None:
            found = self._sessions[tenant, session] = SessionMemory(
                tenant, session, explicit, partial=self.store.shared
            )
        return found

    def add(self, thread: Thread) -> Thread:
        """Remember a thread; the least recently used sessions leave when there are too many."""
        thread.memory.threads[thread.name] = thread
        if not self._is_live(thread.memory):
            return thread
        self._count += 1
        while self._count > self.limit and len(self._sessions) > 1:
            _, old = self._sessions.popitem(last=False)
            self._left(old)
        return thread

    def note(self, memory: SessionMemory, key: bytes, node: Node) -> None:
        """A node of a session; behind an answer of ours it can be found without naming the session."""
        if key in memory.nodes:
            return
        memory.nodes[key] = node
        if node.reached and self._is_live(memory):
            self._by_node.setdefault((memory.tenant, key), []).append(memory.session)

    def sessions_at(self, tenant: str, key: bytes) -> list[str]:
        """Sessions that hold this node behind an answer of ours, newest last."""
        return self._by_node.get((tenant, key), [])

    def answering(self, tenant: str, key: bytes) -> list[Thread]:
        """Threads whose first request ended with this node, newest last."""
        return self._first.get((tenant, key), [])

    def begun(self, thread: Thread, key: bytes) -> None:
        """The thread's first request ended with this node."""
        if not self._is_live(thread.memory):
            return
        thread.began = key
        self._first.setdefault((thread.tenant, key), []).append(thread)

    def forget(self, memory: SessionMemory) -> None:
        """Let go of a session, since what was to be stored of it was not: the next request reads it from the store."""
        if self._is_live(memory):
            del self._sessions[memory.tenant, memory.session]
            self._left(memory)

    def forget_tenant(self, tenant: str) -> None:
        """Let go of every session of a tenant, whose store is being emptied."""
        for memory in [memory for (owner, _), memory in self._sessions.items() if owner == tenant]:
            self.forget(memory)

    def forget_idle(self, before: float) -> None:
        """Let go of every session that was last used before this time: what is stored of it may be removed."""
        for memory in list(self._sessions.values()):
            moves = [thread.moves[-1][2] if thread.moves else before for thread in memory.threads.values()]
            if moves and max(moves) < before:
                self.forget(memory)

    def _is_live(self, memory: SessionMemory) -> bool:
        """Whether others can find it. One that has left may still be in the hands of a request, and must not be counted
        or indexed again, since nobody would take it out."""
        return self._sessions.get((memory.tenant, memory.session)) is memory

    def _left(self, memory: SessionMemory) -> None:
        self._count -= len(memory.threads)
        for key, node in memory.nodes.items():
            if node.reached:
                self._drop(self._by_node, (memory.tenant, key), memory.session)
        for thread in memory.threads.values():
            if thread.began is not None:
                self._drop(self._first, (memory.tenant, thread.began), thread)
        memory.threads.clear()  # they refer to it: without this nothing of it would be let go before a full collection

    @staticmethod
    def _drop(index: dict[tuple[str, bytes], list[T]], at: tuple[str, bytes], what: T) -> None:
        found = index.get(at)
        if found and what in found:
            found.remove(what)
            if not found:
                del index[at]

    async def current(self, memory: SessionMemory, name: str) -> Thread | None:
        """The thread as it is now, from memory where no other process can have moved it. None where there is none, or
        not any more: then the session is forgotten. StoreUnavailable passes through where it is not in memory."""
        thread = memory.threads.get(name)
        if thread is None or not thread.stored or not self.store.shared:
            return await self.load(memory, name)
        try:
            async with asyncio.timeout(self.look_s):
                found = await self.store.standing(*thread.id)
        except (TimeoutError, StoreUnavailable):
            self.unseen()
            return thread
        if found is None:
            if not thread.confirmed:
                return thread  # what it was stored with is on its way
            self.forget(memory)
            return None
        thread.confirmed = True
        if thread.is_at(found):
            return thread
        if memory.threads.get(name) is thread:
            self._take_out(thread)
        again = await self.load(memory, name)
        if again is not None and not again.state.said:
            # Neither is stored: what this process has seen of them is better than nothing.
            again.state = replace(again.state, said=thread.state.said, drift=thread.state.drift)
        return again

    async def is_gone(self, memory: SessionMemory) -> bool:
        """Whether the session was deleted by another process; then it is forgotten. StoreUnavailable passes through."""
        if not (self.store.shared and any(thread.confirmed for thread in memory.threads.values())):
            return False
        if await self.store.systems(memory.tenant, memory.session):
            return False
        self.forget(memory)
        return True

    def _take_out(self, thread: Thread) -> None:
        memory = thread.memory
        del memory.threads[thread.name]
        memory.rounds.clear()  # an answer that was given elsewhere may have others behind it
        if self._is_live(memory):
            self._count -= 1
            if thread.began is not None:
                self._drop(self._first, (memory.tenant, thread.began), thread)

    async def load(self, memory: SessionMemory, name: str) -> Thread | None:
        """The thread from memory or from the store; None where there is none. StoreUnavailable passes through."""
        found = memory.threads.get(name)
        if found is not None:
            return found
        record = await self.store.thread(memory.tenant, memory.session, name)
        if record is None:
            return None
        offer = await self._offer(record)
        again = memory.threads.get(name)  # another request may have loaded it while we waited
        return again or self.add(_from_record(memory, record, offer))

    async def _offer(self, record: ThreadRecord) -> Offer | None:
        """The tools that a stored thread offers. StoreUnavailable where they are missing."""
        if not record.offer:
            return offers.NONE if record.offer == "" else None
        array = await self.store.form(record.tenant, record.session, bytes.fromhex(record.offer))
        if array is None:
            raise StoreUnavailable("the tools that a stored thread offers are missing")
        return offers.read(array)


def adopt(thread: Thread, rows: Sequence[tuple[EditRow, int]], mine: Mapping[bytes, Edit]) -> bool:
    """Have the thread go by the edits that are stored, with their numbers. Whether one of those that this process has
    made (by chain key) is stored as another was made elsewhere, or not at all."""
    edits, thread.versions, pins, thread.number = _in_force(rows)
    if all(edits.get(k) == edit for k, edit in mine.items()):
        return False
    thread.state = replace(thread.state, edits=edits, pins=pins)
    return True


def _in_force(
    rows: Sequence[tuple[EditRow, int]],
) -> tuple[dict[bytes, Edit], dict[bytes, int], frozenset[bytes], int]:
    """(edits, the newest version of each message, pins, the highest number) of a thread's stored rows."""
    edits: dict[bytes, Edit] = {}
    versions: dict[bytes, int] = {}
    pins: set[bytes] = set()
    number = 0
    for row, at in rows:
        number = max(number, at)
        versions[row.key] = max(row.version, versions.get(row.key, 0))
        if row.action == "pin":
            pins.add(row.key)
        elif row.action != "withdrawn" and row.action != "unpin":
            edits[row.key] = Edit(row.key, row.action, row.text, row.stage, row.reason, row.before, row.after)
    return edits, versions, frozenset(pins), number


def _from_record(memory: SessionMemory, record: ThreadRecord, offer: Offer | None = None) -> Thread:
    edits, versions, pins, number = _in_force(record.edits)
    states = tuple((state.key, state.text) for state in record.states)
    memory.stored = True
    return Thread(
        tenant=memory.tenant,
        session=memory.session,
        name=record.thread,
        kind=record.kind,
        system=record.system,
        memory=memory,
        # The model has been asked for its state at the last batch of edits, or will be at the next.
        state=Session(
            edits=edits,
            states=states,
            sent_at=record.last_at,
            asked_at=cuts(edits),
            stopped=record.stopped or None,
            answers=record.answers,
            pins=pins,
        ),
        parent=record.parent,
        fork_key=record.fork_key,
        head=record.head or None,
        answer=record.answer,
        versions=versions,
        number=number,
        stored=True,
        read_back=True,
        moves=deque([(record.head, record.answer, record.last_at)], MOVES),
        confirmed=True,
        offer=offer,
    )
