"""The text of a message that is cut to fit the window: its beginning and its end, and the way to get the rest."""

from __future__ import annotations

from collections.abc import Callable, Collection

from proxy.context.wording.stub import recalling

HEAD = 0.4
"""Share of the kept characters that comes from the beginning. The end says how a command went."""
NEAR = 120
"""Characters within which a cut moves to the end of a line."""
QUERY = "query_db(sql=\"SELECT content FROM messages WHERE id='<ID>'\")"
TRIES = 12
"""Attempts to hit a number of tokens. Text is uneven, so the first attempt may be too long."""


def cut(text: str, tokens: int, count: Callable[[str], int], missing: Callable[[int], str]) -> str:
    """Beginning and end of the text, with the mark of `missing` between them, in at most `tokens` tokens by `count`.

    missing: makes the mark from the number of characters that are left out. Only the mark stays if there is no room for
    more. A text that is short enough comes back as it is.
    """
    whole = count(text)
    if whole <= tokens:
        return text
    room = tokens - count(missing(len(text)))
    chars = max(0, room) * len(text) // max(1, whole)
    for _ in range(TRIES):
        made = _pieces(text, chars, missing)
        size = count(made)
        if size <= tokens or chars == 0:
            return made
        chars = min(chars * 9 // 10, chars * max(1, room) // max(1, size))
    return missing(len(text))


def _pieces(text: str, chars: int, missing: Callable[[int], str]) -> str:
    """At most `chars` characters of the text, cut between lines if a line ends nearby."""
    head = int(chars * HEAD)
    tail = len(text) - (chars - head)
    line = text.rfind("\n", max(0, head - NEAR), head)
    head = line + 1 if line >= 0 else head
    line = text.find("\n", tail - 1, min(len(text), tail + NEAR)) if tail > 0 else -1
    tail = line + 1 if line >= 0 else tail
    if chars == 0 or tail <= head:
        return missing(len(text))
    return f"{text[:head]}\n{missing(tail - head)}\n{text[tail:]}"


def mark(name: str, whole: int | None, offered: Collection[str]) -> Callable[[int], str]:
    """Return a function that makes the mark for the missing characters of a message, from their number.

    name: the message's public id. whole: its characters; None if a text of ours in its place is cut. offered: the tools
    of ours that the model has.
    """
    if "recall" in offered:
        source = f"; {recalling(name)} has all of it"
    elif "query_db" in offered:
        source = f"; {QUERY.replace('<ID>', name)} has all of it"
    else:
        source = f"; message {name}"
    if whole is None:
        return lambda _: f"[... more is left out to fit the context window{source}]"
    return lambda missing: f"[... {missing} of {whole} characters are left out to fit the context window{source}]"
