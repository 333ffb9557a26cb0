"""Recognition of an answer that a client returns in its own words.

An answer is known by its chain key where the client returns it as it was. Some clients write calls as text, put a text
after the answer, or take the reasoning from its front. Their answers are known by the ids of the calls, or by the
beginning or end of the text. Others give the calls ids of their own. Their answers are known by what the calls say.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from proxy.chat import chain
from proxy.chat.message import Call, Message
from proxy.dialects.base import MADE_CALL_ID

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
_OUTSIDE_IDS = re.compile(r"[^0-9A-Za-z]+")
"""Characters that some providers allow in an id and others refuse."""


class GivenAnswer(NamedTuple):
    """An answer, as far as it is remembered to recognise it where the client returns it in other words."""

    call_ids: frozenset[str]
    """The ids of its calls, without ids that may be counters."""
    head: str
    """The first `REMEMBERED_CHARS` characters of its text; "" for one that others may have by chance."""
    tail: str
    """The last ones."""
    all_calls: tuple[tuple[str, str], ...] = ()
    """(id, name) of all its calls, in their order."""
    rest: bytes = b""
    """A digest of its calls without their ids. Empty where it calls no tool."""
    short_text: str = ""
    """Its text, if that is too short for `head`."""

    @classmethod
    def remember(cls, message: Message) -> GivenAnswer:
        """Return what is remembered of the message of an answer."""
        text, short_text = message.text.strip(), ""
        if len(text) < MIN_TEXT_CHARS:
            text, short_text = "", text
        calls = tuple((call.id, call.name) for call in message.calls)
        rest = _digest_without_ids(message) if calls else b""
        ids, head, tail = _select_call_ids(message), text[:REMEMBERED_CHARS], text[-REMEMBERED_CHARS:]
        return cls(ids, head, tail, calls, rest, short_text)

    def is_reworded_in(self, message: Message) -> bool:
        """True if a client's message shows this answer.

        A message with calls shows it by their ids. A message without calls shows it by the ids in its text, where a
        client writes calls as text. It also shows it by the text itself: a client may put a text after the answer, or
        take the reasoning from its front.
        """
        if message.calls:
            ids = _select_call_ids(message)
            return (bool(ids) and self.call_ids.issuperset(ids)) or self._has_other_ids_in(message)
        if message.role != "assistant":
            return False
        text = message.text.strip()
        if self.call_ids and all(call_id in text for call_id in self.call_ids):
            return True
        return self._is_shown_in(text)

    def calls_same_tools(self, message: Message) -> bool:
        """True if a message calls this answer's tools in their order, one at least, with any arguments."""
        return bool(message.calls) and [call.name for call in message.calls] == [name for _, name in self.all_calls]

    def is_contradicted_by(self, message: Message) -> bool:
        """True if a message is plainly another answer: it calls other tools, or both call none and the texts differ."""
        if message.calls and self.all_calls:
            return not self.calls_same_tools(message)
        if message.calls or self.all_calls:
            return False
        text = message.text.strip()
        return not self._is_shown_in(text) if self.head else text != self.short_text

    def _is_shown_in(self, text: str) -> bool:
        """True if a text begins or ends with this answer's text, or is the end of it."""
        if len(text) < MIN_TEXT_CHARS or not self.head:
            return False
        return text.startswith(self.head) or text.endswith(self.tail) or self.tail.endswith(text)

    def _has_other_ids_in(self, message: Message) -> bool:
        """True if a message with calls is this answer but for the ids of its calls, which the client has replaced.

        A client may replace an id that only counts by one of its own, as Droid does. Such an id said nothing, so what
        is left says as much as the whole answer. The same holds where one of both has no id, as in Gemini's format.
        Another id is at most cut or cleaned, as for a provider with a limit.
        The text beside the calls may be gone: Genkit leaves it out. If it is there, arguments may be added, as Langroid
        does.
        """
        calls, text = message.calls, message.text.strip()
        if len(calls) != len(self.all_calls):
            return False
        for call, (given, name) in zip(calls, self.all_calls, strict=True):
            if call.name != name or not _may_stand_for(call.id, given, name):
                return False
        if self._is_shown_in(text):
            return True
        return text in ("", self.short_text) and _digest_without_ids(message) == self.rest


def _select_call_ids(message: Message) -> frozenset[str]:
    return frozenset(call.id for call in message.calls if not says_nothing(call.id, call.name))


def says_nothing(call_id: str, name: str) -> bool:
    """True if an id of a call is short, or only counts as `functions.read:0` does: another conversation has the same
    one. name: the called tool."""
    return len(call_id) < MIN_ID_CHARS or _COUNTER.fullmatch(call_id.replace(name, "") if name else call_id) is not None


def _may_stand_for(returned: str, given: str, name: str) -> bool:
    """True if a client may have put an id in the place of the one that it was given. name: the called tool."""
    if returned == given or says_nothing(given, name):
        return True
    if returned.startswith(MADE_CALL_ID) or given.startswith(MADE_CALL_ID):
        return True  # the client has left the id out, or has given an id to a call without one
    kept, whole = _OUTSIDE_IDS.sub("", returned), _OUTSIDE_IDS.sub("", given)
    return len(kept) >= MIN_ID_CHARS and (whole.startswith(kept) or kept.startswith(whole))


def _digest_without_ids(message: Message) -> bytes:
    calls = [Call("", call.name, call.arguments) for call in message.calls]
    return chain.digest_message(message.role, "", calls, None, ())
