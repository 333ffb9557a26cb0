"""Warn the model of a loop: once for each kind, and again only when its count has doubled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from proxy.context.analysis.iteration import check_urgency, read_urgency
from proxy.context.analysis.lexicon import LoopSettings
from proxy.context.analysis.loops import LOOP_KINDS, Loop, find_loops
from proxy.context.plan import Insert
from proxy.context.stage import Injection
from proxy.context.summaries import placeholders
from proxy.context.view import View
from proxy.errors import ConfigError

_FIRM = {
    "theme_loop": "ERROR: You're repeating yourself. Take action immediately.",
    "same_call_still": "[LOOP: <WHAT> was called <RUN> times with the same arguments and returned the same result each"
    " time. Do not call it like that again: use the result, try something else, or say what prevents you.]",
    "cycle": "[LOOP: you have repeated the same sequence of calls <RUN> times with the same results. Break it: use the"
    " results, try something else, or say what prevents you.]",
    "same_call": "[LOOP: <WHAT> was called <RUN> times with the same arguments and returned the same result each time."
    " Calling it again has returned nothing new.]",
    "same_error": '[LOOP: the same error <RUN> times: "<WHAT>". Change what causes it before trying again.]',
    "same_text": "[LOOP: you have said the same <RUN> times. Take the next step, or say what prevents you.]",
    "repeated_planning": "[LOOP: <RUN> thoughts in a row without a tool call. Call a tool now, or give your answer.]",
    "no_progress": "[LOOP: <RUN> iterations without a new result. Change the approach, or answer with what you have.]",
}
"""Firm texts by kind. The text of the theme loop is word for word that of the program from which `progressive` is
taken."""
_GENTLE = {
    "theme_loop": "[Note: your last <RUN> thoughts were about <WHAT>. It may be time to act.]",
    "same_call_still": "[Note: <WHAT> was called <RUN> times with the same arguments, with the same result each time."
    " Another way may be better.]",
    "cycle": "[Note: the same sequence of calls was repeated <RUN> times with the same results.]",
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
"""Texts by (kind, urgency)."""
_NAMED = frozenset(kind for (kind, _), text in TEXTS.items() if "<WHAT>" in text)
"""Kinds whose text names the repeated call, error or theme."""

_COVERED: Mapping[str, frozenset[str]] = {
    "same_call": frozenset({"same_call_still", "cycle"}),
    "repeated_planning": frozenset({"theme_loop", "same_text"}),
    "no_progress": frozenset({"same_call_still", "cycle", "same_call", "same_error", "same_text"}),
}
"""Kinds of loop that are left out, by kind, if one of these other kinds is present too."""


class WarningText(NamedTuple):
    """The text for a kind of loop at an urgency."""

    kind: str
    urgency: str
    text: str


@dataclass(frozen=True, slots=True)
class WarnOfLoops(LoopSettings, Injection):
    """Insert one note at the tail when the newest step continues a loop, of the most informative kind.

    A kind is reported once, and again only when its count has doubled since.
    """

    kinds: tuple[str, ...] = LOOP_KINDS
    """The kinds of loop that are reported."""
    urgency: str = "firm"
    """Urgency: off, gentle or firm; `x-context-urgency` overrides it."""
    texts: tuple[WarningText, ...] = ()
    """Texts that replace the built-in ones: tables with `kind`, `urgency` (firm or gentle) and `text`. `<RUN>` is the
    number of repeats, `<WHAT>` the call, error or theme, where the kind has one."""

    def __post_init__(self) -> None:
        """Validate the kinds, the urgency and the texts of a file. Raises ConfigError if one is invalid."""
        LoopSettings.__post_init__(self)
        check_urgency(self.urgency)
        for kind in self.kinds:
            if kind not in LOOP_KINDS:
                raise ConfigError("injections.warn_of_loops.kinds", kind, "some of " + ", ".join(LOOP_KINDS))
        object.__setattr__(self, "texts", tuple(map(_read_warning_text, self.texts)))

    def __call__(self, view: View) -> Iterable[Insert]:
        """Yield at most one note."""
        level = read_urgency(view, self.urgency)
        if level == "off" or not _is_agentic(view):
            return
        loop = select_loop(find_loops(view, self), view.branch.note_counts, self.kinds)
        if loop is not None:
            own = {(words.kind, words.urgency): words.text for words in self.texts}
            words = own.get((loop.kind, level), TEXTS[loop.kind, level])
            # An error is quoted: the text of a tool must not end the quotation.
            text = placeholders.fill(words, RUN=loop.run_length, WHAT=loop.subject.replace('"', "'"))
            yield Insert(
                "tail", "warn_of_loops", f"\n\n{text}", note_count=(loop.kind, loop.total), may_stand_alone=True
            )


def _read_warning_text(given: object) -> WarningText:
    """Return a text from a file, or from the code, as a WarningText. Raises ConfigError if it is invalid."""
    if isinstance(given, WarningText):
        return given
    key = "injections.warn_of_loops.texts"
    if not isinstance(given, Mapping) or set(given) != set(WarningText._fields):
        raise ConfigError(key, given, "tables with " + ", ".join(WarningText._fields))
    kind, urgency, text = given["kind"], given["urgency"], given["text"]
    if kind not in LOOP_KINDS or urgency not in ("firm", "gentle"):
        allowed = f"tables with a kind ({', '.join(LOOP_KINDS)}) and an urgency (firm, gentle)"
        raise ConfigError(key, given, allowed)
    placeholders.check(key, text, (), ("RUN", "WHAT") if kind in _NAMED else ("RUN",))
    return WarningText(kind, urgency, text)


def _is_agentic(view: View) -> bool:
    """True if this is an agent's request: it offers tools, has calls or results, or has two assistant messages in a
    row. Chat, in which the user and the model take turns, is no loop."""
    if view.request.tool_names or any(view.is_result) or any(message.calls for message in view.messages):
        return True
    return any(n == m + 1 for m, n in pairwise(view.history.assistant_indexes))


def select_loop(
    loops: Sequence[Loop], note_counts: Mapping[str, int], kinds: Sequence[str] = LOOP_KINDS
) -> Loop | None:
    """Return the loop to report: the first that is new or has doubled, and that no other covers; or None."""
    loops = [loop for loop in loops if loop.kind in kinds]
    seen = {loop.kind for loop in loops}
    for loop in loops:
        reported = note_counts.get(loop.kind)
        if not seen & _COVERED.get(loop.kind, frozenset()) and (reported is None or loop.total >= 2 * reported):
            return loop
    return None
