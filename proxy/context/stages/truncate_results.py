"""Cut tool results by age: three tiers, after std::slop's dynamic tool truncation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar

from proxy.chat.key import public_id
from proxy.chat.message import Message
from proxy.chat.tokens import PER_MESSAGE, estimate
from proxy.context.plan import Proposal, View
from proxy.context.stage import When

HINT = "... [TRUNCATED. Use query_db(sql=\"SELECT content FROM messages WHERE id='<ID>'\") to see full output]"
"""The source's, word for word."""
RECALL = '... [TRUNCATED. <MISSING> characters are missing; recall("<ID>") has all]'
MISSING = "... [TRUNCATED. <MISSING> characters are missing]"


@dataclass(frozen=True, slots=True)
class TruncateResults:
    """Cut results in three tiers: the newest of the active group, its older ones, and those of inactive groups.

    Under `always` an edit is superseded as its result ages; else a result is cut once, when it has left the first tier.
    """

    recent: int = 5
    """Results of the active group that are in the first tier."""
    recent_chars: int = 5000
    """Characters kept of a result in the first tier."""
    active_chars: int = 1000
    """Characters kept of an older result of the active group."""
    inactive_chars: int = 300
    """Characters kept of a result of an inactive group."""
    head: float = 0.2
    """Share of the kept characters that comes from the beginning; the rest is from the end."""
    hint: str = HINT
    """The text after the kept part where the model has the tool query_db; <ID> is the message's id, <MISSING> how
    many characters are left out."""
    recall_hint: str = RECALL
    """The same where it has recall alone."""
    bare_hint: str = MISSING
    """The same where it has neither."""
    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        """A proposal for each result over the limit of its tier."""
        results = [n for n, is_result in enumerate(view.is_result) if is_result]
        active = [n for n in results if n >= view.active]
        recent = set(active[-self.recent :] if self.recent else ())
        hint = self.hint_for(view.offered)
        # A group has been inactive since the next one began.
        ended = {n: after.start for group, after in pairwise(view.groups) for n in range(group.start, group.end)}
        for at, n in enumerate(results):
            limit, tier, since = self.inactive_chars, "inactive group", ended.get(n, view.active)
            if n in recent:
                limit, tier, since = self.recent_chars, "newest results", n
            elif n >= view.active:
                limit, tier, since = self.active_chars, "older results", results[at + self.recent]
            message = view.messages[n]
            if len(message.text) <= limit or message.shape not in ("string", "parts"):
                continue
            if not view.literal and (n in recent or view.edit(n) is not None):
                continue
            # Literal policies come here with every request: what a result is cut to is made once a limit.
            name = public_id(view.keys[n])
            text, after = message.derive(partial(self._cut, limit, name, hint), ("cut", self.head, limit, name, hint))
            reason = f"{tier}: {len(message.text)} characters cut to {limit}"
            yield Proposal(n, "text", "truncate_results", reason, after, text, since)

    def hint_for(self, offered: frozenset[str]) -> str:
        """The hint for a model that has these tools of ours."""
        return self.hint if "query_db" in offered else self.recall_hint if "recall" in offered else self.bare_hint

    def _cut(self, limit: int, name: str, hint: str, message: Message) -> tuple[str, int]:
        text = self.cut(message.text, limit, name, hint)
        return text, PER_MESSAGE + estimate(text)

    def cut(self, text: str, limit: int, message_id: str, hint: str) -> str:
        """`limit` characters of the text, from both ends, and the hint, which does not count against the limit."""
        head = int(limit * self.head)
        hint = hint.replace("<ID>", message_id).replace("<MISSING>", str(len(text) - limit))
        return f"{text[:head]}\n[...]\n{text[len(text) - (limit - head) :]}\n{hint}"
