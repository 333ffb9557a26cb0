"""Four levels of memory: the level of each part of a conversation, and its priority.

permanent: system prompt, pinned messages, rules, the first prompt. session: finished work, decisions, solved errors.
working: the present subject and work. volatile: verbose output, exploration, dead ends. Rules, which are data, decide
on the level. The unit is the step, because every strict upstream refuses half a step.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from proxy.chat.group import Step, find_last_user
from proxy.chat.message import Message
from proxy.context.analysis import bm25
from proxy.context.pins import is_pinned
from proxy.context.view import View
from proxy.errors import ConfigError

DEFAULT_PRIORITY = 50
"""Priority of a step of unknown age."""

StepKind = Literal["system", "prompt", "answer", "work"]
"""work: an assistant message with calls and their results, or tool output in a user message. answer: text alone."""

NO_TERMS = bm25.TermCounts({}, 0)

_DECIDES = 1
_DEAD = 2
_EXPLORES = 4


class Level(IntEnum):
    """The levels. The first stays longest, the last leaves first."""

    PERMANENT = 0
    SESSION = 1
    WORKING = 2
    VOLATILE = 3


@dataclass(frozen=True, eq=False, slots=True)
class LevelRules:
    """The compiled rules that decide on the level. A pattern that is None matches nothing."""

    permanent: re.Pattern[str] | None
    decisions: re.Pattern[str] | None
    exploring: re.Pattern[str] | None
    dead_ends: re.Pattern[str] | None
    verbose_tokens: int
    """Tokens of results above which they are verbose."""
    recent_steps: int
    """Number of the newest steps, which are worked on and stay whole."""


@functools.lru_cache(maxsize=64)
def compile_rules(
    rules: tuple[str, ...],
    decisions: tuple[str, ...],
    exploring: tuple[str, ...],
    dead_ends: tuple[str, ...],
    verbose: int,
    recent: int,
) -> LevelRules:
    """The rules of these settings.

    The same object is returned each time, because results found by the rules are remembered under it.
    """
    return LevelRules(
        compile_pattern(rules),
        compile_pattern(decisions),
        compile_pattern(exploring),
        compile_pattern(dead_ends),
        verbose,
        recent,
    )


@functools.lru_cache(maxsize=256)
def compile_pattern(alternatives: tuple[str, ...]) -> re.Pattern[str] | None:
    """Join several regular expressions into one that ignores case. Raises re.error, and TypeError if one is no text."""
    return re.compile("|".join("(?:" + p + ")" for p in alternatives), re.IGNORECASE) if alternatives else None


def check_patterns(settings: object, place: str, names: Sequence[str]) -> None:
    """Check that these fields of settings are lists of regular expressions. place: their table, as in
    `stages.compress_levels`. Raises ConfigError."""
    for name in names:
        try:
            compile_pattern(getattr(settings, name))
        except (re.error, TypeError) as problem:
            allowed = f"a list of regular expressions ({problem})"
            raise ConfigError(f"{place}.{name}", getattr(settings, name), allowed) from problem


@dataclass(frozen=True, slots=True)
class StepBlock:
    """Steps of one group that are summarised together."""

    group: int
    steps: tuple[int, ...]
    """Indexes of the steps in `StepLayout.steps`."""
    is_complete: bool
    """True if no step will join the block."""


@dataclass(frozen=True, slots=True)
class StepLayout:
    """A conversation by its steps, and its blocks of work.

    `kinds`, `levels`, `is_fixed` and `group_of` have one entry for each step.
    """

    steps: Sequence[Step]
    kinds: Sequence[StepKind]
    levels: Sequence[Level]
    is_fixed: Sequence[bool]
    """True for a step that has to stay whole."""
    group_of: Sequence[int]
    """The number of each step's group."""
    blocks: Sequence[StepBlock]
    blocks_by_group: Sequence[Sequence[StepBlock]]
    """The blocks of each group."""
    prompts: Sequence[tuple[int, ...]]
    """The steps that are prompts, for each group."""
    answers: Sequence[int | None]
    """The step that closed the group, for each group; None if no step did."""


@dataclass(frozen=True, slots=True)
class PriorityWeights:
    """The weight of each term of a priority; the defaults are those of its source."""

    recency: float = 0.3
    references: float = 0.2
    relevance: float = 0.4
    mark: float = 0.1

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return self.recency + self.references + self.relevance + self.mark


DEFAULT_WEIGHTS = PriorityWeights()


def compute_priority(
    minutes: float | None, references: float, relevance: float, marked: bool, weights: PriorityWeights = DEFAULT_WEIGHTS
) -> int:
    """The priority of a step, 0 to 100: the weighted mean of the terms, each 0 to 1. It is 50 if the age is unknown."""
    if minutes is None:
        return DEFAULT_PRIORITY
    recency = 1 / (1 + max(0.0, minutes))
    score = weights.recency * recency + weights.references * references + weights.relevance * relevance
    return round(100 * (score + weights.mark * marked) / weights.total)


def build_layout(view: View, rules: LevelRules, block_steps: int) -> StepLayout:
    """The layout of the conversation. block_steps: how many steps of work are summarised together."""
    steps = view.steps
    kinds: list[StepKind] = [_classify_step(view, step) for step in steps]
    group_of = _map_steps_to_groups(view, steps)
    fixed = [kind == "system" or _holds_pin(view, step) for kind, step in zip(kinds, steps, strict=True)]
    active = len(view.groups) - 1
    open_ = [i for i, kind in enumerate(kinds) if kind in ("work", "answer") and group_of[i] == active]
    recent = set(open_[-rules.recent_steps :] if rules.recent_steps else ())
    levels = []
    for i, (step, kind) in enumerate(zip(steps, kinds, strict=True)):
        level = Level.PERMANENT if fixed[i] else _choose_level(view, step, kind, rules, new=i in recent)
        if kind == "prompt" and group_of[i] == 0:
            level = Level.PERMANENT  # it states the subject of the whole conversation
        # The newest prompt and the steps that are worked on right now stay whole.
        fixed[i] = level is Level.PERMANENT or i in recent or (kind == "prompt" and group_of[i] == active)
        levels.append(level)
    fixed[-1] = True
    newest = min(recent, default=len(steps))
    prompts, answers, blocks = _arrange(kinds, fixed, group_of, len(view.groups), block_steps, newest)
    blocks_of: list[list[StepBlock]] = [[] for _ in view.groups]
    for one in blocks:
        blocks_of[one.group].append(one)
    return StepLayout(steps, kinds, levels, fixed, group_of, blocks, blocks_of, prompts, answers)


def _classify_step(view: View, step: Step) -> StepKind:
    message = view.messages[step.start]
    if message.is_system:
        return "system"
    if message.calls or view.is_result[step.start]:
        return "work"
    return "prompt" if message.role == "user" else "answer"


def _holds_pin(view: View, step: Step) -> bool:
    return any(is_pinned(view, n) for n in range(step.start, step.end))


def _map_steps_to_groups(view: View, steps: Sequence[Step]) -> list[int]:
    group_numbers, at = [], 0
    for step in steps:
        while step.start >= view.groups[at].end:
            at += 1
        group_numbers.append(at)
    return group_numbers


def _choose_level(view: View, step: Step, kind: StepKind, rules: LevelRules, *, new: bool) -> Level:
    first = view.messages[step.start]
    if kind == "prompt":
        ruled = rules.permanent is not None and first.derive(lambda m: _states_rule(m, rules), rules)
        return Level.PERMANENT if ruled else Level.WORKING
    if new:
        return Level.WORKING
    flags = first.derive(lambda _: _find_flags(view, step, rules), (rules, view.keys[step.end - 1]))
    if kind == "work":
        size = sum(view.original_tokens[step.start + 1 : step.end]) if first.calls else view.original_tokens[step.start]
        if size > rules.verbose_tokens or flags & (_EXPLORES | _DEAD):
            return Level.VOLATILE
    return Level.SESSION if flags & _DECIDES else Level.WORKING


def _states_rule(message: Message, rules: LevelRules) -> bool:
    return rules.permanent is not None and rules.permanent.search(message.text) is not None


def _find_flags(view: View, step: Step, rules: LevelRules) -> int:
    """Flags that the patterns find in a step: a decision in the model's text, exploring calls, dead ends."""
    first = view.messages[step.start]
    flags = 0
    if first.role == "assistant" and rules.decisions and rules.decisions.search(first.text):
        flags |= _DECIDES
    if first.calls and rules.exploring and all(rules.exploring.search(call.name) for call in first.calls):
        flags |= _EXPLORES
    results = [view.messages[n].text for n in range(step.start, step.end) if view.is_result[n]]
    if results and all(not r.strip() or (rules.dead_ends and rules.dead_ends.search(r[:400])) for r in results):
        flags |= _DEAD
    return flags


def _arrange(
    kinds: Sequence[StepKind], fixed: Sequence[bool], group_of: Sequence[int], groups: int, size: int, newest: int
) -> tuple[list[tuple[int, ...]], list[int | None], list[StepBlock]]:
    """Return (prompts, closing answers, blocks). Blocks count from the group's first step, and never shift."""
    inside: list[list[int]] = [[] for _ in range(groups)]
    for i, group in enumerate(group_of):
        if kinds[i] != "system":
            inside[group].append(i)
    prompts, answers, blocks = [], [], []
    for group, members in enumerate(inside):
        closed = group < groups - 1
        answer = members[-1] if closed and members and kinds[members[-1]] == "answer" else None
        prompts.append(tuple(i for i in members if kinds[i] == "prompt"))
        answers.append(answer)
        work = [i for i in members if kinds[i] != "prompt" and i != answer]
        for at in range(0, len(work), size):
            part = work[at : at + size]
            done = closed or (len(part) == size and part[-1] < newest)
            blocks.append(StepBlock(group, tuple(i for i in part if not fixed[i]), done))
    return prompts, answers, blocks


def compute_priorities(view: View, layout: StepLayout, weights: PriorityWeights = DEFAULT_WEIGHTS) -> list[int]:
    """The priority of each step. It is 50 for all steps if the times of the messages are unknown."""
    if len(view.inputs.times) != len(view.messages):
        return [DEFAULT_PRIORITY] * len(layout.steps)
    mentioned = bm25.score_references([_hash_step_names(view, step) for step in layout.steps])
    relevant = _compute_relevance(view, layout)
    now, times, priorities = view.now, view.inputs.times, []
    for i, step in enumerate(layout.steps):
        minutes = (now - times[step.end - 1]) / 60
        marked = layout.is_fixed[i] and layout.kinds[i] != "system" and _holds_pin(view, step)
        priorities.append(compute_priority(minutes, mentioned[i], relevant[i], marked, weights))
    return priorities


def _hash_step_names(view: View, step: Step) -> tuple[int, ...]:
    if step.end - step.start == 1:
        return bm25.hash_names(view.messages[step.start])
    return bm25.hash_names(view.messages[step.start]) + bm25.hash_names(view.messages[step.start + 1])


def find_task(view: View) -> Message | None:
    """The current task: the last user message that is no tool output."""
    at = find_last_user(view.messages, view.is_result)
    return view.messages[at] if at >= 0 else None


def _compute_relevance(view: View, layout: StepLayout) -> list[float]:
    """The nearness of each step to the task, 0 to 1: the caller's (by vectors) if known, else by words."""
    asked = find_task(view)
    if asked is None:
        return [0.0] * len(layout.steps)
    if view.inputs.relevance:
        each = [min(1.0, max(0.0, view.inputs.relevance.get(m.form, 0.0))) for m in view.messages]
    else:
        # The task is its own best match. Measured against it, every other message would seem far away.
        others = [NO_TERMS if m is asked else bm25.count_message_terms(m) for m in view.messages]
        each = bm25.score_relevance(bm25.count_message_terms(asked).counts, others)
    return [max(each[step.start : step.end]) for step in layout.steps]
