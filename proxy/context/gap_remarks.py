"""One short remark at each gap in a prompt, so that the two sides of the gap do not read as consecutive messages.

The remark is appended to the message before the gap: a user message or a tool result. It stays there byte for byte. It
has no number, so a larger gap does not change it. No answer of the model's is changed, and no message of ours is added.
Where an answer stands right before the gap, the remark stands in front of that answer, and is also true there. Messages
that are reported elsewhere (by a summary, or a line at the tail) get no remark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from proxy.context.pins import is_pinned
from proxy.context.plan import Edit, View

NAME = "remark"
"""The stage name of edits that hold a remark alone."""
TEXT = "\n\n[Messages that followed this one have left the conversation. They are stored.]"
SILENT_STAGES = frozenset({"close_window", "fit_budget", "operator"})
"""Stages that remove whole groups or steps and do not report the removal themselves."""


def add_gap_remarks(
    seen: View, edits: Mapping[bytes, Edit], old: Mapping[bytes, Edit], text: str
) -> Mapping[bytes, Edit]:
    """The edits with a remark for each gap that is new or has grown.

    old: the edits that were in force before. text: the remark; no remark is made if it is empty.
    """
    if edits is old or not text:
        return edits
    made = dict(edits)
    for bearer, is_new in _gaps(seen, edits, old):
        k = seen.keys[bearer]
        edit = made.get(k)
        if edit is not None and text in (edit.text or ""):
            continue
        before = old.get(k)
        if is_new or (before is not None and text in (before.text or "")):
            made[k] = _with_remark(seen, bearer, edit, text)
    return made


def _gaps(seen: View, edits: Mapping[bytes, Edit], old: Mapping[bytes, Edit]) -> Iterator[tuple[int, bool]]:
    """Yield (index of the message that bears the remark, True if this request has removed something from the gap) for
    each gap."""
    bearer, told, is_new = -1, False, False
    for n, message in enumerate(seen.messages):
        if message.is_system:
            continue
        edit = edits.get(seen.keys[n])
        if edit is not None and edit.action == "gone":
            if edit.stage in SILENT_STAGES:
                told = True
                is_new = is_new or old.get(seen.keys[n]) != edit
            continue
        if told and bearer >= 0:
            yield bearer, is_new
        told = is_new = False
        if _may_bear(seen, n, edit):
            bearer = n
    if told and bearer >= 0:
        yield bearer, is_new


def _may_bear(seen: View, n: int, edit: Edit | None) -> bool:
    message = seen.messages[n]
    if message.role == "assistant" or message.shape == "none" or is_pinned(seen, n):
        return False
    return edit is None or edit.text is not None


def _with_remark(seen: View, n: int, edit: Edit | None, text: str) -> Edit:
    size = seen.weigh.count_text(text)
    if edit is None:
        whole = seen.original_tokens[n]
        return Edit(seen.keys[n], "append", text, NAME, "says that messages behind it have left", whole, whole + size)
    return replace(edit, text=(edit.text or "") + text, after=edit.after + size)
