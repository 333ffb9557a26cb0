"""Cut tool results by age: three tiers, after std::slop's dynamic tool truncation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar

from proxy.chat.chain import public_id
from proxy.chat.message import Message
from proxy.chat.tokens import PER_MESSAGE, estimate_text_tokens
from proxy.context.plan import Proposal
from proxy.context.stage import Stage, When
from proxy.context.view import View

QUERY_HINT = "... [TRUNCATED. Use query_db(sql=\"SELECT content FROM messages WHERE id='<ID>'\") to see full output]"
"""Hint of std::slop, word for word."""
RECALL_HINT = '... [TRUNCATED. <MISSING> characters are missing; recall("<ID>") has all]'
BARE_HINT = "... [TRUNCATED. <MISSING> characters are missing]"


@dataclass(frozen=True, slots=True)
class TruncateResults(Stage):
    """Cut results in three tiers: the newest of the active group, its older ones, and those of inactive groups.

    Under `always`, a new edit replaces the old one as a result ages. Under other policies a result is cut once, when it
    has left the first tier.
    """

    recent: int = 5
    """Number of results of the active group in the first tier."""
    recent_chars: int = 5000
    """Characters kept of a result in the first tier."""
    active_chars: int = 1000
    """Characters kept of an older result of the active group."""
    inactive_chars: int = 300
    """Characters kept of a result of an inactive group."""
    head: float = 0.2
    """Share of the kept characters from the beginning of the result; the rest is from its end."""
    hint: str = QUERY_HINT
    """Text after the kept part if the model has the tool query_db. <ID> is the id of the message, <MISSING> the number
    of characters left out."""
    recall_hint: str = RECALL_HINT
    """The same text if the model has the tool recall, but not query_db."""
    bare_hint: str = BARE_HINT
    """The same text if the model has neither tool."""
    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        """Yield a proposal for each result over the limit of its tier."""
        results = [n for n, is_result in enumerate(view.is_result) if is_result]
        active = [n for n in results if n >= view.active_start]
        recent = set(active[-self.recent :] if self.recent else ())
        hint = self.select_hint(view.inputs.offered_tools)
        # A group has been inactive since the start of the next group.
        ended = {n: after.start for group, after in pairwise(view.groups) for n in range(group.start, group.end)}
        for at, n in enumerate(results):
            limit, tier, since = self.inactive_chars, "inactive group", ended.get(n, view.active_start)
            if n in recent:
                limit, tier, since = self.recent_chars, "newest results", n
            elif n >= view.active_start:
                limit, tier, since = self.active_chars, "older results", results[at + self.recent]
            message = view.messages[n]
            if len(message.text) <= limit or message.shape not in ("string", "parts"):
                continue
            if not view.literal and (n in recent or view.find_edit(n) is not None):
                continue
            # Literal policies run this with every request: the cut text is made once for each limit.
            name = public_id(view.keys[n])
            text, after = message.derive(
                partial(self._cut_message, limit, name, hint), ("cut", self.head, limit, name, hint)
            )
            if len(text) >= len(message.text):
                continue  # little is over the limit, and the hint is longer
            reason = f"{tier}: {len(message.text)} characters cut to {limit}"
            yield Proposal(n, "text", "truncate_results", reason, after, text, since)

    def select_hint(self, offered: frozenset[str]) -> str:
        """Return the hint for a model that has these tools of the proxy."""
        return self.hint if "query_db" in offered else self.recall_hint if "recall" in offered else self.bare_hint

    def _cut_message(self, limit: int, name: str, hint: str, message: Message) -> tuple[str, int]:
        text = self.cut(message.text, limit, name, hint)
        return text, PER_MESSAGE + estimate_text_tokens(text)

    def cut(self, text: str, limit: int, message_id: str, hint: str) -> str:
        """Return `limit` characters from both ends of the text, and the hint, which does not count."""
        head = int(limit * self.head)
        hint = hint.replace("<ID>", message_id).replace("<MISSING>", str(len(text) - limit))
        return f"{text[:head]}\n[...]\n{text[len(text) - (limit - head) :]}\n{hint}"
