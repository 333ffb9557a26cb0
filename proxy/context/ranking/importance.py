"""The importance of a message, 0 to 100: recency, role, keywords and length (after REPLOID's context manager).

All terms but the recency are computed once for each message; only the recency changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from proxy.chat.message import Message

ERROR_WORDS = (
    "error", "fail", "exception", "traceback", "panic", "fatal", "crash", "denied", "refused", "timed out", "not found",
)  # fmt: skip
"""Words that tell of an error. Case and position do not matter, so `TypeError` and `failed` match as well."""

OPERATION_WORDS = (
    "tool", "function", "command", "operation", "execut", "creat", "updat", "delet", "modif", "install",
)  # fmt: skip
"""Words, or the beginnings of words, that tell of an operation."""


@dataclass(frozen=True, slots=True)
class ImportanceWeights:
    """The points for each property of a message. The default weights add up to 100 at most."""

    recency: float = 40
    """Points for system messages and the last message. Other messages get a share that grows with their position."""
    role_system: float = 30
    """Points for system and developer messages."""
    role_user: float = 20
    """Points for user messages."""
    role_model: float = 10
    """Points for the model's messages and for tool results."""
    error: float = 15
    """Points for a word that tells of an error, once."""
    operation: float = 10
    """Points for a word that tells of a tool or an operation, once. A tool call has them in any case."""
    keywords: float = 25
    """The most that words give together."""
    length: float = 5
    """Points for a long message."""
    long: int = 1000
    """Characters from which a message is long, the arguments of its calls included."""
    errors: tuple[str, ...] = ERROR_WORDS
    """Words that tell of an error."""
    operations: tuple[str, ...] = OPERATION_WORDS
    """Words that tell of a tool or an operation."""


DEFAULT_WEIGHTS = ImportanceWeights()
"""The source's weights."""


@lru_cache(maxsize=64)
def make_scorer(weights: ImportanceWeights) -> Callable[[Message], float]:
    """Return the function that scores a message without its recency.

    Equal weights get the same function, so the function can name the score that is remembered with the message.
    """
    errors = tuple(word.lower() for word in weights.errors)
    operations = tuple(word.lower() for word in weights.operations)

    def score(message: Message) -> float:
        text = message.text.lower()
        words = 0.0
        if any(word in text for word in errors):
            words += weights.error
        if message.calls or any(word in text for word in operations):
            words += weights.operation
        total = min(words, weights.keywords)
        if message.is_system:
            total += weights.role_system
        else:
            total += weights.role_user if message.role == "user" else weights.role_model
        if len(message.text) + sum(len(call.arguments) for call in message.calls) >= weights.long:
            total += weights.length
        return total

    return score


def score_message(message: Message, position: int, total: int, weights: ImportanceWeights = DEFAULT_WEIGHTS) -> float:
    """The score of a message at a position (from 0) among the `total` messages that are not system messages."""
    recent = message.is_system or position >= total - 1
    share = 1.0 if recent else position / total
    return message.derive(make_scorer(weights)) + weights.recency * share


def score_messages(messages: Sequence[Message], weights: ImportanceWeights = DEFAULT_WEIGHTS) -> list[float]:
    """The score of each message of a conversation."""
    by_itself = make_scorer(weights)
    others = sum(not message.is_system for message in messages)
    step = weights.recency / others if others else 0.0
    scores = []
    position = 0
    for message in messages:
        recency = weights.recency
        if not message.is_system:
            recency = step * position
            position += 1
        scores.append(message.derive(by_itself) + recency)
    if messages and not messages[-1].is_system:
        scores[-1] = messages[-1].derive(by_itself) + weights.recency
    return scores
