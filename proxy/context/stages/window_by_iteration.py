"""Keep less with each iteration on a prompt: all, then facts and newest thoughts, then facts, then the last facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from proxy.context.analysis.iteration import CurrentIteration, find_iteration_message, read_iteration
from proxy.context.analysis.streams import Streams, find_streams
from proxy.context.plan import Proposal
from proxy.context.stage import Stage, When
from proxy.context.view import View


@dataclass(frozen=True, slots=True)
class WindowByIteration(Stage):
    """Select one of four windows by the iterations since the prompt: all; without old conversation and thoughts;
    results alone; the last results alone.

    System messages and the current prompt always stay. A result stays with its call, the reasoning on the call, and the
    other results of the same step.
    """

    moderate: int = 10
    """The iteration from which old conversation and thoughts leave."""
    aggressive: int = 15
    """The iteration from which two kinds leave: all conversation before the prompt, and all thoughts without a kept
    result."""
    emergency: int = 20
    """The iteration from which all but the last results leave."""
    exchanges: int = 2
    """Number of exchanges before the current prompt that stay at `moderate`."""
    thoughts: int = 2
    """Number of thoughts that stay at `moderate`: assistant messages with text or reasoning."""
    results: int = 3
    """Number of tool results that stay at `emergency`."""
    max_tokens: int = 8000
    """Maximum number of tokens in the conversation and thoughts kept at `moderate`, newest first; 0: no limit. Results
    are facts and do not count: the budget of the model limits them."""
    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        """Yield a proposal to leave out every message outside the window of this iteration."""
        at = read_iteration(view, 0)
        if at.number < min(self.moderate, self.aggressive, self.emergency):
            return
        facts_only = at.number >= min(self.aggressive, self.emergency)
        kept = find_streams(view)
        facts = kept.results
        if at.number >= self.emergency:
            reason = f"iteration {at.number}: only the last {self.results} results stay"
            facts = facts[-self.results :] if self.results else ()
        elif facts_only:
            reason = f"iteration {at.number}: only results stay"
        else:
            reason = f"iteration {at.number}: results, {self.exchanges} exchanges and {self.thoughts} thoughts stay"
        stay = set(range(view.groups[-1].start, at.start)) if view.groups else set()
        if facts_only:
            stay = {n for n in stay if view.messages[n].role == "user"}
        for fact in facts:
            stay.update(kept.find_step_positions(fact))
        if not facts_only:
            stay.update(self._keep_thoughts(view, kept, stay))
        since = _Since(self, view, kept, at)
        for n, message in enumerate(view.messages):
            if n not in stay and not message.is_system:
                yield Proposal(n, "gone", "window_by_iteration", reason, 0, since=since(n))

    def _keep_thoughts(self, view: View, kept: Streams, stay: set[int]) -> Iterator[int]:
        """Yield the indices of thoughts and exchanges that stay too, newest first, within `max_tokens`."""
        room = self.max_tokens or view.total
        for n in reversed(kept.thoughts[-self.thoughts :] if self.thoughts else ()):
            room -= 0 if n in stay else view.tokens[n]
            if room < 0:
                return
            yield from kept.find_step_positions(n) if n in kept.end_positions else (n,)
        for group in reversed(view.groups[:-1][-self.exchanges :] if self.exchanges else ()):
            room -= sum(view.tokens[n] for n in range(group.start, group.end) if n not in stay)
            if room < 0:
                return
            yield from range(group.start, group.end)


class _Since:
    """Lookup of the message with which it became possible to leave another message out."""

    def __init__(self, stage: WindowByIteration, view: View, kept: Streams, at: CurrentIteration) -> None:
        self._last = len(view.messages) - 1
        self._moderate, self._aggressive, self._emergency = (
            self._reached(view, at, number) for number in (stage.moderate, stage.aggressive, stage.emergency)
        )
        old = view.groups[:-1]
        spared = old[-stage.exchanges :] if stage.exchanges else []
        self._spared = range(spared[0].start if spared else at.start, at.start)
        self._begins = at.start
        results, thoughts = kept.results, kept.thoughts
        last_of = {kept.call_positions.get(n, n): n for n in results}
        later = {n: results[i + stage.results] for i, n in enumerate(results[: max(0, len(results) - stage.results)])}
        self._facts = {
            m: later.get(last, self._last) for last in last_of.values() for m in kept.find_step_positions(last)
        }
        self._thoughts = dict(zip(thoughts, thoughts[stage.thoughts :], strict=False))

    def _reached(self, view: View, at: CurrentIteration, number: int) -> int:
        return min(self._last, find_iteration_message(view, at, number)) if at.number >= number else self._last

    def __call__(self, n: int) -> int:
        if n in self._facts:
            return max(self._emergency, self._facts[n])
        if n in self._spared:
            return min(self._aggressive, self._emergency)
        first = min(self._moderate, self._aggressive, self._emergency)
        return max(first, self._thoughts.get(n, first)) if n >= self._begins else first
