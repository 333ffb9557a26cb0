"""Units of a prompt that can leave by themselves, and the choice of units that stay under a budget.

Every upstream refuses half a step. Some upstreams also refuse a user message after a tool result, or two successive
messages of one role (W2, W5 and W6 in `context.validate`). A policy that picks messages by their worth has to know
which others each brings along."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proxy.chat.group import Step
from proxy.chat.message import Message


@dataclass(frozen=True, slots=True)
class RemovableUnit:
    """Messages that leave together."""

    message_indexes: tuple[int, ...]
    """Indexes of the messages."""
    required_unit: int = -1
    """The number of the unit without which this one cannot stay, -1 for none."""


def find_units(
    messages: Sequence[Message], steps: Sequence[Step], *, after_tool: str, alternate: bool
) -> list[RemovableUnit]:
    """The units of a conversation, in the order of their first messages; every message is in one unit.

    after_tool, alternate: as the model has them. If an upstream takes no user message after a tool result, a step
    needs the answer that stands between. If it insists on turns, a prompt and the answer that closed it are one unit,
    and all steps between need that unit. A system message is its own unit.
    """
    if alternate:
        return _find_alternating_units(messages, steps)
    needs = [-1] * len(steps)
    if after_tool != "user":
        closing, before_user = -1, False
        for number in range(len(steps) - 1, -1, -1):
            step = steps[number]
            message = messages[step.start]
            if message.is_system:
                continue
            if message.role == "user":
                closing, before_user = -1, True
            elif before_user and closing < 0 and _is_final_answer(message):
                closing = number
            elif before_user:
                needs[number] = closing
    return [RemovableUnit(tuple(range(s.start, s.end)), n) for s, n in zip(steps, needs, strict=True)]


def _is_final_answer(message: Message) -> bool:
    return message.role == "assistant" and not message.calls


def _find_alternating_units(messages: Sequence[Message], steps: Sequence[Step]) -> list[RemovableUnit]:
    """Units for upstreams that insist on user and assistant taking turns."""
    runs: list[list[Step]] = [[]]  # user messages in a row and all up to the next ones
    systems: list[RemovableUnit] = []
    answered = prompted = False
    for step in steps:
        message = messages[step.start]
        if message.is_system:
            systems.append(RemovableUnit((step.start,)))
            continue
        if message.role == "user":
            if answered and prompted:
                runs.append([])
            answered, prompted = False, True
        else:
            answered = True
        runs[-1].append(step)
    units: list[RemovableUnit] = systems
    for number, run in enumerate(runs):
        if run:
            units += _run(messages, run, len(units), is_last=number == len(runs) - 1)
    order = sorted(range(len(units)), key=lambda n: units[n].message_indexes[0])
    place = {old: new for new, old in enumerate(order)}
    return [RemovableUnit(units[n].message_indexes, place.get(units[n].required_unit, -1)) for n in order]


def _run(messages: Sequence[Message], run: Sequence[Step], at: int, *, is_last: bool) -> list[RemovableUnit]:
    """The units of one run, numbered from `at`. The unit that the others need comes first."""
    prompts = [n for n, step in enumerate(run) if messages[step.start].role == "user"]
    head = set(range(prompts[-1] + 1 if prompts else 0))
    if not is_last:
        # If no answer ends the run, all of it is one unit: a smaller part could end next to a user message.
        head |= {len(run) - 1} if _is_final_answer(messages[run[-1].start]) else set(range(len(run)))
    others = [n for n in range(len(run)) if n not in head]
    members = tuple(i for n in sorted(head) for i in range(run[n].start, run[n].end))
    if not members:
        return [RemovableUnit(tuple(range(run[n].start, run[n].end))) for n in others]
    return [RemovableUnit(members), *(RemovableUnit(tuple(range(run[n].start, run[n].end)), at) for n in others)]


def find_required(all_units: Sequence[RemovableUnit], wanted: Iterable[int]) -> set[int]:
    """The numbers of the wanted units and of all units that they need."""
    kept: set[int] = set()
    for number in wanted:
        at = number
        while at >= 0 and at not in kept:
            kept.add(at)
            at = all_units[at].required_unit
    return kept


def select_best(
    all_units: Sequence[RemovableUnit],
    tokens: Sequence[int],
    scores: Sequence[float],
    required: Iterable[int],
    budget: int,
    candidates: Iterable[int],
) -> set[int]:
    """The numbers of the units that stay: those of `required`, whatever their size, then the best of `candidates` that
    fit.

    A unit is worth as much as the best of its messages; of equal units the newer one stays. A unit that does not fit is
    passed over, because a smaller unit of less worth may fit.
    """
    kept = find_required(all_units, required)
    sizes = [sum(tokens[i] for i in unit.message_indexes) for unit in all_units]
    room = budget - sum(sizes[n] for n in kept)
    worth = [max(scores[i] for i in unit.message_indexes) for unit in all_units]
    for number in sorted(candidates, key=lambda n: (-worth[n], -n)):
        if number in kept:
            continue
        added = find_required(all_units, (number,)) - kept
        size = sum(sizes[n] for n in added)
        if size <= room:
            kept |= added
            room -= size
    return kept
