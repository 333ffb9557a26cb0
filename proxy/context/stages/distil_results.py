"""Replace a result by one line on the call's lesson: at the tail, ranked, or in place of the result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from proxy.chat.group import Step
from proxy.chat.tokens import PER_MESSAGE, estimate_text_tokens
from proxy.context.analysis import call_batches
from proxy.context.analysis.call_batches import REFLECTION_KIND, ReflectionSettings
from proxy.context.plan import Ask, Proposal
from proxy.context.stage import Stage, When
from proxy.context.view import View
from proxy.errors import ConfigError
from proxy.notes import reflection

NAME = "distil_results"
MAX_ASKED_BATCHES = 4
"""Maximum number of batches that a helper is asked about, the newest first: older batches had their chance."""


@dataclass(frozen=True, slots=True)
class DistilResults(ReflectionSettings, Stage):
    """Replace older tool calls by a line each, `searched 'x' → found 3 results; too general`; the newest results stay
    whole.

    With lines at the tail, the steps leave the prompt, and the injection `reflect` writes the ranked lines. With `place
    = "result"`, or where the tail of a prompt takes no text, the line replaces the result. Low-stakes calls get a line
    from their results alone."""

    recent: int = 5
    """Number of newest results that stay whole; more where a step would be split."""
    place: str = "tail"
    """Place of the lines: tail or result."""
    when: ClassVar[When] = "schedule"

    def __post_init__(self) -> None:
        """Validate the settings, which come from a file. Raises ConfigError if `place` is not tail or result."""
        ReflectionSettings.__post_init__(self)
        if self.place not in ("tail", "result"):
            raise ConfigError("stages.distil_results.place", self.place, "tail or result")

    def __call__(self, view: View) -> Iterable[Proposal]:
        """Yield proposals for every step older than the newest results."""
        reflections = call_batches.find_reflections(view, self)
        results = [answered.result_index for answered in reflections.calls]
        if len(results) <= self.recent:
            return
        first = results[-self.recent] if self.recent else len(view.messages)
        since = dict(zip(results, results[self.recent :], strict=False))
        last = len(view.messages) - 1
        at_tail = self.place == "tail" and view.model.after_tool != "none"
        by_result = {answered.result_index: answered for answered in reflections.calls}
        for step in view.steps:
            if step.end - step.start == 1 or step.end > first or step.end > last:
                continue
            if at_tail:
                since_all = max(since.get(n, last) for n in range(step.start + 1, step.end) if view.is_result[n])
                for n in range(step.start, step.end):
                    yield Proposal(n, "gone", NAME, "told in a line at the tail", 0, since=since_all)
                continue
            for n in range(step.start + 1, step.end):
                if n in by_result:
                    yield from self._propose_line(
                        view, n, call_batches.render_call(view, by_result[n], reflections), since.get(n, last)
                    )

    def _propose_line(self, view: View, n: int, line: str, since: int) -> Iterator[Proposal]:
        message = view.messages[n]
        if message.shape not in ("string", "parts") or len(line) >= len(message.text):
            return
        if not view.literal and view.find_edit(n) is not None:
            return
        yield Proposal(n, "text", NAME, "told in a line", PER_MESSAGE + estimate_text_tokens(line), line, since)

    def asks(self, view: View) -> Iterator[Ask]:
        """Yield a question for each batch without an answer; an `urgent` one if newer results have come."""
        if self.read_mode(view.inputs.options) != "helper":
            return
        looked = call_batches.find_reflections(view, self)
        newest = _find_newest_step(view)
        for batch in reversed(looked.batches[-MAX_ASKED_BATCHES:]):
            if batch.ask_id not in view.branch.helper_answers:
                yield self._ask(view, batch, now=newest is None or batch.calls[-1].call_index != newest.start)

    def _ask(self, view: View, batch: call_batches.CallBatch, *, now: bool) -> Ask:
        shown = [reflection.render_excerpt(one.call, view.messages[one.result_index]) for one in batch.calls]
        wanted = call_batches.find_goal(view.branch.state, view.messages, view.is_result)
        return Ask(
            REFLECTION_KIND,
            reflection.build_helper_prompt(wanted, shown),
            batch.result_keys,
            max_chars=reflection.MAX_CHARS,
            urgent=now,
        )


def _find_newest_step(view: View) -> Step | None:
    """Return the step whose results this request adds, None if the request adds no results."""
    return next((s for s in reversed(view.steps) if s.end - s.start > 1 and s.end == len(view.messages)), None)
