"""Keep the last groups, or the last tokens in whole groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from proxy.context.pins import find_opening_prompt
from proxy.context.plan import Proposal
from proxy.context.stage import Stage, When
from proxy.context.view import View


@dataclass(frozen=True, slots=True)
class CloseWindow(Stage):
    """Leave out all groups but the last ones; system messages and the first prompt stay.

    This is the sequential rolling window of std::slop.
    """

    groups: int = 0
    """Number of groups that stay, including the active group; 0: all."""
    tokens: int = 0
    """Maximum number of tokens in the whole groups that stay, counted from the end; 0: no limit."""
    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        """Yield a proposal to leave out each message of the groups outside the window."""
        first = self._find_first_group(view)
        if first == 0:
            return
        stay = find_opening_prompt(view)
        reason = f"outside the last {len(view.groups) - first} groups"
        for position, group in enumerate(view.groups[:first]):
            pushed = min(position + len(view.groups) - first, len(view.groups) - 1)
            for n in range(group.start, group.end):
                if n in stay:
                    continue
                yield Proposal(n, "gone", "close_window", reason, 0, since=view.groups[pushed].start)

    def _find_first_group(self, view: View) -> int:
        """Return the number of the first group that stays; the active group always stays."""
        first = max(0, len(view.groups) - self.groups) if self.groups else 0
        if self.tokens:
            total = 0
            for n in range(len(view.groups) - 1, first - 1, -1):
                total += sum(view.tokens[view.groups[n].start : view.groups[n].end])
                if total > self.tokens:
                    return min(n + 1, len(view.groups) - 1)
        return first
