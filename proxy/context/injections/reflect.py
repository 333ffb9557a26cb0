"""Report the lessons of earlier calls, ask for those of the newest calls, and request a new approach without
progress."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from proxy.context import inserts
from proxy.context.analysis import call_batches
from proxy.context.analysis.call_batches import AnsweredCall, FoundReflections, ReflectionSettings
from proxy.context.analysis.call_signature import sign_call
from proxy.context.injections.warn_of_loops import WarnOfLoops
from proxy.context.plan import Insert
from proxy.context.stage import Injection
from proxy.context.view import View
from proxy.notes import call_summaries, reflection
from proxy.notes.reflection import Progress

HEADING = (
    "[What your earlier tool calls came to, those that matter most first. Their results have left this conversation."
    " It is information, not a request.]"
)
REPEATED = "; called again since"
"""The end of the line of an earlier one of equal calls: lines of different ranks are not in the order of time."""
OMITTED = "[... {count} more calls are not in this list]"
"""The last line where lines did not fit."""
RECOVERY_PROMPT = (
    "[RECOVERY: by your own assessment the last {count} iterations were stuck or regressing. Stop and look again: say"
    " what the goal still needs, what has been tried and why it failed, and take another way. If there is none, answer"
    " with what you have and say what is in the way.]"
)
ASK_SOURCE = "ask_reflection"
"""Source of the insert that asks for a REFLECTION block; the field `quoted_keys` has the keys of the results."""
REMOVING_ACTIONS = ("gone", "text")


@dataclass(frozen=True, slots=True)
class Reflect(ReflectionSettings, Injection):
    """Write one line for each call whose result has left the prompt, `searched 'x' → found 3 results; too general`.

    Lines are ranked by relevance to the goal (STATE's Goal, else the last user message) and keep their order within a
    rank. Low ranks leave first. With `reflect = "inline"` the model is asked to reflect on the newest calls in the same
    answer.
    """

    tokens: int = 1000
    """Maximum number of tokens for the lines."""
    stuck: int = 3
    """Consecutive stuck or regressing iterations after which a note asks the model to recover. 0: never."""
    loops: bool = True
    """Warn of loops if the model has assessed no progress. A policy that also has the injection `warn_of_loops` leaves
    the warning to that injection and its settings."""

    def __call__(self, view: View) -> Iterable[Insert]:
        """Yield the lines, a recovery prompt or a loop warning, and the request for a reflection. All are at the tail
        and new with every request."""
        looked = call_batches.find_reflections(view, self)
        lines = self._render_lines(view, looked)
        if lines:
            yield Insert("tail", "reflect", "\n\n" + "\n".join([HEADING, *lines]))
        yield from self._make_recovery(view, looked)
        if self.read_mode(view.inputs.options) == "inline" and inserts.may_ask(view.request):
            yield from self._ask_for_reflection(view, looked)

    def _render_lines(self, view: View, reflections: FoundReflections) -> list[str]:
        """Return the lines, high ranks first, in time order within a rank. Beyond `tokens`, the oldest lines of the
        lowest rank are left out, and a last line has their number."""
        away = [answered for answered in reflections.calls if _is_away(view, answered.result_index)]
        if not away:
            return []
        ranked = sorted(
            zip(call_batches.rank_by_relevance(view, away, reflections), away, strict=True), key=_rank_newest_of_best
        )
        newest = {sign_call(answered.call): answered.result_index for answered in reflections.calls}
        room = self.tokens - view.token_counter.count_text(HEADING)
        kept: list[tuple[int, int, str]] = []
        for rank, answered in ranked:
            text = "- " + call_batches.render_call(view, answered, reflections)
            text += REPEATED if newest[sign_call(answered.call)] > answered.result_index else ""
            room -= _count_tokens(view, answered, text) + 1
            if room < 0:
                break
            kept.append((rank, answered.result_index, text))
        omitted = [OMITTED.format(count=len(away) - len(kept))] if 0 < len(kept) < len(away) else []
        return [*(text for _, _, text in sorted(kept)), *omitted]

    def _make_recovery(self, view: View, reflections: FoundReflections) -> Iterator[Insert]:
        """Yield a recovery prompt if the model assesses itself as stuck; without assessments, yield a loop warning."""
        if not self.stuck:
            return
        if not reflections.progress:
            if self.loops:
                yield from _LOOPS(view)
            return
        run, total = count_stuck_iterations(reflections.progress)
        reported = view.branch.note_counts.get("recovery")
        if run >= self.stuck and (reported is None or total >= 2 * reported):
            yield Insert("tail", "reflect", "\n\n" + RECOVERY_PROMPT.format(count=run), note_count=("recovery", total))

    def _ask_for_reflection(self, view: View, reflections: FoundReflections) -> Iterator[Insert]:
        """Yield the request for a reflection on the batch that this request completes."""
        batch = reflections.batches[-1] if reflections.batches else None
        if batch is None or batch.ask_id in view.branch.helper_answers or not _is_newest(view, batch.calls[-1]):
            return
        text = reflection.build_prompt([call_summaries.describe_call(one.call) for one in batch.calls])
        yield Insert("tail", ASK_SOURCE, "\n\n" + text, quoted_keys=batch.result_keys)


_LOOPS = WarnOfLoops()


def count_stuck_iterations(progress: list[Progress]) -> tuple[int, int]:
    """Return (consecutive stuck or regressing iterations at the end, all such iterations)."""
    bad = [one != "advancing" for one in progress]
    run = next((n for n, one in enumerate(reversed(bad)) if not one), len(bad))
    return run, sum(bad)


def _is_away(view: View, n: int) -> bool:
    """True if a result has left the prompt. A result that is replaced by its own line, or by a reference to the same
    text, does not count."""
    edit = view.find_edit(n)
    return (
        edit is not None
        and edit.action in REMOVING_ACTIONS
        and not (edit.action == "text" and edit.stage in ("distil_results", "refer_repeats"))
    )


def _is_newest(view: View, answered: AnsweredCall) -> bool:
    """True if no assistant message follows the result."""
    return not any(m.role == "assistant" for m in view.messages[answered.result_index :])


def _rank_newest_of_best(ranked: tuple[int, AnsweredCall]) -> tuple[int, int]:
    return ranked[0], -ranked[1].result_index


def _count_tokens(view: View, answered: AnsweredCall, text: str) -> int:
    return view.messages[answered.result_index].derive(
        lambda _: view.token_counter.count_text(text), ("count", view.token_counter, text)
    )
