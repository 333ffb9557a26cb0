"""The forms that a part of a conversation can have, from whole to gone, and their sizes in each level's budget.

The forms are: whole, extract (each result by itself), folded (several steps in one summary), brief (a group in one
short summary), gone. A summary is in the result of a step that is kept, in place of the result's text. This is the
safest place: calls keep their results, roles keep their turns, and no message of the proxy is needed. The
messages that the summary replaces are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from proxy.chat.chain import public_id
from proxy.chat.group import Step
from proxy.context.plan import Action, Ask, Proposal
from proxy.context.ranking.memory_levels import Level, StepBlock, StepLayout
from proxy.context.summaries import extracts
from proxy.context.view import View, count_edited_tokens

STAGE = "compress_levels"
ELSEWHERE_TEXT = "[in the summary beside this]"
"""Text in the other results of a step that carries a summary."""


@dataclass(frozen=True, slots=True)
class SummaryLimits:
    """Limits of summaries and extracts."""

    summary_chars: int
    """Characters of a block's summary."""
    brief_chars: int
    """Characters of a group's summary."""
    excerpt_chars: int
    """Characters of a prompt that are kept in a finished group."""
    min_ids: int
    """Number of identifiers that a helper's summary has to hold."""
    low_priority: int
    """Priority below which a step is shown by its call alone."""
    prompt: str = extracts.SUMMARY_PROMPT
    """The instruction to a helper."""


class MessageChange(NamedTuple):
    """The new form of a message."""

    text: str | None
    """The new text, None if the message is gone."""
    reason: str
    since: int
    """The index of the message with which the change became possible."""
    needs: int | None
    """The index of the message that carries the summary of this one."""


class CompressionLadder:
    """The conversation as it will be, changed step by step.

    A fixed step never changes. A change that does not make the prompt smaller is not made. In the code below `i` is the
    index of a step of the layout, and `n` the index of a message.
    """

    def __init__(self, view: View, layout: StepLayout, priorities: Sequence[int], sizes: SummaryLimits) -> None:
        self.view = view
        self.layout = layout
        self.priorities = priorities
        self.limits = sizes
        self.levels = list(layout.levels)
        self.tokens = list(view.tokens)
        self.changes: dict[int, MessageChange] = {}
        self.asks: list[Ask] = []
        self.folded: set[StepBlock] = set()
        self.has_recall = "recall" in view.inputs.offered_tools
        self._no_results = not any(m.is_result for m in view.messages)
        self.level_tokens = [0, 0, 0, 0]
        self._step_of: list[int] = []
        for i, step in enumerate(layout.steps):
            self.level_tokens[self.levels[i]] += sum(view.tokens[step.start : step.end])
            self._step_of += [i] * (step.end - step.start)
        self.total = view.prefix_tokens + view.insert_tokens + sum(self.level_tokens)
        if view.edits:
            self._mark_folded()

    def _mark_folded(self) -> None:
        """Mark the blocks as folded that an edit of an earlier request has folded."""
        for block in self.layout.blocks:
            was_compressed = any(self._was_compressed_before(i) for i in block.steps)
            if was_compressed and sum(self.count_step_tokens(i) > 0 for i in block.steps) <= 1:
                self.folded.add(block)
                for i in block.steps:
                    self._move_to_level(i, Level.SESSION)

    def _was_compressed_before(self, i: int) -> bool:
        step = self.layout.steps[i]
        return any((e := self.view.find_edit(n)) is not None and e.stage == STAGE for n in range(step.start, step.end))

    def build_proposals(self) -> list[Proposal]:
        """The proposals for all changes, oldest message first."""
        proposals = []
        for n in sorted(self.changes):
            text, reason, since, needs = self.changes[n]
            action: Action = "gone" if text is None else "text"
            carrier = self._find_carrier_message(needs)
            proposals.append(Proposal(n, action, STAGE, reason, self.tokens[n], text, since, needs_index=carrier))
        return proposals

    def _find_carrier_message(self, needs: int | None) -> int | None:
        """The index of the message that holds a summary now, None without one: carriers may leave."""
        while needs is not None and needs in self.changes and self.changes[needs].text is None:
            needs = self.changes[needs].needs
        return needs

    def count_step_tokens(self, i: int) -> int:
        """Tokens of steps[i] as it is now."""
        step = self.layout.steps[i]
        return sum(self.tokens[step.start : step.end])

    def extract_results(self, i: int, reason: str) -> None:
        """Replace each result of a step by its own extract."""
        step = self.layout.steps[i]
        for n in range(step.start, step.end):
            if self._is_editable(n) and n not in self.changes:
                message = self.view.messages[n]
                memo_name = ("extract", self.has_recall, self.view.keys[step.end - 1])
                text = message.derive(lambda _, n=n: extracts.extract_result(self.view, step, n), memo_name)  # type: ignore[misc]  # a bound value
                self._replace_text(n, text, reason, step.end - 1)

    def remove_step(self, i: int, reason: str) -> None:
        """Remove a whole step if the rest stays valid."""
        step = self.layout.steps[i]
        if self._may_leave(i) and self.count_step_tokens(i):
            for n in range(step.start, step.end):
                self._remove_message(n, reason, step.end - 1)

    def summarize_block(self, block: StepBlock, reason: str) -> bool:
        """Replace a block of steps by one summary in the result that was the longest. Return True if it was done."""
        steps = [i for i in block.steps if self.count_step_tokens(i)]
        carrier = self._find_carrier_step(steps)
        if block in self.folded or carrier is None:
            return False
        if len(steps) == 1:
            self.extract_results(carrier, reason)
            self._move_to_level(carrier, Level.SESSION)
            self.folded.add(block)
            return True
        covered_steps = [self.layout.steps[i] for i in block.steps]
        brief = [self.priorities[i] < self.limits.low_priority for i in block.steps]
        self.folded.add(block)
        ask = self._build_block_ask(covered_steps)
        answer = self._find_helper_answer(ask)
        if answer.strip():
            text = extracts.render_answer(self.view, covered_steps, answer, 2 * self.limits.summary_chars)
        else:
            self.asks.append(ask)
            name = ("fold", self.view.keys[covered_steps[-1].end - 1], tuple(brief), self.limits)
            first = self.view.messages[covered_steps[0].start]
            text = first.derive(
                lambda _: extracts.extract_steps(self.view, covered_steps, brief, self.limits.summary_chars), name
            )
        return self._write_summary(steps, carrier, text, reason, covered_steps[-1].end - 1, again=False)

    def summarize_group(self, group: int, blocks: Sequence[StepBlock], reason: str) -> None:
        """Replace a group's work by one short summary: a summary of its blocks' summaries if a helper has made one."""
        steps = [i for block in blocks for i in block.steps if self.count_step_tokens(i)]
        carrier = self._find_carrier_step(steps)
        if carrier is not None:
            covered_steps = [self.layout.steps[i] for block in blocks for i in block.steps]
            name = ("brief", group, len(covered_steps), self.view.keys[covered_steps[-1].end - 1], self.limits)
            ask = self._build_group_ask(group, blocks, covered_steps)
            answer = self._find_helper_answer(ask) if ask is not None else ""
            first = self.view.messages[covered_steps[0].start]
            if answer.strip():
                text = extracts.render_answer(self.view, covered_steps, answer, 2 * self.limits.brief_chars)
            else:
                self.asks += [ask] if ask is not None else []
                short = [True] * len(covered_steps)
                text = first.derive(
                    lambda _: extracts.extract_steps(self.view, covered_steps, short, self.limits.brief_chars), name
                )
            self._write_summary(steps, carrier, text, reason, covered_steps[-1].end - 1, again=True)
        self.shorten_prompts(group, self.limits.excerpt_chars // 2, reason)

    def shorten_prompts(self, group: int, max_chars: int, reason: str) -> None:
        """Shorten a finished group's prompts to their beginnings, and move them and the answer to the session level.

        The answer stays whole: only chat completions could say it in other words to the model that wrote it.
        """
        answer = self.layout.answers[group]
        for i in (*self.layout.prompts[group], *(() if answer is None else (answer,))):
            step = self.layout.steps[i]
            message = self.view.messages[step.start]
            if self.layout.is_fixed[i]:
                continue
            is_long = len(message.text) > max_chars + 40 and message.shape in ("string", "parts")
            if is_long and message.role != "assistant":
                name = public_id(self.view.keys[step.start]) if self.has_recall else ""
                text = message.derive(
                    lambda m, k=name: extracts.shorten_text(m.text, max_chars, k), ("told", max_chars, name)
                )
                self._replace_text(step.start, text, reason, self.view.groups[group].end - 1)
            self._move_to_level(i, Level.SESSION)

    def summarize_groups(self, groups: Sequence[int], reason: str) -> bool:
        """Replace consecutive finished groups by one summary in the first message of the first group. Return True if it
        was done.

        It is not done if a message in them has to stay. No group leaves without a summary.
        """
        group_steps = [
            i for i, g in enumerate(self.layout.group_of) if g in groups and self.layout.kinds[i] != "system"
        ]
        prompts = self.layout.prompts[groups[0]]
        if not prompts or any(self.layout.is_fixed[i] for i in group_steps):
            return False
        carrier = self.layout.steps[prompts[0]].start
        if self.view.messages[carrier].shape not in ("string", "parts"):
            return False
        covered_steps = [self.layout.steps[i] for i in group_steps]
        kept_steps = {prompts[0]}
        if self.view.model.alternate:  # an answer has to stand between two user messages
            answer = self.layout.answers[groups[0]]
            if answer is None:
                return False
            kept_steps.add(answer)
        ask = extracts.build_ask(
            self.view, covered_steps, self.limits.brief_chars, self.limits.min_ids, self.limits.prompt
        )
        answer_text = self._find_helper_answer(ask)
        if answer_text.strip():
            text = extracts.render_answer(self.view, covered_steps, answer_text, 2 * self.limits.brief_chars)
        else:
            text = extracts.extract_messages(
                self.view, covered_steps, self.limits.brief_chars if len(groups) == 1 else self.limits.summary_chars
            )
        leaving = [i for i in group_steps if i not in kept_steps]
        if count_edited_tokens(self.view, carrier, text) >= self.count_step_tokens(prompts[0]) + sum(
            map(self.count_step_tokens, leaving)
        ):
            return False
        covered_keys = {self.view.keys[n] for step in covered_steps for n in range(step.start, step.end)}
        self.asks = [known for known in self.asks if not covered_keys.issuperset(known.message_keys)]
        if not answer_text.strip():
            self.asks.append(ask)
        since = self.view.groups[groups[-1]].end - 1
        self._replace_text(carrier, text, reason, since, grow=True)
        for i in leaving:
            for n in range(self.layout.steps[i].start, self.layout.steps[i].end):
                self._remove_message(n, reason, since, needs=carrier)
        return True

    def _find_carrier_step(self, steps: Sequence[int]) -> int | None:
        """The step whose result can take a summary, None if there is none.

        It is the step with the longest result in its original form, so that it is always the same step.
        """
        longest_step, longest_tokens = None, 0
        for i in steps:
            n = self._find_first_result(i)
            if n is not None and self.view.original_tokens[n] > longest_tokens:
                longest_step, longest_tokens = i, self.view.original_tokens[n]
        return longest_step

    def _find_first_result(self, i: int) -> int | None:
        step = self.layout.steps[i]
        return next((n for n in range(step.start, step.end) if self._is_editable(n)), None)

    def _write_summary(
        self, steps: Sequence[int], carrier: int, text: str, reason: str, since: int, *, again: bool
    ) -> bool:
        """Write a summary of the steps into the carrier's first result; the other steps leave. Return True if it was
        done.

        again: True if the summary replaces an earlier one.
        """
        result_index = self._find_first_result(carrier)
        summary_tokens = count_edited_tokens(self.view, result_index, text) if result_index is not None else 0
        leaving = [i for i in steps if i != carrier and self._may_leave(i)]
        if result_index is None or summary_tokens >= self.tokens[result_index] + sum(
            map(self.count_step_tokens, leaving)
        ):
            return False
        # True if an earlier request wrote the summary: now the other steps can follow.
        is_written = not again and self._was_compressed_before(carrier)
        if not (self.view.literal or is_written) and summary_tokens >= self.view.tokens[result_index]:
            return False  # an edit that stays is only ever superseded by a shorter one
        if not is_written:
            self._replace_text(result_index, text, reason, since, grow=True)
        step = self.layout.steps[carrier]
        for n in range(result_index + 1, step.end):
            if self._is_editable(n):
                self._replace_text(n, ELSEWHERE_TEXT, reason, since)
        for i in leaving:
            for n in range(self.layout.steps[i].start, self.layout.steps[i].end):
                self._remove_message(n, reason, since, needs=result_index)
        for i in steps:
            self._move_to_level(i, Level.SESSION)
        return True

    def _find_helper_answer(self, ask: Ask) -> str:
        """The answer of a helper model to this question, empty if there is none yet."""
        return self.view.branch.helper_answers.get(ask.id, "")

    def _build_block_ask(self, steps: Sequence[Step]) -> Ask:
        """The question for a summary of consecutive steps."""
        first = self.view.messages[steps[0].start]
        name = ("ask", self.view.keys[steps[-1].end - 1], len(steps), self.limits)
        sizes = self.limits
        return first.derive(
            lambda _: extracts.build_ask(self.view, steps, sizes.summary_chars, sizes.min_ids, sizes.prompt), name
        )

    def _build_group_ask(self, group: int, blocks: Sequence[StepBlock], steps: Sequence[Step]) -> Ask | None:
        """The question for a summary of summaries, None until a helper has summarised every block of the group."""
        block_summaries = [
            self._find_helper_answer(self._build_block_ask([self.layout.steps[i] for i in b.steps])) for b in blocks
        ]
        if not block_summaries or not all(part.strip() for part in block_summaries):
            return None
        prompts = [self.layout.steps[i] for i in self.layout.prompts[group]]
        first = self.view.messages[steps[0].start]
        name = ("ask again", self.view.keys[steps[-1].end - 1], tuple(block_summaries), self.limits)
        max_chars, prompt = self.limits.brief_chars, self.limits.prompt
        return first.derive(
            lambda _: extracts.build_merge_ask(self.view, [*prompts, *steps], block_summaries, max_chars, prompt), name
        )

    def _is_editable(self, n: int) -> bool:
        message = self.view.messages[n]
        return bool(self.view.is_result[n] and message.shape in ("string", "parts") and self.tokens[n])

    def _may_leave(self, i: int) -> bool:
        """True if the prompt stays valid without this step."""
        if self.layout.is_fixed[i]:
            return False
        step, group = self.layout.steps[i], self.view.groups[self.layout.group_of[i]]
        message = self.view.messages[step.start]
        if self.layout.kinds[i] == "answer":
            # Without it a user message could come to follow a tool result (rule W6 in `context.validate`).
            follower = self.view.messages[step.end] if step.end < len(self.view.messages) else None
            if not (self._no_results or (follower is not None and follower.role == "assistant")):
                return False
        if not self.view.model.alternate:
            return True
        # Roles have to take turns: only a whole step of the assistant's may leave, and never the last of its group.
        return bool(message.calls) and step.end < group.end and self.view.messages[step.end].role == "assistant"

    def _replace_text(self, n: int, text: str, reason: str, since: int, *, grow: bool = False) -> None:
        after = count_edited_tokens(self.view, n, text)
        if after < self.tokens[n] or grow:
            self._record_change(n, MessageChange(text, reason, since, None), after)

    def _remove_message(self, n: int, reason: str, since: int, needs: int | None = None) -> None:
        if self.tokens[n] or n in self.changes:
            self._record_change(n, MessageChange(None, reason, since, needs), 0)

    def _record_change(self, n: int, change: MessageChange, new_tokens: int) -> None:
        self.changes[n] = change
        growth = new_tokens - self.tokens[n]
        self.tokens[n] = new_tokens
        self.total += growth
        self.level_tokens[self.levels[self._step_of[n]]] += growth

    def _move_to_level(self, i: int, level: Level) -> None:
        if self.levels[i] is not level and self.levels[i] is not Level.PERMANENT:
            size = self.count_step_tokens(i)
            self.level_tokens[self.levels[i]] -= size
            self.level_tokens[level] += size
            self.levels[i] = level
