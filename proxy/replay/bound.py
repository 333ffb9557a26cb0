"""Bounds from hindsight: costs of prompts that lose nothing, to measure policies by.

A message that may leave is carried whole from the request after it up to its last use. The last use is the last request
that wants an atom or a line of which the message is the last holder. The message then leaves at no price: the cache in
front of and after it stays warm. All other messages are carried to the end. So nothing that is wanted is ever missing.
The cached tokens of a request are those of the prompt before it that are still carried. Nothing has to be fetched
again.

Two bounds differ in the messages that may leave. `results`: tool results; this is the least cost of leaving them out
whole without a loss. `messages`: all but system messages and the newest user message. Every upstream would refuse calls
without results, so this bound is out of reach; it serves for policies that leave out whole groups. A policy comes below
a bound only if it loses wanted content, or if it carries only the wanted part of a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proxy.chat.message import Message
from proxy.context.models import Model
from proxy.replay.atoms import WireTokenCounter
from proxy.replay.cache import count_served_tokens
from proxy.replay.score import ReplayTotals
from proxy.replay.wanted_references import WantedReferences

BOUNDS = ("results", "messages")


@dataclass(frozen=True, slots=True)
class BoundInput:
    """The input of a bound, in addition to what is wanted."""

    removable: Sequence[bool]
    """For each message: True if it may leave."""
    prefix_tokens: int
    """Tokens of the tools."""
    times: Sequence[float]
    """The time at which each message was seen, in seconds."""
    shared_messages: int = 0
    """Number of messages at the front whose requests are not counted."""


def find_removable(name: str, messages: Sequence[Message], observations: Iterable[re.Pattern[str]]) -> list[bool]:
    """True for each message that may leave under a bound. observations: patterns of tool output of the user."""
    if name == "messages":
        return [not message.is_system for message in messages]
    patterns = list(observations)
    return [m.is_result or (m.role == "user" and any(pattern.search(m.text) for pattern in patterns)) for m in messages]


def compute_bound(
    references: WantedReferences,
    token_counter: WireTokenCounter,
    model: Model,
    bound_input: BoundInput,
    *,
    price_pairs: int,
) -> ReplayTotals:
    """Return the sums of a bound. price_pairs: the number of price pairs."""
    sizes = [token_counter(message) for message in references.messages]
    gone: dict[int, int] = {}  # position of a request -> tokens of the messages that leave after it
    for n, position in find_last_uses(references, bound_input.removable).items():
        gone[position] = gone.get(position, 0) + sizes[n]
    tally = ReplayTotals(fetching=[0.0] * price_pairs)
    carried, before, then = bound_input.prefix_tokens, 0, None
    for step in references.requests:
        kept = carried
        carried += sum(sizes[before : step.position])
        now = bound_input.times[step.position - 1]
        warm = then is not None and now - then <= model.ttl_s and model.cache != "none"
        if step.position >= bound_input.shared_messages:
            tally.requests += 1
            tally.prompt += carried
            tally.cached += count_served_tokens(kept, model) if warm else 0
            tally.peak = max(tally.peak, carried)
            tally.atoms += len(step.atoms)
            tally.far_atoms += sum(atom.far for atom in step.atoms)
            tally.lines += len(step.lines)
            tally.far_lines += sum(line.far for line in step.lines)
        carried -= gone.get(step.position, 0)
        before, then = step.position, now
    tally.atoms_kept = tally.in_place = tally.atoms
    tally.far_atoms_kept, tally.lines_kept, tally.far_lines_kept = tally.far_atoms, tally.lines, tally.far_lines
    return tally


def find_last_uses(references: WantedReferences, removable: Sequence[bool]) -> dict[int, int]:
    """Return, for each message that may leave, the position of the last request that has to carry it. A message that no
    request follows is not in the result."""
    last: dict[int, int] = {}
    before, newest = 0, -1
    for step in references.requests:
        for n in range(before, step.position):
            if removable[n]:
                last[n] = step.position
            if references.messages[n].role == "user":
                newest = n
        for n in (newest, *(wanted.holder for wanted in (*step.atoms, *step.lines))):
            if n in last:
                last[n] = step.position
        before = step.position
    return last
