"""Reuse of the plan of a conversation's first request, for other conversations with the same first request.

Samples of one prompt, evaluations and load generators send one body many times, each as a conversation of its own. A
plan depends only on the values that are compared here. `rewrite` is pure, and in a first request no message is older
than another. So the plan can be reused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.context.plan import Found, Plan
from proxy.context.session import Session
from proxy.exchange.turn import Turn

_NOTE = "opening"
_FRESH = Session()


def asked(turn: Turn, state: Session, found: Sequence[Found], told: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return all values that the plan of a conversation's first request depends on; None for any other request.

    state, found: as `rewrite` is given them. told: the scratchpad and memos of its prompt.
    """
    woven, offer = turn.woven, turn.pending or turn.offer
    own = found or turn.relevance or woven.hidden or any(told.values())
    if turn.place.at >= 0 or own or state != _FRESH:
        return None
    request = woven.request
    return (
        *(request.messages, request.model, request.tools, request.stream, request.plain, request.effort),
        *(request.choices, request.usage_wanted, request.tool_names, request.max_tokens),
        *(turn.tenant, turn.policy, turn.model, turn.weigh, turn.strategy, turn.options),
        *(turn.pending is None, offer.names, offer.definitions),
    )


def known(turn: Turn, question: tuple[Any, ...] | None) -> Plan | None:
    """Return the plan that was made for the same question, if it is the last one remembered with these messages."""
    before: tuple[tuple[Any, ...], Plan] | None = turn.request.notes.get(_NOTE)
    return before[1] if before is not None and before[0] == question else None


def note(turn: Turn, question: tuple[Any, ...] | None, plan: Plan) -> None:
    """Remember a plan for as long as its messages are remembered."""
    if question is not None:
        turn.request.notes[_NOTE] = question, plan
