"""The order of compression when there is too much: working memory first, then the session's, and then parts leave.

Each function goes down one rung of the ladder. It takes the lowest priority first, then the oldest, and stops as soon
as `is_over` is false. The reason of an edit gives the priority by which it was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from proxy.context.ranking.compressed_forms import CompressionLadder
from proxy.context.ranking.memory_levels import Level, StepBlock

IsOver = Callable[[], bool]
GROUPS_PER_SUMMARY = 10
"""Groups that share one summary if one summary for each is too much."""


def render_step_reason(ladder: CompressionLadder, i: int, reason: str) -> str:
    """The reason of an edit of a step that was chosen by its priority."""
    return f"priority {ladder.priorities[i]} of 100: {reason}"


def rank_steps(ladder: CompressionLadder, level: Level) -> list[int]:
    """The steps of a level that may change, lowest priority first, then oldest first."""
    changeable = (
        i
        for i, at in enumerate(ladder.levels)
        if at is level and not ladder.layout.is_fixed[i] and ladder.count_step_tokens(i)
    )
    return sorted(changeable, key=lambda i: (ladder.priorities[i], i))


def find_blocks(ladder: CompressionLadder, group: int) -> list[StepBlock]:
    """The group's blocks, oldest first."""
    return [block for block in ladder.layout.blocks_by_group[group] if block.steps]


def finish_group(ladder: CompressionLadder, group: int, reason: str) -> None:
    """Summarise a finished group, which belongs to the session level from now on."""
    for block in find_blocks(ladder, group):
        ladder.summarize_block(block, reason)
    ladder.shorten_prompts(group, ladder.limits.excerpt_chars, reason)


def compress_working(ladder: CompressionLadder, is_over: IsOver, reason: str) -> None:
    """Replace results by extracts, then steps by one summary that moves to the session level, then shorten prompts.

    If edits stay for ever, the extracts are left out: a later summary in the place of an extract would be longer than
    it.
    """
    if ladder.view.literal:
        for i in rank_steps(ladder, Level.WORKING):
            if not is_over():
                return
            ladder.extract_results(i, render_step_reason(ladder, i, reason))
    for rank, block in _rank_blocks(ladder, (b for b in ladder.layout.blocks if b.is_complete)):
        if not is_over():
            return
        ladder.summarize_block(block, _render_block_reason(rank, reason))
    for rank, group in _rank_groups(ladder):
        if not is_over():
            return
        ladder.shorten_prompts(group, ladder.limits.excerpt_chars, _render_group_reason(rank, reason))


def compress_session(ladder: CompressionLadder, is_over: IsOver, reason: str) -> None:
    """Shorten the text that has been summarised: summaries of summaries."""
    last = len(ladder.view.groups) - 1
    for rank, group in _rank_groups(ladder):
        if not is_over():
            return
        blocks = [b for b in find_blocks(ladder, group) if b in ladder.folded]
        ladder.summarize_group(group, blocks, _render_group_reason(rank, reason))
    for rank, block in _rank_blocks(ladder, (b for b in find_blocks(ladder, last) if b in ladder.folded)):
        if not is_over():
            return
        ladder.summarize_group(last, [block], _render_block_reason(rank, reason))


def remove_groups(ladder: CompressionLadder, is_over: IsOver, reason: str) -> None:
    """Remove finished groups and summaries.

    A finished group leaves one summary of itself, then one for `GROUPS_PER_SUMMARY` groups together, then one for all
    groups. Then summaries of the active group leave; their content is in the store alone."""
    last = len(ladder.view.groups) - 1
    for rank, group in _rank_groups(ladder):
        if not is_over():
            return
        chosen = _render_group_reason(rank, reason)
        if not ladder.summarize_groups([group], chosen):
            for block in find_blocks(ladder, group):
                _drop_block(ladder, block, chosen)
    for size in (GROUPS_PER_SUMMARY, last):
        for first in range(1, last, size or 1):
            if not is_over():
                return
            ladder.summarize_groups(range(first, min(first + size, last)), reason)
    for rank, block in _rank_blocks(ladder, (b for b in find_blocks(ladder, last) if b in ladder.folded)):
        if not is_over():
            return
        _drop_block(ladder, block, _render_block_reason(rank, reason))


def _drop_block(ladder: CompressionLadder, block: StepBlock, reason: str) -> None:
    for i in block.steps:
        ladder.remove_step(i, reason)


def _render_block_reason(rank: int, reason: str) -> str:
    return f"priority {rank} of 100, the highest of its block: {reason}"


def _render_group_reason(rank: int, reason: str) -> str:
    return f"priority {rank} of 100, the highest of its group: {reason}"


def _rank_blocks(ladder: CompressionLadder, blocks: Iterable[StepBlock]) -> list[tuple[int, StepBlock]]:
    """The blocks, each with the highest priority in it, lowest first."""
    found = [(max(ladder.priorities[i] for i in block.steps), block) for block in blocks if block.steps]
    return sorted(found, key=lambda one: (one[0], one[1].steps))


def _rank_groups(ladder: CompressionLadder) -> list[tuple[int, int]]:
    """The finished groups, all but the last, each with the highest priority in it, lowest first."""
    worth = [0] * len(ladder.view.groups)
    for i, group in enumerate(ladder.layout.group_of):
        if ladder.layout.kinds[i] != "system":
            worth[group] = max(worth[group], ladder.priorities[i])
    return sorted((worth[group], group) for group in range(len(worth) - 1))
