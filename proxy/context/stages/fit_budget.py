"""Last resort: leave out groups and steps until the prompt fits the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from proxy.chat.group import Group
from proxy.context.plan import Proposal
from proxy.context.stage import Stage, When
from proxy.context.view import View


@dataclass(frozen=True, slots=True)
class FitBudget(Stage):
    """While the prompt is over its budget, leave out whole groups, oldest first, then old steps of the active group.
    Where that is not enough, the largest results are cut to head and tail, and all steps but the newest may leave.

    The first prompt of the session stays: it states the subject of the session.
    """

    keep_steps: int = 4
    """Number of newest steps of the active group that stay as long as cutting their results is enough."""
    when: ClassVar[When] = "last"

    def __call__(self, view: View) -> Iterable[Proposal]:
        """Yield proposals in the order in which they are applied; the caller stops when the prompt fits."""
        groups = view.groups
        for n, group in enumerate(groups[:-1]):
            stay = _find_opening(view, group) if n == 0 else frozenset()
            for index in range(group.start, group.end):
                if index not in stay:
                    yield Proposal(index, "gone", "fit_budget", "over the budget: the oldest groups leave", 0)
        if groups:
            inside = [s for s in view.steps if s.start >= groups[-1].prompt_end]
            for step in inside[: max(0, len(inside) - self.keep_steps)]:
                for index in range(step.start, step.end):
                    yield Proposal(index, "gone", "fit_budget", "over the budget: the oldest steps leave", 0)


def _find_opening(view: View, group: Group) -> frozenset[int]:
    """Return the indices of the first group that stay: its prompt and, where the upstream requires alternating turns,
    the answer that closed the group."""
    stay = set(range(group.start, group.prompt_end))
    if view.model.alternate:
        last = group.end - 1
        message = view.messages[last]
        if message.role == "assistant" and not message.calls and message.text:
            stay.add(last)
        else:
            # The upstream refuses two user messages in a row: the first prompt has to leave with its group.
            stay = set(range(group.start, group.prompt_end)) - {n for n in stay if view.messages[n].role == "user"}
    return frozenset(stay)
