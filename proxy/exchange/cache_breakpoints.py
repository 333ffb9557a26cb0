"""Breakpoints of the proxy in the bytes that go upstream, where the model caches at breakpoints only.

The plan says where they are wanted (`context.breakpoints`), the dialect sets them. An upstream that refuses a prompt
with them, and takes it without, gets none again.
"""

from __future__ import annotations

from proxy.dialects.base import NO_BREAKPOINTS
from proxy.exchange.refusals import make_room, peek_refusal
from proxy.exchange.services import Services
from proxy.exchange.turn import Turn
from proxy.upstream.client import Reply


def mark_prompt(services: Services, turn: Turn) -> Turn:
    """Return the turn with the proxy's breakpoints in its prompt."""
    body = mark_body(services, turn, turn.prompt.outgoing)
    return turn if body is turn.prompt.outgoing else turn.with_prompt(outgoing=body, unmarked=turn.prompt.outgoing)


def mark_body(services: Services, turn: Turn, body: bytes) -> bytes:
    """The body with the breakpoints that the plan wants; the same object if it gets none."""
    planned, breakpoints = turn.prompt.plan.breakpoints, turn.dialect.breakpoints
    if not services.settings.cache.breakpoints or turn.prompt.observed:
        return body
    if breakpoints is None or planned == NO_BREAKPOINTS:
        return body
    if services.breakpoint_support.get(turn.model_key) is False:
        return body
    try:
        marked = breakpoints.add(body, planned)
    except (ValueError, KeyError, RecursionError):
        return body  # the upstream judges a request that cannot be read
    return body if marked == body else marked


async def is_refusal(turn: Turn, reply: Reply) -> bool:
    """True if an error is about the proxy's breakpoints. The error can still be passed on."""
    field = turn.model.breakpoint_field
    if not turn.prompt.unmarked or not field:
        return False
    return field.encode() in await peek_refusal(reply)


def remember_support(services: Services, turn: Turn, *, is_supported: bool) -> None:
    """Note whether the upstream takes a prompt of this model with breakpoints of the proxy."""
    make_room(services.breakpoint_support)
    services.breakpoint_support[turn.model_key] = is_supported


def without_breakpoints(turn: Turn) -> Turn:
    """The turn with the prompt as it was before the proxy's breakpoints."""
    return turn.with_prompt(outgoing=turn.prompt.unmarked, unmarked=b"") if turn.prompt.unmarked else turn
