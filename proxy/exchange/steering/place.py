"""Find the conversation that an operator means: a session by its name, one of its threads, and its history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from proxy.chat.dialects.completions import read_request, write_request
from proxy.chat.group import Group, groups
from proxy.chat.key import public_id
from proxy.chat.message import Request
from proxy.errors import NotFound
from proxy.exchange.parts import Parts
from proxy.exchange.rebuild import LARGE, came
from proxy.exchange.steering.inforce import InForce
from proxy.exchange.steering.inforce import read as read_decisions
from proxy.exchange.thread import Node, SessionMemory, Thread
from proxy.store.base import ExchangeRecord, SessionRecord

T = TypeVar("T")
MANY = 300
"""Messages from which work on all of them runs in a worker thread, so that the event loop serves others."""
PAGE = 200
"""Exchanges that are read at a time to find a thread's last one."""


@dataclass(frozen=True, slots=True, eq=False)
class Here:
    """A thread of a session. thread: a copy with a memory of its own, so that a trial on it changes no live thread.
    exchange: its last exchange. request: the history as the client would send it now, including our last answer. keys:
    the chain key of each message of it."""

    record: SessionRecord
    thread: Thread
    exchange: ExchangeRecord
    request: Request
    keys: tuple[bytes, ...]
    steered: InForce
    groups: list[Group]

    def index_of(self, message: str) -> int | None:
        """Return the index of a message in the history, by its public id."""
        return next(
            (n for n, k in enumerate(self.keys) if public_id(k) == message and not self.request.messages[n].is_system),
            None,
        )


async def aside(messages: int, work: Callable[[], T]) -> T:
    """Return the result of `work`, run beside the event loop where there are many messages. No view of an operator may
    keep agents waiting."""
    return work() if messages < MANY else await asyncio.to_thread(work)


async def session(parts: Parts, tenant: str, name: str) -> SessionRecord:
    """Return a session's record. Raises NotFound; StoreUnavailable passes through, here and below."""
    found = await parts.store.session(tenant, name)
    if found is None:
        raise NotFound(f"there is no session {name!r}", hint="List the sessions that there are.")
    return found


async def find(parts: Parts, tenant: str, name: str, thread: str | None = None) -> Here:
    """Return a thread with its history; the last used thread where none is named. Raises NotFound."""
    record = await session(parts, tenant, name)
    exchange = await last_exchange(parts, record, thread)
    request, keys = await came(parts.store, exchange, parts.messages.read)
    answered = await parts.store.chain(tenant, name, exchange.answer) if exchange.answer else []
    if answered and exchange.answer:
        raws = [*(m.raw for m in request.messages), answered[-1].body]
        request = await read(parts, await aside(len(raws), partial(write_request, request, raws)))
        keys = (*keys, exchange.answer)
    copied = await _copy(parts, record, exchange.thread, keys)
    steered = copied.memory.steered or InForce()
    policy = parts.policies.get(exchange.policy)
    observation = policy.observation if policy is not None else None
    found = await aside(len(keys), partial(groups, request.messages, keys, observation))
    return Here(record, copied, exchange, request, keys, steered, found)


async def last_exchange(parts: Parts, record: SessionRecord, thread: str | None) -> ExchangeRecord:
    """Return the newest exchange of a thread, or of the newest thread; side calls count where there is nothing else.
    Raises NotFound."""
    side = {one.thread for one in record.threads if one.kind == "side"}
    side = side if len(side) < len(record.threads) else set()
    if thread is not None and thread not in {one.thread for one in record.threads}:
        raise NotFound(f"session {record.session!r} has no thread {thread!r}")
    before: float | None = None
    while page := await parts.store.exchanges(record.tenant, record.session, PAGE, before):
        for one in page:
            if one.thread == thread or (thread is None and one.thread not in side):
                return one
        before = page[-1].started_at
    raise NotFound(f"nothing was said in session {record.session!r} yet")


async def read(parts: Parts, body: bytes) -> Request:
    """Read a request; messages that were read before are found again."""
    if len(body) < LARGE:
        return read_request(body, parts.messages.read)
    return await asyncio.to_thread(read_request, body, parts.messages.read)


async def _copy(parts: Parts, record: SessionRecord, name: str, keys: Sequence[bytes]) -> Thread:
    """Return the thread as a request would find it, in a memory of its own."""
    place = (record.tenant, record.session)
    known = await parts.store.known(*place, list(dict.fromkeys(keys)))
    nodes = await aside(
        len(known),
        lambda: {k: Node(one.form, one.thread, one.reached, one.strategy, one.seen) for k, one in known.items()},
    )
    memory = SessionMemory(
        *place, record.explicit, nodes, stored=True, steered=await read_decisions(parts.store, *place)
    )
    live = parts.threads.session(*place)
    found = live.threads.get(name) if live is not None else None
    if found is None:
        found = await parts.threads.load(memory, name)
    if found is None:
        raise NotFound(f"session {record.session!r} has no thread {name!r}")
    return replace(found, memory=memory)
