"""Which messages are pinned: they are permanent, and no policy edits them.

A pin is the client's word (the header `x-context-pin`, remembered by chain key) or stands in the message itself as the
mark `[pin]`, where the user or the system prompt wrote it: in a tool result anybody could have.
"""

from __future__ import annotations

import re

from proxy.chat.message import Message
from proxy.context.plan import View

_MARK = re.compile(r"(?<![\w\]])\[pin\](?![\w(\[])", re.IGNORECASE)


def _has_mark(message: Message) -> bool:
    return _MARK.search(message.text) is not None


def marked(message: Message) -> bool:
    """Whether the message bears the mark: only a system or user message can."""
    return (message.role == "user" or message.is_system) and message.derive(_has_mark)


def pinned(view: View, index: int) -> bool:
    """Whether messages[index] is pinned, or guarded for now. A system message shares its neighbour's key, and stays in
    any case. Tool output in a user message is nobody's word."""
    message = view.messages[index]
    if (view.pins or view.guarded) and not message.is_system:
        k = view.keys[index]
        if k in view.pins or k in view.guarded:
            return True
    return not view.is_result[index] and marked(message)


def opening(view: View) -> range:
    """The prompt that the conversation began with: it says what all of it is about."""
    if not view.groups:
        return range(0)
    first = view.groups[0]
    begin = next((n for n in range(first.start, first.prompt_end) if view.messages[n].role == "user"), first.prompt_end)
    return range(begin, first.prompt_end)


def task(view: View) -> range:
    """The same where the results of an agent's actions are user messages: then it is not the last one, which stays in
    any case, and nothing but it says what all of that is for."""
    observes = any(is_result and m.role == "user" for is_result, m in zip(view.is_result, view.messages, strict=True))
    return opening(view) if observes else range(0)
