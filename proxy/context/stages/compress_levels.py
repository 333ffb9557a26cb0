"""Four memory levels with budgets and ages: content that leaves a level is summarised, and volatile content leaves
first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from proxy.context.analysis import bm25
from proxy.context.plan import Ask, Edit, Note, Proposal
from proxy.context.ranking import compression_order
from proxy.context.ranking.compressed_forms import STAGE, CompressionLadder, SummaryLimits
from proxy.context.ranking.memory_levels import (
    DEFAULT_WEIGHTS,
    Level,
    PriorityWeights,
    StepLayout,
    build_layout,
    check_patterns,
    compile_pattern,
    compile_rules,
    compute_priorities,
)
from proxy.context.stage import Stage, When
from proxy.context.summaries import extracts, placeholders
from proxy.context.view import View
from proxy.errors import ConfigError

DEFAULT_TOTAL = 16_000
"""Total tokens for which the level budgets are set. With the model's budget as the total, the level budgets grow in
proportion."""
LEVEL_NAMES = tuple(level.name.lower() for level in Level)


class LevelDecision(NamedTuple):
    """The outcome of a compression. A View remembers it, so it does not refer to the View: only the garbage collector
    would free the two, with the whole prompt of the request."""

    layout: StepLayout
    levels: Sequence[Level]
    """The level of each step of the layout."""
    proposals: Sequence[Proposal]
    asks: Sequence[Ask]


@dataclass(frozen=True, slots=True)
class CompressLevels(Stage):
    """Keep a conversation in four levels: permanent, session, working, volatile.

    When the total or a level exceeds its limit, or the age of a level has passed, the step of lowest priority is
    summarised first. The summary comes from a helper model if one answers, else from a deterministic extract. Volatile
    content is left out first.
    """

    total: int | str = DEFAULT_TOTAL
    """Tokens of the whole prompt. "model": the budget of the model, with the level budgets in proportion (they are set
    for 16000)."""
    permanent: int = 2_000
    """Token budget of permanent content. It is never compressed; a note reports when it exceeds the budget."""
    session: int = 4_000
    """Token budget of finished work, decisions and solved errors."""
    working: int = 8_000
    """Token budget of the current conversation and its results."""
    full: float = 0.8
    """Share of a budget above which compression begins."""
    session_s: int = 1_800
    """Seconds after which the session level is compressed further."""
    working_s: int = 300
    """Seconds after which the working level is compressed."""
    recency: float = DEFAULT_WEIGHTS.recency
    """Weight of recency in a priority: 1 / (1 + minutes)."""
    references: float = DEFAULT_WEIGHTS.references
    """Weight of the later mentions of a step."""
    relevance: float = DEFAULT_WEIGHTS.relevance
    """Weight of the similarity to the current task."""
    mark: float = DEFAULT_WEIGHTS.mark
    """Weight of a pin. The weights may have any sum: a priority is their share, 0 to 100."""
    low: int = 30
    """Priority (0 to 100) below which a step is summarised by its call alone."""
    block: int = 10
    """Steps of work that are summarised together."""
    recent: int = 3
    """Number of newest steps that stay whole."""
    summary_chars: int = 1_200
    """Characters of a summary of `block` steps."""
    brief_chars: int = 400
    """Characters of a summary of summaries."""
    told_chars: int = 600
    """Characters of a prompt that stay when its group is finished and summarised. Answers stay whole."""
    ids: int = 5
    """Number of identifiers that a helper's summary has to contain."""
    summary_prompt: str = extracts.SUMMARY_PROMPT
    """The prompt of the helper model; `<CHARACTERS>` is the maximum length of its summary."""
    verbose: int = 1_500
    """Tokens above which the results of a step are verbose, and the step is volatile."""
    rules: tuple[str, ...] = (r"\b(?:always|never|from now on|under no circumstances)\b", r"^\s*(?:rule|constraint)s?:")
    """Patterns of user messages that are permanent."""
    decisions: tuple[str, ...] = (
        r"\b(?:decided|decision|we(?:'ll| will) use|chose|going with|instead of)\b",
        r"\b(?:fixed|resolved|root cause|the (?:problem|bug|issue|cause) (?:is|was))\b",
    )
    """Patterns of the model's text that assign a step to the session level: decisions and solved errors."""
    exploring: tuple[str, ...] = (r"^(?:ls|list|glob|find|tree|search|grep)", r"(?:_|\.)(?:list|search|glob|grep)")
    """Patterns of the names of tools that explore; their calls are volatile."""
    dead_ends: tuple[str, ...] = (
        r"\bno (?:matches|results|files)(?: were)? found\b",
        r"\bnot found\b",
        r"\bno such file\b",
    )
    """Patterns near the beginning of a result without success. These results, and empty ones, are volatile."""
    new_task: tuple[str, ...] = (
        r"^\W*(?:new task|next task|now (?:for|to) something|switch to|forget (?:that|it|about))\b",
    )
    """Patterns of prompts that begin a new task: the previous task is summarised, and its volatile content is left
    out."""
    same_task: float = 0.2
    """Share of a prompt's words that also occur in the group before it. Below this share the prompt begins a new
    task."""
    least_words: int = 4
    """Minimum number of words in a prompt for the rule of `same_task`."""
    goes_on: tuple[str, ...] = (
        r"^\W*(?:continue|next|go on|go ahead|proceed|keep going|yes|ok(?:ay)?|sure|thanks?)\W*$",
    )
    """Patterns of prompts that continue the same task."""
    when: ClassVar[When] = "schedule"
    ranks: ClassVar[bool] = True
    """The stage ranks by relevance to the task: with embedding vectors if embeddings are on."""

    def __post_init__(self) -> None:
        if not isinstance(self.total, int) and self.total != "model":
            raise ConfigError(f"stages.{STAGE}.total", self.total, 'a number of tokens, or "model"')
        self._check_weights()
        placeholders.check(f"stages.{STAGE}.summary_prompt", self.summary_prompt, ("CHARACTERS",), None)
        patterns = ("rules", "decisions", "exploring", "dead_ends", "new_task", "goes_on")
        check_patterns(self, f"stages.{STAGE}", patterns)

    def _check_weights(self) -> None:
        for name in ("recency", "references", "relevance", "mark"):
            weight = getattr(self, name)
            if not math.isfinite(weight) or weight < 0:
                raise ConfigError(f"stages.{STAGE}.{name}", weight, "a weight of 0 or more")
        if not self.weights.total:
            raise ConfigError(f"stages.{STAGE}.recency", self.recency, "a weight above 0, of this or another term")

    @property
    def weights(self) -> PriorityWeights:
        """The weights of the terms of a priority."""
        return PriorityWeights(self.recency, self.references, self.relevance, self.mark)

    @property
    def ages(self) -> tuple[int, ...]:
        """Seconds without a request after which compression is due: it is done before the next request."""
        return self.working_s, self.session_s

    @property
    def own_budget(self) -> int | None:
        """`total`, where it is a number of tokens."""
        return self.total if isinstance(self.total, int) else None

    def __call__(self, view: View) -> Iterable[Proposal]:
        """Return the proposal for each message that changes, oldest first."""
        return self._decide(view).proposals

    def asks(self, view: View) -> Iterable[Ask]:
        """Return questions for summaries that a helper could write better than the extracts in use."""
        return self._decide(view).asks

    def notes(self, view: View, edits: Mapping[bytes, Edit], new: Sequence[Edit]) -> Iterator[Note]:
        """Yield the tokens of each level in the outgoing prompt and, for new edits, their tokens before and after."""
        decision = self._decide(view)
        used = dict.fromkeys(LEVEL_NAMES, 0.0)
        for i, (step, level) in enumerate(zip(decision.layout.steps, decision.levels, strict=True)):
            size = sum(view.original_tokens[step.start : step.end])
            for n in range(step.start, step.end) if decision.layout.kinds[i] != "system" else ():
                if view.keys[n] in edits:
                    size += edits[view.keys[n]].after - view.original_tokens[n]
            used[LEVEL_NAMES[level]] += size
        yield Note("levels", ", ".join(f"{name} {size:.0f}" for name, size in used.items()), used)
        budgets = self._compute_level_budgets(view)
        yield Note("level_budgets", "", budgets)
        if used["permanent"] > budgets["permanent"]:
            yield Note("over_level", f"permanent: {used['permanent']:.0f} tokens, of which nothing may be compressed")
        ours = [e for e in new if e.stage == STAGE]
        before, after = sum(e.before for e in ours), sum(e.after for e in ours)
        if before:
            ratio = before / max(1, after)
            figures = {"before": float(before), "after": float(after), "ratio": ratio}
            yield Note("compressed", f"{before} tokens became {after} ({ratio:.1f}x)", figures)
            if ratio < 2:
                yield Note("low_ratio", f"compressed {ratio:.1f}x: summaries may be too detailed", figures)

    def _limit(self, view: View) -> int | None:
        if self.total == "model":
            return view.budget
        total = self.total if isinstance(self.total, int) else DEFAULT_TOTAL
        return min(total, view.budget) if view.budget else total

    def _compute_level_budget(self, view: View, tokens: int) -> float:
        """Return the budget of a level: as it is set, or in proportion to the budget of the model."""
        limit = self._limit(view) if self.total == "model" else None
        return tokens * (limit or DEFAULT_TOTAL) / DEFAULT_TOTAL

    def _compute_level_budgets(self, view: View) -> dict[str, float]:
        """Return the token budget of each level; volatile content has the remaining tokens."""
        named = {"permanent": self.permanent, "session": self.session, "working": self.working}
        return {level: self._compute_level_budget(view, tokens) for level, tokens in named.items()}

    def _decide(self, view: View) -> LevelDecision:
        return view.compute_once(self, lambda: self._compute_decision(view))

    def _compute_decision(self, view: View) -> LevelDecision:
        rules = compile_rules(self.rules, self.decisions, self.exploring, self.dead_ends, self.verbose, self.recent)
        layout = build_layout(view, rules, self.block)
        sizes = SummaryLimits(
            self.summary_chars, self.brief_chars, self.told_chars, self.ids, self.low, self.summary_prompt
        )
        ladder = CompressionLadder(view, layout, (), sizes)
        if not self._is_quiet(view, ladder):
            ladder.priorities = compute_priorities(view, layout, self.weights)
            self._finish_tasks(view, ladder)
            self._compress_aged(view, ladder)
            self._empty_levels(view, ladder)
            self._fit_total(view, ladder)
        return LevelDecision(layout, ladder.levels, ladder.build_proposals(), ladder.asks)

    def _is_quiet(self, view: View, ladder: CompressionLadder) -> bool:
        """True if no compression can be due: few tokens, a new conversation, and one group."""
        limit = self._limit(view)
        return (
            len(view.groups) == 1
            and (limit is None or ladder.total <= self.full * limit)
            and ladder.level_tokens[Level.WORKING] <= self.full * self._compute_level_budget(view, self.working)
            and ladder.level_tokens[Level.SESSION] <= self.full * self._compute_level_budget(view, self.session)
            and view.now - _find_begin_time(view) <= self.working_s
        )

    def _finish_tasks(self, view: View, ladder: CompressionLadder) -> None:
        """Summarise answered tasks, and all before a new task. Volatile steps before it leave (E2, E5)."""
        began = max((g for g in range(1, len(view.groups)) if self._is_new_task(view, g)), default=0)
        for i, level in enumerate(ladder.levels):
            if level is Level.VOLATILE and ladder.layout.group_of[i] < began:
                ladder.remove_step(i, "volatile, and of a task that is finished")
        for group in range(len(view.groups) - 1):
            if group < began or self._is_answered(view, ladder, group):
                compression_order.finish_group(ladder, group, "its task is finished")

    def _is_answered(self, view: View, ladder: CompressionLadder, group: int) -> bool:
        """True if the model has answered the group in text and the next prompt does not continue the same task."""
        if ladder.layout.answers[group] is None:
            return False
        after, goes_on = view.groups[group + 1], compile_pattern(self.goes_on)
        prompt = "\n".join(m.text for m in view.messages[after.start : after.prompt_end] if m.role == "user")
        return goes_on is None or not goes_on.search(prompt)

    def _is_new_task(self, view: View, group: int) -> bool:
        first = view.messages[view.groups[group].start]
        name = ("new task", self, view.keys[view.groups[group].prompt_end - 1])
        return first.derive(lambda _: self._begins(view, group), name)

    def _begins(self, view: View, group: int) -> bool:
        here, before = view.groups[group], view.groups[group - 1]
        prompt = "\n".join(m.text for m in view.messages[here.start : here.prompt_end] if m.role == "user")
        goes_on, new_task = compile_pattern(self.goes_on), compile_pattern(self.new_task)
        if goes_on and goes_on.search(prompt):
            return False
        if new_task and new_task.search(prompt):
            return True
        words = bm25.count_terms(prompt).counts.keys()
        known = set().union(
            *(bm25.count_message_terms(m).counts.keys() for m in view.messages[before.start : before.end])
        )
        return len(words) >= self.least_words and len(words & known) < self.same_task * len(words)

    def _compress_aged(self, view: View, ladder: CompressionLadder) -> None:
        """Compress content older than the age limit of its level: finished groups, and blocks of the active group."""
        if len(view.inputs.times) != len(view.messages):
            return
        active = len(view.groups) - 1
        for group, found in enumerate(view.groups[:-1]):
            age = view.now - view.inputs.times[found.end - 1]
            if age > self.working_s:
                compression_order.finish_group(ladder, group, f"older than {self.working_s} s")
            if age > self.session_s:
                ladder.summarize_group(
                    group, compression_order.find_blocks(ladder, group), f"older than {self.session_s} s"
                )
        for block in compression_order.find_blocks(ladder, active):
            ages = {i: view.now - view.inputs.times[ladder.layout.steps[i].end - 1] for i in block.steps}
            old = [i for i, age in ages.items() if age > self.working_s]
            if block.is_complete and len(old) == len(ages) and old:
                ladder.summarize_block(block, f"older than {self.working_s} s")
                if min(ages.values()) > self.session_s:
                    ladder.summarize_group(active, [block], f"older than {self.session_s} s")
            elif view.literal:
                for i in old:
                    ladder.extract_results(i, f"older than {self.working_s} s")

    def _empty_levels(self, view: View, ladder: CompressionLadder) -> None:
        """Reduce the levels that are too full. Working content is compressed and moves to the session level. Session
        content is compressed further, and leaves only if the session is still over its budget."""
        working = self._compute_level_budget(view, self.working)
        session = self._compute_level_budget(view, self.session)
        full = self.full
        compression_order.compress_working(
            ladder, lambda: ladder.level_tokens[Level.WORKING] > full * working, "working is full"
        )
        compression_order.compress_session(
            ladder, lambda: ladder.level_tokens[Level.SESSION] > full * session, "the session is full"
        )
        compression_order.remove_groups(
            ladder, lambda: ladder.level_tokens[Level.SESSION] > session, "the session is over its budget"
        )

    def _fit_total(self, view: View, ladder: CompressionLadder) -> None:
        """Fit the whole prompt: volatile content leaves first, then the lowest priority of other levels."""
        limit = self._limit(view)
        if limit is None:
            return

        def full() -> bool:
            return ladder.total > self.full * limit

        reason = "the prompt is full"
        for i in compression_order.rank_steps(ladder, Level.VOLATILE):
            if not full():
                return
            ladder.remove_step(i, compression_order.render_step_reason(ladder, i, f"volatile: {reason}"))
        compression_order.compress_working(ladder, full, reason)
        compression_order.compress_session(ladder, full, reason)
        compression_order.remove_groups(ladder, lambda: ladder.total > limit, "the prompt is over its budget")


def _find_begin_time(view: View) -> float:
    """The time of the first message of the conversation, system messages aside: each request resends them."""
    return next(
        (at for at, message in zip(view.inputs.times, view.messages, strict=False) if not message.is_system), view.now
    )
