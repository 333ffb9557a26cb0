"""The live branches: the state of conversations in this process, bounded and indexed.

Memory is a cache, never the truth: everything here is written to the store before it matters, or can be derived again.
The number of branches and their memory are bounded; the least recently used session leaves first. Those that were not
used lately are packed (`packing`). `load_sessions` reads back those that have left or that another process has changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

from msgspec import Struct

from proxy.chat import chain
from proxy.chat.message import Message
from proxy.errors import StoreUnavailable
from proxy.sessions.branch import Branch, LiveSession, find_givers
from proxy.sessions.operator_decisions import StoredDecisions
from proxy.sessions.packing import Node
from proxy.store.branch_positions import ChainHit
from proxy.store.reads import Store

MAX_ALIKE = 16
"""Newest branches that began with the same request among which an unanswered one is looked for. A generator of load
begins thousands."""
UNPACKED_SHARE = 1 / 16
"""Share of the limit for the sessions that were used last. The memory of the others is packed. With the default limits
it holds more conversations than `message_cache` does, so that nothing is unpacked for those."""
MIN_PACKED_BYTES = 8 * 1024
"""Bytes of memory from which a session is packed: a short one would hardly become smaller."""

MIN_SESSION_BRANCHES = 16
SESSION_SHARE = 1 / 8
"""Share of the limit on branches that one session may take."""

T = TypeVar("T")


CALLER_FIELDS = ("user", "safety_identifier", "prompt_cache_key")
"""Members of a request that name the end user or the conversation, for the provider."""


class RequestTraits(Struct, frozen=True, eq=False):
    """The traits of a request by which conversations that begin alike are told apart."""

    messages: Sequence[Message]
    system_digest: bytes = b""
    """A digest of the system messages."""
    caller: tuple[bytes, ...] = ()
    """The values of `CALLER_FIELDS` that the request has, as JSON."""

    def digest_undated_system(self) -> bytes:
        """The digest of the system messages without dates and numbers."""
        return chain.digest_undated_system(self.messages)

    def are_of(self, branch: Branch) -> bool:
        """True if a branch has these traits. Dates and numbers in the system prompt may differ. The store has no values
        of `CALLER_FIELDS`: a request with some is of no branch that was read back."""
        last = branch.unstored.beginning
        if self.caller != (last.caller if last is not None else ()):
            return False
        is_same = last is not None and last.system_digest == self.system_digest
        return is_same or branch.system == self.digest_undated_system()

    def select_newest(self, found: Sequence[Branch], others: Sequence[Branch]) -> Branch | None:
        """Return the newest of the branches that have these traits. If none has them, return the newest one of all
        where no other session holds the same messages. others: all branches that hold them."""
        same = [branch for branch in found if self.are_of(branch)]
        if same or not found:
            return same[-1] if same else None
        return found[-1] if len({branch.session for branch in others}) == 1 else None


NO_TRAITS = RequestTraits(())


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
            if len(branch.live_session.branches) > max(MIN_SESSION_BRANCHES, self.max_branches * SESSION_SHARE):
                self._remove_oldest_branches(branch.live_session)
            self._count += 1
            self.update_size(branch.live_session)
        return branch

    def _remove_oldest_branches(self, live_session: LiveSession) -> None:
        """Forget the half of a session's branches that was used longest ago. Thousands of runs under one name would
        else make each of its requests slower. Branches that were not given to the store yet stay."""
        stored = [one for one in live_session.branches.values() if one.stored and not one.planning.locked()]
        stored.sort(key=lambda one: one.moved_at or 0.0)
        for branch in stored[: len(live_session.branches) // 2]:
            self._forget_branch(branch)
        live_session.partial = True

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
        """The sessions that hold this node after an answer of the proxy, newest last."""
        names = self._by_node.get(tenant, {}).get(key)
        if not names:
            return []
        return [names] if isinstance(names, str) else names

    def find_deepest_sessions(
        self, tenant: str, keys: Sequence[bytes], indices: Sequence[int]
    ) -> tuple[int, Sequence[str]]:
        """(the last of these indices whose node a session holds after an answer of the proxy, the sessions that hold
        it); (-1, ()) if none does."""
        return next(
            ((n, found) for n in reversed(indices) if (found := self.find_sessions_at(tenant, keys[n]))), (-1, ())
        )

    def list_branches_at(self, tenant: str, key: bytes, live_session: LiveSession | None = None) -> list[Branch]:
        """The branches of all sessions that hold a node or began with it, newest last; or those of one session. The
        sessions do not count as used."""
        if live_session is not None:
            return list(live_session.branches.values())
        names, first = self.find_sessions_at(tenant, key), self._by_first_tip.get((tenant, key))
        branches = [branch for name in names for branch in self._sessions[tenant, name].branches.values()]
        return list(dict.fromkeys([*branches, *first])) if first else branches

    def may_be_of(self, tenant: str, hit: ChainHit, traits: RequestTraits) -> bool:
        """True if the session of a stored node may have these traits, by its branches in memory, else by the system
        prompt in the store. Memory alone tells whether it has the values of `CALLER_FIELDS`."""
        live_session = self._sessions.get((tenant, hit.session))
        if live_session is not None and live_session.branches:
            return any(map(traits.are_of, live_session.branches.values()))
        return not traits.caller and hit.system == traits.digest_undated_system()

    def is_shared(self, tenant: str, key: bytes, traits: RequestTraits) -> bool:
        """True if several sessions with these traits hold a node: nobody can tell which of them a request continues."""
        branches = self.list_branches_at(tenant, key)
        return len(branches) > 1 and len({one.session for one in branches if traits.are_of(one)}) > 1

    def find_turn(
        self,
        tenant: str,
        traits: RequestTraits,
        keys: Sequence[bytes],
        chained: Sequence[int],
        live_session: LiveSession | None,
    ) -> tuple[Branch, int] | None:
        """(the branch whose last answer is the last one of a history, the index of the newest message that both have).

        None where memory has no such branch. Conversations that begin alike may get the same results, too. So the one
        that holds the most of a history is not always the one that the history continues. keys: of the messages.
        chained: the indices of those in the chain. live_session: None for all sessions of the tenant.
        """
        messages, n = traits.messages, len(chained) - 1
        while n >= 0 and messages[chained[n]].role != "assistant":
            n -= 1
        if n < 1:
            return None
        before, at = chained[n - 1], chained[n]
        branches = self.list_branches_at(tenant, keys[at], live_session)
        waiting = [
            branch
            for branch in branches
            if keys[at] in (branch.last_request.answer_key, branch.last_request.untailed_answer_key)
        ]
        if len(branches) == 1 and waiting:
            return branches[0], at
        if waiting:
            branch = traits.select_newest(waiting, branches)
            return (branch, at) if branch is not None else None
        branches = self.list_branches_at(tenant, keys[before], live_session)
        branch = traits.select_newest(find_givers(branches, messages, at, keys[before]), branches)
        return (branch, before) if branch is not None else None

    def find_reworded(
        self, tenant: str, traits: RequestTraits, keys: Sequence[bytes], chained: Sequence[int]
    ) -> tuple[LiveSession | None, int]:
        """(the session whose first answer a history has in other words, the index of the message before it). The
        arguments: as for `find_turn`. (None, -1) if there is none."""
        for n, following in pairwise(chained):
            branches = self.find_branches_by_tip(tenant, keys[n])
            if branches and (found := find_givers(branches, traits.messages, following, keys[n])):
                newest = traits.select_newest(found, branches)
                return (newest.live_session, n) if newest is not None else (None, -1)
        return None, -1

    async def note_shared_answer(self, live_session: LiveSession, key: bytes) -> None:
        """Note if the store has a session's answer in other sessions too, which may have left memory. If the store
        cannot be asked, it counts as if it had."""
        live_session.knows_shared = True
        try:
            hits = await self.store.find_chain_hits(live_session.tenant, [key], None)
        except StoreUnavailable:
            live_session.shared_answers.add(key)
            return
        if any(hit.session != live_session.session for hit in hits):
            live_session.shared_answers.add(key)

    def drop_shared_notes(
        self, branch: Branch, traits: RequestTraits, keys: Sequence[bytes], at: int, answer_at: int
    ) -> None:
        """Leave out the states of the answer behind which a request goes on, and of those before it, if several
        sessions have that answer. at, answer_at: the indices of the last known message, and of the answer up to it."""
        answer = branch.last_request.answer_key or keys[answer_at]
        key = answer if answer in keys else keys[at]  # the client may have reworded it
        if key in branch.live_session.shared_answers or self.is_shared(branch.tenant, key, traits):
            branch.state = branch.state.without_notes()

    def find_branches_by_tip(self, tenant: str, key: bytes) -> list[Branch]:
        """The branches whose first request ended with this node, newest last."""
        return self._by_first_tip.get((tenant, key), [])

    def find_unanswered(self, tenant: str, key: bytes, traits: RequestTraits, tools_hash: int) -> Branch | None:
        """The newest branch that began an unnamed session with this same request, each attempt of which has failed
        without any part of an answer. key: of the last message. None while an attempt is being answered."""
        for branch in self.find_branches_by_tip(tenant, key)[: -MAX_ALIKE - 1 : -1]:
            last, beginning = branch.last_request, branch.unstored.beginning
            is_unanswered = last.failed and last.tip_key == key and last.answer_key is None
            has_same_tools = beginning is not None and beginning.tools_hash == tools_hash
            if is_unanswered and has_same_tools and len(branch.live_session.branches) == 1 and traits.are_of(branch):
                return branch
        return None

    def record_first_tip(self, branch: Branch, key: bytes) -> None:
        """Record that the branch's first request ended with this node, with or without its last message."""
        if not self._is_live(branch.live_session):
            return
        branch.first_tip_keys += (key,)
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
        self._forget_branch(branch)
        branch.live_session.forget_rounds()  # an answer that was given elsewhere may have other rounds

    def _forget_branch(self, branch: Branch) -> None:
        live_session = branch.live_session
        del live_session.branches[branch.name]
        if self._is_live(live_session):
            self._count -= 1
            for key in branch.first_tip_keys:
                self._drop_entry(self._by_first_tip, (live_session.tenant, key), branch)

    def _remove_session(self, live_session: LiveSession) -> None:
        self._count -= len(live_session.branches)
        self.size -= live_session.counted_size
        self._unpacked_size -= self._unpacked.pop(live_session, 0)
        for key, node in live_session.nodes.items():
            if node.reached:
                self._remove_from_index(live_session, key)
        for branch in live_session.branches.values():
            for key in branch.first_tip_keys:
                self._drop_entry(self._by_first_tip, (live_session.tenant, key), branch)
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
