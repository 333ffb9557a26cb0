"""Baseline policies: the prompts of a proxy that has no memory of its own.

A baseline reads only the messages of the request, so it has no settings, no schedule and no session. A policy that is
worse than a baseline gains nothing from its memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from proxy.chat import group
from proxy.chat.message import Message
from proxy.chat.tokens import TokenCounter
from proxy.dialects.completions.request import replace_text

STUB = "[an old tool result was here]"

Baseline = Callable[[Sequence[Message], TokenCounter], list[bytes]]
"""Function from a history to the bytes of the messages to send. It gets the token counter as well."""


def mask_results(messages: Sequence[Message], keep: int, batch: int = 1) -> list[bytes]:
    """Replace every tool result but the last `keep` with a stub. The boundary moves `batch` results at a time."""
    results = [n for n, m in enumerate(messages) if m.is_result]
    old = set(results[: max(0, len(results) - keep) // batch * batch])
    return [_make_stub(m) if n in old and m.shape in ("string", "parts") else m.raw for n, m in enumerate(messages)]


def _make_stub(message: Message) -> bytes:
    return message.derive(lambda m: replace_text(m.raw, STUB), "stub")


def keep_half(messages: Sequence[Message], token_counter: TokenCounter, *, newest: bool) -> list[bytes]:
    """Keep system messages, the first and the last user message, and the last step. Of all other steps keep half of the
    tokens: the newest steps, or steps chosen by a hash of their position."""
    steps = group.split_steps(messages)
    first = next((n for n, m in enumerate(messages) if m.role == "user"), 0)
    stay = {n for n, s in enumerate(steps) if messages[s.start].is_system or s.start == first} | {len(steps) - 1}
    # The last user message stays as well, as it does with every policy.
    stay |= {max((n for n, s in enumerate(steps) if messages[s.start].role == "user"), default=0)}
    others = [n for n in range(len(steps) - 1, -1, -1) if n not in stay]
    if not newest:
        others.sort(key=lambda n: hashlib.blake2b(b"%d/%d" % (n, len(messages)), digest_size=8).digest())
    sizes = {n: sum(map(token_counter, messages[steps[n].start : steps[n].end])) for n in others}
    budget = sum(sizes.values()) / 2
    for n in others:
        if sizes[n] > budget:
            if newest:
                break
            continue
        budget -= sizes[n]
        stay.add(n)
    return [messages[at].raw for n in sorted(stay) for at in range(steps[n].start, steps[n].end)]


BASELINES: dict[str, Baseline] = {
    "mask-10": lambda messages, _: mask_results(messages, 10),
    "mask-10-by-15": lambda messages, _: mask_results(messages, 10, 15),
    "newest-half": lambda messages, token_counter: keep_half(messages, token_counter, newest=True),
    "random-half": lambda messages, token_counter: keep_half(messages, token_counter, newest=False),
}
"""Baselines by their name in `--policy`: observation masking, sliding and in batches; the newer half or a random half
of the history."""
