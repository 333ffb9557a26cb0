"""Notes of a plan for the record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from proxy.chat.chain import public_id
from proxy.context import inserts
from proxy.context.branch_state import BranchState
from proxy.context.pipeline import rewrite
from proxy.context.plan import Edit, Insert, Note, Proposal
from proxy.context.policy import Policy
from proxy.context.stage import Stage, When
from proxy.context.view import View
from tests.conversations import INPUTS, PLAIN_MODEL, build_view, user


@dataclass(frozen=True, slots=True)
class Quiet(Stage):
    """A stage that says nothing."""

    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        return ()


@dataclass(frozen=True, slots=True)
class Telling(Stage):
    """A stage that tells how many edits it is shown."""

    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        return ()

    def notes(self, view: View, edits: Any, new: Any) -> Iterator[Note]:
        yield Note("told", f"{len(edits)} {len(new)}", {"new": float(len(new))})


def test_stages_are_asked_that_have_something_to_say() -> None:
    view = build_view([user("a")])
    edit = Edit(view.keys[0], "append", "x", "s", "r", 1, 2)
    state = BranchState(edits={edit.key: edit})
    plan = rewrite(view.request, state, Policy("p", stages=(Quiet(), Telling())), PLAIN_MODEL, 0.0, INPUTS)
    assert plan.notes == (Note("told", "1 0", {"new": 0.0}),)


def test_quotes_are_reported_only_where_their_insert_found_a_place() -> None:
    one = Insert("tail", "retrieve", "first", quoted_keys=(b"a" * 16,))
    kept = Insert("tail", "retrieve", "second", persistent=True, quoted_keys=(b"b" * 16, b"c" * 16))
    lost = Insert("tail", "retrieve", "third", quoted_keys=(b"d" * 16,))
    plain = Insert("tail", "state", "fourth")
    edit = Edit(b"k", "append", "before second", "state", "r", 1, 2)
    found = inserts.make_quote_notes([one, kept, lost, plain], [(0, one), (0, plain)], {b"k": edit})
    assert found == [
        Note("retrieve", public_id(b"a" * 16), {"items": 1}),
        Note("retrieve", f"{public_id(b'b' * 16)} {public_id(b'c' * 16)}", {"items": 2}),
    ]
    assert inserts.make_quote_notes([plain], [(0, plain)], {}) == []
