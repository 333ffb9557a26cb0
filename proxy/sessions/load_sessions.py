"""Loading of branches and of the operator's decisions from the store, and their refresh in memory.

A branch that has left memory is read back. If other processes write to the same store, the memory of a branch counts as
long as the store agrees. Where the store does not answer in time, memory counts too, and the failure is counted.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from proxy.errors import StoreUnavailable
from proxy.sessions import tool_offer as offers
from proxy.sessions.branch import Branch, LiveSession
from proxy.sessions.live import LiveSessions, RequestTraits
from proxy.sessions.operator_decisions import NO_DECISIONS, StoredDecisions, read_decisions
from proxy.sessions.stored_branch import restore_branch
from proxy.sessions.tool_offer import ToolOffer
from proxy.store.base import BranchRecord
from proxy.store.reads import Store


async def load_branch(live_sessions: LiveSessions, live_session: LiveSession, name: str) -> Branch | None:
    """Return the branch from memory or the store, None without one. StoreUnavailable passes through."""
    found = live_session.branches.get(name)
    if found is not None:
        return found
    record = await live_sessions.store.read_branch(live_session.tenant, live_session.session, name)
    if record is None:
        return None
    offer = await _load_offer(live_sessions.store, record)
    again = live_session.branches.get(name)  # another request may have loaded it while we waited
    return again or live_sessions.add_branch(restore_branch(live_session, record, offer))


async def _load_offer(store: Store, record: BranchRecord) -> ToolOffer | None:
    """Return the tools that a stored branch offers. Raises StoreUnavailable if they are missing."""
    if not record.offer:
        return offers.NO_TOOLS if record.offer == "" else None
    array = await store.read_form(record.tenant, record.session, bytes.fromhex(record.offer))
    if array is None:
        raise StoreUnavailable("the tools that a stored branch offers are missing")
    return offers.decode_offer(array)


async def refresh_branch(live_sessions: LiveSessions, live_session: LiveSession, name: str) -> Branch | None:
    """Return the branch as it is now, from memory where no other process can have moved it. None where there is
    none, or not any more: then the session is forgotten. StoreUnavailable passes through where the branch is not in
    memory."""
    branch = live_session.branches.get(name)
    if branch is None:
        return await load_branch(live_sessions, live_session, name)
    if live_sessions.find_branch(live_session, name) is not None:
        return branch
    try:
        async with asyncio.timeout(live_sessions.lookup_s):
            position = await live_sessions.store.read_branch_position(*branch.id)
    except (TimeoutError, StoreUnavailable):
        live_sessions.on_lookup_failed("standing")
        return branch
    if position is None:
        if not branch.is_confirmed:
            return branch  # its rows are on their way to the store
        live_sessions.forget_session(live_session)
        return None
    branch.is_confirmed = True
    if branch.is_at(position):
        return branch
    if live_session.branches.get(name) is branch:
        live_sessions.remove_branch(branch)
    again = await load_branch(live_sessions, live_session, name)
    if again is not None and not again.state.note_counts:
        _keep_unstored_values(branch, again)
    return again


def _keep_unstored_values(branch: Branch, restored: Branch) -> None:
    """Keep the values of a branch that are not stored, for the same branch as it was read again.

    The values that this process has seen are better than none."""
    seen = branch.state
    asked = max(restored.state.last_state_request, seen.last_state_request, key=lambda one: one.lossy_edits)
    restored.state = replace(
        restored.state,
        note_counts=seen.note_counts,
        cache_miss_streak=seen.cache_miss_streak,
        cache_hit_seen=seen.cache_hit_seen,
        last_state_request=asked,
    )
    known = branch.unstored
    restored.unstored = replace(restored.unstored, counted=known.counted, simulated_state=known.simulated_state)


async def read_last_failure(live_sessions: LiveSessions, branch: Branch, key: bytes) -> None:
    """Note if the last request of a branch failed. The branch was read back: the store alone knows whether the request
    has had an answer. key: of the request's last message."""
    status = await live_sessions.store.read_last_status(*branch.id, key)
    failed = status not in ("complete", "deferred", "open", "")
    branch.last_request = replace(branch.last_request, failed=failed)


async def resume_unanswered(
    live_sessions: LiveSessions, tenant: str, key: bytes, traits: RequestTraits, tools_hash: int
) -> Branch | None:
    """Return the branch whose only request comes again, as in `LiveSessions.find_unanswered`. From then on it is found
    by no second request: two users may begin alike. StoreUnavailable passes through."""
    branch = live_sessions.find_unanswered(tenant, key, traits, tools_hash)
    if branch is None:
        return None
    branch.last_request = replace(branch.last_request, failed=False)
    if not live_sessions.store.shared:
        live_sessions.find_session(tenant, branch.session)  # it is used
        return branch
    # Another process may have answered the request meanwhile, or deleted the session.
    found = await refresh_branch(live_sessions, branch.live_session, branch.name)
    return branch if found is branch else None


async def is_gone(live_sessions: LiveSessions, live_session: LiveSession) -> bool:
    """True if the session was deleted by another process; then it is forgotten. StoreUnavailable passes through."""
    if not (live_sessions.store.shared and any(branch.is_confirmed for branch in live_session.branches.values())):
        return False
    if await live_sessions.store.read_branch_kinds(live_session.tenant, live_session.session):
        return False
    live_sessions.forget_session(live_session)
    return True


async def refresh_decisions(live_sessions: LiveSessions, live_session: LiveSession) -> StoredDecisions:
    """Return the operator's decisions in force for a request of this session. If other processes write to the same
    store, they are read again; if that takes too long, the known ones count. Raises StoreUnavailable if none are
    known."""
    place = live_session.tenant, live_session.session
    if live_session.stored_decisions is None:
        known = live_session.explicit or live_session.stored
        live_session.stored_decisions = await read_decisions(live_sessions.store, *place) if known else NO_DECISIONS
    elif live_sessions.store.shared:
        try:
            async with asyncio.timeout(live_sessions.lookup_s):
                live_session.stored_decisions = await read_decisions(live_sessions.store, *place)
        except (TimeoutError, StoreUnavailable):
            live_sessions.on_lookup_failed("operator_decisions")
    return live_session.stored_decisions


async def reload_decisions(live_sessions: LiveSessions, tenant: str, session: str) -> None:
    """Read the operator's decisions again after one was made; the session's next requests have them."""
    found = await read_decisions(live_sessions.store, tenant, session)
    live_session = live_sessions.find_session(tenant, session)
    if live_session is not None:
        live_session.stored_decisions = found
