"""The STATE block across a client's own compaction: a new main branch of a named session begins with the newest state.

A client that replaces its history by a summary starts a new history. That history shares nothing with the one before,
or only its opening prompt. The state block was written for this case, and the session's name shows that both belong to
the same work. A branch with another system prompt belongs to another agent and begins without a state.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from proxy.chat.chain import DIGEST_BYTES
from proxy.context.branch_state import MODEL_STATE_SUFFIX, OPERATOR_STATE_SUFFIX
from proxy.exchange.services import Services
from proxy.exchange.turn import Turn
from proxy.store.base import StateRow
from proxy.store.expected_reads import MAX_STORED_STATES


async def inherit_state(services: Services, turn: Turn, dropped: Container[bytes]) -> None:
    """Give the turn's new branch the newest state of its session; the row is put on the turn. dropped: keys of messages
    that the operator removed; a state in them does not count. StoreUnavailable passes through."""
    branch = turn.located.branch
    if not (turn.located.explicit and _starts_new_history(turn)) or branch.state.states:
        return
    newest = await _find_newest_state(services, turn, dropped)
    if newest is None:
        return
    at = next((k for k, m in zip(turn.keys, turn.request.messages, strict=True) if not m.is_system), turn.keys[-1])
    is_operators = len(newest[0]) > DIGEST_BYTES and not newest[0].endswith(MODEL_STATE_SUFFIX)
    name = at + (OPERATOR_STATE_SUFFIX if is_operators else MODEL_STATE_SUFFIX)
    branch.state = msgspec.structs.replace(branch.state, states=((name, newest[1]),))
    turn.pending.rows.append(StateRow(turn.tenant, branch.session, branch.name, name, newest[1], turn.started_at))


def _starts_new_history(turn: Turn) -> bool:
    """True if the request shares no answer with an earlier one of its session, and is none of its side calls."""
    place, messages = turn.located, turn.request.messages
    if place.relation == "main":
        return place.known_until < 0
    first_new = next((m for m in messages[place.known_until + 1 :] if not m.is_system), None)
    return (
        place.relation == "fork"
        and first_new is not None
        and not first_new.calls  # no summary: another first step of the same work
        and not any(m.role == "assistant" for m in messages[: place.known_until + 1])
    )


async def _find_newest_state(services: Services, turn: Turn, dropped: Container[bytes]) -> tuple[bytes, str] | None:
    branch = turn.located.branch
    rows = await services.store.read_newest_states(turn.tenant, branch.session, branch.system, MAX_STORED_STATES)
    states = [(row.key, row.text) for row in rows if row.branch != branch.name]
    if not states:  # a state that is on its way to the store
        others = [b for b in branch.live_session.branches.values() if b.kind != "side" and b.system == branch.system]
        states = [state for other in reversed(others) for state in reversed(other.state.states)]
    return next((state for state in states if state[0][:DIGEST_BYTES] not in dropped), None)
