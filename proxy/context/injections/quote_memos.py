"""Quote memos that match the user's message: data from other sessions, with date and source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from proxy.context.plan import Insert
from proxy.context.stage import Injection
from proxy.context.view import View
from proxy.notes import memo_matching


@dataclass(frozen=True, slots=True)
class QuoteMemos(Injection):
    """Quote up to five memos of earlier sessions that match the last user message, at the tail, never in a system
    message.

    The number and length of memos are set in `[memos]`. Where the policy's edits last, a memo is quoted once in a
    conversation.
    """

    share: float = 0.1
    """Maximum share of the prompt's budget for the memos, if there is a budget."""
    recollects: ClassVar[Literal["scratchpad", "memos"]] = "memos"

    def __call__(self, view: View) -> Iterable[Insert]:
        """Yield one insert with all memos, the best first; memos that do not fit the budget are left out."""
        memos = list(view.inputs.memos if view.literal else self._find_new_memos(view))
        while memos:
            text = "\n\n" + memo_matching.render_memos(memos)
            size = view.token_counter.count_text(text)
            if view.budget is None or (size <= self.share * view.budget and view.total + size <= view.budget):
                yield Insert("tail", "memos", text, persistent=not view.literal)
                return
            memos.pop()

    def _find_new_memos(self, view: View) -> Iterable[memo_matching.Memo]:
        """Return the memos that are not in the prompt yet."""
        memos = view.inputs.memos
        quoted = [e.text for e in view.edits.values() if e.text and memo_matching.START in e.text] if memos else ()
        return (memo for memo in memos if not any(memo_matching.render_memo(memo) in text for text in quoted))
