"""Show the model its scratchpad where it does not stand in the prompt as it is now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import msgspec

from proxy.chat.embedded_json import decode_embedded
from proxy.context.plan import Insert, View
from proxy.memory import scratchpad

TOOL = "manage_scratchpad"
UNBOUNDED = 1 << 40
"""What stands in the prompt is folded whole: the limit was kept when it was written."""


class _Arguments(msgspec.Struct):
    action: str = ""
    content: str = ""


@dataclass(frozen=True, slots=True)
class ShowScratchpad:
    """The session's scratchpad, at the tail. Where the policy's edits last, it is written once, stays where it was put,
    and comes again only when it is another. What the model itself has just written it need not be told."""

    chars: int = 8000
    """Characters that are shown of it."""
    recollects: ClassVar[Literal["scratchpad", "memos"]] = "scratchpad"

    def __call__(self, view: View) -> Iterable[Insert]:
        """One insert, or none."""
        now = view.scratchpad.strip()
        if not now or (not view.literal and _standing(view, scratchpad.shown(now, self.chars)) == now):
            return
        text = "\n\n" + scratchpad.shown(now, self.chars)
        if view.budget is None or view.total + view.weigh.count(text) <= view.budget:
            yield Insert("tail", "scratchpad", text, kept=not view.literal)


def _standing(view: View, shown: str) -> str | None:
    """The scratchpad as who reads the prompt knows it: as it was shown last, and what the calls behind that made of it.
    None where it was not shown, or nothing tells what it has become. shown: what it would be shown as now."""
    known: str | None = None
    for n, message in enumerate(view.messages):
        edit = view.edit(n)
        if edit is not None and edit.text and scratchpad.START in edit.text:
            known = view.scratchpad.strip() if shown in edit.text else None
        if not message.calls or (edit is not None and edit.action != "append"):
            continue
        for call in message.calls:
            if call.name == TOOL:
                known = _after(call.arguments, known)
    return known


def _after(arguments: str, known: str | None) -> str | None:
    """What a call of the tool made of a scratchpad."""
    try:
        call = decode_embedded(arguments, _Arguments)
    except (ValueError, RecursionError):
        return known
    if call.action == "update":
        return scratchpad.updated(call.content, UNBOUNDED)
    if call.action == "append" and known is not None:
        return scratchpad.appended(known, call.content, UNBOUNDED)
    return known if call.action == "read" else None
