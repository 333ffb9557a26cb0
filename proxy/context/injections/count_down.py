"""Tell the model the number of iterations left, when few are left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from proxy.context.analysis.iteration import check_urgency, read_iteration, read_urgency
from proxy.context.plan import Insert
from proxy.context.stage import Injection
from proxy.context.summaries import placeholders
from proxy.context.view import View


@dataclass(frozen=True, slots=True)
class CountDown(Injection):
    """Insert `[15 iterations left. Complete your answer.]` at the tail, and a stronger text from `emergency` on."""

    aggressive: int = 15
    """The iteration from which the text is inserted."""
    emergency: int = 20
    """The iteration from which the stronger text is inserted."""
    max_iterations: int = 30
    """Maximum number of iterations, if the request has no `x-context-max-iterations`."""
    urgency: str = "firm"
    """Urgency: off, gentle or firm; `x-context-urgency` overrides it."""
    firm: str = "[<LEFT> iterations left. Complete your answer.]"
    """The text of firm urgency; `<LEFT>` is the number of iterations left."""
    firm_emergency: str = "[EMERGENCY: <LEFT> iterations remaining. Synthesize NOW.]"
    """The text of firm urgency from `emergency` on. This text and `firm` are word for word those of the program from
    which `progressive` is taken."""
    gentle: str = "[<LEFT> iterations left. Please begin to bring your answer together.]"
    """The text of gentle urgency."""
    gentle_emergency: str = "[<LEFT> iterations remaining. Please answer now with what you have found.]"
    """The text of gentle urgency from `emergency` on."""

    def __post_init__(self) -> None:
        """Validate the urgency and the texts, which come from a file. Raises ConfigError if one is invalid."""
        check_urgency(self.urgency)
        for name in ("firm", "firm_emergency", "gentle", "gentle_emergency"):
            placeholders.check(f"injections.count_down.{name}", getattr(self, name), ("LEFT",))

    def __call__(self, view: View) -> Iterable[Insert]:
        """Yield the text of this request, if its iteration is late enough."""
        at = read_iteration(view, self.max_iterations)
        level = read_urgency(view, self.urgency)
        if at.number < min(self.aggressive, self.emergency) or level == "off":
            return
        if at.number >= self.emergency:
            words = self.firm_emergency if level == "firm" else self.gentle_emergency
        else:
            words = self.firm if level == "firm" else self.gentle
        yield Insert("tail", "count_down", f"\n\n{placeholders.fill(words, LEFT=at.remaining)}", may_stand_alone=True)
