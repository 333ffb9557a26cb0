"""Tell the model what it has touched whose results have left the prompt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from proxy.context.evidence.ledger import record
from proxy.context.plan import Edit, Insert, View

HEADING = "[From the record of your own work so far; {count} results were shortened or left out.]"
_TOLD = re.compile(re.escape(HEADING).replace(r"\{count\}", r"(\d+)"))
_RECORD = re.compile(r"\n\n" + _TOLD.pattern + r"(?:\n[^\n]+)*")


@dataclass(frozen=True, slots=True)
class TellLedger:
    """Files read, edited and created, commands and how they ended, last errors, open items. It is told with the first
    batch of edits, and again when as many more results have left as `every` says.

    It stays where it was written, so that it costs its tokens once and is read from the cache afterwards. How a command
    ended is said where its result proves it.
    """

    tokens: int = 300
    """At most so many; what was touched longest ago leaves first."""
    every: int = 24
    """Results that have to have left since it was told last; the first time one is enough."""

    def __call__(self, view: View) -> Iterable[Insert]:
        """At the tail, kept, when enough has left since the last time."""
        if not view.edits:
            return
        count, told = view.settled("tell_ledger", partial(_counted, view))
        if count < (told + self.every if told else 1):
            return
        kinds = record(view.messages, _left(view)).kinds()
        heading = "\n\n" + HEADING.format(count=count)
        while kinds and view.weigh.count("\n".join([heading, *map(str, kinds)])) > self.tokens:
            longest = max(kinds, key=lambda kind: len(str(kind)))
            longest.entries.pop()
            kinds = [kind for kind in kinds if kind.entries]
        if kinds:
            yield Insert("tail", "ledger", "\n".join([heading, *map(str, kinds)]), kept=True)


def _counted(view: View, _: int, known: tuple[int, int] | None) -> tuple[int, int]:
    """(how many results have left, how many had when it was told last)"""
    return known or (sum(_left(view)), _told(view))


def _told(view: View) -> int:
    """How many results had left when it was told last: the text itself says so, which outlives a restart."""
    return max((count for count, _, _ in _records(view.edits, view)), default=0)


def newest_record(edits: Mapping[bytes, Edit], view: View) -> tuple[bytes, str] | None:
    """(the key of the message that bears it, its text) of the newest record that stands in the prompt. When its bearer
    is shortened it stays behind the stub: else it would be told again long before as much has left once more."""
    found = _records(edits, view)
    return max(found)[1:] if found else None


def _records(edits: Mapping[bytes, Edit], view: View) -> list[tuple[int, bytes, str]]:
    """(how many results had left, the key of the bearer, the text) of each record of ours. One that a tool or a user
    has written looks the same, but stands in the message itself, and a stub quotes it."""
    found = [
        (int(record[1]), k, record[0], record[0].split("\n", 3)[2])
        for k, edit in edits.items()
        if edit.action in ("append", "text") and edit.text and HEADING[:20] in edit.text
        for record in _RECORD.finditer(edit.text)
    ]
    if not found:
        return []
    texts = {k: message.text for k, message in zip(view.keys, view.messages, strict=True)}
    return [(count, k, text) for count, k, text, heading in found if heading not in texts.get(k, "")]


def _left(view: View) -> list[bool]:
    """Of each message, whether it is a result that has left."""
    edits, keys = view.edits, view.keys
    return [
        is_result and (edit := edits.get(keys[n])) is not None and _takes(edit) and not view.messages[n].is_system
        for n, is_result in enumerate(view.is_result)
    ]


def _takes(edit: Edit) -> bool:
    return edit.action in ("text", "gone") and edit.stage != "refer_repeats"
