"""How far an agent is with what it was asked for: its iteration, how many it may have, and how urgent we may be.

An iteration is an assistant message since the last user message, in the client's own history (FEATURES.md B2). The
header `x-context-max-iterations` says for one request how many there may be, `x-context-urgency` how urgent to be.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal, NamedTuple, get_args

from proxy.context.plan import View
from proxy.errors import ConfigError

Urgency = Literal["off", "gentle", "firm"]
"""off: no urging. gentle: in polite words. firm: in those of the source."""


class Iteration(NamedTuple):
    """number: assistant messages since the last prompt. most: how many there may be. begins: the index of the first
    message after the prompt."""

    number: int
    most: int
    begins: int

    @property
    def left(self) -> int:
        """How many are left, never fewer than none."""
        return max(0, self.most - self.number)


def iteration(view: View, most: int) -> Iteration:
    """The iteration that the view's request asks for. most: where the request does not say itself how many it has."""
    begins = view.groups[-1].prompt_end if view.groups else 0
    number = view.requests[-1] - (view.requests[begins - 1] if begins else 0)
    return Iteration(number, _number(view.options.get("max-iterations", ""), most), begins)


def reached(view: View, at: Iteration, number: int) -> int:
    """The index of the assistant message with which that iteration of the prompt was reached."""
    before = view.requests[at.begins - 1] if at.begins else 0
    return bisect_left(view.requests, before + number, at.begins)


def urgency(view: View, level: str) -> str:
    """How urgent to be: as the request says, else `level`."""
    wanted = view.options.get("urgency", "").strip().lower()
    return wanted if wanted in get_args(Urgency) else level


def check_urgency(level: str) -> None:
    """ConfigError where there is no such level."""
    if level not in get_args(Urgency):
        raise ConfigError("urgency", level, "one of " + ", ".join(get_args(Urgency)))


def _number(given: str, default: int) -> int:
    """A header's number; what is none, or not positive, says nothing."""
    given = given.strip()
    return int(given) if given.isascii() and given.isdigit() and len(given) < 10 and int(given) > 0 else default
