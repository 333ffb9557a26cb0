"""Insert the activity record of results that have left the prompt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from proxy.context.analysis.activity import ActivityRecord, build_activity_record
from proxy.context.plan import Edit, Insert
from proxy.context.stage import Injection
from proxy.context.view import View

HEADING = (
    "[From the record of your own work so far: calls whose results were shortened or left out, {count} in number.]"
)
_TOLD = re.compile(re.escape(HEADING).replace(r"\{count\}", r"(\d{1,9})"))
_RECORD = re.compile(r"\n\n" + _TOLD.pattern + r"(?:\n[^\n]+)*")


@dataclass(frozen=True, slots=True)
class ReportActivity(Injection):
    """Report files read, edited and created, commands with their outcomes, last errors and open items. The record comes
    with the first batch of edits, and again when `every` more results have left.

    The record stays in its place, so that it costs its tokens once and is read from the cache afterwards. The outcome
    of a command is reported only if its result proves it.
    """

    tokens: int = 300
    """Maximum number of tokens; the entries that were touched longest ago leave first."""
    every: int = 24
    """Number of results that have to leave after a record before the next record. The first record needs one result."""

    def __call__(self, view: View) -> Iterable[Insert]:
        """Yield the record at the tail, as a kept insert, if enough results have left since the last record."""
        if not view.edits:
            return
        count, reported = view.memo_edited("activity_record", partial(_count_once, view))
        if count < (reported + self.every if reported else 1):
            return
        kinds = view.memo_edited("activity_entries", partial(_extend_record, view)).list_entries()
        heading = "\n\n" + HEADING.format(count=count)
        while kinds and view.token_counter.count_text("\n".join([heading, *map(str, kinds)])) > self.tokens:
            longest = max(kinds, key=lambda kind: len(str(kind)))
            longest.entries.pop()
            kinds = [kind for kind in kinds if kind.entries]
        if kinds:
            yield Insert("tail", "ledger", "\n".join([heading, *map(str, kinds)]), persistent=True)


def _extend_record(view: View, begin: int, known: ActivityRecord | None) -> ActivityRecord:
    """The record, gone on with the messages from an index on. A record without entries is not inserted, and would be
    due with every request."""
    return build_activity_record(view.messages[begin:], _find_left_results(view, begin), known)


def _count_once(view: View, _: int, known: tuple[int, int] | None) -> tuple[int, int]:
    """Return (results that have left, results that had left at the last record)."""
    return known or (sum(_find_left_results(view)), _count_reported(view))


def _count_reported(view: View) -> int:
    """Return the number of results that had left at the last record, from its text: it survives a restart."""
    return max((count for count, _, _ in _list_records(view.edits, view)), default=0)


def find_newest_record(edits: Mapping[bytes, Edit], view: View) -> tuple[bytes, str] | None:
    """Return (the key of its message, its text) of the newest record in the prompt, None if there is none.

    When the message is shortened, the record stays after the stub. Without it, the record would be repeated too early.
    """
    found = _list_records(edits, view)
    return max(found)[1:] if found else None


def _list_records(edits: Mapping[bytes, Edit], view: View) -> list[tuple[int, bytes, str]]:
    """Return (results that had left, the key of the message, the text) of each record of the proxy.

    A record that a tool or a user has written looks the same. But it is in the message itself, and a stub quotes it.
    """
    records = [
        (int(record[1]), k, record[0], record[0].split("\n", 3)[2])
        for k, edit in edits.items()
        if edit.action in ("append", "text") and edit.text and HEADING[:20] in edit.text
        for record in _RECORD.finditer(edit.text)
    ]
    if not records:
        return []
    texts = {k: message.text for k, message in zip(view.keys, view.messages, strict=True)}
    return [(count, k, text) for count, k, text, heading in records if heading not in texts.get(k, "")]


def _find_left_results(view: View, begin: int = 0) -> list[bool]:
    """Return a bool for each message from an index on: true for a result that has left."""
    edits, keys = view.edits, view.keys
    return [
        is_result
        and (edit := edits.get(keys[n])) is not None
        and _removes_result(edit)
        and not view.messages[n].is_system
        for n, is_result in enumerate(view.is_result[begin:], begin)
    ]


def _removes_result(edit: Edit) -> bool:
    return edit.action in ("text", "gone") and edit.stage != "refer_repeats"
