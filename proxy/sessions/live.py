"""The live branches: the state of conversations in this process, bounded and indexed.

Memory is a cache, never the truth: everything here is written to the store before it matters, or can be derived again.
The number of branches and their memory are bounded; the least recently used session leaves first. Those that were not
used lately are packed (`packing`). `load_sessions` reads back those that have left or that another process has changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from proxy.sessions.branch import Branch, LiveSession
from proxy.sessions.operator_decisions import StoredDecisions
from proxy.sessions.packing import Node
from proxy.store.reads import Store

UNPACKED_SHARE = 1 / 16
"""Share of the limit for the sessions that were used last. The memory of the others is packed. With the default limits
it holds more conversations than `message_cache` does, so that nothing is unpacked for those."""
MIN_PACKED_BYTES = 8 * 1024
"""Bytes of memory from which a session is packed: a short one would hardly become smaller."""

T = TypeVar("T")


class LiveSessions:
    """All live branches, bounded; and an index from nodes after an answer of the proxy to their session."""

    def __init__(
        self,
        max_branches: int,
        store: Store,
        *,
        max_bytes: int = 1 << 40,
        lookup_s: float = 0.25,
        on_lookup_failed: Callable[[str], None] = lambda _: None,
    ) -> None:
        """max_branches: branches. max_bytes: bytes of memory that they may take, estimated. lookup_s: seconds that the
        store may take to report the position of a branch, or the operator's decisions; after that memory counts.
        on_lookup_failed: called then, with the label `where` of the metric."""
        self.max_branches = max_branches
        self.max_bytes = max_bytes
        self.size = 0
        """Bytes of memory that all branches take, estimated."""
        self.store = store
        self.lookup_s = lookup_s
        self.on_lookup_failed = on_lookup_failed
        self._sessions: OrderedDict[tuple[str, str], LiveSession] = OrderedDict()
        self._unpacked: OrderedDict[LiveSession, int] = OrderedDict()
        """Long sessions that are not packed, with their sizes in bytes; the last used at the end."""
        self._unpacked_size = 0
        self._by_node: dict[str, dict[bytes, str | list[str]]] = {}
        """By tenant and chain key. A list, where sessions have a node in common, is rare."""
        self._by_first_tip: dict[tuple[str, bytes], list[Branch]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find_session(self, tenant: str, session: str) -> LiveSession | None:
        """Return the session if this process remembers it."""
        live_session = self._sessions.get((tenant, session))
        if live_session is not None:
            self._sessions.move_to_end((tenant, session))
            if live_session in self._unpacked:
                self._unpacked.move_to_end(live_session)
            if live_session.packed is not None:
                live_session.unpack()
                self.update_size(live_session)
        return live_session

    def find_branch(self, live_session: LiveSession, name: str) -> Branch | None:
        """Return the branch from memory, if no other process can have moved it on."""
        branch = live_session.branches.get(name)
        return None if branch is None or (branch.stored and self.store.shared) else branch

    def find_decisions(self, live_session: LiveSession, *, is_new: bool) -> StoredDecisions | None:
        """Return the operator's decisions from memory, if no other process can have made one. is_new: the session got
        its name with this request, so nobody can have decided anything."""
        return live_session.stored_decisions if is_new or not self.store.shared else None

    def open_session(self, tenant: str, session: str, *, explicit: bool) -> LiveSession:
        """Return the session; it is made in memory where it is not there yet."""
        live_session = self.find_session(tenant, session)
        if live_session is None:
            live_session = self._sessions[tenant, session] = LiveSession(
                tenant, session, explicit, partial=self.store.shared
            )
        return live_session

    def add_branch(self, branch: Branch) -> Branch:
        """Remember a branch; the least recently used sessions leave when there are too many."""
        branch.live_session.branches[branch.name] = branch
        if self._is_live(branch.live_session):
            self._count += 1
            self.update_size(branch.live_session)
        return branch

    def update_size(self, live_session: LiveSession) -> None:
        """Count the memory of a session again after it was used. Sessions that were used before it are packed, and the
        least recently used ones leave, when it is too much."""
        if not self._is_live(live_session):
            return
        size = live_session.size
        self.size += size - live_session.counted_size
        live_session.counted_size = size
        self._unpacked_size -= self._unpacked.pop(live_session, 0)
        if size >= MIN_PACKED_BYTES and live_session.packed is None:
            self._unpacked[live_session] = size
            self._unpacked_size += size
        while self._unpacked_size > self.max_bytes * UNPACKED_SHARE and len(self._unpacked) > 1:
            self._pack_oldest()
        while (self._count > self.max_branches or self.size > self.max_bytes) and len(self._sessions) > 1:
            _, old = self._sessions.popitem(last=False)
            self._remove_session(old)

    def end_exchange(self, live_session: LiveSession) -> None:
        """Count the memory of a session whose request has ended. If the session has left meanwhile, other requests may
        have read it back without this answer and its hidden rounds and bindings: it is read back once more."""
        current = self._sessions.get((live_session.tenant, live_session.session))
        if current is live_session:
            self.update_size(live_session)
        elif current is not None:
            self.forget_session(current)

    def _pack_oldest(self) -> None:
        """Pack the long session that was not used for longest."""
        idle, size = self._unpacked.popitem(last=False)
        self._unpacked_size -= size
        idle.pack()
        self.size += idle.size - idle.counted_size
        idle.counted_size = idle.size

    def add_node(self, live_session: LiveSession, key: bytes, node: Node) -> None:
        """Add a node to a session; a node after an answer of the proxy can be found without naming the session."""
        if key in live_session.nodes:
            return
        live_session.nodes[key] = node
        if node.reached and self._is_live(live_session):
            index = self._by_node.setdefault(live_session.tenant, {})
            names = index.get(key)
            if names is None:
                index[key] = live_session.session
            else:
                index[key] = [*([names] if isinstance(names, str) else names), live_session.session]

    def find_sessions_at(self, tenant: str, key: bytes) -> list[str]:
        """The sessions that hold this node after an answer of the proxy, newest last. Sessions that have not gone on
        from it come after all others: conversations that begin alike keep a session each."""
        names = self._by_node.get(tenant, {}).get(key)
        if not names:
            return []
        if isinstance(names, str):
            return [names]
        return sorted(names, key=lambda session: self._ends_at(self._sessions[tenant, session], key))

    @staticmethod
    def _ends_at(live_session: LiveSession, key: bytes) -> bool:
        return any(branch.last_request.answer_key == key for branch in live_session.branches.values())

    def find_branches_by_tip(self, tenant: str, key: bytes) -> list[Branch]:
        """The branches whose first request ended with this node, newest last."""
        return self._by_first_tip.get((tenant, key), [])

    def record_first_tip(self, branch: Branch, key: bytes) -> None:
        """Record that the branch's first request ended with this node."""
        if not self._is_live(branch.live_session):
            return
        branch.first_tip_key = key
        self._by_first_tip.setdefault((branch.tenant, key), []).append(branch)

    def forget_session(self, live_session: LiveSession) -> None:
        """Forget a session, since its rows were not stored: the next request reads it from the store."""
        if self._is_live(live_session):
            del self._sessions[live_session.tenant, live_session.session]
            self._remove_session(live_session)

    def forget_tenant(self, tenant: str) -> None:
        """Forget every session of a tenant, whose store is being emptied."""
        for live_session in [live_session for (owner, _), live_session in self._sessions.items() if owner == tenant]:
            self.forget_session(live_session)

    def forget_idle(self, before: float) -> None:
        """Forget every session that was last used before this time: its stored rows may be removed."""
        for live_session in list(self._sessions.values()):
            moves = [branch.moved_at for branch in live_session.branches.values()]
            if moves and max(before if at is None else at for at in moves) < before:
                self.forget_session(live_session)

    def _is_live(self, live_session: LiveSession) -> bool:
        """True if other requests can find the session. A session that has left may still be used by a request. It must
        not be counted or indexed again, since it would never be taken out."""
        return self._sessions.get((live_session.tenant, live_session.session)) is live_session

    def remove_branch(self, branch: Branch) -> None:
        """Forget one branch, which another process has moved on."""
        live_session = branch.live_session
        del live_session.branches[branch.name]
        live_session.forget_rounds()  # an answer that was given elsewhere may have other rounds
        if self._is_live(live_session):
            self._count -= 1
            if branch.first_tip_key is not None:
                self._drop_entry(self._by_first_tip, (live_session.tenant, branch.first_tip_key), branch)

    def _remove_session(self, live_session: LiveSession) -> None:
        self._count -= len(live_session.branches)
        self.size -= live_session.counted_size
        self._unpacked_size -= self._unpacked.pop(live_session, 0)
        for key, node in live_session.nodes.items():
            if node.reached:
                self._remove_from_index(live_session, key)
        for branch in live_session.branches.values():
            if branch.first_tip_key is not None:
                self._drop_entry(self._by_first_tip, (live_session.tenant, branch.first_tip_key), branch)
        # branches refer to the session: without this only a full collection would free them
        live_session.branches.clear()

    def _remove_from_index(self, live_session: LiveSession, key: bytes) -> None:
        index = self._by_node.get(live_session.tenant, {})
        names = index.get(key)
        if isinstance(names, list) and live_session.session in names:
            left = [session for session in names if session != live_session.session]
            index[key] = left if len(left) > 1 else left[0]
        elif names == live_session.session:
            del index[key]
            if not index:
                del self._by_node[live_session.tenant]

    @staticmethod
    def _drop_entry(index: dict[tuple[str, bytes], list[T]], at: tuple[str, bytes], what: T) -> None:
        found = index.get(at)
        if found and what in found:
            found.remove(what)
            if not found:
                del index[at]
