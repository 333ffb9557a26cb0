"""Reuse of the plan of a conversation's first request, for other conversations with the same first request.

Samples of one prompt, evaluations and load generators send one body many times, each as a conversation of its own. A
plan depends only on the values that are compared here. `rewrite` is pure, and in a first request no message is older
than another. So the plan can be reused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.context.branch_state import BranchState
from proxy.context.plan import Plan, RetrievedText
from proxy.exchange.turn import Turn

_NOTE = "opening"
_FRESH = BranchState()


def collect_plan_inputs(
    turn: Turn, state: BranchState, search_hits: Sequence[RetrievedText], notes: Mapping[str, Any]
) -> tuple[Any, ...] | None:
    """Return all values that the plan of a conversation's first request depends on; None for any other request.

    state, search_hits: as `rewrite` is given them. notes: the scratchpad and memos of its prompt.
    """
    woven, offer = turn.spliced, turn.pending_tool_offer or turn.tool_offer
    own = search_hits or turn.relevance or woven.hidden_at or any(notes.values())
    if turn.located.known_until >= 0 or own or state != _FRESH:
        return None
    request = woven.request
    return (
        *(
            request.messages,
            request.model,
            request.tools,
            request.stream,
            request.is_free_text,
            request.reasoning_effort,
        ),
        *(request.choices, request.usage_wanted, request.tool_names, request.max_tokens),
        *(turn.tenant, turn.policy, turn.model, turn.weigh, turn.strategy, turn.options),
        *(turn.pending_tool_offer is None, offer.names, offer.definitions),
    )


def find_known_plan(turn: Turn, inputs: tuple[Any, ...] | None) -> Plan | None:
    """Return the plan that was made for the same question, if it is the last one remembered with these messages."""
    before: tuple[tuple[Any, ...], Plan] | None = turn.request.memo_values.get(_NOTE)
    return before[1] if before is not None and before[0] == inputs else None


def remember_plan(turn: Turn, inputs: tuple[Any, ...] | None, plan: Plan) -> None:
    """Remember a plan for as long as its messages are remembered."""
    if inputs is not None:
        turn.request.memo_values[_NOTE] = inputs, plan
