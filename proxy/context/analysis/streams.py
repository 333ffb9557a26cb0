"""Separate streams of a conversation: results, thoughts, and research.

The source of `progressive` keeps three lists beside the messages. Here the streams are computed from the messages each
time. They hold positions, no copies, so that a history that the client has changed needs no repair.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from proxy.chat.group import is_beside_results
from proxy.chat.message import Call, Message
from proxy.context.analysis import outcome, shell_commands
from proxy.context.view import View


@dataclass(frozen=True, slots=True)
class Streams:
    """Positions in the view's messages."""

    results: tuple[int, ...]
    """Tool results and observations."""
    thoughts: tuple[int, ...]
    """Assistant messages with reasoning or text, with or without calls."""
    call_positions: dict[int, int]
    """The position of the assistant message that a result answers, by the position of the result."""
    end_positions: dict[int, int]
    """The position after the last result and what goes with it, by the position of the assistant message."""

    def find_step_positions(self, result: int) -> range:
        """Return the positions that stay with a result: its call, the reasoning on it, the call's other results."""
        start = self.call_positions.get(result, result)
        return range(start, self.end_positions.get(start, result + 1))


def find_streams(view: View) -> Streams:
    """Return the streams of a conversation. A result belongs to the assistant message before it, by position."""
    results, thoughts = [], []
    source: dict[int, int] = {}
    ends: dict[int, int] = {}
    question: int | None = None
    for n, message in enumerate(view.messages):
        if view.is_result[n]:
            results.append(n)
            if question is not None:
                source[n] = question
                ends[question] = n + 1
        elif message.role == "assistant":
            question = n
            if message.text or message.reasoning:
                thoughts.append(n)
        elif question is not None and is_beside_results(view.messages, n):
            ends[question] = n + 1
        elif not message.is_system:
            question = None
    return Streams(tuple(results), tuple(thoughts), source, ends)


@dataclass(frozen=True, slots=True)
class Research:
    """The research since the last prompt."""

    call_count: int
    """The number of answered calls."""
    page_calls: tuple[Call, ...]
    """The answered calls that read a page: a read that failed has read none."""


def find_research(view: View, start: int, page_tools: str) -> Research:
    """Return the research since messages[start]. page_tools: a pattern of words in the names of reading tools."""
    reads = _compile_word_pattern(page_tools)
    used = 0
    read: list[Call] = []
    asked: list[Call] = []
    for n in range(start, len(view.messages)):
        message = view.messages[n]
        if message.role == "assistant":
            asked = list(message.calls)
        elif view.is_result[n]:
            used += 1
            call = _take_answered_call(asked, message)
            if call is not None and reads.search(call.name) and not _has_failed(call, message):
                read.append(call)
    return Research(used, tuple(read))


def _has_failed(call: Call, result: Message) -> bool:
    return outcome.read_outcome(result, shell_commands.parse_call(call)).verdict == "failed"


def _take_answered_call(asked: list[Call], message: Message) -> Call | None:
    for call in asked:
        if call.id == message.call_id:
            asked.remove(call)
            return call
    return None


@lru_cache(maxsize=64)
def _compile_word_pattern(pattern: str) -> re.Pattern[str]:
    """Compile the pattern for the beginning of a word in a tool's name: get_page, getPage, WebFetch."""
    return re.compile(rf"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))(?i:{pattern})")
