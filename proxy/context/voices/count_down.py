"""Tell the model how many iterations are left, when they become few."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from proxy.context.evidence.iteration import check_urgency, iteration, urgency
from proxy.context.plan import Insert, View

_TEXTS = {
    ("firm", False): "[{left} iterations left. Complete your answer.]",
    ("firm", True): "[EMERGENCY: {left} iterations remaining. Synthesize NOW.]",
    ("gentle", False): "[{left} iterations left. Please begin to bring your answer together.]",
    ("gentle", True): "[{left} iterations remaining. Please answer now with what you have found.]",
}
"""By (urgency, whether it is an emergency). The firm ones are the source's, word for word."""


@dataclass(frozen=True, slots=True)
class CountDown:
    """`[15 iterations left. Complete your answer.]` at the tail, and from `emergency` on something stronger."""

    aggressive: int = 15
    """The iteration from which it is said."""
    emergency: int = 20
    """The iteration from which it is said more strongly."""
    max_iterations: int = 30
    """How many there may be, where `x-context-max-iterations` does not say."""
    urgency: str = "firm"
    """off, gentle or firm; `x-context-urgency` overrides it."""

    def __post_init__(self) -> None:
        """The level comes from a file."""
        check_urgency(self.urgency)

    def __call__(self, view: View) -> Iterable[Insert]:
        """Made anew with every request."""
        at = iteration(view, self.max_iterations)
        level = urgency(view, self.urgency)
        if at.number < min(self.aggressive, self.emergency) or level == "off":
            return
        text = _TEXTS[level, at.number >= self.emergency].format(left=at.left)
        yield Insert("tail", "count_down", f"\n\n{text}", alone=True)
