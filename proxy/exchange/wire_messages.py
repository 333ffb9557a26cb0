"""The messages of a plan for the writer of a wire format: each with the client's message that it is made from.

Results that the plan leaves to the provider's own clearing go out as received.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from proxy.chat.message import Request
from proxy.context.plan import Plan
from proxy.context.provider_clearing import STAGE as CLEARING
from proxy.context.provider_clearing import count_cleared
from proxy.dialects.written_history import OutgoingMessage
from proxy.sessions.hidden_rounds import SplicedRequest


def find_sources(spliced: SplicedRequest, client: Request, plan: Plan) -> list[OutgoingMessage]:
    """The messages of a plan, each with the index of the client's message that it is made from.

    An answer that hidden rounds stand in for is one of the proxy: upstream gets it back as it was.
    """
    messages, count = spliced.request.messages, len(spliced.request.messages)
    is_own = messages is client.messages
    indices = range(count) if is_own else _find_client_indices(spliced, client)
    if plan.messages is None:
        return [(n, m.raw) for n, m in zip(indices, messages, strict=True)]
    if is_own and max(plan.sources, default=0) < count:  # no message of the proxy's, as in most prompts
        return [*zip(plan.sources, plan.messages, strict=True)]
    return [(indices[n] if n < count else None, raw) for n, raw in zip(plan.sources, plan.messages, strict=True)]


def _find_client_indices(spliced: SplicedRequest, client: Request) -> list[int | None]:
    """For each message of a spliced request the index of the client's message that it is; None for one of the proxy."""
    indices: list[int | None] = []
    at = 0
    for message, key in zip(spliced.request.messages, spliced.keys, strict=True):
        if key in spliced.hidden_at:
            indices.append(None)
            continue
        indices.append(at if message is client.messages[at] else None)
        at += 1
    return indices


def leaves_clearing(plan: Plan) -> bool:
    """True if a plan leaves results to the provider's own clearing."""
    return CLEARING in map(attrgetter("stage"), plan.edits.values())


def list_uncleared(
    spliced: SplicedRequest, plan: Plan, messages: Sequence[OutgoingMessage]
) -> tuple[list[OutgoingMessage], int | None]:
    """(the messages to send, with results that the provider clears as received; the number of results that it keeps,
    or None where it clears none).

    Results that the provider cannot clear alone go out with our text in their place.
    """
    if not leaves_clearing(plan):
        return list(messages), None
    cleared = count_cleared(spliced.request.messages, spliced.keys, plan.edits)
    if not cleared:
        return list(messages), None
    own = {}
    for place, raw in zip(plan.sources, plan.messages or (), strict=bool(plan.messages)):
        edit = plan.edits.get(spliced.keys[place]) if place < len(spliced.keys) else None
        if edit is not None and edit.stage == CLEARING:
            own[raw] = spliced.request.messages[place].raw
    made = [(source, own.get(raw, raw)) for source, raw in messages]
    results = sum(raw.startswith(b'{"role":"tool"') for _, raw in made)
    return made, results - cleared
