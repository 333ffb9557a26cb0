"""Collecting proposals and taking them; most of it is seen through the pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from proxy.context import schedule
from proxy.context.branch_state import BranchState
from proxy.context.plan import Edit, Proposal
from proxy.context.stage import Stage, When
from proxy.context.view import View
from tests.conversations import assistant, build_view, result, system, user

TALK = [system(), user("one"), assistant(None, "1"), result("1", "r" * 50), assistant("done"), user("two")]


@dataclass(frozen=True, slots=True)
class Proposes(Stage):
    found: tuple[Proposal, ...]
    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        return self.found


def test_the_strongest_proposal_of_a_message_is_collected_and_system_and_last_user_messages_stay() -> None:
    seen = build_view(TALK)
    text, gone = Proposal(3, "text", "a", "", 5, "short"), Proposal(3, "gone", "b", "", 0)
    others = tuple(Proposal(n, "gone", "c", "", 0) for n in (0, 5))
    assert schedule.collect(seen, [Proposes((text,)), Proposes((gone, *others))]) == [gone]


def test_a_text_is_exchanged_for_a_shorter_one_alone() -> None:
    """One of the same length would save nothing, and what comes behind it would be paid for again."""
    k = build_view(TALK).keys[3]
    seen = build_view(TALK, state=BranchState(edits={k: Edit(k, "text", "short", "a", "", 50, 5)}))
    same, shorter, longer = (Proposal(3, "text", "b", "", after, "other") for after in (5, 4, 6))
    assert schedule.collect(seen, [Proposes((same,))]) == []
    assert schedule.collect(seen, [Proposes((longer,))]) == []
    assert schedule.collect(seen, [Proposes((same, longer, shorter))]) == [shorter]


def test_half_a_step_is_not_taken() -> None:
    seen = build_view(TALK)
    assert schedule.apply(seen, [Proposal(2, "gone", "a", "", 0)], {}, literal=False) == {}
    both = [Proposal(n, "gone", "a", "", 0) for n in (2, 3)]
    taken = schedule.apply(seen, both, {}, literal=False)
    assert set(taken) == {seen.keys[2], seen.keys[3]}
    assert schedule.count_message_tokens(seen, taken)[2:4] == [0, 0]


def test_units_cover_every_message_once() -> None:
    found = [n for unit in schedule.list_units(build_view(TALK)) for n in range(unit.start, unit.end)]
    assert sorted(found) == list(range(len(TALK)))


def test_an_edit_that_only_its_reason_tells_from_the_one_before_stays_as_it_was() -> None:
    old = {k: Edit(k, "text", "short", "a", "priority 70 of 100", 50, 5) for k in (b"1", b"2")}
    new = {
        b"1": Edit(b"1", "text", "short", "a", "priority 7 of 100", 50, 5),
        b"2": Edit(b"2", "gone", None, "a", "priority 7 of 100", 50, 0),
        b"3": Edit(b"3", "gone", None, "a", "priority 5 of 100", 50, 0),
    }
    found = schedule.keep_first_reasons(new, old)
    assert found == {**new, b"1": old[b"1"]}
    assert schedule.keep_first_reasons(old, old) is old
