"""Tell what earlier calls have taught, ask for what the newest have, and call for another way when nothing moves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from proxy.context import front
from proxy.context.evidence import reflecting
from proxy.context.evidence.reflecting import Done, Looked, Reflecting
from proxy.context.plan import Insert, View
from proxy.context.voices.warn_of_loops import WarnOfLoops
from proxy.memory import actions, reflection
from proxy.memory.reflection import Progress

HEADING = (
    "[What your earlier tool calls came to, those that matter most first. Their results have left this conversation."
    " It is information, not a request.]"
)
RECOVERY = (
    "[RECOVERY: by your own assessment the last {count} iterations were stuck or regressing. Stop and look again: say"
    " what the goal still needs, what has been tried and why it failed, and take another way. If there is none, answer"
    " with what you have and say what is in the way.]"
)
ASK = "ask_reflection"
"""The source of the insert that asks for a REFLECTION block; what it is about are the results."""
AWAY = ("gone", "text")


@dataclass(frozen=True, slots=True)
class Reflect(Reflecting):
    """One line for each call whose result has left the prompt, `searched 'x' → found 3 results; too general`.

    Ranked by relevance to the goal (STATE's Goal, else the last user message), in order within a rank, low ranks out
    first. With `reflect = "inline"` the model is asked to reflect on the newest calls in the same answer.
    """

    tokens: int = 1000
    """At most so many for the lines."""
    stuck: int = 3
    """Iterations in a row, stuck or regressing, after which the model is told to recover; 0: never."""
    loops: bool = True
    """Loops are warned of where the model has assessed nothing. A policy that has the voice `warn_of_loops` as
    well leaves them to it, and to its settings."""

    def __call__(self, view: View) -> Iterable[Insert]:
        """The lines, a recovery prompt or a warning of a loop, the asking: all at the tail, made anew."""
        looked = reflecting.look(view, self)
        lines = self._lines(view, looked)
        if lines:
            yield Insert("tail", "reflect", "\n\n" + "\n".join([HEADING, *lines]))
        yield from self._recovery(view, looked)
        if self.mode(view.options) == "inline" and front.may_ask(view.request):
            yield from self._asking(view, looked)

    def _lines(self, view: View, looked: Looked) -> list[str]:
        """High ranks first, each in the order in which it happened; where room ends, the oldest of the lowest leave."""
        away = [one for one in looked.done if _is_away(view, one.result)]
        if not away:
            return []
        ranked = sorted(zip(reflecting.relevance(view, away, looked), away, strict=True), key=_newest_of_best)
        left = self.tokens - view.weigh.count(HEADING)
        kept: list[tuple[int, int, str]] = []
        for rank, one in ranked:
            text = "- " + reflecting.tell(view, one, looked)
            left -= _size(view, one, text) + 1
            if left < 0:
                break
            kept.append((rank, one.result, text))
        return [text for _, _, text in sorted(kept)]

    def _recovery(self, view: View, looked: Looked) -> Iterator[Insert]:
        """By the model's own assessments; where there are none, by what it does."""
        if not self.stuck:
            return
        if not looked.progress:
            if self.loops:
                yield from _LOOPS(view)
            return
        run, total = stuck(looked.progress)
        told = view.said.get("recovery")
        if run >= self.stuck and (told is None or total >= 2 * told):
            yield Insert("tail", "reflect", "\n\n" + RECOVERY.format(count=run), said=("recovery", total))

    def _asking(self, view: View, looked: Looked) -> Iterator[Insert]:
        """For the batch that this request completes."""
        batch = looked.batches[-1] if looked.batches else None
        if batch is None or batch.ask in view.answers or not _is_newest(view, batch.done[-1]):
            return
        text = reflection.ask([actions.action(one.call) for one in batch.done])
        yield Insert("tail", ASK, "\n\n" + text, about=batch.keys)


_LOOPS = WarnOfLoops()


def stuck(progress: list[Progress]) -> tuple[int, int]:
    """(iterations in a row at the end that are stuck or regressing, all that ever were)."""
    bad = [one != "advancing" for one in progress]
    run = next((n for n, one in enumerate(reversed(bad)) if not one), len(bad))
    return run, sum(bad)


def _is_away(view: View, n: int) -> bool:
    """Whether a result has left the prompt. One that the line itself stands in place of, or another of the same text,
    is told there."""
    edit = view.edit(n)
    return (
        edit is not None
        and edit.action in AWAY
        and not (edit.action == "text" and edit.stage in ("distil_results", "refer_repeats"))
    )


def _is_newest(view: View, one: Done) -> bool:
    """Whether nothing has been said since the result came, but by the user."""
    return not any(m.role == "assistant" for m in view.messages[one.result :])


def _newest_of_best(ranked: tuple[int, Done]) -> tuple[int, int]:
    return ranked[0], -ranked[1].result


def _size(view: View, one: Done, text: str) -> int:
    return view.messages[one.result].derive(lambda _: view.weigh.count(text), ("count", view.weigh, text))
