"""Shorten dead texts in the arguments of earlier calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

import msgspec

from proxy.chat import json_spans
from proxy.chat.chain import public_id
from proxy.chat.message import Message
from proxy.context.analysis.dead_arguments import DeadText, DeathReason, JsonPath, find_dead_texts
from proxy.context.plan import Proposal
from proxy.context.stage import Stage, When
from proxy.context.summaries.references import find_referred_calls
from proxy.context.view import View

NAME: Final = "shorten_arguments"
_FIRST_LINE = 80
"""Maximum number of characters of a dead text that stay: its first line."""
_REMARKS: dict[DeathReason, str] = {
    "replaced": "[shortened by the proxy: {} more characters, which this edit has replaced]",
    "overwritten": "[shortened by the proxy: {} more characters, which a later edit has overwritten]",
}
_MEMBERS = frozenset(("role", "content", "tool_calls", "name", "wire", "cache_control"))
"""Members of an answer that is not signed. Any other one may hold a signature."""
_PART_MEMBERS = frozenset(("type", "text", "cache_control"))
_CALL_MEMBERS = frozenset(("id", "type", "function", "index"))
_FUNCTION_MEMBERS = frozenset(("name", "arguments"))
_UNSIGNED_ITEMS = frozenset(("message", "function_call"))
"""Types of the items in the member `wire` of an answer of the Responses API that bear no signature."""


@dataclass(frozen=True, slots=True)
class ShortenArguments(Stage):
    """Shorten dead texts in the arguments of earlier calls: text that a successful edit replaced, and written text that
    was overwritten later.

    The first line stays, and a remark says how much is missing. The JSON keeps its keys, and the calls their ids. An
    answer with reasoning, a signature or an unknown member stays as received. A model may imitate what it sees in its
    own calls, so a policy has to ask for this stage.
    """

    age: int = 0
    """Steps since the text is dead, from which it is shortened. At 0 most texts are shortened before they are first
    sent. No cache holds them then, so that this is free."""
    chars: int = 240
    """Characters that a dead text has at least."""
    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        """Yield a proposal for each message whose calls have dead texts."""
        dead = find_dead_texts(view)
        if not dead:
            return
        now, referred = view.request_counts[-1], find_referred_calls(view)
        for n, texts in dead.items():
            old = tuple(text for text in texts if now - view.request_counts[text.since] >= self.age)
            message, edit = view.messages[n], view.find_edit(n)
            if not old or (edit is not None and edit.stage != NAME):
                continue
            if not message.derive(is_unsigned) or public_id(view.keys[n]) in referred:
                continue
            shortened = message.derive(partial(_shorten, dead=old, least=self.chars), (NAME, old, self.chars))
            if shortened is None or (edit is not None and edit.text == shortened[0]):
                continue
            count = view.token_counter.count_text
            saved = sum(
                count(call.arguments) - count(new)
                for call, new in zip(message.calls, shortened[1], strict=True)
                if new is not None
            )
            after = view.original_tokens[n] - saved
            since = max(text.since for text in old)
            reason = "the text stands in no file any more"
            yield Proposal(n, "arguments", NAME, reason, after, shortened[0], since=since)

    def find_ended_edits(self, view: View) -> Iterable[bytes]:
        """Keys of the messages in which other texts are dead in this branch than in the one that it has left."""
        if not view.branch.is_new_fork:
            return ()
        dead = find_dead_texts(view)
        edited = [n for n in range(len(view.messages)) if (one := view.find_edit(n)) is not None and one.stage == NAME]
        return [view.keys[n] for n in edited if not self._is_written_for(view, n, dead.get(n, ()))]

    def _is_written_for(self, view: View, n: int, dead: Sequence[DeadText]) -> bool:
        """True if the edit of a message takes out no more than these texts."""
        edit = view.find_edit(n)
        times = {text.since for text in dead}
        batches = [tuple(text for text in dead if text.since <= time) for time in times]
        shortened = [_shorten(view.messages[n], batch, self.chars) for batch in batches]
        return edit is not None and any(one is not None and one[0] == edit.text for one in shortened)


def is_unsigned(message: Message) -> bool:
    """True if an answer has nothing that could be signed: no reasoning, and no member that is not known."""
    if message.reasoning:
        return False
    try:
        value = msgspec.json.decode(message.raw)
    except (ValueError, RecursionError):
        return False
    parts = value.get("content") if isinstance(value.get("content"), list) else []
    return (
        not any(value[name] for name in value.keys() - _MEMBERS)
        and all(_is_known(part, _PART_MEMBERS) for part in parts)
        and all(_is_known(call, _CALL_MEMBERS) for call in value.get("tool_calls") or ())
        and all(_is_known(call.get("function"), _FUNCTION_MEMBERS) for call in value.get("tool_calls") or ())
        and all(isinstance(item, dict) and item.get("type") in _UNSIGNED_ITEMS for item in value.get("wire") or ())
    )


def _is_known(value: object, members: frozenset[str]) -> bool:
    return isinstance(value, dict) and value.keys() <= members


def _shorten(message: Message, dead: Sequence[DeadText], least: int) -> tuple[str, list[str | None]] | None:
    """Return (the text of the edit, the arguments of each call or None where they stay); None if nothing is saved."""
    arguments: list[str | None] = [None] * len(message.calls)
    for text in dead:
        raw = (arguments[text.call] or message.calls[text.call].arguments).encode("utf-8", "surrogatepass")
        new = _replace_text(raw, text.path, text.reason, least)
        if new is not None:
            arguments[text.call] = new.decode("utf-8", "surrogatepass")
    if not any(arguments):
        return None
    return msgspec.json.encode(arguments).decode(), arguments


def _replace_text(raw: bytes, path: JsonPath, reason: DeathReason, least: int) -> bytes | None:
    """Return the JSON with the text at this place shortened; None if the text is too short, or is elsewhere."""
    start, end = 0, len(raw)
    for key in path:
        inside = raw[start:end]
        if isinstance(key, str):
            found = json_spans.find_member(inside, key)
            span = (found.start, found.end) if found is not None else None
        else:
            elements = json_spans.find_elements(inside)
            span = elements[key] if elements is not None and key < len(elements) else None
        if span is None:
            return None
        start, end = start + span[0], start + span[1]
    text = json_spans.decode_string(raw[start:end])
    if text is None or len(text) < least:
        return None
    first = text.lstrip("\n").partition("\n")[0][:_FIRST_LINE]
    short = first + "\n" + _REMARKS[reason].format(len(text) - len(first))
    return raw[:start] + msgspec.json.encode(short) + raw[end:]
