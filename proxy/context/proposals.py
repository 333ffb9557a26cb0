"""Edits from the proposals of stages: the strongest one for each message, and for each step all its messages or
none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from proxy.chat.group import Group, Step
from proxy.chat.message import checkpoint
from proxy.context import repair, view
from proxy.context.injections.activity_record import find_newest_record
from proxy.context.pins import is_pinned
from proxy.context.plan import ACTION_STRENGTH, Edit, Proposal, View
from proxy.context.stage import Stage


def collect(seen: View, stages: Iterable[Stage]) -> list[Proposal]:
    """The strongest proposal for each message; none for a message that must stay, and none weaker than the edit in
    force."""
    best: dict[int, Proposal] = {}
    last, last_user = len(seen.messages) - 1, seen.history.last_user_index
    held = _find_held_indexes(seen)
    for stage in stages:
        checkpoint()
        for proposal in stage(seen):
            checkpoint()
            index = proposal.index
            if seen.messages[index].is_system or (index == last and proposal.action == "gone"):
                continue
            if proposal.action != "append" and (index == last_user or is_pinned(seen, index)):
                continue  # FEATURES.md E7: no policy edits it
            if proposal.action == "gone" and index in held and stage.when != "always":
                continue
            old = best.get(index)
            if old is None or (ACTION_STRENGTH[proposal.action], -proposal.after) > (
                ACTION_STRENGTH[old.action],
                -old.after,
            ):
                best[index] = proposal
    return [best[n] for n in sorted(best) if _supersedes(best[n], seen.find_edit(n))]


def _find_held_indexes(seen: View) -> frozenset[int]:
    """The indexes of messages that stay because of the client's own cache marks.

    A message with a mark stays, and with it its step, or its group if that is over. No part of these can leave alone.
    """
    marked = [n for n in seen.history.marked_indexes if not seen.messages[n].is_system]
    if not marked:
        return frozenset()
    found = [u for u in list_units(seen) if any(u.start <= n < u.end for n in marked)]
    return frozenset(n for unit in found for n in range(unit.start, unit.end))


def _supersedes(proposal: Proposal, edit: Edit | None) -> bool:
    if edit is None:
        return True
    stronger = ACTION_STRENGTH[proposal.action] > ACTION_STRENGTH[edit.action]
    if proposal.action == edit.action == "append":
        return True  # the stage continues the appended text
    return stronger or (proposal.action == edit.action == "text" and proposal.after < edit.after)


def apply(seen: View, chosen: Sequence[Proposal], old: Mapping[bytes, Edit], *, literal: bool) -> Mapping[bytes, Edit]:
    """The edits in force after these proposals are made. Either all messages of a step leave, or none of them."""
    if (
        not chosen
        and old is seen.edits
        and (seen.edited_history.is_complete or seen.memo_edited("whole steps", partial(repair.are_steps_whole, seen)))
    ):
        return old  # no edit in force is withdrawn to keep turns in order
    edits = dict(old)
    gone = frozenset(p.index for p in chosen if not p.lossless)
    bearer, record = (chosen and find_newest_record(seen.edits, seen)) or (b"", "")
    for proposal in reversed(chosen):  # newest first: of two copies of a text the older one may go
        checkpoint()
        message = seen.messages[proposal.index]
        text = proposal.write_text(gone) if proposal.write_text else proposal.text
        if proposal.write_text and text is None:
            continue
        if proposal.action == "text" and text is not None and seen.keys[proposal.index] == bearer:
            text += record
        after = proposal.after
        if proposal.action == "gone":
            after = 0
        elif proposal.action == "append":
            after = seen.original_tokens[proposal.index] + view.count_text_tokens(seen, message, text or "")
        elif text is not None:
            after = view.count_edited_tokens(seen, proposal.index, text)
            if after >= seen.tokens[proposal.index] and not literal:
                continue  # the stub is no shorter than what it replaces
        k = seen.keys[proposal.index]
        edits[k] = Edit(
            k, proposal.action, text, proposal.stage, proposal.reason, seen.original_tokens[proposal.index], after
        )
    for proposal in chosen:
        if proposal.needs_index is not None and not _stands(edits.get(seen.keys[proposal.needs_index])):
            k = seen.keys[proposal.index]  # the edit that it needs was not written
            edits.pop(k, None)
            edits.update({k: old[k]} if k in old else {})
    return repair.repair_order(seen, repair.restore_whole_steps(seen, edits, old), old)


def keep_first_reasons(edits: Mapping[bytes, Edit], old: Mapping[bytes, Edit]) -> Mapping[bytes, Edit]:
    """These edits, but with the old reason where nothing else has changed.

    An edit that is made again with every request is stored once, with its first reason. It is not stored again whenever
    a score in its reason moves.
    """
    known = ((k, edit, old[k]) for k, edit in edits.items() if k in old)
    kept = {k: was for k, edit, was in known if was.reason != edit.reason and was == replace(edit, reason=was.reason)}
    return {**edits, **kept} if kept else edits


def _stands(edit: Edit | None) -> bool:
    return edit is not None and edit.action in ("text", "append")


def list_units(seen: View) -> list[Group | Step]:
    """The parts that leave together, covering every message once: finished groups (FEATURES.md A14), then steps."""
    return [*seen.groups[:-1], *(step for step in seen.steps if step.start >= seen.active_start)]


def count_message_tokens(seen: View, edits: Mapping[bytes, Edit]) -> Sequence[int]:
    """Tokens of each message with these edits."""
    if edits is seen.edits:
        return seen.tokens
    sizes = list(seen.original_tokens)
    for n, (k, message) in enumerate(zip(seen.keys, seen.messages, strict=True)):
        edit = edits.get(k)
        if edit is not None and not message.is_system:
            sizes[n] = edit.after
    return sizes
