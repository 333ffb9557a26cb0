from __future__ import annotations

from proxy.chat import chain
from proxy.context.branch_state import BranchState
from proxy.context.plan import ACTION_STRENGTH, Edit
from tests.conversations import assistant, build_view, make_messages, result, system, user

TALK = [user("a"), system("late"), assistant(None, "1"), result("1", "x" * 96)]


def test_leaving_out_is_stronger_than_shortening_and_that_than_adding() -> None:
    assert ACTION_STRENGTH["append"] < ACTION_STRENGTH["text"] < ACTION_STRENGTH["text_only"] < ACTION_STRENGTH["gone"]


def test_a_system_message_bears_no_edit_although_it_shares_its_neighbours_key() -> None:
    keys = chain.compute_keys("", make_messages(*TALK))
    edit = Edit(keys[0], "append", "!", "state", "", 5, 6)
    view = build_view(TALK, state=BranchState(edits={edit.key: edit}))
    assert keys[0] == keys[1]
    assert view.find_edit(0) is edit
    assert view.find_edit(1) is None
    assert view.tokens[:2] == [6, 8]


def test_the_total_is_the_tools_and_every_message_as_it_goes_out() -> None:
    keys = chain.compute_keys("", make_messages(*TALK))
    edit = Edit(keys[3], "text", "y", "s", "", 100, 5)
    view = build_view(TALK, state=BranchState(edits={edit.key: edit}), tools=[1, 2])
    assert view.prefix_tokens == len("[1, 2]")
    assert view.original_tokens[3] == 100
    assert view.total == 6 + 5 + 8 + (4 + 12 + 3 + 8) + 5


def test_edits_of_one_message_are_distinguished() -> None:
    one = Edit(b"k", "text", "a", "s", "", 9, 5)
    other = Edit(b"k", "text", "b", "s", "", 9, 5)
    assert one != other
    assert len({one, other, Edit(b"k", "text", "a", "s", "", 9, 5)}) == 2
