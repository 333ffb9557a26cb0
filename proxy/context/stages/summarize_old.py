"""Replace all messages before the newest ones by one sentence that counts them, or by a helper model's summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from proxy.chat.group import find_last_user
from proxy.context.pins import find_task_prompt, is_pinned
from proxy.context.plan import Ask, Proposal
from proxy.context.ranking.removable_units import find_required, find_units
from proxy.context.stage import Stage, When
from proxy.context.stages.drop_unimportant import find_kept_with_mark
from proxy.context.summaries import placeholders, summary
from proxy.context.view import View

NAME = "summarize_old"


@dataclass(frozen=True, slots=True)
class SummarizeOld(Stage):
    """Leave out all messages before the newest ones, and append a summary to the first user message that stays. The
    summary counts the turns of each kind that left, or is a helper model's text if there is one.

    The summary is never a separate message: some upstreams refuse a second system message, or two successive user
    messages. A helper's summary that is empty, or not shorter than its messages, is not used."""

    keep: int = 10
    """Number of newest messages that stay unchanged; more where a step would be split."""
    only_over: bool = True
    """Act only while the prompt is over its budget; false: whenever there are more than `keep` messages."""
    ahead: float = 0.75
    """Share of the budget from which the helper model is asked, so that its answer is ready in time."""
    batch: int = 20
    """Number of messages that the helper model summarises at once. Each batch is requested once."""
    summary_prompt: str = summary.INSTRUCTION
    """The prompt of the helper model."""
    when: ClassVar[When] = "schedule"

    def __post_init__(self) -> None:
        """Validate the prompt, which comes from a file."""
        placeholders.check(f"stages.{NAME}.summary_prompt", self.summary_prompt, (), None)

    def __call__(self, view: View) -> Iterable[Proposal]:
        """Yield proposals that leave out all old messages and append the summary: all of them apply, or none."""
        if self.only_over and (view.budget is None or view.total <= view.budget):
            return
        old = view.compute_once(self, lambda: _find_old_messages(view, self.keep))
        if old is None:
            return
        fresh = [n for n in old.covered if not view.leaves_out(n)]
        if not fresh or (not view.literal and not self.only_over and len(fresh) < self.keep):
            return  # where edits last, wait for a batch of `keep` messages
        edit = view.find_edit(old.bearer)
        before = edit.text or "" if edit is not None and edit.action == "append" else ""
        # An existing summary stays; if another message carries the summary now, it covers all old messages again.
        covered = fresh if edit is not None and edit.stage == NAME else old.covered
        text = self._write_text(view, covered, old.first)
        if text is None or (edit is not None and edit.action != "append"):
            return
        reason = f"older than the last {self.keep} messages"
        last = len(view.messages) - 1
        for n in fresh:
            yield Proposal(n, "gone", NAME, reason, 0, since=last, needs_index=old.bearer, joint=True)
        after = view.original_tokens[old.bearer] + view.token_counter.count_text(before + text)
        why = f"says what {len(covered)} older messages were"
        yield Proposal(old.bearer, "append", NAME, why, after, before + text, since=last, joint=True)

    def asks(self, view: View) -> Iterator[Ask]:
        """Yield a question for each batch of old messages without an answer. Messages that this request leaves out are
        asked about even in a smaller batch, and the answer is needed now."""
        if self.only_over and (view.budget is None or view.total <= view.budget * self.ahead):
            return
        now = not self.only_over or (view.budget is not None and view.total > view.budget)
        old = view.compute_once(self, lambda: _find_old_messages(view, self.keep))
        if old is None:
            return
        gone = {n for n in old.covered if view.leaves_out(n)}
        batches, rest = self._split_batches(view, old.first)
        for batch in [*batches, *_split_batch(view, rest)] if now else batches:
            ask = _ask(view, batch)
            if ask.id in view.branch.helper_answers or not gone.isdisjoint(batch) or not set(batch) & old.covered_set:
                continue
            messages = [view.messages[n] for n in batch]
            longest = sum(map(summary.count_chars, messages))
            yield Ask(
                "summary",
                summary.build_question(messages, self.summary_prompt),
                ask.message_keys,
                max_chars=longest,
                urgent=now,
            )

    def _write_text(self, view: View, covered: Sequence[int], first: int) -> str | None:
        """Return the text on these messages: answers for the batches that have one, a count of the rest. None if the
        text would not be shorter than the messages."""
        uncovered = set(covered)
        parts = []
        batches, rest = self._split_batches(view, first)
        for batch in (piece for one in [*batches, rest] for piece in _split_batch(view, one)):
            if not uncovered.isdisjoint(batch):
                source = sum(summary.count_chars(view.messages[n]) for n in batch)
                answer = (
                    summary.accept_summary(view.branch.helper_answers.get(_ask(view, batch).id), source)
                    if view.branch.helper_answers
                    else None
                )
                if answer is not None:
                    parts.append(f"{summary.HEADING}\n{answer}")
                    uncovered.difference_update(batch)
        if uncovered:
            parts.append(summary.render_count(view.messages[n] for n in sorted(uncovered)))
        text = "\n\n" + "\n\n".join(parts)
        return text if len(text) < sum(summary.count_chars(view.messages[n]) for n in covered) else None

    def _split_batches(self, view: View, first: int) -> tuple[list[list[int]], list[int]]:
        """Return the batches of messages before `first`, and the messages that are no batch yet.

        A batch has whole steps and at least `batch` messages. Batches are counted from the first message on, so that
        they are the same for every request and each is requested once.
        """
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


def _split_batch(view: View, batch: list[int]) -> Iterator[list[int]]:
    """Yield the batch itself if it has an answer. Otherwise yield the parts that were requested while the batch was
    growing, and the remainder."""
    begin = 0
    while begin < len(batch):
        ends = range(len(batch), begin, -1) if view.branch.helper_answers else ()
        end = next((end for end in ends if _ask(view, batch[begin:end]).id in view.branch.helper_answers), len(batch))
        yield batch[begin:end]
        begin = end


@dataclass(frozen=True, slots=True)
class _Old:
    """The old messages of a view."""

    covered: tuple[int, ...]
    """Indices of the messages that are replaced."""
    covered_set: frozenset[int]
    bearer: int
    """The user message that gets the summary."""
    first: int
    """The index at which the newest messages begin."""


def _find_old_messages(view: View, keep: int) -> _Old | None:
    """Return the messages before the last `keep`, None if there are none, or if no user message can carry the summary.

    The prompt of the newest messages stays with them. The first prompt stays too where results are written as user
    messages. The first user message that stays carries the summary.
    """
    first = _find_first_kept(view, keep)
    group = next((g for g in view.groups if g.start <= first < g.end), None)
    if group is None:
        return None
    begun = (n for n in range(group.start, group.prompt_end) if view.messages[n].role == "user")
    prompts = sorted({*(n for n in find_task_prompt(view) if view.messages[n].role == "user"), *begun})
    bearer = next((n for n in prompts if view.messages[n].shape != "none"), None)
    if bearer is None:
        return None
    stay = {*prompts, len(view.messages) - 1}
    stay.add(find_last_user(view.messages))
    for n, message in enumerate(view.messages):
        if n >= first or message.is_system or is_pinned(view, n):
            stay.add(n)
        elif message.has_cache_mark:
            stay.update(find_kept_with_mark(view, n))
    units = find_units(view.messages, view.steps, after_tool=view.model.after_tool, alternate=view.model.alternate)
    kept = find_required(
        units, (number for number, unit in enumerate(units) if not stay.isdisjoint(unit.message_indexes))
    )
    covered = sorted(n for number, unit in enumerate(units) if number not in kept for n in unit.message_indexes)
    return _Old(tuple(covered), frozenset(covered), bearer, first)


def _find_first_kept(view: View, keep: int) -> int:
    """Return the index at which the last `keep` messages begin. System messages do not count, and no step is split."""
    count = 0
    for step in reversed(view.steps):
        if not view.messages[step.start].is_system:
            count += step.end - step.start
        if count >= keep:
            return step.start
    return 0


def _ask(view: View, batch: Sequence[int]) -> Ask:
    return Ask("summary", "", tuple(view.keys[n] for n in batch))
