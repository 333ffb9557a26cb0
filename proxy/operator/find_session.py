"""Find the conversation that an operator means: a session by its name, one of its branches, and its history."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from proxy.chat.chain import public_id
from proxy.chat.group import Group, split_groups
from proxy.chat.message import Request
from proxy.dialects.completions.request import read_request, write_request
from proxy.errors import NotFound
from proxy.exchange.rebuild_prompt import rebuild_request
from proxy.exchange.services import LARGE_BODY_BYTES, Services
from proxy.sessions import load_sessions
from proxy.sessions.branch import Branch, LiveSession
from proxy.sessions.operator_decisions import NO_DECISIONS, StoredDecisions, read_decisions
from proxy.sessions.packing import Node
from proxy.store.base import ExchangeRecord, SessionRecord
from proxy.store.reads import Store

T = TypeVar("T")
OFF_LOOP_MESSAGES = 300
"""Messages from which work on all of them runs in a worker thread, so that the event loop serves others."""
PAGE_SIZE = 200
"""Exchanges that are read at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class SelectedBranch:
    """A branch of a session. branch: a copy with its own memory, so that a trial on it changes no live branch.
    exchange: its last exchange. request: the history as the client would send it now, including our last answer. keys:
    the chain key of each message of it."""

    record: SessionRecord
    branch: Branch
    exchange: ExchangeRecord
    request: Request
    keys: tuple[bytes, ...]
    operator_decisions: StoredDecisions
    groups: list[Group]

    def find_index(self, message_id: str) -> int | None:
        """Return the index of a message in the history, by its public id."""
        return next(
            (
                n
                for n, k in enumerate(self.keys)
                if public_id(k) == message_id and not self.request.messages[n].is_system
            ),
            None,
        )


async def run_off_loop(messages: int, work: Callable[[], T]) -> T:
    """Return the result of `work`, beside the event loop where there are many messages."""
    return work() if messages < OFF_LOOP_MESSAGES else await asyncio.to_thread(work)


async def read_session(services: Services, tenant: str, name: str) -> SessionRecord:
    """Return a session's record. Raises NotFound; StoreUnavailable passes through, here and below."""
    record = await services.store.read_session(tenant, name)
    if record is None:
        raise NotFound(f"there is no session {name!r}", hint="List the sessions that there are.")
    return record


async def find_branch(services: Services, tenant: str, name: str, branch: str | None = None) -> SelectedBranch:
    """Return a branch with its history; the last used branch where none is named. Raises NotFound."""
    record = await read_session(services, tenant, name)
    exchange = await find_last_exchange(services, record, branch)
    request, keys = await rebuild_request(services.store, exchange, services.message_cache.get_message)
    answered = await services.store.read_chain(tenant, name, exchange.answer) if exchange.answer else []
    if answered and exchange.answer:
        raws = [*(m.raw for m in request.messages), answered[-1].body]
        request = await parse_request(services, await run_off_loop(len(raws), partial(write_request, request, raws)))
        keys = (*keys, exchange.answer)
    copied = await _copy_branch(services, record, exchange.branch, keys)
    decisions = copied.live_session.stored_decisions or NO_DECISIONS
    policy = services.policies.get(exchange.policy)
    observation = policy.observation if policy is not None else None
    found = await run_off_loop(len(keys), partial(split_groups, request.messages, keys, observation))
    return SelectedBranch(record, copied, exchange, request, keys, decisions, found)


async def find_last_exchange(services: Services, record: SessionRecord, branch: str | None) -> ExchangeRecord:
    """Return the newest exchange of a branch, or of the newest branch, side calls last. Raises NotFound."""
    side = {row.branch for row in record.branches if row.kind == "side"}
    side = side if len(side) < len(record.branches) else set()
    if branch is not None and branch not in {row.branch for row in record.branches}:
        raise NotFound(f"session {record.session!r} has no branch {branch!r}", hint="List its branches.")
    async for exchange in iter_exchanges(services.store, record.tenant, record.session):
        if exchange.branch == branch or (branch is None and exchange.branch not in side):
            return exchange
    raise NotFound(f"nothing was said in session {record.session!r} yet")


async def iter_exchanges(store: Store, tenant: str, session: str) -> AsyncIterator[ExchangeRecord]:
    """Yield a session's exchanges, newest first. They are read a page at a time."""
    before: float | None = None
    while page := await store.read_exchanges(tenant, session, PAGE_SIZE, before):
        for one in page:
            yield one
        before = page[-1].started_at


async def read_newest_exchanges(services: Services, tenant: str, session: str, limit: int) -> list[ExchangeRecord]:
    """Return a session's last exchanges, oldest first."""
    exchanges: list[ExchangeRecord] = []
    async for exchange in iter_exchanges(services.store, tenant, session):
        exchanges.append(exchange)
        if len(exchanges) >= limit:
            break
    return exchanges[::-1]


async def parse_request(services: Services, body: bytes) -> Request:
    """Read a request; messages that were read before are found again."""
    if len(body) < LARGE_BODY_BYTES:
        return read_request(body, services.message_cache.get_message)
    return await asyncio.to_thread(read_request, body, services.message_cache.get_message)


async def _copy_branch(services: Services, record: SessionRecord, name: str, keys: Sequence[bytes]) -> Branch:
    """Return the branch as a request would find it, in its own memory."""
    place = (record.tenant, record.session)
    known = await services.store.find_known_messages(*place, list(dict.fromkeys(keys)))
    nodes = await run_off_loop(
        len(known),
        lambda: {k: Node(one.form, one.branch, one.reached, one.strategy, one.seen) for k, one in known.items()},
    )
    live_session = LiveSession(
        *place, record.explicit, nodes, stored=True, stored_decisions=await read_decisions(services.store, *place)
    )
    live = services.live_sessions.find_session(*place)
    # Another replica may have moved it on since this one has seen it.
    branch = None
    if live is not None and name in live.branches:
        branch = await load_sessions.refresh_branch(services.live_sessions, live, name)
    if branch is None:
        branch = await load_sessions.load_branch(services.live_sessions, live_session, name)
    if branch is None:
        raise NotFound(f"session {record.session!r} has no branch {name!r}", hint="List its branches.")
    return replace(branch, live_session=live_session, store_position=branch.store_position.copy())
