"""What stands or falls together: steps and groups.

A step is an assistant message with the results of its calls: half a step is refused by every strict upstream
(WIRE.md 1.7, W1 to W3). A group is a user prompt with all that it caused (FEATURES.md A1, after std::slop's
`group_id`). Call ids are reused within recorded runs, so results are paired by where they stand, never by
looking an id up in the whole history.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.chat.key import public_id
from proxy.chat.message import Message


@dataclass(frozen=True, slots=True)
class Step:
    """messages[start:end]: one message, or an assistant message with calls and the results after it."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Group:
    """messages[start:end]: user messages in a row and everything up to the next one, system messages included.

    id: the public id of its first message. prompt_end: the end of the user messages that open it.
    """

    id: str
    start: int
    prompt_end: int
    end: int


def steps(messages: Sequence[Message]) -> list[Step]:
    """The steps of a conversation, in order, covering every message once."""
    found = []
    at = 0
    while at < len(messages):
        end = at + 1
        if messages[at].calls:
            while end < len(messages) and messages[end].is_result:
                end += 1
        found.append(Step(at, end))
        at = end
    return found


def groups(
    messages: Sequence[Message], keys: Sequence[bytes], observation: re.Pattern[str] | None = None
) -> list[Group]:
    """The groups of a conversation, in order, covering every message once.

    What stands before the first user message (system prompt, a greeting) belongs to the first group.
    `observation` marks user messages that are really tool output, for agents without tool calls: they open none.
    """
    starts: list[int] = []
    previous_user = False
    for n, message in enumerate(messages):
        is_prompt = message.role == "user" and not (observation and observation.search(message.text))
        if is_prompt and not previous_user:
            starts.append(n)
        if not message.is_system:  # a system message between two user messages does not part them
            previous_user = is_prompt
    if not messages:
        return []
    starts = [0, *starts[1:]] if starts else [0]
    found = []
    for start, end in zip(starts, [*starts[1:], len(messages)], strict=True):
        first = next((n for n in range(start, end) if messages[n].role == "user"), start)
        prompt_end = first
        while prompt_end < end and (messages[prompt_end].role == "user" or messages[prompt_end].is_system):
            prompt_end += 1
        found.append(Group(public_id(keys[first]), start, prompt_end, end))
    return found
