"""Recognition of an answer that a client returns in its own words.

An answer is known by its chain key where the client returns it as it was. Some clients write calls as text, put a text
after the answer, or take the reasoning from its front. Their answers are known by the ids of the calls, or by the
beginning or end of the text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from proxy.chat.message import Call, Message

MIN_ID_CHARS = 9
"""Characters of a call's id by which an answer is recognised. Shorter ids may be counters."""
_COUNTER = re.compile(
    r"(?:functions?|tools?|toolu|calls?|chatcmpl|fc|id|step|use|[\W_]|0*\d{1,5}(?!\d))*+", re.IGNORECASE
)
"""The id of a call without the tool's name, where the rest is the usual words and a small number."""
MIN_TEXT_CHARS = 16
"""Characters of an answer that is recognised by its text."""
REMEMBERED_CHARS = 200
"""Characters that are remembered of each end of an answer's text."""


class GivenAnswer(NamedTuple):
    """An answer, as far as it is remembered to recognise it where the client returns it in other words."""

    call_ids: frozenset[str]
    """The ids of its calls, without ids that may be counters."""
    head: str
    """The first `REMEMBERED_CHARS` characters of its text; "" for a text that other conversations may have by
    chance."""
    tail: str
    """The last ones."""

    @classmethod
    def remember(cls, message: Message) -> GivenAnswer:
        """Return what is remembered of the message of an answer."""
        text = message.text.strip()
        if len(text) < MIN_TEXT_CHARS:
            text = ""
        return cls(_select_call_ids(message), text[:REMEMBERED_CHARS], text[-REMEMBERED_CHARS:])

    def is_reworded_in(self, message: Message) -> bool:
        """True if a client's message shows this answer.

        A message with calls shows it by their ids. A message without calls shows it by the ids in its text, where a
        client writes calls as text. It also shows it by the text itself: a client may put a text after the answer, or
        take the reasoning from its front.
        """
        if message.calls:
            ids = _select_call_ids(message)
            return bool(ids) and self.call_ids.issuperset(ids)
        if message.role != "assistant":
            return False
        text = message.text.strip()
        if self.call_ids and all(call_id in text for call_id in self.call_ids):
            return True
        if len(text) < MIN_TEXT_CHARS or not self.head:
            return False
        return text.startswith(self.head) or text.endswith(self.tail) or self.tail.endswith(text)


def _select_call_ids(message: Message) -> frozenset[str]:
    return frozenset(call.id for call in message.calls if len(call.id) >= MIN_ID_CHARS and not _is_counter(call))


def _is_counter(call: Call) -> bool:
    """True if the id of a call only counts, as `functions.read:0` does: another conversation has the same one."""
    return _COUNTER.fullmatch(call.id.replace(call.name, "") if call.name else call.id) is not None
