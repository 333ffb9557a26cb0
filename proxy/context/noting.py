"""Notes of a plan for the record: notes of the stages about their edits, and the messages that inserts quote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from proxy.chat.chain import public_id
from proxy.context.plan import Edit, Insert, Note, View
from proxy.context.stage import Stage


def collect_stage_notes(
    stages: Sequence[Stage], seen: View, edits: Mapping[bytes, Edit], new: Sequence[Edit]
) -> Iterator[Note]:
    """Yield the notes of those stages that have a method `notes`. edits: all edits in force. new: the edits of this
    request."""
    for stage in stages:
        notes = getattr(stage, "notes", None)
        if notes is not None:
            yield from notes(seen, edits, new)


def make_quote_notes(
    wanted: Sequence[Insert], placed: Sequence[tuple[int, Insert]], edits: Mapping[bytes, Edit]
) -> list[Note]:
    """Notes of the messages that inserts quote. An insert that found no place in the prompt quotes nothing."""
    if not any(insert.quoted_keys for insert in wanted):
        return []
    there = [i.text for _, i in placed] + [e.text for e in edits.values() if e.text]
    return [
        Note(insert.source, " ".join(map(public_id, insert.quoted_keys)), {"items": len(insert.quoted_keys)})
        for insert in wanted
        if insert.quoted_keys and any(insert.text in text for text in there)
    ]
