"""Additions to a turn's request before it is planned: the hidden rounds behind its answers, and our tools.

Threads that offer no tools have no hidden rounds either, and no cost for both.
"""

from __future__ import annotations

import logging

from proxy.context.session import cuts
from proxy.errors import NotManaged, StoreUnavailable
from proxy.exchange import background, record
from proxy.exchange import offer as offers
from proxy.exchange.parts import Parts
from proxy.exchange.turn import Turn
from proxy.exchange.weave import Round, Rounds, Woven, read_round, weave, with_tools

log = logging.getLogger(__name__)

HABITS = 1000
"""Limit on the kinds of conversations that are known to come to edits."""


async def dress(parts: Parts, turn: Turn, *, first: bool) -> None:
    """Put hidden rounds and tools into the turn's request. first: it is its thread's first request, so that no cache
    has any part of it yet."""
    thread = turn.place.thread
    if turn.policy.mode != "rewrite" or thread.state.stopped is not None or thread.kind == "side":
        return
    if thread.offer is None:
        _decide(parts, turn, first=first)
    if thread.offer is None or not thread.offer.names:
        return
    turn.offer = offers.present(thread.offer, turn.request)
    try:
        rounds = await _rounds(parts, turn)
        turn.woven = weave(turn.request, turn.keys, rounds, turn.offer.definitions, parts.messages.read)
    except (NotManaged, StoreUnavailable, ValueError):
        # The client's own history is whole without the rounds: its calls and their results are all there.
        parts.metrics.swallowed_total.labels(where="rounds").inc()
        log.exception("hidden rounds cannot be put back")
        turn.woven = weave(turn.request, turn.keys, {}, turn.offer.definitions)


def _decide(parts: Parts, turn: Turn, *, first: bool) -> None:
    """Decide on the thread's tools, where that is possible by now. The decision is final: a list that changes later
    moves the whole prompt."""
    when = offers.when(parts.settings, turn.policy)
    if when == "when_needed":
        when = "first_request" if first and _habit(turn) in parts.edited else "first_edit"
    found = offers.decide(parts.settings, turn.policy, turn.request, explicit=turn.place.explicit)
    if when == "first_request":
        record.offered(turn, found if first else offers.NONE)
    elif when == "first_edit" and cuts(turn.place.thread.state.edits):
        record.offered(turn, offers.NONE)
    elif when == "first_edit":
        turn.pending = found


async def _rounds(parts: Parts, turn: Turn) -> Rounds:
    """Return the rounds behind the answers in this request, read from the store where this process does not know
    them."""
    memory = turn.place.thread.memory
    keys, answers = turn.keys, turn.request.which("answers", lambda m: m.role == "assistant")
    asked = {keys[n - 1]: None for n in answers if n}
    missing = [k for k in asked if k not in memory.rounds]
    if missing:
        rows = await parts.store.rounds(turn.tenant, memory.session, missing)
        found: dict[bytes, tuple[Round, ...]] = dict.fromkeys(missing, ())
        for row in rows:
            if row.head in found:
                found[row.head] += (read_round(row.key, row.head, row.body, row.created_at),)
        for head, known in found.items():
            if head not in memory.rounds:  # nobody else has read it meanwhile
                memory.put_behind(head, known)
    return memory.rounds


def _habit(turn: Turn) -> tuple[str, tuple[str, ...]]:
    """Key of one kind of conversations: the tenant, and the names of the client's tools."""
    return turn.tenant, tuple(sorted(turn.request.tool_names))


def settle(parts: Parts, turn: Turn) -> None:
    """Add the tools that come with the first edit, once the plan has an edit; the thread keeps them."""
    if turn.plan.refused or not cuts(turn.plan.edits):
        return
    parts.edited[_habit(turn)] = None
    if len(parts.edited) > HABITS:
        del parts.edited[next(iter(parts.edited))]
    if turn.pending is None:
        return
    if turn.place.thread.offer is None:
        record.offered(turn, turn.pending)
    turn.offer, turn.pending = turn.pending, None
    if not turn.woven.tools:
        turn.woven = with_tools(turn.woven, turn.offer.definitions)


def bare(turn: Turn) -> None:
    """Reset the turn to the client's own bytes: nothing is hidden in them, and none of our tools is offered."""
    turn.woven = Woven(turn.request, turn.keys)
    turn.offer = offers.NONE


def guarded(turn: Turn) -> frozenset[bytes]:
    """Keys of results that our tools have brought since the last prompt: they would be fetched again if they were
    shortened."""
    if not turn.woven.hidden:
        return frozenset()
    task = background.task(turn)
    since = turn.woven.keys.index(turn.keys[task[0]]) if task is not None else 0
    messages, hidden = turn.woven.request.messages, turn.woven.hidden
    return frozenset(k for n, k in enumerate(turn.woven.keys) if n > since and messages[n].is_result and k in hidden)
