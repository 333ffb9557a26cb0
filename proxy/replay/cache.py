"""Model of a provider's prompt cache, as far as it is known from outside: the tokens of a prompt that it serves.

A hit is the longest common prefix with one of the last prompts of the same conversation, if the prefix is long enough.
It is cut to whole blocks. A message that differs counts up to its first different character. For some models the cache
ends at marks in the prompt (`breakpoint`). There an earlier prompt serves only if the new prompt begins with all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from proxy.chat.message import Message
from proxy.context.models import Model
from proxy.exchange.cache_keep_alive import MARGIN_S
from proxy.replay.atoms import WireTokenCounter, render_message

MAX_CACHED_PROMPTS = 4
"""Number of earlier prompts of a conversation that the cache still holds."""

CachedPrompt = tuple[float, list[Message]]
"""(time of sending in seconds, messages)"""


class ProviderCache:
    """The cached prompts of one conversation."""

    def __init__(self, model: Model, token_counter: WireTokenCounter, prefix_tokens: int) -> None:
        """Start with no cached prompt. prefix_tokens: tokens before the messages (tools) of every prompt."""
        self._model = model
        self._ruler = token_counter
        self._head = prefix_tokens
        self._earlier: list[CachedPrompt] = []

    def change_tools(self, prefix_tokens: int) -> None:
        """Change the tools. Prompts that were sent before serve no more. prefix_tokens: tokens of the new tools."""
        self._head = prefix_tokens
        self._earlier.clear()

    def send_prompt(self, prompt: list[Message], now: float) -> tuple[int, int]:
        """Put a prompt into the cache, and return (its tokens, the cached tokens among them). now: seconds."""
        offsets = list(accumulate(map(self._ruler, prompt), initial=self._head))
        model = self._model
        hit = 0
        if model.cache != "none":
            alive = [old for at, old in self._earlier if now - at <= model.ttl_s]
            hit = max((self._count_common_prefix(prompt, offsets, old) for old in alive), default=0)
        self._earlier.append((now, prompt))
        del self._earlier[:-MAX_CACHED_PROMPTS]
        return offsets[-1], count_served_tokens(hit, model)

    def send_pings(self, until: float, most: int) -> tuple[int, float]:
        """Read the last prompt again, shortly before it expires each time, at most so often and until a time. Return
        (the number of pings, the time of the last use)."""
        used_at, prompt = self._earlier[-1]
        interval = self._model.ttl_s - MARGIN_S
        if self._model.cache == "none" or interval <= 0:
            return 0, used_at
        count = most if until == math.inf else max(0, min(most, math.ceil((until - used_at) / interval) - 1))
        used_at += count * interval
        self._earlier[-1] = used_at, prompt
        return count, used_at

    def _count_common_prefix(self, prompt: list[Message], offsets: Sequence[int], old: list[Message]) -> int:
        """Return the tokens of the longest common prefix with an earlier prompt."""
        shorter = min(len(prompt), len(old))
        if prompt[:shorter] == old[:shorter]:  # compared by identity: the same bytes are the same object
            return offsets[shorter] if shorter == len(old) or self._model.cache != "breakpoint" else 0
        for n in range(shorter):
            mine, theirs = prompt[n], old[n]
            if mine is theirs:
                continue
            a, b = render_message(mine), render_message(theirs)
            if a == b:
                continue
            if self._model.cache == "breakpoint":
                return 0
            return offsets[n] + (self._ruler(mine) * count_common_characters(a, b) // len(a) if a else 0)
        return offsets[shorter]


def count_served_tokens(hit: int, model: Model) -> int:
    """Return the tokens of a common prefix that a cache serves: whole blocks, none below the model's minimum."""
    hit = hit // model.block * model.block
    return hit if hit >= model.min else 0


def count_common_characters(a: str, b: str) -> int:
    """Return the number of characters that two texts share at their beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # a[:low] == b[:low] always holds
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
