"""Over the budget, keep the most important messages: system messages, the newest message, then the best that fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from proxy.chat.chain import public_id
from proxy.chat.group import find_last_user
from proxy.context.pins import find_task_prompt, is_pinned
from proxy.context.plan import Edit, Note, Proposal
from proxy.context.ranking.importance import ImportanceWeights, score_messages
from proxy.context.ranking.removable_units import RemovableUnit, find_units, select_best
from proxy.context.stage import Stage, When
from proxy.context.view import View

NAME = "drop_unimportant"


@dataclass(frozen=True, slots=True)
class DropUnimportant(ImportanceWeights, Stage):
    """While the prompt is over its budget, leave out the messages with the lowest scores: recency, role, keywords and
    length, after REPLOID's context manager. Steps stay whole, and a prompt within its budget is sent unchanged.

    System messages, the newest message and the last user message stay regardless of their size. The first prompt stays
    too where results are written as user messages.
    """

    low: float = 0.75
    """Share of the budget that is filled where edits last (`over_budget`, `when_it_pays`), so that a batch is not
    needed with every request. `always` fills the whole budget."""
    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        """Yield a proposal to leave out every message that does not stay: all of them apply, or none."""
        if view.budget is None or view.total <= view.budget:
            return
        units = find_units(view.messages, view.steps, after_tool=view.model.after_tool, alternate=view.model.alternate)
        stays = frozenset(_list_protected(view))
        must, among = [], []
        for number, unit in enumerate(units):
            if any(i in stays for i in unit.message_indexes):
                must.append(number)
            elif not _is_gone(view, unit):
                among.append(number)
        worth = score_messages(view.messages, self)
        room = view.budget if view.literal else int(view.budget * self.low)
        kept = select_best(units, view.tokens, worth, must, room - view.prefix_tokens, among)
        last = len(view.messages) - 1
        for number in among:
            if number in kept:
                continue
            for i in units[number].message_indexes:
                reason = f"scores {worth[i]:.0f} of 100, and better ones fill the budget of {room} tokens"
                yield Proposal(i, "gone", NAME, reason, 0, since=last, joint=True)

    def notes(self, view: View, edits: Mapping[bytes, Edit], new: Sequence[Edit]) -> Iterator[Note]:
        """Yield a note on the messages left out, if this request leaves out more of them."""
        if any(edit.stage == NAME for edit in new):
            gone = [e for k in dict.fromkeys(view.keys) if (e := edits.get(k)) is not None and e.stage == NAME]
            figures = {"removed": len(gone), "tokens": sum(edit.before for edit in gone)}
            yield Note(NAME, " ".join(public_id(edit.key) for edit in gone), figures)


def _list_protected(view: View) -> Iterator[int]:
    """Yield the indices of the messages that stay regardless of their size."""
    for n, message in enumerate(view.messages):
        if message.is_system or is_pinned(view, n):
            yield n
        elif message.has_cache_mark:
            yield from find_kept_with_mark(view, n)
    yield from find_task_prompt(view)
    yield find_last_user(view.messages)
    yield len(view.messages) - 1


def find_kept_with_mark(view: View, n: int) -> Sequence[int]:
    """Return the indices that stay with a message with a cache mark: its group, if finished, or itself."""
    group = next(g for g in view.groups if g.start <= n < g.end)
    return range(group.start, group.end) if group.end <= view.active_start else (n,)


def _is_gone(view: View, unit: RemovableUnit) -> bool:
    return all(map(view.leaves_out, unit.message_indexes))
