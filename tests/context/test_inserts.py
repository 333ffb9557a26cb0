"""Rows A8 and A9: which texts of ours go into a prompt, and where."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from proxy.context.branch_state import BranchState, StateRequest
from proxy.context.inserts import find_system_target, find_tail_target, make_inserts, may_ask
from proxy.context.models import Model
from proxy.context.pipeline import rewrite
from proxy.context.plan import Edit, Insert, Plan
from proxy.context.policy import Policy
from proxy.notes import state_block
from tests.conversations import INPUTS, PLAIN_MODEL, Json, assistant, build_view, make_request, result, system, user

ROLLING = Policy("rolling", schedule="always", ask="always", state_place="system")
THRIFTY = Policy("thrifty")
BODY = "Goal: go on\nContext: x"
KNOWN = BranchState(states=((b"k", BODY),))
TALK = [system(), user("a"), assistant(None, "1"), result("1", "x")]
PICTURE = {"type": "image_url", "image_url": {"url": "u"}}


def wanted(
    values: Sequence[Json], policy: Policy, state: BranchState = KNOWN, edits: int = 0, **more: Any
) -> tuple[list[tuple[str, str]], bool]:
    found, asked = make_inserts(build_view(values, state=state, **more), state, policy, edits)
    return [(i.place, i.source) for i in found], asked


def plan(
    values: Sequence[Json], policy: Policy, state: BranchState = KNOWN, model: Model = PLAIN_MODEL, **more: Any
) -> tuple[Plan, list[Json]]:
    """The plan and the messages that go out."""
    asked = make_request(values, **more)
    made = rewrite(asked, state, policy, model, 0.0, INPUTS)
    assert made.refusal is None
    return made, [json.loads(raw) for raw in made.messages or [m.raw for m in asked.messages]]


# What is wanted.


def test_rolling_wants_guidelines_anchor_and_the_asking_in_this_order() -> None:
    assert wanted(TALK, ROLLING) == ([("system", "guidelines"), ("system", "state"), ("system", "ask")], True)
    assert wanted(TALK, ROLLING, BranchState()) == ([("system", "guidelines"), ("system", "ask")], True)


def test_rolling_does_not_ask_where_an_answer_is_bound_but_its_texts_stay() -> None:
    assert wanted(TALK, ROLLING, n=2) == ([("system", "guidelines"), ("system", "state")], False)


def test_thrifty_wants_nothing_while_nothing_has_left_the_prompt() -> None:
    assert wanted(TALK, THRIFTY) == ([], False)


def test_thrifty_asks_once_a_batch_of_edits_and_gives_the_note_back() -> None:
    assert wanted(TALK, THRIFTY, edits=3) == ([("tail", "state"), ("tail", "ask")], True)
    asked = msgspec.structs.replace(KNOWN, last_state_request=StateRequest(3))
    assert wanted(TALK, THRIFTY, asked, edits=3) == ([("tail", "state")], False)
    assert wanted(TALK, THRIFTY, asked, edits=4) == (
        [("tail", "state"), ("tail", "ask")],
        True,
    )
    assert wanted(TALK, THRIFTY, BranchState(), edits=1) == ([("tail", "ask")], True)


class CountedEdits(dict[bytes, Edit]):
    """Edits that count how often they are gone through."""

    reads = 0

    def values(self) -> Any:
        """The edits."""
        self.reads += 1
        return super().values()


def test_edits_in_force_are_not_counted_with_every_request() -> None:
    talk = [user("a"), *(m for n in range(3) for m in (assistant(None, str(n)), result(str(n), "x")))]
    keys = build_view(talk).keys
    edits = CountedEdits({keys[2]: Edit(keys[2], "text", "y", "shorten_results", "", 50, 5)})
    state = msgspec.structs.replace(KNOWN, edits=edits)
    view = build_view(talk, state=state)
    edits.reads = 0
    assert not make_inserts(view, state, THRIFTY, 1)[1], "the third step of a prompt is not asked for the same edits"
    assert edits.reads == 0
    assert make_inserts(view, state, THRIFTY, 2)[1]
    assert make_inserts(build_view(talk[:-2], state=state), state, THRIFTY, 1)[1], "the second step is asked"


def test_the_note_is_not_written_twice() -> None:
    keys = build_view(TALK).keys
    old = Edit(keys[1], "append", "\n\n" + state_block.render_recap(BODY), "state", "", 5, 50)
    standing = msgspec.structs.replace(KNOWN, edits={old.key: old}, last_state_request=StateRequest(1))
    assert wanted(TALK, THRIFTY, standing, 1) == ([], False)
    newer = msgspec.structs.replace(standing, states=(*KNOWN.states, (b"l", "Goal: another")))
    assert wanted(TALK, THRIFTY, newer, 1) == ([("tail", "state")], False)


def test_a_note_that_was_added_to_a_shortened_text_stands_too() -> None:
    keys = build_view(TALK).keys
    old = Edit(keys[3], "text", "short\n\n" + state_block.render_recap(BODY), "truncate_results", "", 5, 50)
    standing = msgspec.structs.replace(KNOWN, edits={old.key: old}, last_state_request=StateRequest(1))
    assert wanted(TALK, THRIFTY, standing, 1) == ([], False)


def test_the_setting_ask_can_ask_for_the_state_always_or_never() -> None:
    assert wanted(TALK, replace(THRIFTY, ask="always")) == ([("tail", "state"), ("tail", "ask")], True)
    assert wanted(TALK, replace(THRIFTY, ask="always"), BranchState()) == ([("tail", "ask")], True)
    assert wanted(TALK, replace(THRIFTY, ask="never"), edits=9) == ([("tail", "state")], False)
    assert wanted(TALK, replace(ROLLING, ask="never")) == ([("system", "state")], False)


@pytest.mark.parametrize(
    ("more", "values", "may"),
    [
        ({}, TALK, True),
        ({}, TALK[:2], True),
        ({}, [*TALK, assistant("so: ")], False),
        ({}, [*TALK, assistant("so"), system("late")], False),
        ({"n": 2}, TALK, False),
        ({"response_format": {"type": "json_object"}}, TALK, False),
        ({"tool_choice": "required"}, TALK, False),
        ({"max_tokens": 399}, TALK, False),
        ({"max_completion_tokens": 16, "max_tokens": 9000}, TALK, False),
        ({"max_tokens": 400, "max_completion_tokens": None}, TALK, True),
        ({"max_tokens": 0}, TALK, True),
        ({"max_tokens": "few"}, TALK, True),
    ],
)
def test_a_state_can_be_asked_for_where_one_free_text_is_expected(more: Json, values: list[Json], may: bool) -> None:
    assert may_ask(build_view(values, **more).request) is may


# Where it goes.


@pytest.mark.parametrize(
    ("values", "after_tool", "target"),
    [
        ([user("a")], "append", (0, False)),
        ([user("a")], "none", (0, False)),
        ([user([PICTURE])], "append", (0, False)),
        ([user(None)], "append", (None, False)),
        (TALK, "append", (3, False)),
        (TALK, "user", (None, True)),
        (TALK, "none", (None, False)),
        ([*TALK[:3], result("1", None)], "append", (None, False)),
        ([*TALK[:3], result("1", [PICTURE])], "append", (None, False)),
        ([*TALK[:3], result("1", [{"type": "text", "text": "x"}, PICTURE])], "append", (3, False)),
        ([*TALK, assistant("so: ")], "append", (None, False)),
    ],
)
def test_the_tail_is_the_last_user_message_or_what_the_model_takes_after_a_result(
    values: list[Json], after_tool: str, target: tuple[int | None, bool]
) -> None:
    model = replace(PLAIN_MODEL, after_tool=after_tool)  # type: ignore[arg-type]
    assert find_tail_target(build_view(values, model=model)) == target


def test_texts_after_the_system_prompt_need_a_leading_one_with_text() -> None:
    assert find_system_target(build_view(TALK)) == 0
    assert (
        find_system_target(build_view([{"role": "developer", "content": [{"type": "text", "text": "x"}]}, user("a")]))
        == 0
    )
    assert find_system_target(build_view([user("a"), system()])) is None
    assert find_system_target(build_view([system(None), user("a")])) is None


def test_rolling_puts_everything_after_the_leading_system_message() -> None:
    made, out = plan(TALK, ROLLING)
    texts = ["Be brief.", state_block.get_guidelines(), state_block.render_anchor(BODY), state_block.build_prompt()]
    assert out[0]["content"] == "\n\n".join(texts)
    assert out[1:] == TALK[1:]
    assert made.asks_for_state
    assert [(n, i.source) for n, i in made.placed_inserts] == [(0, "guidelines"), (0, "state"), (0, "ask")]


def test_guidelines_of_the_policys_own_replace_ours() -> None:
    _, out = plan(TALK, replace(ROLLING, guidelines="Mine."), BranchState())
    assert out[0]["content"].startswith("Be brief.\n\nMine.\n\n")


def test_without_a_system_message_all_goes_to_the_tail() -> None:
    made, out = plan(TALK[1:], ROLLING)
    texts = ["x", state_block.get_guidelines(), state_block.render_anchor(BODY), state_block.build_prompt()]
    assert out[-1]["content"] == "\n\n".join(texts)
    assert out[:-1] == TALK[1:-1]
    assert {n for n, _ in made.placed_inserts} == {2}


def test_after_a_result_texts_are_appended_sent_as_a_message_or_left_out() -> None:
    policy = replace(THRIFTY, ask="always")
    assert plan(TALK, policy, BranchState())[1][-1] == result("1", "x\n\n" + state_block.build_prompt())
    made, out = plan(TALK, policy, BranchState(), model=replace(PLAIN_MODEL, after_tool="user"))
    assert out == [*TALK, user(state_block.build_prompt())]
    assert [n for n, _ in made.placed_inserts] == [-1]
    made, out = plan(TALK, policy, model=replace(PLAIN_MODEL, after_tool="none"))
    assert out == TALK
    assert made.messages is None
    assert not made.asks_for_state


def test_a_state_that_could_not_be_asked_for_does_not_count_as_asked_for() -> None:
    made, _ = plan(TALK[1:3] + TALK[3:], replace(THRIFTY, ask="always"), model=replace(PLAIN_MODEL, after_tool="none"))
    assert (made.asks_for_state, made.placed_inserts) == (False, ())


def edited(state: BranchState = KNOWN) -> BranchState:
    """A state in which the result of TALK has been shortened."""
    keys = build_view(TALK).keys
    edit = Edit(keys[3], "text", "-", "s", "", 5, 5)
    return msgspec.structs.replace(state, edits={edit.key: edit}, last_state_request=StateRequest(1))


def test_the_note_stays_where_it_was_put_and_the_asking_does_not() -> None:
    talk = [*TALK, assistant("b"), user("c")]
    state = msgspec.structs.replace(edited(), last_state_request=StateRequest(0))
    made, out = plan(talk, THRIFTY, state)
    note = "\n\n" + state_block.render_recap(BODY)
    assert out[-1] == user("c" + note + "\n\n" + state_block.build_prompt())
    assert [(e.action, e.text, e.stage) for e in made.new_edits] == [("append", note, "state")]
    assert [i.source for _, i in made.placed_inserts] == ["ask"]
    state = state.after_sending(made, 0.0).after_answer(predicted=0, cached=None, state=None, answered_tip=b"head")
    later, out = plan([*talk, assistant("d"), user("e")], THRIFTY, state)
    assert out[4:] == [assistant("b"), user("c" + note), assistant("d"), user("e")]
    assert (later.new_edits, later.placed_inserts, later.asks_for_state) == ((), (), False)


def test_the_model_is_not_asked_again_because_its_own_note_was_put_back() -> None:
    talk, state, asked = (
        [*TALK, assistant("b"), user("c")],
        msgspec.structs.replace(edited(BranchState()), last_state_request=StateRequest(0)),
        [],
    )
    for n in range(6):
        made, _ = plan(talk, THRIFTY, state)
        asked.append(made.asks_for_state)
        state = state.after_sending(made, 0.0)
        note = (bytes([n]) * 16, f"{BODY} {n}") if made.asks_for_state else None
        state = state.after_answer(
            predicted=0, cached=None, state=note, answered_tip=b"head" if made.asks_for_state else None
        )
        talk = [*talk, assistant("d"), user("e")]
    assert asked == [True, False, False, False, False, False]


def test_the_model_is_asked_until_an_answer_with_text_has_come() -> None:
    talk, state, asked = (
        [*TALK, assistant("b"), user("c")],
        msgspec.structs.replace(edited(BranchState()), last_state_request=StateRequest(0)),
        [],
    )
    for n in range(9):  # n steps after the prompt
        made, _ = plan(talk, THRIFTY, state)
        asked.append(made.asks_for_state)
        state = state.after_sending(made, 0.0)
        settled = b"head" if made.asks_for_state and n == 4 else None
        state = state.after_answer(predicted=0, cached=None, state=None, answered_tip=settled)
        talk = [*talk, assistant(None, f"c{n}"), result(f"c{n}", "x")]
    assert asked == [True, True, True, False, True, False, False, False, False]


def test_a_text_that_is_elsewhere_in_the_prompt_has_not_left() -> None:
    keys = build_view(TALK).keys
    refers = Edit(keys[3], "text", "as above", "refer_repeats", "", 5, 3)
    made, out = plan(
        [*TALK, assistant("b"), user("c")], THRIFTY, msgspec.structs.replace(KNOWN, edits={refers.key: refers})
    )
    assert (made.asks_for_state, out[-1]) == (False, user("c"))


@pytest.mark.parametrize("policy", [replace(THRIFTY, ask="always"), replace(ROLLING, state_place="tail")])
def test_a_state_that_is_rewritten_with_every_answer_is_shown_and_not_kept(policy: Policy) -> None:
    made, out = plan([*TALK, assistant("b"), user("c")], policy)
    assert out[-1] == user(f"c\n\n{state_block.render_recap(BODY)}\n\n{state_block.build_prompt()}")
    assert made.new_edits == ()
    assert [(n, i.source) for n, i in made.placed_inserts] == [(5, "state"), (5, "ask")]


def test_the_note_that_goes_into_a_message_of_the_proxy_is_made_again_each_time() -> None:
    model = replace(PLAIN_MODEL, after_tool="user")
    made, out = plan(TALK, THRIFTY, edited(), model=model)
    assert out[-1] == user(state_block.render_recap(BODY))
    assert made.new_edits == ()
    assert made.placed_inserts == (
        (-1, Insert("tail", "state", "\n\n" + state_block.render_recap(BODY), persistent=True)),
    )


def test_the_note_never_holds_the_heading_that_asks_for_a_new_one() -> None:
    _, out = plan([*TALK, assistant("b"), user("c")], THRIFTY, edited(BranchState(states=((b"k", "### STATE\nx"),))))
    assert "### STATE" not in json.dumps(out)


def test_a_stopped_branch_gets_no_inserts() -> None:
    made, out = plan(TALK, THRIFTY, BranchState(stopped="upstream_reject", states=KNOWN.states))
    assert (out, made.messages, made.asks_for_state) == (TALK, None, False)


@pytest.mark.parametrize(("policy", "is_asked"), [(THRIFTY, False), (ROLLING, True)], ids=["thrifty", "rolling"])
def test_where_a_cache_ends_at_breakpoints_only_a_literal_policy_asks(policy: Policy, is_asked: bool) -> None:
    made, _ = plan(TALK, replace(policy, ask="always"), model=replace(PLAIN_MODEL, cache="breakpoint"))
    assert made.asks_for_state is is_asked
