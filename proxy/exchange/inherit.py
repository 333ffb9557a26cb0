"""The STATE block across a client's own compaction: a new main thread of a named session begins with the newest state.

A client that replaces its history by a summary starts a new history. That history shares nothing with the one before,
or only its opening prompt. The state block was written for this case, and the session's name shows that both belong to
the same work. A thread with another system prompt belongs to another agent and begins without a state.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from proxy.chat.key import SIZE
from proxy.context.session import BY_MODEL, BY_OPERATOR
from proxy.exchange.parts import Parts
from proxy.exchange.turn import Turn
from proxy.store.base import StateRow

MOST = 16
"""Limit on the stored states that are searched for one that has not been dropped."""


async def inherit(parts: Parts, turn: Turn, dropped: Container[bytes], *, first: bool) -> None:
    """Give a new thread the newest state of its session; the row is put on the turn. dropped: keys of messages that the
    operator removed; a state in them does not count. first: the thread is new. StoreUnavailable passes through."""
    thread, explicit = turn.place.thread, turn.place.explicit
    if not (first and explicit and _begins_anew(turn)) or thread.state.states:
        return
    found = await _newest(parts, turn, dropped)
    if found is None:
        return
    at = next((k for k, m in zip(turn.keys, turn.request.messages, strict=True) if not m.is_system), turn.keys[-1])
    is_told = len(found[0]) > SIZE and not found[0].endswith(BY_MODEL)
    name = at + (BY_OPERATOR if is_told else BY_MODEL)
    thread.state = replace(thread.state, states=((name, found[1]),))
    turn.rows.append(StateRow(turn.tenant, thread.session, thread.name, name, found[1], turn.began))


def _begins_anew(turn: Turn) -> bool:
    """True if the request shares no answer with an earlier one of its session, and is none of its side calls."""
    place, messages = turn.place, turn.request.messages
    if place.kind == "main":
        return place.at < 0
    behind = any(not m.is_system for m in messages[place.at + 1 :])
    return place.kind == "fork" and behind and not any(m.role == "assistant" for m in messages[: place.at + 1])


async def _newest(parts: Parts, turn: Turn, dropped: Container[bytes]) -> tuple[bytes, str] | None:
    thread = turn.place.thread
    rows = await parts.store.newest_states(turn.tenant, thread.session, thread.system, MOST)
    found = [(row.key, row.text) for row in rows if row.thread != thread.name]
    if not found:  # a state that is on its way to the store
        others = [one for one in thread.memory.threads.values() if one.kind != "side" and one.system == thread.system]
        found = [state for one in reversed(others) for state in reversed(one.state.states)]
    return next((one for one in found if one[0][:SIZE] not in dropped), None)
