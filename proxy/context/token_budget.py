"""Tokens that a prompt may have: the model's window, less the room that the answer needs.

A policy fills only a share of the window, which leaves room for an answer and for the error of our own count. That
share is not enough if the window has to hold a long answer too. An upstream refuses a prompt that leaves no room for
the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.chat.message import Request
from proxy.context.models import Model
from proxy.context.policy import Policy

MIN_PROMPT_DIVISOR = 4
"""Divisor of the window: a prompt is brought down to this part at most, however long an answer the client allows. A
client that allows an answer as long as the window hardly wants an empty prompt."""
USUAL_ANSWER_DIVISOR = 5
"""Divisor of a small window: a usual answer is taken to need this part at most. Policies leave this part free
anyway."""


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """The room of a prompt."""

    budget: int
    """Tokens that a prompt is brought down to."""
    limit: int
    """Tokens that a prompt must not pass."""


def compute_token_budget(
    request: Request, policy: Policy, model: Model, learned_window: int | None = None
) -> TokenBudget | None:
    """The room for the prompt of this request, None if no window is known. learned_window: the window that the upstream
    has named."""
    window = policy.find_window(model, learned_window)
    if not window:
        return None
    limit = window - count_answer_tokens(request, model, window)
    return TokenBudget(min(int(window * policy.budget), max(limit, window // MIN_PROMPT_DIVISOR)), limit)


def count_answer_tokens(request: Request, model: Model, window: int) -> int:
    """Tokens of the window that the answer needs: as many as the client allows, else those of a usual answer."""
    if model.answer_apart:
        return 0
    if request.max_tokens is not None:
        return request.max_tokens
    return min(model.answer, model.max_output or model.answer, window // USUAL_ANSWER_DIVISOR)
