"""A tool call in a few words: the action and its outcome, by rules that are data.

This text describes a call while no model has reflected on it. It is derived from the call and its result alone, so it
is true, costs nothing and never fails. A reflection that says more replaces it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from proxy.chat.json_spans import decode_embedded
from proxy.chat.message import Call, Message

Outcome = Literal["success", "failure", "timeout", "error", "unknown"]
"""unknown: the result of a command does not prove how the command ended."""


class QuotedOutcome(NamedTuple):
    """The outcome of a call."""

    outcome: Outcome
    """The outcome in a word."""
    quoted_line: str = ""
    """The line of its result that states the outcome, empty if no line does."""
    other_line: str = ""
    """Another line that says most of the result, empty if there is none."""


ACTION_VERBS: tuple[tuple[str, str], ...] = (
    ("searched", "search|find|query|grep|lookup|glob"),
    ("wrote", "write|create|edit|update|save|patch|replace|insert|append"),
    ("read", "read|get|open|fetch|view|cat|browse|load|show|visit"),
    ("listed", "list|ls|tree|dir"),
    ("deleted", "delete|remove|rm"),
    ("ran", "run|exec|execute|bash|shell|command|terminal|python"),
)
"""(verb, words in a tool's name): the first word of a tool's name that is in the table decides the verb."""

SUBJECT_ARGUMENTS = (
    "query", "q", "pattern", "path", "file_path", "file", "filename", "url", "command", "cmd", "code", "name", "id",
)  # fmt: skip
"""Names of arguments that say the most about a call, the most telling first."""

MAX_SEARCHED_CHARS = 4000
"""Characters at each end of a result that are searched for the line to quote."""
MAX_SUBJECT_CHARS, MAX_LINE_CHARS = 80, 120
"""Limits in characters: of a call's subject, and of the line that is quoted from a result."""

MAX_WORD_CHARS = 24
"""Characters of a word above which it is cut."""

_SEPARATOR = re.compile(r"[/\\]")
_LONG_PATH = re.compile(rf"(?![a-z]+://)(?=[^/\\]*[/\\])\S{{{MAX_SUBJECT_CHARS + 1},4096}}")
_IN_WORD = re.compile(r"[0-9A-Za-z_]|[.,:+-][0-9A-Za-z_]")
_WORD_BEFORE = re.compile(r"[0-9A-Za-z_.,:+-]+\Z")
"""The word that a cut would part, before it."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_VERB_OF = {word: verb for verb, words in ACTION_VERBS for word in words.split("|")}
_ERROR_WORDS = re.compile(
    r"(?:Error|Exception)\b|\berrors?\b|\bfatal\b|\bnot found\b|\bno such\b|\bdenied\b|\brefused\b|\btimed? ?out\b",
    re.IGNORECASE,
)


def describe_call(call: Call) -> str:
    """`searched 'python tutorial'`: the verb by the tool's name, and the subject of the call."""
    verb = next((_VERB_OF[w] for w in map(str.lower, _WORDS.findall(call.name)) if w in _VERB_OF), "")
    subject = _find_subject(call.arguments)
    phrase = verb or f"called {shorten_to_line(call.name, MAX_SUBJECT_CHARS)}"
    if not subject:
        return phrase if not verb else f"{verb} with {shorten_to_line(call.name, MAX_SUBJECT_CHARS)}"
    return f"{phrase} '{subject}'" if verb == "searched" or not verb else f"{phrase} {subject}"


def _find_subject(arguments: str) -> str:
    try:
        value = decode_embedded(arguments)
    except (ValueError, RecursionError):
        return shorten_to_line(arguments, MAX_SUBJECT_CHARS)
    if isinstance(value, dict):
        named = (value.get(name) for name in SUBJECT_ARGUMENTS)
        found = next((v for v in (*named, *_list_texts(value)) if isinstance(v, str) and v.strip()), "")
        return _shorten_path(found) if _LONG_PATH.fullmatch(found) else shorten_to_line(found, MAX_SUBJECT_CHARS)
    return shorten_to_line(value, MAX_SUBJECT_CHARS) if isinstance(value, str) else ""


def _shorten_path(path: str) -> str:
    """The end of a path, which has the name of the file: many files of a project have the beginning."""
    end = path[3 - MAX_SUBJECT_CHARS :]
    return "..." + (end[cut.start() :] if (cut := _SEPARATOR.search(end, 0, len(end) - 1)) else end)


def _list_texts(value: object) -> Iterator[str]:
    """The texts and numbers among the values of an object."""
    for inner in value.values() if isinstance(value, dict) else ():
        if isinstance(inner, str | int | float) and not isinstance(inner, bool):
            yield str(inner)


def describe_result(result: Message, outcome: QuotedOutcome) -> str:
    """The outcome of a call in words, read from its result: the number of results, the end of the run, or the failure.
    Images or files beside the text are named."""
    media = count_media(result.media_count)
    told = _describe_text(result.text.strip(), outcome)
    return f"{told}, with {media}" if told and media else told or media or "empty"


def count_media(count: int) -> str:
    """The number of parts that are not text, in words; empty for none."""
    return f"{count} images or files" if count > 1 else "an image or file" if count else ""


def _describe_text(text: str, outcome: QuotedOutcome) -> str:
    if not text:
        return ""
    lines = text[:MAX_SEARCHED_CHARS].splitlines()
    first = outcome.quoted_line or outcome.other_line or next((one for one in lines if one.strip()), "")
    if outcome.outcome in ("success", "unknown"):
        found = None if outcome.quoted_line else _count(text)
        if found is not None:
            return found
        more = text.count("\n")
        return shorten_to_line(first, MAX_LINE_CHARS) + (f" ({more + 1} lines)" if more else "")
    tail = reversed(text[-MAX_SEARCHED_CHARS:].splitlines())
    quoted = outcome.quoted_line or next((one for one in tail if _ERROR_WORDS.search(one)), first)
    return f"{outcome.outcome}: {shorten_to_line(quoted, MAX_LINE_CHARS)}"


def _count(text: str) -> str | None:
    """The number of results in a JSON list, in words; None if the text is no such list or is too long."""
    if text[0] != "[" or len(text) > 16 * MAX_SEARCHED_CHARS:
        return None
    try:
        value = decode_embedded(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, list):
        return None
    return f"found {len(value)} results" if len(value) != 1 else "found 1 result"


def shorten_to_line(text: str, max_chars: int) -> str:
    """The text on one line, at most `max_chars` characters of it."""
    return shorten_at_word(" ".join(text[: 4 * max_chars].split()), max_chars)


def shorten_at_word(text: str, max_chars: int) -> str:
    """At most `max_chars` characters of a text. No number, no name and no part of a path is cut that has up to
    `MAX_WORD_CHARS` characters: the half of a number would read as another one."""
    if len(text) <= max_chars:
        return text
    end = max(0, max_chars - 3)
    found = _WORD_BEFORE.search(text, max(0, end - MAX_WORD_CHARS), end) if _IN_WORD.match(text, end) else None
    if found is not None and found.start() > max(end // 2, end - MAX_WORD_CHARS):
        end = found.start()
    return text[:end].rstrip() + "..."
