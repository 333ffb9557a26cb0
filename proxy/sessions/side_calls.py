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
from proxy.sessions.branch import Branch, LiveSession
from proxy.store.base import Row, Store
from proxy.store.branch_positions import BranchKind, BranchKindRow, WorkingBranchRow

MAX_MESSAGES = 3
"""Messages beside the system prompt that a side call has at most (WIRE.md 2.2)."""


class BranchTraits(NamedTuple):
    """Facts that tell a thread from a side call of its session. works: it has called tools, or continued after its
    first answer."""

    kind: BranchKind
    system: bytes
    works: bool


def classify_branch(
    system: bytes, others: Sequence[BranchTraits], *, short: bool, tools: bool
) -> tuple[BranchKind, bool]:
    """(the kind of a new thread, True where an answer without calls makes a side call of it). others: the session's
    threads."""
    beside = [one for one in others if one.kind != "side"]
    if not short or not beside or any(one.system == system for one in beside):
        return "main", False
    if not tools:
        return "side", False
    return "main", any(one.works for one in beside)


async def read_branch_traits(store: Store, live_session: LiveSession) -> list[BranchTraits]:
    """Return the threads of a session, as they are in memory, else as they are stored. StoreUnavailable passes
    through."""
    found: dict[str, BranchTraits] = {}
    if live_session.partial:  # other threads of the session may be in the store alone
        rows = await store.read_branch_kinds(live_session.tenant, live_session.session)
        found = {row.thread: BranchTraits(row.kind, row.system, row.works) for row in rows}
    for name, thread in live_session.branches.items():
        stored = found.get(name)
        found[name] = BranchTraits(
            thread.kind, thread.system, thread.is_working or (stored is not None and stored.works)
        )
    return list(found.values())


def is_first_continuation(request: Request, branch: Branch) -> bool:
    """True where this is the first request by which its thread continues after an answer."""
    if branch.is_working or branch.tip_key is None:
        return False
    return any(not m.is_system and m.role == "assistant" for m in request.messages)


def mark_working(branch: Branch) -> list[Row]:
    """Note that a thread works: return the rows that say so; memory is updated. Empty where it is known."""
    if branch.is_working:
        return []
    memory, was, branch.is_working = branch.live_session, branch.kind, True
    if was == "side":
        branch.kind = "main"
    for other in memory.branches.values():
        if other is not branch and other.kind == "main" and not other.is_working and other.system != branch.system:
            # A thread that was read back may have worked before; its next request makes it a conversation again.
            other.kind = "side"
    if not memory.explicit or not (was == "side" or memory.partial or len(memory.branches) > 1):
        return []
    return [WorkingBranchRow(branch.tenant, branch.session, branch.name, branch.system, MAX_MESSAGES)]


def mark_side_call(branch: Branch) -> list[Row]:
    """Note that an answer without calls has come to a thread's first request: return the rows; memory is updated."""
    if branch.is_working or not branch.may_become_side_call or branch.kind != "main":
        return []
    branch.kind, branch.may_become_side_call = "side", False
    return [BranchKindRow(branch.tenant, branch.session, branch.name, "side")]
