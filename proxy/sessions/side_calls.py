"""Side calls: short requests that an agent makes next to its conversation, under the same session name.

An agent asks for a title, for tags or for a guess about the next question. It uses another system prompt and often no
tools, and sends the request under the session's name. Some agents send the title request before the first request of
the work. A side call is short and comes without tools, or with an answer that ends it. A branch works once its answer
calls tools or once its client continues after its first answer. A branch that works is no side call. Other branches of
the session that never worked become side calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from proxy.chat.message import Request
from proxy.sessions.branch import Branch, LiveSession
from proxy.store.base import Row
from proxy.store.branch_positions import BranchKind, BranchKindRow, WorkingBranchRow
from proxy.store.reads import Store

MAX_SIDE_CALL_MESSAGES = 3
"""Messages beside the system prompt that a side call has at most."""


class BranchTraits(NamedTuple):
    """Facts that tell a branch from a side call. works: it called tools, or went on after its first answer."""

    kind: BranchKind
    system: bytes
    works: bool


def classify_branch(
    system: bytes, others: Sequence[BranchTraits], *, short: bool, tools: bool
) -> tuple[BranchKind, bool]:
    """(the kind of a new branch, True if an answer without calls makes it a side call). others: the session's."""
    beside = [one for one in others if one.kind != "side"]
    if not short or not beside or any(one.system == system for one in beside):
        return "main", False
    if not tools:
        return "side", False
    return "main", any(one.works for one in beside)


async def read_branch_traits(store: Store, live_session: LiveSession) -> list[BranchTraits]:
    """Return a session's branches from memory, else from the store. StoreUnavailable passes through."""
    traits: dict[str, BranchTraits] = {}
    if live_session.partial:  # other branches of the session may be in the store alone
        rows = await store.read_branch_kinds(live_session.tenant, live_session.session)
        traits = {row.branch: BranchTraits(row.kind, row.system, row.works) for row in rows}
    for name, branch in live_session.branches.items():
        stored = traits.get(name)
        traits[name] = BranchTraits(
            branch.kind, branch.system, branch.has_worked or (stored is not None and stored.works)
        )
    return list(traits.values())


def mark_continued(request: Request, branch: Branch) -> list[Row]:
    """Note that a branch whose client goes on after an answer works: return the rows that say so."""
    is_continued = any(not m.is_system and m.role == "assistant" for m in request.messages)
    return mark_working(branch) if branch.last_request.tip_key is not None and is_continued else []


def mark_working(branch: Branch) -> list[Row]:
    """Note that a branch works: return the rows that say so; memory is updated. Empty where it is known."""
    if branch.has_worked:
        return []
    live_session, was, branch.has_worked = branch.live_session, branch.kind, True
    if was == "side":
        branch.kind = "main"
    for other in live_session.branches.values():
        if other is not branch and other.kind == "main" and not other.has_worked and other.system != branch.system:
            # A branch that was read back may have worked before; its next request makes it a conversation again.
            other.kind = "side"
    if not live_session.explicit or not (was == "side" or live_session.partial or len(live_session.branches) > 1):
        return []
    return [WorkingBranchRow(branch.tenant, branch.session, branch.name, branch.system, MAX_SIDE_CALL_MESSAGES)]


def mark_side_call(branch: Branch) -> list[Row]:
    """Mark a branch as a side call, since its first answer has no calls (see `Branch.may_become_side_call`). Return the
    rows that say so; memory is updated."""
    if branch.has_worked or branch.kind != "main":
        return []
    branch.kind, branch.may_become_side_call = "side", False
    return [BranchKindRow(branch.tenant, branch.session, branch.name, "side")]
