"""The last resort: close the window until the prompt fits the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from proxy.chat.group import Group
from proxy.context.plan import Proposal, View
from proxy.context.stage import When


@dataclass(frozen=True, slots=True)
class FitBudget:
    """While the prompt is over its budget, leave out whole groups, oldest first, then old steps of the active group.
    Where that is not enough, the largest results are cut to head and tail, and all steps but the newest may leave.

    The first prompt of the session stays: it says what all of it is about (FEATURES.md A14).
    """

    keep_steps: int = 4
    """Steps at the end of the active group that stay as long as cutting their results is enough."""
    when: ClassVar[When] = "last"

    def __call__(self, view: View) -> Iterable[Proposal]:
        """Proposals in the order in which they should be taken; the caller stops when the prompt fits."""
        groups = view.groups
        for n, group in enumerate(groups[:-1]):
            stay = _opening(view, group) if n == 0 else frozenset()
            for index in range(group.start, group.end):
                if index not in stay:
                    yield Proposal(index, "gone", "fit_budget", "over the budget: the oldest groups leave", 0)
        if groups:
            inside = [s for s in view.steps if s.start >= groups[-1].prompt_end]
            for step in inside[: max(0, len(inside) - self.keep_steps)]:
                for index in range(step.start, step.end):
                    yield Proposal(index, "gone", "fit_budget", "over the budget: the oldest steps leave", 0)


def _opening(view: View, group: Group) -> frozenset[int]:
    """What stays of the first group: its prompt, and for upstreams that insist on turns the answer that closed it."""
    stay = set(range(group.start, group.prompt_end))
    if view.model.alternate:
        last = group.end - 1
        message = view.messages[last]
        if message.role == "assistant" and not message.calls and message.text:
            stay.add(last)
        else:
            # Two user messages in a row would be refused: the first prompt has to leave with its group.
            stay = set(range(group.start, group.prompt_end)) - {n for n in stay if view.messages[n].role == "user"}
    return frozenset(stay)
