"""Collecting proposals and taking them; most of it is seen through the pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from proxy.context import proposals
from proxy.context.plan import Proposal, View
from proxy.context.stage import When
from tests.conversations import assistant, look, result, system, user

TALK = [system(), user("one"), assistant(None, "1"), result("1", "r" * 50), assistant("done"), user("two")]


@dataclass(frozen=True, slots=True)
class Proposes:
    found: tuple[Proposal, ...]
    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        return self.found


def test_the_strongest_proposal_of_a_message_is_collected_and_system_and_last_user_messages_stay() -> None:
    seen = look(TALK)
    text, gone = Proposal(3, "text", "a", "", 5, "short"), Proposal(3, "gone", "b", "", 0)
    others = tuple(Proposal(n, "gone", "c", "", 0) for n in (0, 5))
    assert proposals.collect(seen, [Proposes((text,)), Proposes((gone, *others))]) == [gone]


def test_half_a_step_is_not_taken() -> None:
    seen = look(TALK)
    assert proposals.take(seen, [Proposal(2, "gone", "a", "", 0)], {}, literal=False) == {}
    both = [Proposal(n, "gone", "a", "", 0) for n in (2, 3)]
    taken = proposals.take(seen, both, {}, literal=False)
    assert set(taken) == {seen.keys[2], seen.keys[3]}
    assert proposals.sizes_of(seen, taken)[2:4] == [0, 0]


def test_units_cover_every_message_once() -> None:
    found = [n for unit in proposals.units(look(TALK)) for n in range(unit.start, unit.end)]
    assert sorted(found) == list(range(len(TALK)))
