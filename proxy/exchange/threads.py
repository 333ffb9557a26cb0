"""The live threads: the state of conversations in this process, read back from the store if it was dropped.

Memory is a cache, never the truth: everything here is written to the store before it matters, or can be derived again.
The number of threads and their memory are bounded; the least recently used session leaves first. If other processes
write to the same store, the memory of a thread counts as long as the store agrees.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from proxy.errors import StoreUnavailable
from proxy.exchange import offer as offers
from proxy.exchange.offer import Offer
from proxy.exchange.thread import Node, SessionMemory, Thread, from_record
from proxy.store.base import Store, ThreadRecord

T = TypeVar("T")


class Threads:
    """All live threads, bounded; and an index from nodes behind an answer of ours to their session."""

    def __init__(
        self,
        limit: int,
        store: Store,
        *,
        most: int = 1 << 40,
        look_s: float = 0.25,
        unseen: Callable[[], None] = lambda: None,
    ) -> None:
        """limit: threads. most: bytes of memory that they may take, estimated. look_s: seconds that the store may take
        to report the position of a thread; after that memory counts. unseen: called then."""
        self.limit = limit
        self.most = most
        self.size = 0
        """Bytes of memory that all threads take, estimated."""
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
        """Return the session if this process remembers it."""
        found = self._sessions.get((tenant, session))
        if found is not None:
            self._sessions.move_to_end((tenant, session))
        return found

    def open_session(self, tenant: str, session: str, explicit: bool) -> SessionMemory:
        """Return the session; it is made in memory where it is not there yet."""
        found = self.session(tenant, session)
        if found is None:
            found = self._sessions[tenant, session] = SessionMemory(
                tenant, session, explicit, partial=self.store.shared
            )
        return found

    def add(self, thread: Thread) -> Thread:
        """Remember a thread; the least recently used sessions leave when there are too many."""
        thread.memory.threads[thread.name] = thread
        if self._is_live(thread.memory):
            self._count += 1
            self.grown(thread.memory)
        return thread

    def grown(self, memory: SessionMemory) -> None:
        """Count the memory of a session again after it has grown; the least recently used sessions leave when it is too
        much."""
        if not self._is_live(memory):
            return
        size = memory.size
        self.size += size - memory.counted
        memory.counted = size
        while (self._count > self.limit or self.size > self.most) and len(self._sessions) > 1:
            _, old = self._sessions.popitem(last=False)
            self._left(old)

    def note(self, memory: SessionMemory, key: bytes, node: Node) -> None:
        """Add a node to a session; a node behind an answer of ours can be found without naming the session."""
        if key in memory.nodes:
            return
        memory.nodes[key] = node
        if node.reached and self._is_live(memory):
            self._by_node.setdefault((memory.tenant, key), []).append(memory.session)

    def sessions_at(self, tenant: str, key: bytes) -> list[str]:
        """The sessions that hold this node behind an answer of ours, newest last."""
        return self._by_node.get((tenant, key), [])

    def answering(self, tenant: str, key: bytes) -> list[Thread]:
        """The threads whose first request ended with this node, newest last."""
        return self._first.get((tenant, key), [])

    def begun(self, thread: Thread, key: bytes) -> None:
        """Record that the thread's first request ended with this node."""
        if not self._is_live(thread.memory):
            return
        thread.began = key
        self._first.setdefault((thread.tenant, key), []).append(thread)

    def forget(self, memory: SessionMemory) -> None:
        """Forget a session, since its rows were not stored: the next request reads it from the store."""
        if self._is_live(memory):
            del self._sessions[memory.tenant, memory.session]
            self._left(memory)

    def forget_tenant(self, tenant: str) -> None:
        """Forget every session of a tenant, whose store is being emptied."""
        for memory in [memory for (owner, _), memory in self._sessions.items() if owner == tenant]:
            self.forget(memory)

    def forget_idle(self, before: float) -> None:
        """Forget every session that was last used before this time: its stored rows may be removed."""
        for memory in list(self._sessions.values()):
            moves = [thread.moves[-1][2] if thread.moves else before for thread in memory.threads.values()]
            if moves and max(moves) < before:
                self.forget(memory)

    def _is_live(self, memory: SessionMemory) -> bool:
        """True if other requests can find the session. A session that has left may still be used by a request. It must
        not be counted or indexed again, since it would never be taken out."""
        return self._sessions.get((memory.tenant, memory.session)) is memory

    def _left(self, memory: SessionMemory) -> None:
        self._count -= len(memory.threads)
        self.size -= memory.counted
        for key, node in memory.nodes.items():
            if node.reached:
                self._drop(self._by_node, (memory.tenant, key), memory.session)
        for thread in memory.threads.values():
            if thread.began is not None:
                self._drop(self._first, (memory.tenant, thread.began), thread)
        memory.threads.clear()  # threads refer to the session: without this only a full collection would free them

    @staticmethod
    def _drop(index: dict[tuple[str, bytes], list[T]], at: tuple[str, bytes], what: T) -> None:
        found = index.get(at)
        if found and what in found:
            found.remove(what)
            if not found:
                del index[at]

    async def current(self, memory: SessionMemory, name: str) -> Thread | None:
        """Return the thread as it is now, from memory where no other process can have moved it. None where there is
        none, or not any more: then the session is forgotten. StoreUnavailable passes through where the thread is not in
        memory."""
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
                return thread  # its rows are on their way to the store
            self.forget(memory)
            return None
        thread.confirmed = True
        if thread.is_at(found):
            return thread
        if memory.threads.get(name) is thread:
            self._take_out(thread)
        again = await self.load(memory, name)
        if again is not None and not again.state.said:
            # These values are not stored: those that this process has seen are better than nothing.
            seen = thread.state
            asked = max(again.state.asked, seen.asked, key=lambda one: one.losses)
            again.state = replace(again.state, said=seen.said, drift=seen.drift, served=seen.served, asked=asked)
            again.rehearsal = thread.rehearsal
        return again

    async def is_gone(self, memory: SessionMemory) -> bool:
        """True if the session was deleted by another process; then it is forgotten. StoreUnavailable passes through."""
        if not (self.store.shared and any(thread.confirmed for thread in memory.threads.values())):
            return False
        if await self.store.thread_kinds(memory.tenant, memory.session):
            return False
        self.forget(memory)
        return True

    def _take_out(self, thread: Thread) -> None:
        memory = thread.memory
        del memory.threads[thread.name]
        memory.forget_rounds()  # an answer that was given elsewhere may have other rounds behind it
        if self._is_live(memory):
            self._count -= 1
            if thread.began is not None:
                self._drop(self._first, (memory.tenant, thread.began), thread)

    async def load(self, memory: SessionMemory, name: str) -> Thread | None:
        """Return the thread from memory or from the store; None where there is none. StoreUnavailable passes
        through."""
        found = memory.threads.get(name)
        if found is not None:
            return found
        record = await self.store.thread(memory.tenant, memory.session, name)
        if record is None:
            return None
        offer = await self._offer(record)
        again = memory.threads.get(name)  # another request may have loaded it while we waited
        return again or self.add(from_record(memory, record, offer))

    async def _offer(self, record: ThreadRecord) -> Offer | None:
        """Return the tools that a stored thread offers. Raises StoreUnavailable if they are missing."""
        if not record.offer:
            return offers.NONE if record.offer == "" else None
        array = await self.store.form(record.tenant, record.session, bytes.fromhex(record.offer))
        if array is None:
            raise StoreUnavailable("the tools that a stored thread offers are missing")
        return offers.read(array)
