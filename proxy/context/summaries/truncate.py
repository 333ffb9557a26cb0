"""The text of a message that is cut to fit the window: its beginning and its end, and the way to get the rest."""

from __future__ import annotations

from collections.abc import Callable, Collection

from proxy.context.summaries.stub import keep_words, render_recall_call

HEAD_SHARE = 0.4
"""Share of the kept characters that comes from the beginning. The end says how a command went."""
LINE_END_DISTANCE = 120
"""Characters within which a cut moves to the end of a line."""
QUERY_CALL = "query_db(sql=\"SELECT content FROM messages WHERE id='<ID>'\")"
MAX_TRIES = 12
"""Attempts to hit a number of tokens. Text is uneven, so the first attempt may be too long."""


def truncate_text(
    text: str, max_tokens: int, count_tokens: Callable[[str], int], render_mark: Callable[[int], str]
) -> str:
    """Beginning and end of the text, with a mark between them, in at most `max_tokens` tokens by `count_tokens`.

    render_mark: makes the mark from the number of characters that are left out. Only the mark stays if there is no room
    for more. A text that is short enough comes back as it is."""
    whole = count_tokens(text)
    if whole <= max_tokens:
        return text
    room = max_tokens - count_tokens(render_mark(len(text)))
    chars = max(0, room) * len(text) // max(1, whole)
    for _ in range(MAX_TRIES):
        made = _cut_between_lines(text, chars, render_mark)
        size = count_tokens(made)
        if size <= max_tokens or chars == 0:
            return made
        chars = min(chars * 9 // 10, chars * max(1, room) // max(1, size))
    return render_mark(len(text))


def _cut_between_lines(text: str, chars: int, render_mark: Callable[[int], str]) -> str:
    """At most `chars` characters of the text, cut between lines if a line ends nearby."""
    head = int(chars * HEAD_SHARE)
    tail = len(text) - (chars - head)
    line = text.rfind("\n", max(0, head - LINE_END_DISTANCE), head)
    head = line + 1 if line >= 0 else head
    line = text.find("\n", tail - 1, min(len(text), tail + LINE_END_DISTANCE)) if tail > 0 else -1
    tail = line + 1 if line >= 0 else tail
    head, tail = keep_words(text, head, tail) if 0 < head < tail else (head, tail)
    if chars == 0 or tail <= head:
        return render_mark(len(text))
    return f"{text[:head]}\n{render_mark(tail - head)}\n{text[tail:]}"


def make_mark_renderer(message_id: str, total_chars: int | None, offered: Collection[str]) -> Callable[[int], str]:
    """Return a function that makes the mark for the missing characters of a message, from their number.

    message_id: the message's public id. total_chars: its characters; None if a text of the proxy in its place is cut.
    offered: the tools of the proxy that the model has."""
    if "recall" in offered:
        source = f"; {render_recall_call(message_id)} has all of it"
    elif "query_db" in offered:
        source = f"; {QUERY_CALL.replace('<ID>', message_id)} has all of it"
    else:
        source = f"; message {message_id}"
    if total_chars is None:
        return lambda _: f"[... more is left out to fit the context window{source}]"
    return lambda left_out: (
        f"[... {left_out} of {total_chars} characters are left out to fit the context window{source}]"
    )
