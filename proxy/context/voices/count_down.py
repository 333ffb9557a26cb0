"""Tell the model how many iterations are left, when they become few."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from proxy.context.evidence.iteration import check_urgency, iteration, urgency
from proxy.context.plan import Insert, View
from proxy.context.wording import placeholders


@dataclass(frozen=True, slots=True)
class CountDown:
    """`[15 iterations left. Complete your answer.]` at the tail, and from `emergency` on something stronger."""

    aggressive: int = 15
    """The iteration from which it is said."""
    emergency: int = 20
    """The iteration from which it is said more strongly."""
    max_iterations: int = 30
    """Iterations that there may be, where `x-context-max-iterations` does not say."""
    urgency: str = "firm"
    """off, gentle or firm; `x-context-urgency` overrides it."""
    firm: str = "[<LEFT> iterations left. Complete your answer.]"
    """The words of firm urgency; `<LEFT>` is how many iterations are left."""
    firm_emergency: str = "[EMERGENCY: <LEFT> iterations remaining. Synthesize NOW.]"
    """Those from `emergency` on. Both are the source's, word for word."""
    gentle: str = "[<LEFT> iterations left. Please begin to bring your answer together.]"
    """The words of gentle urgency."""
    gentle_emergency: str = "[<LEFT> iterations remaining. Please answer now with what you have found.]"
    """Those from `emergency` on."""

    def __post_init__(self) -> None:
        """Level and words come from a file."""
        check_urgency(self.urgency)
        for name in ("firm", "firm_emergency", "gentle", "gentle_emergency"):
            placeholders.check(f"voices.count_down.{name}", getattr(self, name), ("LEFT",))

    def __call__(self, view: View) -> Iterable[Insert]:
        """Made anew with every request."""
        at = iteration(view, self.max_iterations)
        level = urgency(view, self.urgency)
        if at.number < min(self.aggressive, self.emergency) or level == "off":
            return
        if at.number >= self.emergency:
            words = self.firm_emergency if level == "firm" else self.gentle_emergency
        else:
            words = self.firm if level == "firm" else self.gentle
        yield Insert("tail", "count_down", f"\n\n{placeholders.fill(words, LEFT=at.left)}", alone=True)
