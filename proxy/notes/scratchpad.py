"""The scratchpad: one markdown text per session, which the model writes for itself.

A scratchpad is never cut without the model's knowledge. A text that is too long is refused with its size, since a plan
that lost its end unseen is worse than none.
"""

from __future__ import annotations

START = "[Your scratchpad, as you left it: notes of yours, not a new request]"
END = "[End of your scratchpad]"


class ScratchpadTooLong(ValueError):
    """Error: the text would be longer than a scratchpad may be."""

    def __init__(self, chars: int, max_chars: int) -> None:
        super().__init__(
            f"the scratchpad would have {chars} characters, {max_chars} are allowed; nothing was changed."
            " Write it shorter with action update."
        )


def replace_text(content: str, max_chars: int) -> str:
    """The text that replaces the scratchpad. Raises ScratchpadTooLong above `max_chars` characters."""
    text = content.strip()
    if len(text) > max_chars:
        raise ScratchpadTooLong(len(text), max_chars)
    return text


def append_text(current: str, content: str, max_chars: int) -> str:
    """The old text and, on a new line, the added text. Raises ScratchpadTooLong over `max_chars`."""
    return replace_text(f"{current.rstrip()}\n{content.strip()}" if current.strip() else content, max_chars)


def render_scratchpad(text: str, max_chars: int) -> str:
    """The scratchpad as a prompt shows it. Every line begins with a mark. So no line can pass for the end of the
    scratchpad, for a heading that makes a request, or for a speaker's turn."""
    body = text.strip()
    if len(body) > max_chars:
        body = body[:max_chars] + "\n[cut here; manage_scratchpad reads all of it]"
    lines = "\n".join(f"| {line}" for line in body.splitlines() or [""])
    return f"{START}\n{lines}\n{END}"
