"""Tell the model that it goes round in circles: once a kind of loop, and again only when that has doubled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from proxy.context.evidence.iteration import check_urgency, urgency
from proxy.context.evidence.signs import Signs
from proxy.context.evidence.stuck import KINDS, Loop, loops
from proxy.context.plan import Insert, View
from proxy.context.wording import placeholders
from proxy.errors import ConfigError

_FIRM = {
    "theme_loop": "ERROR: You're repeating yourself. Take action immediately.",
    "same_call_still": "[LOOP: <WHAT> was called <RUN> times with the same arguments and brought the same each time. Do"
    " not call it like that again: use what it brought, try something else, or say what is in the way.]",
    "cycle": "[LOOP: the last calls are a round that you have gone through <RUN> times with the same results. Break it:"
    " use what they brought, try something else, or say what is in the way.]",
    "same_call": "[LOOP: <WHAT> was called <RUN> times with the same arguments and brought the same each time. Calling"
    " it again has brought nothing new.]",
    "same_error": '[LOOP: the same error <RUN> times: "<WHAT>". Change what causes it before trying again.]',
    "same_text": "[LOOP: you have said the same <RUN> times. Take the next step, or say what is in the way.]",
    "repeated_planning": "[LOOP: <RUN> thoughts in a row without a tool call. Call a tool now, or give your answer.]",
    "no_progress": "[LOOP: <RUN> iterations without a new result. Change the approach, or answer with what you have.]",
}
"""The one for the theme loop is the source's, word for word."""
_GENTLE = {
    "theme_loop": "[Note: your last <RUN> thoughts were about <WHAT>. It may be time to act.]",
    "same_call_still": "[Note: <WHAT> was called <RUN> times with the same arguments, with the same result each time."
    " Another way may be better.]",
    "cycle": "[Note: the last calls are a round gone through <RUN> times with the same results.]",
    "same_call": "[Note: <WHAT> was called <RUN> times with the same arguments, with the same result each time.]",
    "same_error": '[Note: the same error came <RUN> times: "<WHAT>"]',
    "same_text": "[Note: you have said the same <RUN> times.]",
    "repeated_planning": "[Note: <RUN> thoughts in a row without a tool call. It may be time to act, or to answer.]",
    "no_progress": "[Note: the last <RUN> iterations brought no new result.]",
}
TEXTS: Mapping[tuple[str, str], str] = {
    **{(kind, "firm"): text for kind, text in _FIRM.items()},
    **{(kind, "gentle"): text for kind, text in _GENTLE.items()},
}
"""By (kind, urgency)."""
_NAMED = frozenset(kind for (kind, _), text in TEXTS.items() if "<WHAT>" in text)
"""Kinds of which it is known what goes round: a call, an error, a theme."""

_COVERED: Mapping[str, frozenset[str]] = {
    "same_call": frozenset({"same_call_still", "cycle"}),
    "repeated_planning": frozenset({"theme_loop", "same_text"}),
    "no_progress": frozenset({"same_call_still", "cycle", "same_call", "same_error", "same_text"}),
}
"""Loops that say nothing more where one of these is seen too."""


class Words(NamedTuple):
    """The words for a kind of loop at an urgency."""

    kind: str
    urgency: str
    text: str


@dataclass(frozen=True, slots=True)
class WarnOfLoops(Signs):
    """One note at the tail when the newest step goes on with a loop, of the kind that says most.

    A kind is spoken of once, and again only when what makes it up has doubled since (FEATURES.md B6).
    """

    kinds: tuple[str, ...] = KINDS
    """The kinds of loop that are spoken of."""
    urgency: str = "firm"
    """off, gentle or firm; `x-context-urgency` overrides it."""
    texts: tuple[Words, ...] = ()
    """Words in place of ours: tables with `kind`, `urgency` (firm or gentle) and `text`. `<RUN>` is how many
    times, `<WHAT>` the call, error or theme, where the kind has one."""

    def __post_init__(self) -> None:
        """Kinds and level come from a file."""
        Signs.__post_init__(self)
        check_urgency(self.urgency)
        for kind in self.kinds:
            if kind not in KINDS:
                raise ConfigError("voices.warn_of_loops.kinds", kind, "some of " + ", ".join(KINDS))
        object.__setattr__(self, "texts", tuple(map(_words, self.texts)))

    def __call__(self, view: View) -> Iterable[Insert]:
        """At most one note."""
        level = urgency(view, self.urgency)
        if level == "off" or not _acts(view):
            return
        loop = worth_telling(loops(view, self), view.said, self.kinds)
        if loop is not None:
            own = {(words.kind, words.urgency): words.text for words in self.texts}
            words = own.get((loop.kind, level), TEXTS[loop.kind, level])
            # An error is quoted: what a tool has printed cannot end the quotation.
            text = placeholders.fill(words, RUN=loop.run, WHAT=loop.what.replace('"', "'"))
            yield Insert("tail", "warn_of_loops", f"\n\n{text}", said=(loop.kind, loop.total), alone=True)


def _words(given: object) -> Words:
    """Words as they are in a file, or in the code."""
    if isinstance(given, Words):
        return given
    key = "voices.warn_of_loops.texts"
    if not isinstance(given, Mapping) or set(given) != set(Words._fields):
        raise ConfigError(key, given, "tables with " + ", ".join(Words._fields))
    kind, urgency, text = given["kind"], given["urgency"], given["text"]
    if kind not in KINDS or urgency not in ("firm", "gentle"):
        allowed = f"tables with a kind ({', '.join(KINDS)}) and an urgency (firm, gentle)"
        raise ConfigError(key, given, allowed)
    placeholders.check(key, text, (), ("RUN", "WHAT") if kind in _NAMED else ("RUN",))
    return Words(kind, urgency, text)


def _acts(view: View) -> bool:
    """Whether this is an agent's request: one that can call, has acted, or thinks without being asked. Chat, in which
    the user and the model take turns, is no loop."""
    if view.request.tool_names or any(view.is_result) or any(message.calls for message in view.messages):
        return True
    return any(n == m + 1 for m, n in pairwise(view.ground.answers))


def worth_telling(found: Sequence[Loop], said: Mapping[str, int], kinds: Sequence[str] = KINDS) -> Loop | None:
    """The loop to speak of: the first that no other covers and that has not been spoken of, or has doubled since."""
    found = [loop for loop in found if loop.kind in kinds]
    seen = {loop.kind for loop in found}
    for loop in found:
        told = said.get(loop.kind)
        if not seen & _COVERED.get(loop.kind, frozenset()) and (told is None or loop.total >= 2 * told):
            return loop
    return None
