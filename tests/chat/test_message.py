from __future__ import annotations

import threading

import pytest
from msgspec.structs import fields, replace

from proxy.chat.message import Message, Request, cancellation_check, checkpoint
from proxy.chat.tokens import TokenCounter, estimate_text_tokens
from proxy.context.branch_state import BranchState
from proxy.context.models import Model
from proxy.context.pipeline import rewrite
from proxy.context.plan import Plan, RewriteInputs
from proxy.settings.load import load_settings
from proxy.web.app import make_policies
from tests.conversations import assistant, make_message, make_request, result, system, user
from tests.exchange.test_plan_request import hostile


def test_system_and_developer_are_instructions() -> None:
    assert make_message(system()).is_system
    assert make_message({"role": "developer", "content": "x"}).is_system
    assert not make_message(user("x")).is_system


def test_tool_and_function_messages_are_results() -> None:
    assert make_message(result("c1", "x")).is_result
    assert make_message({"role": "function", "name": "run", "content": "x"}).is_result
    assert not make_message(assistant("x", "c1")).is_result


def test_a_fact_is_derived_once_and_stays_with_its_message() -> None:
    seen: list[str] = []

    def size(m: Message) -> int:
        seen.append(m.text)
        return len(m.text)

    one = make_message(user("abc"))
    assert size not in one.derived_values
    assert (one.derive(size), one.derive(size)) == (3, 3)
    assert size in one.derived_values
    assert make_message(user("abcd")).derive(size) == 4
    assert seen == ["abc", "abcd"]


def test_facts_can_be_distinguished_by_a_key() -> None:
    one = make_message(user("abc"))
    assert one.derive(lambda m: m.text[0], ("letter", 0)) == "a"
    assert one.derive(lambda m: m.text[1], ("letter", 1)) == "b"
    assert one.derive(lambda m: "never asked", ("letter", 0)) == "a"


def test_a_fact_that_is_none_or_empty_is_remembered_too() -> None:
    one = make_message(user("abc"))
    assert one.derive(lambda m: None, "nothing") is None
    assert "nothing" in one.derived_values


def texts(one: Request, begins: list[int], owner: str = "me") -> list[str]:
    """The texts of its messages, and where each look at them began."""

    def look(begin: int, known: list[str] | None) -> list[str]:
        begins.append(begin)
        return [*(known or ()), *(m.text for m in one.messages[begin:])]

    return one.memo("texts", look, owner)


def test_work_that_grows_with_a_history_is_continued_from_the_shared_prefix() -> None:
    begins: list[int] = []
    first = make_request([user("a"), assistant("b"), user("c")])
    more = make_request([user("d"), user("e")]).messages
    assert texts(first, begins) == ["a", "b", "c"]
    for messages, expected in [
        ((*first.messages, *more), 3),  # it has grown
        ((*first.messages, *more), None),  # the same once more: nothing is looked at
        ((*first.messages, more[1]), 0),  # another branch
        (first.messages, 0),  # shorter than what was noted last
        (
            (*make_request([user("a"), assistant("b"), user("c")]).messages, *more),
            0,
        ),  # the same texts, not the same front
    ]:
        begins.clear()
        after = replace(first, messages=messages)
        assert texts(after, begins) == [m.text for m in messages]
        assert begins == ([] if expected is None else [expected])


def test_a_memo_with_an_owner_keeps_only_the_last_owners_value() -> None:
    begins: list[int] = []
    first = make_request([user("a"), assistant("b"), user("c")])
    for owner, expected in (("me", [0]), ("me", []), ("you", [0]), ("me", [0])):
        begins.clear()
        assert texts(first, begins, owner) == ["a", "b", "c"]
        assert begins == expected
    assert len(first.memo_values) == 1


def test_which_messages_fit_is_asked_of_each_once() -> None:
    asked: list[str] = []

    def fits(m: Message) -> bool:
        asked.append(m.text)
        return m.role == "assistant"

    first = make_request([user("a"), assistant("b"), user("c")])
    after = replace(first, messages=(*first.messages, *make_request([assistant("d"), user("e")]).messages))
    assert [one.find_indices("answers", fits) for one in (first, after, after)] == [[1], [1, 3], [1, 3]]
    assert asked == ["a", "b", "c", "d", "e"]


class Over(Exception):
    """The time is over."""


def over() -> None:
    raise Over


def test_a_checkpoint_does_nothing_where_nobody_checks() -> None:
    checkpoint()


def test_a_check_holds_inside_and_in_this_thread_alone() -> None:
    fine: list[str] = []

    def beside() -> None:
        checkpoint()
        fine.append("another thread")

    with cancellation_check(over):
        with pytest.raises(Over):
            checkpoint()
        other = threading.Thread(target=beside)
        other.start()
        other.join()
        with cancellation_check(lambda: fine.append("inner")):
            checkpoint()
        with pytest.raises(Over):
            checkpoint()
    checkpoint()
    assert fine == ["another thread", "inner"]


def test_a_fact_that_was_not_found_out_is_asked_for_again_and_a_known_one_is_given() -> None:
    one = make_message(user("abc"))
    with cancellation_check(over), pytest.raises(Over):
        one.derive(len_of)
    assert one.derive(len_of) == 3
    with cancellation_check(over):
        assert one.derive(len_of) == 3


def len_of(one: object) -> int:
    return len(one.text)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(make_policies(load_settings(None, {}))))
def test_every_policy_can_be_stopped_on_its_way_and_planned_again_to_the_same_end(name: str) -> None:
    policy = make_policies(load_settings(None, {}))[name]
    if policy.mode == "passthrough":
        assert not policy.stages, "nothing is planned"
        return

    def plan(left: int | None) -> Plan:
        calls = [left]

        def check() -> None:
            if calls[0] is not None:
                calls[0] -= 1
                if calls[0] < 0:
                    raise Over

        with cancellation_check(check):
            return rewrite(asked, BranchState(), policy, Model(window=4000), 2.0, RewriteInputs(token_counter))

    token_counter = TokenCounter(estimate_text_tokens)
    asked = make_request(hostile(300))
    stopped = 0
    for left in (0, 1, 5, 20, 60, 200):
        try:
            plan(left)
        except Over:
            stopped += 1
    assert stopped, "it passes checkpoints"
    resumed = plan(None)
    asked = make_request(hostile(300))
    fresh = plan(None)
    for field in fields(fresh):
        assert getattr(resumed, field.name) == getattr(fresh, field.name), field.name
