"""Shorten old tool results to what still says what they were: the default policy's stage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from proxy.chat.tokens import PER_MESSAGE
from proxy.context.plan import Proposal, View
from proxy.context.stage import When


@dataclass(frozen=True, slots=True)
class ShortenResults:
    """Replace old results by their first line and how much is missing."""

    keep: int = 12
    """The newest results, which stay whole."""
    least: int = 60
    """Tokens below which a result is left alone."""
    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        """A proposal for each result older than the newest `keep`."""
        results = [n for n, is_result in enumerate(view.is_result) if is_result]
        for at, n in enumerate(results[: max(0, len(results) - self.keep)]):
            message = view.messages[n]
            if view.whole[n] < self.least or message.shape not in ("string", "parts") or view.edit(n) is not None:
                continue
            first = message.text.strip().split("\n", 1)[0][:160]
            text = f"{first}\n[... {len(message.text) - len(first)} characters left out]"
            yield Proposal(
                n,
                "text",
                "shorten_results",
                f"older than the newest {self.keep} results",
                PER_MESSAGE + view.weigh.count(text),
                text,
                results[at + self.keep],
            )
