"""Pinned messages: they are permanent, and no policy edits them.

The client pins a message with the header `x-context-pin` (remembered by chain key), or with the mark `[pin]` in its
text. The mark counts in a user message or in the system prompt only, because anybody could write it into a tool result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from proxy.chat.group import is_beside_results
from proxy.chat.message import Message
from proxy.context.view import View

_MARK = re.compile(r"(?<![\w\]])\[pin\](?![\w(\[])", re.IGNORECASE)


def _has_mark(message: Message) -> bool:
    return _MARK.search(message.text) is not None


def has_pin_mark(messages: Sequence[Message], index: int) -> bool:
    """True if messages[index] has the mark. Only a system or user message can have it, and none that a client adds to
    results by itself: it quotes files and pages (`is_beside_results`)."""
    message = messages[index]
    if not (message.role == "user" or message.is_system) or not message.derive(_has_mark):
        return False
    return message.is_system or not is_beside_results(messages, index)


def is_pinned(view: View, index: int) -> bool:
    """True if messages[index] is pinned, or guarded for now.

    A system message shares the key of its neighbour, and stays in any case. The mark does not count in tool output that
    comes as a user message.
    """
    message = view.messages[index]
    if (view.branch.pins or view.inputs.guarded_keys) and not message.is_system:
        k = view.keys[index]
        if k in view.branch.pins or k in view.inputs.guarded_keys:
            return True
    return not view.is_result[index] and has_pin_mark(view.messages, index)


def find_opening_prompt(view: View) -> range:
    """The indexes of the prompt that the conversation began with. It names the subject of the whole conversation."""
    if not view.groups:
        return range(0)
    first = view.groups[0]
    begin = next((n for n in range(first.start, first.prompt_end) if view.messages[n].role == "user"), first.prompt_end)
    return range(begin, first.prompt_end)


def find_task_prompt(view: View) -> range:
    """The indexes of the opening prompt where tool output comes as user messages, else an empty range.

    In such a conversation the opening prompt is not the last user message, which stays in any case. No other message
    names the purpose of the work."""
    observes = any(is_result and m.role == "user" for is_result, m in zip(view.is_result, view.messages, strict=True))
    return find_opening_prompt(view) if observes else range(0)
