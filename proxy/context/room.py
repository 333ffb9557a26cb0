"""Tokens that a prompt may have: the model's window, less the room that the answer needs.

A policy fills only a share of the window, which leaves room for an answer and for the error of our own count. That
share is not enough if the window has to hold a long answer too. An upstream refuses a prompt that leaves no room for
the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.chat.message import Request
from proxy.context.policy import Policy
from proxy.context.prices import Model

LEAST = 4
"""Divisor of the window: a prompt is brought down to this part at most, however long an answer the client allows. A
client that allows an answer as long as the window hardly wants an empty prompt."""
USUAL = 5
"""Divisor of a small window: a usual answer is taken to need this part at most. Policies leave this part free
anyway."""


@dataclass(frozen=True, slots=True)
class Room:
    """The room of a prompt."""

    budget: int
    """Tokens that a prompt is brought down to."""
    limit: int
    """Tokens that a prompt must not pass."""


def room_for(request: Request, policy: Policy, model: Model, named: int | None = None) -> Room | None:
    """The room for the prompt of this request, None if no window is known. named: the window that the upstream has
    named."""
    window = policy.window_of(model, named)
    if not window:
        return None
    limit = window - kept_free(request, model, window)
    return Room(min(int(window * policy.budget), max(limit, window // LEAST)), limit)


def kept_free(request: Request, model: Model, window: int) -> int:
    """Tokens of the window that the answer needs: as many as the client allows, else those of a usual answer."""
    if model.answer_apart:
        return 0
    if request.max_tokens is not None:
        return request.max_tokens
    return min(model.answer, model.max_output or model.answer, window // USUAL)
