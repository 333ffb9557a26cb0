"""Side calls: the short requests that an agent makes beside its conversation, under the same session name.

An agent asks for a title, for tags or for a guess about the next question. It uses another system prompt and often no
tools, and sends the request under the session's name. Some agents send the title request before the first request of
the work. A side call is short and comes without tools, or with an answer that ends it. A thread works once its answer
calls tools or once its client continues after its first answer. A thread that works is no side call. Threads beside it
that never worked become side calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from proxy.chat.message import Request
from proxy.exchange.thread import SessionMemory, Thread
from proxy.store.base import Row, Store
from proxy.store.standing import Kind, KindRow, WorkRow

SHORT = 3
"""Messages beside the system prompt that a side call has at most (WIRE.md 2.2)."""


class Sign(NamedTuple):
    """Facts that tell a thread from a side call of its session. works: it has called tools, or continued after its
    first answer."""

    kind: Kind
    system: bytes
    works: bool


def begins_as(system: bytes, others: Sequence[Sign], *, short: bool, tools: bool) -> tuple[Kind, bool]:
    """(the kind of a new thread, True where an answer without calls makes a side call of it). others: the session's
    threads."""
    beside = [one for one in others if one.kind != "side"]
    if not short or not beside or any(one.system == system for one in beside):
        return "main", False
    if not tools:
        return "side", False
    return "main", any(one.works for one in beside)


async def signs(store: Store, memory: SessionMemory) -> list[Sign]:
    """Return the threads of a session, as they are in memory, else as they are stored. StoreUnavailable passes
    through."""
    found: dict[str, Sign] = {}
    if memory.partial:  # other threads of the session may be in the store alone
        rows = await store.thread_kinds(memory.tenant, memory.session)
        found = {row.thread: Sign(row.kind, row.system, row.works) for row in rows}
    for name, thread in memory.threads.items():
        stored = found.get(name)
        found[name] = Sign(thread.kind, thread.system, thread.works or (stored is not None and stored.works))
    return list(found.values())


def goes_on(request: Request, thread: Thread) -> bool:
    """True where this is the first request by which its thread continues after an answer."""
    if thread.works or thread.head is None:
        return False
    return any(not m.is_system and m.role == "assistant" for m in request.messages)


def works(thread: Thread) -> list[Row]:
    """Note that a thread works: return the rows that say so; memory is updated. Empty where it is known."""
    if thread.works:
        return []
    memory, was, thread.works = thread.memory, thread.kind, True
    if was == "side":
        thread.kind = "main"
    for other in memory.threads.values():
        if other is not thread and other.kind == "main" and not other.works and other.system != thread.system:
            # A thread that was read back may have worked before; its next request makes it a conversation again.
            other.kind = "side"
    if not memory.explicit or not (was == "side" or memory.partial or len(memory.threads) > 1):
        return []
    return [WorkRow(thread.tenant, thread.session, thread.name, thread.system, SHORT)]


def ended(thread: Thread) -> list[Row]:
    """Note that an answer without calls has come to a thread's first request: return the rows; memory is updated."""
    if thread.works or not thread.ends_beside or thread.kind != "main":
        return []
    thread.kind, thread.ends_beside = "side", False
    return [KindRow(thread.tenant, thread.session, thread.name, "side")]
