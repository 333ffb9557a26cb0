from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from proxy.context.branch_state import BranchState
from proxy.context.plan import Edit
from proxy.context.repair import are_steps_whole, repair_order, restore_whole_steps
from proxy.context.view import View
from tests.conversations import PLAIN_MODEL, Json, assistant, build_view, result, system, user

TALK = [
    system(),  # 0
    user("a"),
    assistant(None, "c1"),
    result("c1", "one"),
    assistant("A."),  # 4
    user("b"),
    assistant(None, "c2"),
    result("c2", "two"),
    assistant("B."),  # 8
    user("c"),
]


def list_remaining(view: View, gone: Iterable[int]) -> list[int]:
    """The messages that are left once these leave and the order is repaired."""
    edits = {view.keys[n]: Edit(view.keys[n], "gone", None, "s", "", 1, 0) for n in gone}
    left = repair_order(view, {**view.edits, **edits}, view.edits)
    return [
        n
        for n in range(len(view.messages))
        if view.messages[n].is_system or view.keys[n] not in left or left[view.keys[n]].action != "gone"
    ]


def test_nothing_changes_where_nothing_is_gone_or_all_is_in_order() -> None:
    assert list_remaining(build_view(TALK), []) == list(range(10))
    assert list_remaining(build_view(TALK), [1, 2, 3, 4]) == [0, 5, 6, 7, 8, 9]
    assert list_remaining(build_view(TALK), [2, 3]) == [0, 1, 4, 5, 6, 7, 8, 9]


def test_the_answer_between_a_result_and_a_prompt_comes_back() -> None:
    assert list_remaining(build_view(TALK), [1, 4, 5, 8]) == [0, 2, 3, 6, 7, 8, 9]
    assert list_remaining(build_view(TALK), [4]) == list(range(10))


def test_among_several_answers_the_one_after_the_result_comes_back() -> None:
    assert list_remaining(build_view(TALK), [4, 5, 6, 7, 8]) == [0, 1, 2, 3, 4, 9]


def test_an_upstream_that_takes_a_prompt_there_is_given_one() -> None:
    assert list_remaining(build_view(TALK, model=replace(PLAIN_MODEL, after_tool="user")), [4]) == [
        0,
        1,
        2,
        3,
        5,
        6,
        7,
        8,
        9,
    ]


def test_a_prompt_without_a_system_message_begins_with_a_user_message() -> None:
    """Mistral's: a conversation must start with a user or a system message."""
    bare = build_view(TALK[1:])
    left = repair_order(
        bare, {bare.keys[n]: Edit(bare.keys[n], "gone", None, "s", "", 1, 0) for n in (0, 1, 2, 4, 5)}, {}
    )
    assert [n for n, k in enumerate(bare.keys) if k not in left] == [0, 3, 6, 7, 8]
    greeted = build_view([assistant("Welcome!"), *TALK[1:]])
    assert repair_order(greeted, {greeted.keys[1]: Edit(greeted.keys[1], "gone", None, "s", "", 1, 0)}, {})


def test_where_roles_alternate_two_messages_of_one_role_are_separated() -> None:
    strict = replace(PLAIN_MODEL, alternate=True)
    assert list_remaining(build_view(TALK, model=strict), [2, 3, 4]) == [0, 1, 4, 5, 6, 7, 8, 9]
    assert list_remaining(build_view(TALK), [2, 3, 4]) == [0, 1, 5, 6, 7, 8, 9]


def test_several_messages_come_back_where_no_single_message_separates_two_others() -> None:
    talk: list[Json] = [user("a"), assistant("A."), assistant(None, "c1"), result("c1", "x"), user("b"), user("c")]
    strict = replace(PLAIN_MODEL, alternate=True)
    assert list_remaining(build_view(talk, model=strict), [1, 2, 3]) == [0, 1, 4, 5]
    empty: list[Json] = [user("a"), assistant(None, "c1"), result("c1", "x"), user("b"), assistant("B."), user("c")]
    assert list_remaining(build_view(empty, model=strict), [1, 2]) == [0, 1, 2, 3, 4, 5]


def test_some_upstreams_want_the_prompt_first() -> None:
    for more in ({"strategy": "gemini"}, {"strategy": "anthropic"}, {"model": replace(PLAIN_MODEL, alternate=True)}):
        assert list_remaining(build_view(TALK, **more), [1]) == list(range(10))
        assert 5 in list_remaining(build_view(TALK, **more), [1, 2, 3, 4, 5])
    assert list_remaining(build_view(TALK), [1]) == [0, *range(2, 10)]


def test_a_system_message_in_a_conversation_keeps_a_prompt_and_an_answer() -> None:
    """Anthropic's: it stands behind a user message, and in front of an answer or at the end (M6)."""
    between = replace(PLAIN_MODEL, system_between=True)
    noted = [*TALK[:2], system("note 1"), *TALK[2:6], system("note 2"), *TALK[6:]]  # 2 and 7
    assert list_remaining(build_view(noted), [1, 3, 4, 5, 6, 8, 9, 10]) == [0, 2, 7, 11]
    assert list_remaining(build_view(noted, model=between), [1, 3, 4, 5, 6, 8, 9, 10]) == [0, 1, 2, 5, 6, 7, 10, 11]
    assert list_remaining(build_view(noted, model=between), [3, 4]) == [0, 1, 2, *range(5, 12)]
    called = [*TALK[:4], system("note"), *TALK[5:]]  # behind a result, and the user has interrupted the work
    assert list_remaining(build_view(called, model=between), [1, 2, 3]) == [0, 1, 4, 5, 6, 7, 8, 9]
    assert list_remaining(build_view(called, model=between), [5, 6, 7]) == [0, 1, 2, 3, 4, 8, 9]


def test_a_part_that_another_message_continues_separates_nothing_alone() -> None:
    parts: list[Json] = [assistant("so"), assistant("on") | {"continues": True}]
    talk: list[Json] = [user("a"), assistant(None, "c1"), result("c1", "x"), *parts, assistant("A."), user("b")]
    assert list_remaining(build_view(talk), [3, 4, 5]) == [0, 1, 2, 5, 6]


def test_a_permanently_removed_message_is_skipped_for_one_that_may_come_back() -> None:
    strict = replace(PLAIN_MODEL, alternate=True)
    keys = build_view(TALK).keys
    force = {keys[n]: Edit(keys[n], "gone", None, "s", "", 1, 0) for n in (4, 5)}
    view = build_view(TALK, model=strict, state=BranchState(edits=force))
    assert list_remaining(view, [2, 3, 6, 7, 8]) == [0, 1, 8, 9]


def test_edits_in_force_are_not_withdrawn() -> None:
    keys = build_view(TALK).keys
    gone = Edit(keys[4], "gone", None, "s", "", 1, 0)
    view = build_view(TALK, state=BranchState(edits={gone.key: gone}))
    assert list_remaining(view, []) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    short = Edit(keys[4], "text", "A", "s", "", 6, 5)
    view = build_view(TALK, state=BranchState(edits={short.key: short}))
    left = repair_order(view, {short.key: msgspec.structs.replace(short, action="gone", text=None)}, view.edits)
    assert left == {short.key: short}


def test_an_answer_and_the_one_that_continues_with_it_leave_together() -> None:
    talk: list[Json] = [user("a"), assistant("so"), assistant("on") | {"continues": True}, user("b"), assistant("B.")]
    view = build_view(talk)
    gone = {view.keys[n]: Edit(view.keys[n], "gone", None, "s", "", 1, 0) for n in (1, 2)}
    assert restore_whole_steps(view, dict(gone), {}) == gone
    first = {view.keys[1]: gone[view.keys[1]]}
    assert restore_whole_steps(view, dict(first), {}) == {}
    assert not are_steps_whole(build_view(talk, state=BranchState(edits=first)), 0, None)
