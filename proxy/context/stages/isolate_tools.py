"""Keep tool traffic away from an upstream that speaks another format than the one that it was made for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from proxy.chat.tokens import PER_CALL
from proxy.context.plan import Proposal, View
from proxy.context.stage import When

_FAMILY = {"gemini_gca": "gemini"}
"""Strategies that read each other's tool traffic, by their common name (std::slop)."""


@dataclass(frozen=True, slots=True)
class IsolateTools:
    """Leave out tool calls and results that were made for another strategy; text goes on, the active group is whole.

    An assistant message with calls and text keeps its text. Translating a chain of calls from one provider's
    schema to another's leads to errors there, and to invented calls (std::slop, chapter 2).
    """

    when: ClassVar[When] = "always"

    def __call__(self, view: View) -> Iterable[Proposal]:
        """Proposals for every message with tool traffic of a foreign strategy before the active group."""
        mine = family(view.strategy)
        if all(family(s) == mine for s in set(view.strategies)):
            return
        for step in view.steps:
            if step.start >= view.active:
                return
            for n in range(step.start, step.end):
                message = view.messages[n]
                if family(view.strategies[n]) == mine or not (message.calls or message.is_result):
                    continue
                reason = f"tool traffic made for {view.strategies[n]}, not for {view.strategy}"
                if message.calls and message.text:
                    count = view.weigh.count
                    calls = sum(PER_CALL + count(call.name) + count(call.arguments) for call in message.calls)
                    yield Proposal(n, "text_only", "isolate_tools", reason, view.whole[n] - calls)
                else:
                    yield Proposal(n, "gone", "isolate_tools", reason, 0)


def family(strategy: str) -> str:
    """The name under which compatible strategies are one."""
    return _FAMILY.get(strategy, strategy)
