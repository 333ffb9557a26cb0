"""Four levels of memory: the level of each part of a conversation, and its priority (FEATURES.md E1 to E3).

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

from proxy.chat.group import Step
from proxy.chat.message import Message
from proxy.context.evidence import terms
from proxy.context.pins import pinned
from proxy.context.plan import View

DEFAULT = 50
"""Priority of a step of unknown age."""

Kind = Literal["system", "prompt", "answer", "work"]
"""work: an assistant message with calls and their results, or tool output in a user message. answer: text alone."""

NOTHING = terms.Terms({}, 0)

_DECIDES = 1
_DEAD = 2
_EXPLORES = 4


class Level(IntEnum):
    """The levels, from the one that stays longest to the one that leaves first."""

    PERMANENT = 0
    SESSION = 1
    WORKING = 2
    VOLATILE = 3


@dataclass(frozen=True, eq=False, slots=True)
class Rules:
    """The compiled rules that decide on the level. A pattern that is None matches nothing."""

    rules: re.Pattern[str] | None
    decisions: re.Pattern[str] | None
    exploring: re.Pattern[str] | None
    dead_ends: re.Pattern[str] | None
    verbose: int
    """Tokens of results above which they are verbose."""
    recent: int
    """Number of the newest steps, which are worked on and stay whole."""


@functools.lru_cache(maxsize=64)
def compiled(
    rules: tuple[str, ...],
    decisions: tuple[str, ...],
    exploring: tuple[str, ...],
    dead_ends: tuple[str, ...],
    verbose: int,
    recent: int,
) -> Rules:
    """The rules of these settings.

    The same object is returned each time, because results found by the rules are remembered under it.
    """
    return Rules(pattern(rules), pattern(decisions), pattern(exploring), pattern(dead_ends), verbose, recent)


@functools.lru_cache(maxsize=256)
def pattern(alternatives: tuple[str, ...]) -> re.Pattern[str] | None:
    """Join several regular expressions into one that ignores case. Raises re.error, and TypeError if one is no text."""
    return re.compile("|".join("(?:" + p + ")" for p in alternatives), re.IGNORECASE) if alternatives else None


@dataclass(frozen=True, slots=True)
class Block:
    """Steps of one group that are summarised together."""

    group: int
    steps: tuple[int, ...]
    """Indexes of the steps in `Layout.steps`."""
    done: bool
    """True if no step will join the block."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A conversation by its steps, and its blocks of work.

    `kinds`, `levels`, `fixed` and `group_of` have one entry for each step.
    """

    steps: Sequence[Step]
    kinds: Sequence[Kind]
    levels: Sequence[Level]
    fixed: Sequence[bool]
    """True for a step that has to stay whole."""
    group_of: Sequence[int]
    """The number of each step's group."""
    blocks: Sequence[Block]
    blocks_of: Sequence[Sequence[Block]]
    """The blocks of each group."""
    prompts: Sequence[tuple[int, ...]]
    """The steps that are prompts, for each group."""
    answers: Sequence[int | None]
    """The step that closed the group, for each group; None if no step did."""


@dataclass(frozen=True, slots=True)
class PriorityWeights:
    """The weight of each term of a priority (FEATURES.md E3); the defaults are those of its source."""

    recency: float = 0.3
    references: float = 0.2
    relevance: float = 0.4
    mark: float = 0.1

    @property
    def sum(self) -> float:
        """The sum of all weights."""
        return self.recency + self.references + self.relevance + self.mark


WEIGHTS = PriorityWeights()


def priority(
    minutes: float | None, references: float, relevance: float, marked: bool, weights: PriorityWeights = WEIGHTS
) -> int:
    """The priority of a step, 0 to 100: the weighted mean of the terms, each 0 to 1. It is 50 if the age is unknown."""
    if minutes is None:
        return DEFAULT
    recency = 1 / (1 + max(0.0, minutes))
    score = weights.recency * recency + weights.references * references + weights.relevance * relevance
    return round(100 * (score + weights.mark * marked) / weights.sum)


def lay_out(view: View, rules: Rules, block: int) -> Layout:
    """The layout of the conversation. block: how many steps of work are summarised together."""
    steps = view.steps
    kinds: list[Kind] = [_kind(view, step) for step in steps]
    group_of = _group_of(view, steps)
    fixed = [kind == "system" or _holds_pin(view, step) for kind, step in zip(kinds, steps, strict=True)]
    active = len(view.groups) - 1
    open_ = [i for i, kind in enumerate(kinds) if kind in ("work", "answer") and group_of[i] == active]
    recent = set(open_[-rules.recent :] if rules.recent else ())
    levels = []
    for i, (step, kind) in enumerate(zip(steps, kinds, strict=True)):
        level = Level.PERMANENT if fixed[i] else _level(view, step, kind, rules, new=i in recent)
        if kind == "prompt" and group_of[i] == 0:
            level = Level.PERMANENT  # it states the subject of the whole conversation
        # The newest prompt and the steps that are worked on right now stay whole.
        fixed[i] = level is Level.PERMANENT or i in recent or (kind == "prompt" and group_of[i] == active)
        levels.append(level)
    fixed[-1] = True
    newest = min(recent, default=len(steps))
    prompts, answers, blocks = _arrange(kinds, fixed, group_of, len(view.groups), block, newest)
    blocks_of: list[list[Block]] = [[] for _ in view.groups]
    for one in blocks:
        blocks_of[one.group].append(one)
    return Layout(steps, kinds, levels, fixed, group_of, blocks, blocks_of, prompts, answers)


def _kind(view: View, step: Step) -> Kind:
    message = view.messages[step.start]
    if message.is_system:
        return "system"
    if message.calls or view.is_result[step.start]:
        return "work"
    return "prompt" if message.role == "user" else "answer"


def _holds_pin(view: View, step: Step) -> bool:
    return any(pinned(view, n) for n in range(step.start, step.end))


def _group_of(view: View, steps: Sequence[Step]) -> list[int]:
    found, at = [], 0
    for step in steps:
        while step.start >= view.groups[at].end:
            at += 1
        found.append(at)
    return found


def _level(view: View, step: Step, kind: Kind, rules: Rules, *, new: bool) -> Level:
    first = view.messages[step.start]
    if kind == "prompt":
        ruled = rules.rules is not None and first.derive(lambda m: _states_rule(m, rules), rules)
        return Level.PERMANENT if ruled else Level.WORKING
    if new:
        return Level.WORKING
    flags = first.derive(lambda _: _flags(view, step, rules), (rules, view.keys[step.end - 1]))
    if kind == "work":
        size = sum(view.whole[step.start + 1 : step.end]) if first.calls else view.whole[step.start]
        if size > rules.verbose or flags & (_EXPLORES | _DEAD):
            return Level.VOLATILE
    return Level.SESSION if flags & _DECIDES else Level.WORKING


def _states_rule(message: Message, rules: Rules) -> bool:
    return rules.rules is not None and rules.rules.search(message.text) is not None


def _flags(view: View, step: Step, rules: Rules) -> int:
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
    kinds: Sequence[Kind], fixed: Sequence[bool], group_of: Sequence[int], groups: int, size: int, newest: int
) -> tuple[list[tuple[int, ...]], list[int | None], list[Block]]:
    """Return (prompts, closing answers, blocks). Blocks are counted from the group's first step, so they never
    shift."""
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
            blocks.append(Block(group, tuple(i for i in part if not fixed[i]), done))
    return prompts, answers, blocks


def priorities(view: View, layout: Layout, weights: PriorityWeights = WEIGHTS) -> list[int]:
    """The priority of each step. It is 50 for all steps if the times of the messages are unknown."""
    if len(view.times) != len(view.messages):
        return [DEFAULT] * len(layout.steps)
    mentioned = terms.references([_names(view, step) for step in layout.steps])
    relevant = _relevance(view, layout)
    now, times, found = view.now, view.times, []
    for i, step in enumerate(layout.steps):
        minutes = (now - times[step.end - 1]) / 60
        marked = layout.fixed[i] and layout.kinds[i] != "system" and _holds_pin(view, step)
        found.append(priority(minutes, mentioned[i], relevant[i], marked, weights))
    return found


def _names(view: View, step: Step) -> tuple[int, ...]:
    if step.end - step.start == 1:
        return terms.names(view.messages[step.start])
    return terms.names(view.messages[step.start]) + terms.names(view.messages[step.start + 1])


def task(view: View) -> Message | None:
    """The current task: the last user message that is no tool output."""
    for n in range(len(view.messages) - 1, -1, -1):
        if view.messages[n].role == "user" and not view.is_result[n]:
            return view.messages[n]
    return None


def _relevance(view: View, layout: Layout) -> list[float]:
    """The nearness of each step to the current task, 0 to 1. It comes from the caller (by vectors) if known, else from
    words."""
    asked = task(view)
    if asked is None:
        return [0.0] * len(layout.steps)
    if view.relevance:
        each = [min(1.0, max(0.0, view.relevance.get(m.form, 0.0))) for m in view.messages]
    else:
        # The task is its own best match. Measured against it, every other message would seem far away.
        others = [NOTHING if m is asked else terms.of(m) for m in view.messages]
        each = terms.relevance(terms.of(asked).counts, others)
    return [max(each[step.start : step.end]) for step in layout.steps]
