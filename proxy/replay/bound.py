"""What hindsight would have paid: bounds to measure policies by.

A message that may leave is carried whole from the request after it up to the last request that wants an atom or a
line of which it is the last holder, and is then gone without a price: the cache in front of and behind it stays warm.
All other messages are carried to the end. So nothing that is wanted is ever missing; the cached tokens of a request
are those of the prompt before it that are still carried, and there is nothing to be fetched again.

Two bounds differ in what may leave. `results`: tool results, the least that leaving them out whole can cost
without a loss. `messages`: all but system messages and the newest user message; calls without results would be refused
by every upstream, so this is out of reach, and a bound for policies that leave out whole groups. A policy can
come below either by losing what is wanted, or by carrying the wanted part of a message alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proxy.chat.message import Message
from proxy.context.prices import Model
from proxy.replay.cache import served
from proxy.replay.score import Tally
from proxy.replay.wants import Wants
from proxy.replay.words import Ruler

BOUNDS = ("results", "messages")


@dataclass(frozen=True, slots=True)
class Hindsight:
    """What a bound is reckoned from, beside what is wanted. leaving: which messages may leave. head: tokens of the
    tools. times: when each message was seen. shared: how many messages at the front have requests that are not
    counted."""

    leaving: Sequence[bool]
    head: int
    times: Sequence[float]
    shared: int = 0


def leaving(name: str, messages: Sequence[Message], observations: Iterable[re.Pattern[str]]) -> list[bool]:
    """Which messages may leave under a bound. observations: of user messages that are really tool output."""
    if name == "messages":
        return [not message.is_system for message in messages]
    patterns = list(observations)
    return [m.is_result or (m.role == "user" and any(pattern.search(m.text) for pattern in patterns)) for m in messages]


def bound(wants: Wants, ruler: Ruler, model: Model, seen: Hindsight, *, pairs: int) -> Tally:
    """The sums of a bound. pairs: how many price pairs there are."""
    sizes = [ruler(message) for message in wants.messages]
    gone: dict[int, int] = {}  # position of a request -> tokens of the messages that leave after it
    for n, position in last_use(wants, seen.leaving).items():
        gone[position] = gone.get(position, 0) + sizes[n]
    tally = Tally(fetching=[0.0] * pairs)
    carried, before, then = seen.head, 0, None
    for step in wants.steps:
        kept = carried
        carried += sum(sizes[before : step.position])
        now = seen.times[step.position - 1]
        warm = then is not None and now - then <= model.ttl_s and model.cache != "none"
        if step.position >= seen.shared:
            tally.steps += 1
            tally.prompt += carried
            tally.cached += served(kept, model) if warm else 0
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


def last_use(wants: Wants, leaving: Sequence[bool]) -> dict[int, int]:
    """For each message that may leave the position of the last request that has to carry it. One that no request
    follows is not there."""
    last: dict[int, int] = {}
    before, newest = 0, -1
    for step in wants.steps:
        for n in range(before, step.position):
            if leaving[n]:
                last[n] = step.position
            if wants.messages[n].role == "user":
                newest = n
        for n in (newest, *(wanted.holder for wanted in (*step.atoms, *step.lines))):
            if n in last:
                last[n] = step.position
        before = step.position
    return last
