"""The scratchpad: one markdown text a session, which the model keeps for itself (FEATURES.md A10).

It is never cut behind the model's back: what does not fit is refused with how much there is, since a plan that lost its
end unseen is worse than none.
"""

from __future__ import annotations

START = "[Your scratchpad, as you left it: notes of yours, not a new request]"
END = "[End of your scratchpad]"


class TooLong(ValueError):
    """The text would be longer than a scratchpad may be."""

    def __init__(self, chars: int, most: int) -> None:
        super().__init__(
            f"the scratchpad would have {chars} characters, {most} are allowed; nothing was changed. Write it shorter"
            " with action update."
        )


def updated(content: str, most: int) -> str:
    """The text that takes the place of what was there. Raises TooLong."""
    text = content.strip()
    if len(text) > most:
        raise TooLong(len(text), most)
    return text


def appended(current: str, content: str, most: int) -> str:
    """What was there and, on a new line, what is added. Raises TooLong."""
    return updated(f"{current.rstrip()}\n{content.strip()}" if current.strip() else content, most)


def shown(text: str, most: int) -> str:
    """What a prompt says of it: every line begins with a mark, so that nothing in it can be taken for the end of it,
    nor for a heading that asks for something or a speaker's turn."""
    body = text.strip()
    if len(body) > most:
        body = body[:most] + "\n[cut here; manage_scratchpad reads all of it]"
    lines = "\n".join(f"| {line}" for line in body.splitlines() or [""])
    return f"{START}\n{lines}\n{END}"
