"""Replace what is older than the last messages by one sentence that counts it, or by a helper model's summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from proxy.context.pins import pinned, task
from proxy.context.plan import Ask, Proposal, View
from proxy.context.ranking.units import closure, units
from proxy.context.stage import When
from proxy.context.stages.drop_unimportant import marked_with
from proxy.context.wording import placeholders, summary

NAME = "summarize_old"


@dataclass(frozen=True, slots=True)
class SummarizeOld:
    """Leave out what is older than the last messages, and say so at the end of the first user message that stays. It
    tells how many turns of what kind left, or, where a helper model has answered, what they were about.

    Never a message of its own: a second system message, or two user messages in a row, are refused by some upstreams.
    A summary that is empty or no shorter than what it is of is not used.
    """

    keep: int = 10
    """Messages at the end that stay as they are; more where a step would be cut."""
    only_over: bool = True
    """Act only while the prompt is over its budget; false: whenever there is more than `keep`."""
    ahead: float = 0.75
    """Share of the budget from which the helper model is asked, so that its answer is there in time."""
    batch: int = 20
    """Messages that the helper model summarises at once. Each batch is asked for once."""
    summary_prompt: str = summary.INSTRUCTION
    """The words that the helper model is told."""
    when: ClassVar[When] = "schedule"

    def __post_init__(self) -> None:
        """The prompt comes from a file."""
        placeholders.check(f"stages.{NAME}.summary_prompt", self.summary_prompt, (), None)

    def __call__(self, view: View) -> Iterable[Proposal]:
        """Everything old is gone, and the first user message that stays says so; all of it or nothing."""
        if self.only_over and (view.budget is None or view.total <= view.budget):
            return
        old = view.once(self, lambda: _look(view, self.keep))
        if old is None:
            return
        fresh = [n for n in old.covered if not _is_gone(view, n)]
        if not fresh or (not view.literal and not self.only_over and len(fresh) < self.keep):
            return  # where edits last, a batch now and then
        edit = view.edit(old.bearer)
        before = edit.text or "" if edit is not None and edit.action == "append" else ""
        # What has been told stays told; where another message bears the summary now, all of it is told anew.
        told = fresh if edit is not None and edit.stage == NAME else old.covered
        text = self._text(view, told, old.first)
        if text is None or (edit is not None and edit.action != "append"):
            return
        reason = f"older than the last {self.keep} messages"
        last = len(view.messages) - 1
        for n in fresh:
            yield Proposal(n, "gone", NAME, reason, 0, since=last, needs=old.bearer, joint=True)
        after = view.whole[old.bearer] + view.weigh.count(before + text)
        why = f"says what {len(told)} older messages were"
        yield Proposal(old.bearer, "append", NAME, why, after, before + text, since=last, joint=True)

    def asks(self, view: View) -> Iterator[Ask]:
        """A question for each batch of old messages that has not been answered yet. What is left out with this very
        request is asked for whatever its number, and the answer is wanted now."""
        if self.only_over and (view.budget is None or view.total <= view.budget * self.ahead):
            return
        now = not self.only_over or (view.budget is not None and view.total > view.budget)
        old = view.once(self, lambda: _look(view, self.keep))
        if old is None:
            return
        gone = {n for n in old.covered if _is_gone(view, n)}
        batches, rest = self._batches(view, old.first)
        for batch in [*batches, *_pieces(view, rest)] if now else batches:
            ask = _ask(view, batch)
            if ask.id in view.answers or not gone.isdisjoint(batch) or not set(batch) & old.covered_set:
                continue
            messages = [view.messages[n] for n in batch]
            longest = sum(map(summary.size, messages))
            yield Ask("summary", summary.question(messages, self.summary_prompt), ask.about, longest=longest, now=now)

    def _text(self, view: View, told: Sequence[int], first: int) -> str | None:
        """What is said of these messages: answers for the batches that have one, a count of the rest. None where it
        would be no shorter than they are."""
        left = set(told)
        parts = []
        batches, rest = self._batches(view, first)
        for batch in (piece for one in [*batches, rest] for piece in _pieces(view, one)):
            if not left.isdisjoint(batch):
                source = sum(summary.size(view.messages[n]) for n in batch)
                answer = summary.accepted(view.answers.get(_ask(view, batch).id), source) if view.answers else None
                if answer is not None:
                    parts.append(f"{summary.HEADING}\n{answer}")
                    left.difference_update(batch)
        if left:
            parts.append(summary.counted(view.messages[n] for n in sorted(left)))
        text = "\n\n" + "\n\n".join(parts)
        return text if len(text) < sum(summary.size(view.messages[n]) for n in told) else None

    def _batches(self, view: View, first: int) -> tuple[list[list[int]], list[int]]:
        """Messages before `first` in whole steps, at least `batch` at a time, counted from the first message on: the
        same for every request, so that a batch is asked for once; and those that are no batch yet."""
        batches: list[list[int]] = []
        batch: list[int] = []
        for step in view.steps:
            if step.end > first:
                break
            if not view.messages[step.start].is_system:
                batch += range(step.start, step.end)
            if len(batch) >= self.batch:
                batches.append(batch)
                batch = []
        return batches, batch


def _pieces(view: View, batch: list[int]) -> Iterator[list[int]]:
    """The batch itself where it is answered, else what of it was asked for by itself while it was growing, and what is
    left of it."""
    begin = 0
    while begin < len(batch):
        ends = range(len(batch), begin, -1) if view.answers else ()
        end = next((end for end in ends if _ask(view, batch[begin:end]).id in view.answers), len(batch))
        yield batch[begin:end]
        begin = end


@dataclass(frozen=True, slots=True)
class _Old:
    """covered: what is replaced. bearer: the user message that says so. first: where the last messages begin."""

    covered: tuple[int, ...]
    covered_set: frozenset[int]
    bearer: int
    first: int


def _look(view: View, keep: int) -> _Old | None:
    """What is older than the last `keep` messages, None where there is nothing, or nobody to say so.

    The prompt that the last messages belong to stays with them, and so does the first one where results
    are written as user messages. The first user message that stays bears the summary.
    """
    first = _first(view, keep)
    group = next((g for g in view.groups if g.start <= first < g.end), None)
    if group is None:
        return None
    begun = (n for n in range(group.start, group.prompt_end) if view.messages[n].role == "user")
    prompts = sorted({*(n for n in task(view) if view.messages[n].role == "user"), *begun})
    bearer = next((n for n in prompts if view.messages[n].shape != "none"), None)
    if bearer is None:
        return None
    stay = {*prompts, len(view.messages) - 1}
    stay.add(max(n for n, m in enumerate(view.messages) if m.role == "user"))
    for n, message in enumerate(view.messages):
        if n >= first or message.is_system or pinned(view, n):
            stay.add(n)
        elif message.marked:
            stay.update(marked_with(view, n))
    found = units(view.messages, view.steps, after_tool=view.model.after_tool, alternate=view.model.alternate)
    kept = closure(found, (number for number, unit in enumerate(found) if not stay.isdisjoint(unit.members)))
    covered = sorted(n for number, unit in enumerate(found) if number not in kept for n in unit.members)
    return _Old(tuple(covered), frozenset(covered), bearer, first)


def _first(view: View, keep: int) -> int:
    """Where the last `keep` messages begin; system messages do not count, and no step is cut."""
    count = 0
    for step in reversed(view.steps):
        if not view.messages[step.start].is_system:
            count += step.end - step.start
        if count >= keep:
            return step.start
    return 0


def _ask(view: View, batch: Sequence[int]) -> Ask:
    return Ask("summary", "", tuple(view.keys[n] for n in batch))


def _is_gone(view: View, n: int) -> bool:
    edit = view.edit(n)
    return edit is not None and edit.action == "gone"
