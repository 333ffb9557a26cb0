"""What goes first when there is too much: working memory is compressed, the session's further, and then they leave.

Each function goes down one rung of the ladder, lowest priority and then oldest first, and stops as soon as `over` says
that there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from proxy.context.ranking.ladder import Ladder
from proxy.context.ranking.levels import Block, Level

Over = Callable[[], bool]
MERGED = 10
"""Groups that have one summary together where one each is too much."""


def ranked(ladder: Ladder, level: Level) -> list[int]:
    """The steps of a level that may change, lowest priority first, the oldest first where it is the same."""
    found = (i for i, at in enumerate(ladder.levels) if at is level and not ladder.layout.fixed[i] and ladder.size(i))
    return sorted(found, key=lambda i: (ladder.priorities[i], i))


def of_group(ladder: Ladder, group: int) -> list[Block]:
    """The group's blocks, oldest first."""
    return [block for block in ladder.layout.blocks_of[group] if block.steps]


def finish(ladder: Ladder, group: int, reason: str) -> None:
    """A finished group is summarised, and belongs to the session from now on (FEATURES.md E2)."""
    for block in of_group(ladder, group):
        ladder.fold(block, reason)
    ladder.tell(group, ladder.sizes.told, reason)


def compress_working(ladder: Ladder, over: Over, reason: str) -> None:
    """Results by their extracts; then steps in one summary, which moves to the session; then what was said.

    Where edits stay for ever the extracts are left out: a summary in the place of one would be longer than it.
    """
    if ladder.view.literal:
        for i in ranked(ladder, Level.WORKING):
            if not over():
                return
            ladder.extract(i, reason)
    for block in _ranked_blocks(ladder, (b for b in ladder.layout.blocks if b.done)):
        if not over():
            return
        ladder.fold(block, reason)
    for group in _ranked_groups(ladder):
        if not over():
            return
        ladder.tell(group, ladder.sizes.told, reason)


def compress_session(ladder: Ladder, over: Over, reason: str) -> None:
    """What has been summarised becomes shorter still: summaries of summaries."""
    last = len(ladder.view.groups) - 1
    for group in _ranked_groups(ladder):
        if not over():
            return
        blocks = [b for b in of_group(ladder, group) if b in ladder.folded]
        ladder.brief(group, blocks, reason)
    for block in _ranked_blocks(ladder, (b for b in of_group(ladder, last) if b in ladder.folded)):
        if not over():
            return
        ladder.brief(last, [block], reason)


def leave(ladder: Ladder, over: Over, reason: str) -> None:
    """Finished groups leave but for a summary of each, then of `MERGED` together, then of all of them; and summaries of
    the active one leave: what is left of them is in the store alone."""
    last = len(ladder.view.groups) - 1
    for group in _ranked_groups(ladder):
        if not over():
            return
        if not ladder.digest([group], reason):
            for block in of_group(ladder, group):
                _drop(ladder, block, reason)
    for size in (MERGED, last):
        for first in range(1, last, size or 1):
            if not over():
                return
            ladder.digest(range(first, min(first + size, last)), reason)
    for block in _ranked_blocks(ladder, (b for b in of_group(ladder, last) if b in ladder.folded)):
        if not over():
            return
        _drop(ladder, block, reason)


def _drop(ladder: Ladder, block: Block, reason: str) -> None:
    for i in block.steps:
        ladder.drop(i, reason)


def _ranked_blocks(ladder: Ladder, blocks: Iterable[Block]) -> list[Block]:
    found = [block for block in blocks if block.steps]
    return sorted(found, key=lambda block: (max(ladder.priorities[i] for i in block.steps), block.steps))


def _ranked_groups(ladder: Ladder) -> list[int]:
    """The finished groups: all but the last."""
    worth = [0] * len(ladder.view.groups)
    for i, group in enumerate(ladder.layout.group_of):
        if ladder.layout.kinds[i] != "system":
            worth[group] = max(worth[group], ladder.priorities[i])
    return sorted(range(len(worth) - 1), key=lambda group: (worth[group], group))
