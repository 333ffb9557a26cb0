"""Leave out tool traffic that was made for another wire format than that of the upstream."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from proxy.chat.tokens import PER_CALL
from proxy.context.plan import Proposal
from proxy.context.stage import Stage, When
from proxy.context.view import View

_FAMILY = {"gemini_gca": "gemini"}
"""Strategies with compatible tool traffic, by their common name (std::slop)."""


@dataclass(frozen=True, slots=True)
class IsolateTools(Stage):
    """Leave out tool calls and results that were made for another strategy; text stays, and the active group stays
    whole.

    An assistant message with calls and text keeps its text. A chain of calls that is translated from one provider's
    schema to another's leads to errors and to invented calls (std::slop, chapter 2).
    """

    when: ClassVar[When] = "always"

    def __call__(self, view: View) -> Iterable[Proposal]:
        """Yield a proposal for every message with tool traffic of another strategy before the active group."""
        mine = find_family(view.inputs.strategy)
        if all(find_family(s) == mine for s in set(view.inputs.strategies)):
            return
        for step in view.steps:
            if step.start >= view.active_start:
                return
            for n in range(step.start, step.end):
                message = view.messages[n]
                if find_family(view.inputs.strategies[n]) == mine or not (message.calls or message.is_result):
                    continue
                reason = f"tool traffic made for {view.inputs.strategies[n]}, not for {view.inputs.strategy}"
                if message.calls and message.text:
                    count = view.token_counter.count_text
                    calls = sum(PER_CALL + count(call.name) + count(call.arguments) for call in message.calls)
                    yield Proposal(n, "text_only", "isolate_tools", reason, view.original_tokens[n] - calls)
                else:
                    yield Proposal(n, "gone", "isolate_tools", reason, 0)


def find_family(strategy: str) -> str:
    """Return the common name of compatible strategies."""
    return _FAMILY.get(strategy, strategy)
