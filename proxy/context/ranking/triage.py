"""The order of compression when there is too much: working memory first, then the session's, and then parts leave.

Each function goes down one rung of the ladder. It takes the lowest priority first, then the oldest, and stops as soon
as `over` says that there is room. The reason of an edit gives the priority by which it was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from proxy.context.ranking.ladder import Ladder
from proxy.context.ranking.levels import Block, Level

Over = Callable[[], bool]
MERGED = 10
"""Groups that share one summary if one summary for each is too much."""


def of_step(ladder: Ladder, i: int, reason: str) -> str:
    """The reason of an edit of a step that was chosen by its priority."""
    return f"priority {ladder.priorities[i]} of 100: {reason}"


def ranked(ladder: Ladder, level: Level) -> list[int]:
    """The steps of a level that may change, lowest priority first, then oldest first."""
    found = (i for i, at in enumerate(ladder.levels) if at is level and not ladder.layout.fixed[i] and ladder.size(i))
    return sorted(found, key=lambda i: (ladder.priorities[i], i))


def of_group(ladder: Ladder, group: int) -> list[Block]:
    """The group's blocks, oldest first."""
    return [block for block in ladder.layout.blocks_of[group] if block.steps]


def finish(ladder: Ladder, group: int, reason: str) -> None:
    """Summarise a finished group, which belongs to the session level from now on (FEATURES.md E2)."""
    for block in of_group(ladder, group):
        ladder.fold(block, reason)
    ladder.tell(group, ladder.sizes.told, reason)


def compress_working(ladder: Ladder, over: Over, reason: str) -> None:
    """Replace results by extracts, then steps by one summary that moves to the session level, then shorten prompts and
    answers.

    If edits stay for ever, the extracts are left out: a later summary in the place of an extract would be longer than
    it.
    """
    if ladder.view.literal:
        for i in ranked(ladder, Level.WORKING):
            if not over():
                return
            ladder.extract(i, of_step(ladder, i, reason))
    for rank, block in _ranked_blocks(ladder, (b for b in ladder.layout.blocks if b.done)):
        if not over():
            return
        ladder.fold(block, _of_block(rank, reason))
    for rank, group in _ranked_groups(ladder):
        if not over():
            return
        ladder.tell(group, ladder.sizes.told, _of_group(rank, reason))


def compress_session(ladder: Ladder, over: Over, reason: str) -> None:
    """Shorten the text that has been summarised: summaries of summaries."""
    last = len(ladder.view.groups) - 1
    for rank, group in _ranked_groups(ladder):
        if not over():
            return
        blocks = [b for b in of_group(ladder, group) if b in ladder.folded]
        ladder.brief(group, blocks, _of_group(rank, reason))
    for rank, block in _ranked_blocks(ladder, (b for b in of_group(ladder, last) if b in ladder.folded)):
        if not over():
            return
        ladder.brief(last, [block], _of_block(rank, reason))


def leave(ladder: Ladder, over: Over, reason: str) -> None:
    """Remove finished groups and summaries.

    A finished group leaves one summary of itself, then one for `MERGED` groups together, then one for all groups. Then
    summaries of the active group leave; their content is in the store alone.
    """
    last = len(ladder.view.groups) - 1
    for rank, group in _ranked_groups(ladder):
        if not over():
            return
        chosen = _of_group(rank, reason)
        if not ladder.digest([group], chosen):
            for block in of_group(ladder, group):
                _drop(ladder, block, chosen)
    for size in (MERGED, last):
        for first in range(1, last, size or 1):
            if not over():
                return
            ladder.digest(range(first, min(first + size, last)), reason)
    for rank, block in _ranked_blocks(ladder, (b for b in of_group(ladder, last) if b in ladder.folded)):
        if not over():
            return
        _drop(ladder, block, _of_block(rank, reason))


def _drop(ladder: Ladder, block: Block, reason: str) -> None:
    for i in block.steps:
        ladder.drop(i, reason)


def _of_block(rank: int, reason: str) -> str:
    return f"priority {rank} of 100, the highest of its block: {reason}"


def _of_group(rank: int, reason: str) -> str:
    return f"priority {rank} of 100, the highest of its group: {reason}"


def _ranked_blocks(ladder: Ladder, blocks: Iterable[Block]) -> list[tuple[int, Block]]:
    """The blocks, each with the highest priority in it, lowest first."""
    found = [(max(ladder.priorities[i] for i in block.steps), block) for block in blocks if block.steps]
    return sorted(found, key=lambda one: (one[0], one[1].steps))


def _ranked_groups(ladder: Ladder) -> list[tuple[int, int]]:
    """The finished groups, all but the last, each with the highest priority in it, lowest first."""
    worth = [0] * len(ladder.view.groups)
    for i, group in enumerate(ladder.layout.group_of):
        if ladder.layout.kinds[i] != "system":
            worth[group] = max(worth[group], ladder.priorities[i])
    return sorted((worth[group], group) for group in range(len(worth) - 1))
