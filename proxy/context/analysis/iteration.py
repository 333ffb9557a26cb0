"""The iteration of an agent on its current prompt, the maximum number of iterations, and the urgency of reminders.

An iteration is an assistant message since the last user message, in the client's own history. For one
request, the header `x-context-max-iterations` sets the maximum, and `x-context-urgency` the urgency.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal, NamedTuple, get_args

from proxy.context.view import View
from proxy.errors import ConfigError

Urgency = Literal["off", "gentle", "firm"]
"""off: no reminders. gentle: polite words. firm: the words of the source."""


class CurrentIteration(NamedTuple):
    """The iteration of a request."""

    number: int
    """Assistant messages since the last prompt."""
    maximum: int
    """The maximum number of iterations."""
    start: int
    """The index of the first message after the prompt."""

    @property
    def remaining(self) -> int:
        """The number of iterations left, at least 0."""
        return max(0, self.maximum - self.number)


def read_iteration(view: View, max_iterations: int) -> CurrentIteration:
    """Return the iteration of the view's request. max_iterations: the maximum where the request does not set it."""
    begins = view.groups[-1].prompt_end if view.groups else 0
    number = view.request_counts[-1] - (view.request_counts[begins - 1] if begins else 0)
    return CurrentIteration(number, _number(view.inputs.options.get("max-iterations", ""), max_iterations), begins)


def find_iteration_message(view: View, current: CurrentIteration, number: int) -> int:
    """Return the index of the assistant message with which the prompt reached that iteration."""
    before = view.request_counts[current.start - 1] if current.start else 0
    return bisect_left(view.request_counts, before + number, current.start)


def read_urgency(view: View, default: str) -> str:
    """Return the urgency that the request sets, else `default`."""
    wanted = view.inputs.options.get("urgency", "").strip().lower()
    return wanted if wanted in get_args(Urgency) else default


def check_urgency(level: str) -> None:
    """Check the name of a level. Raises ConfigError if there is no such level."""
    if level not in get_args(Urgency):
        raise ConfigError("urgency", level, "one of " + ", ".join(get_args(Urgency)))


def _number(given: str, default: int) -> int:
    """Return the number in a header, `default` if the text is no positive number."""
    given = given.strip()
    return int(given) if given.isascii() and given.isdigit() and len(given) < 10 and int(given) > 0 else default
