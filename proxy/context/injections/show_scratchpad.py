"""Show the model its scratchpad, if the prompt does not have the current version."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import msgspec

from proxy.chat.json_spans import decode_embedded
from proxy.context.plan import Insert
from proxy.context.stage import Injection
from proxy.context.view import View
from proxy.notes import scratchpad

SCRATCHPAD_TOOL = "manage_scratchpad"
UNBOUNDED = 1 << 40
"""Limit for scratchpad calls in the prompt: none, because the limit was applied when the text was written."""


class _Arguments(msgspec.Struct):
    action: str = ""
    content: str = ""


@dataclass(frozen=True, slots=True)
class ShowScratchpad(Injection):
    """Insert the session's scratchpad at the tail. Where the policy's edits last, it is written once, stays in its
    place, and is written again only when it has changed.

    The model does not get text that it has just written itself.
    """

    chars: int = 8000
    """Maximum number of characters of the scratchpad that are shown."""
    recollects: ClassVar[Literal["scratchpad", "memos"]] = "scratchpad"

    def __call__(self, view: View) -> Iterable[Insert]:
        """Yield one insert, or none."""
        now = view.inputs.scratchpad.strip()
        if not now or (
            not view.literal and _find_known_text(view, scratchpad.render_scratchpad(now, self.chars)) == now
        ):
            return
        text = "\n\n" + scratchpad.render_scratchpad(now, self.chars)
        if view.budget is None or view.total + view.token_counter.count_text(text) <= view.budget:
            yield Insert("tail", "scratchpad", text, persistent=not view.literal)


def _find_known_text(view: View, shown: str) -> str | None:
    """Return the scratchpad as a reader of the prompt knows it: the last insert, changed by the calls after it. None if
    it was not shown, or if its present text is unknown.

    shown: the text of an insert made now.
    """
    known: str | None = None
    for n, message in enumerate(view.messages):
        edit = view.find_edit(n)
        if edit is not None and edit.text and scratchpad.START in edit.text:
            known = view.inputs.scratchpad.strip() if shown in edit.text else None
        if not message.calls or (edit is not None and edit.action != "append"):
            continue
        for call in message.calls:
            if call.name == SCRATCHPAD_TOOL:
                known = _apply_call(call.arguments, known)
    return known


def _apply_call(arguments: str, known: str | None) -> str | None:
    """Return the scratchpad after a call of the tool, None if it is unknown."""
    try:
        call = decode_embedded(arguments, _Arguments)
    except (ValueError, RecursionError):
        return known
    if call.action == "update":
        return scratchpad.replace_text(call.content, UNBOUNDED)
    if call.action == "append" and known is not None:
        return scratchpad.append_text(known, call.content, UNBOUNDED)
    return known if call.action == "read" else None
