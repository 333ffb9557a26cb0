"""How many tokens a message weighs: counted once a message, estimated where no vocabulary fits.

The counter is passed in (`Count`), since loading a vocabulary is I/O. What a provider adds around a message
differs; the allowances here are OpenAI's published ones, and what matters for decisions is that both
sides of a comparison are counted alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from proxy.chat.message import Message

Count = Callable[[str], int]
"""Tokens of a text. Pure, thread-safe, never raises."""

PER_MESSAGE = 4
"""Role, separators: OpenAI's cookbook counts 3 to 4 a message."""
PER_CALL = 12
"""The JSON around a call's name, id and arguments."""
PER_MEDIUM = 800
"""An image or file: between OpenAI's 85 (low detail) and 1,500 (high detail of a large image)."""

HEADS = 256
"""Tools arrays whose size is remembered."""


def estimate(text: str) -> int:
    """Tokens without a vocabulary: UTF-8 bytes over 3.9 for prose and code, one a character for dense scripts.

    Within 10 % of o200k_base on the sum of an agent's conversation; a single short message can be further off.
    """
    length = len(text)
    if text.isascii():
        return (length * 10 + 38) // 39
    wide = len(text.encode("utf-8", "surrogatepass")) - length
    return (length * 10 + 38) // 39 + wide // 4


@dataclass(frozen=True, eq=False)
class Weigh:
    """Tokens of a message under one counter. One instance a counter: it is the key of the messages' memo."""

    count: Count
    _heads: dict[bytes, int] = field(default_factory=dict, repr=False)

    def __call__(self, message: Message) -> int:
        """Tokens of the message as it came."""
        return message.derive(self._weigh)

    def _weigh(self, message: Message) -> int:
        total = PER_MESSAGE + self.count(message.text) + PER_MEDIUM * message.media
        if message.reasoning:
            total += self.count(message.reasoning)
        for call in message.calls:
            total += PER_CALL + self.count(call.name) + self.count(call.arguments)
        return total

    def known(self, message: Message) -> bool:
        """Whether the message has been counted before, so that asking is free."""
        return message.derived(self._weigh)

    def head(self, tools: bytes | None) -> int:
        """Tokens of the tools array, which most requests of an agent carry unchanged: the last 256 are remembered."""
        if not tools:
            return 0
        found = self._heads.get(tools)
        if found is None:
            if len(self._heads) >= HEADS:
                self._heads.clear()
            found = self._heads[tools] = self.count(tools.decode("utf-8", "replace"))
        return found
