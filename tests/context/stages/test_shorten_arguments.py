"""Dead texts in the arguments of earlier calls: which are shortened, when, and what stays of the call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.chat.chain import public_id
from proxy.context.branch_state import BranchState
from proxy.context.plan import Edit, Proposal
from proxy.context.policy import Policy, read_policy
from proxy.context.render import render_message
from proxy.context.stages import BUILT_IN_STAGES
from proxy.context.stages.shorten_arguments import ShortenArguments, is_unsigned
from proxy.context.stages.shorten_results import ShortenResults
from proxy.context.view import View, compute_mark
from tests.context.test_pipeline import plan
from tests.conversations import PLAIN_MODEL, Json, assistant, build_view, call, make_message, result, user

OLD = "def old(argument):\n" + "    value = argument + 1  # a line that is replaced\n" * 12
NEW = "def new(argument):\n" + "    value = argument + 2  # a line in its place\n" * 12
STEPS: list[Json] = [one for n in range(4) for one in (assistant(None, f"s{n}"), result(f"s{n}", "fine"))]
"""Four steps, after which a text counts as old."""


def edit(old: str = OLD, new: str = NEW, **more: Any) -> list[Json]:
    arguments = json.dumps({"file_path": "a.py", "old_string": old, "new_string": new, "replace_all": False})
    return [{**assistant(None), "tool_calls": [call("c", "Edit", arguments)], **more}, result("c", "Updated.")]


def proposals(values: list[Json], state: BranchState | None = None, **more: Any) -> list[Proposal]:
    return list(ShortenArguments(**more)(build_view(values, state=state)))


def render_proposal(view: View, proposal: Proposal) -> Json:
    """The message as it goes out with the proposal."""
    key = view.keys[proposal.index]
    made = Edit(key, proposal.action, proposal.text, proposal.stage, proposal.reason, 9, 1)
    found: Json = json.loads(render_message(view.messages[proposal.index], made) or b"")
    return found


def test_a_dead_text_keeps_its_first_line_and_all_else_stays() -> None:
    values = [user("go"), *edit(), *STEPS]
    (found,) = proposals(values)
    after = render_proposal(build_view(values), found)
    arguments = json.loads(after["tool_calls"][0]["function"]["arguments"])
    remark = f"[shortened by the proxy: {len(OLD) - 18} more characters, which this edit has replaced]"
    assert arguments == {
        "file_path": "a.py",
        "old_string": f"def old(argument):\n{remark}",
        "new_string": NEW,
        "replace_all": False,
    }
    before = values[1]
    after["tool_calls"][0]["function"]["arguments"] = before["tool_calls"][0]["function"]["arguments"]
    assert after == before, "ids, names and all other members are the client's"
    assert found.after == build_view(values).tokens[1] - (
        len(json.dumps(OLD)) - len(json.dumps(arguments["old_string"]))
    )
    assert (found.index, found.action, found.since) == (1, "arguments", 2)


def test_the_text_stays_for_as_many_steps_as_the_policy_says() -> None:
    assert proposals([user("go"), *edit(), *STEPS[:4]], age=3) == []
    assert len(proposals([user("go"), *edit(), *STEPS[:6]], age=3)) == 1
    assert len(proposals([user("go"), *edit()])) == 1


def test_a_text_that_is_dead_when_it_would_first_be_sent_does_not_wait_for_its_rent() -> None:
    policy = Policy("test", (ShortenArguments(),))
    values = [user("go"), *STEPS, *edit()]
    marks = tuple(compute_mark(one, None) for one in build_view(values[:-2]).messages)
    made, _ = plan(policy, BranchState(sent_marks=marks, sent_at=0.0), values, model=PLAIN_MODEL)
    assert [one.action for one in made.new_edits] == ["arguments"]


def test_a_short_text_stays() -> None:
    assert proposals([user("go"), *edit(old="x" * 239), *STEPS]) == []
    assert len(proposals([user("go"), *edit(old="x" * 340), *STEPS])) == 1


def test_shortened_arguments_wait_for_their_rent_and_go_with_a_batch_of_results() -> None:
    policy = Policy("test", (ShortenArguments(), ShortenResults()))
    values = [user("go"), *edit(), *STEPS]
    marks = tuple(compute_mark(one, None) for one in build_view(values[:-2]).messages)
    warm = BranchState(sent_marks=marks, sent_at=0.0)
    assert plan(policy, warm, values, model=PLAIN_MODEL)[0].new_edits == (), "the prefix would be written again for it"
    made, _ = plan(policy, None, values)
    assert [one.action for one in made.new_edits] == ["arguments"], "nothing is cached"
    big = [assistant(None, "b"), result("b", "\n".join(f"line {n} of some output" for n in range(300)))]
    made, _ = plan(policy, None, [user("go"), *big, *edit(), *STEPS])
    assert {one.action for one in made.new_edits} == {"text", "arguments"}


@pytest.mark.parametrize(
    "more",
    [
        {"reasoning_content": "I replace it."},
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "abc"}]},
        {"content": [{"type": "text", "text": "So.", "thought_signature": "abc"}]},
        {"wire": [{"type": "reasoning", "encrypted_content": "abc"}, {"type": "function_call", "call_id": "c"}]},
    ],
)
def test_an_answer_that_may_be_signed_stays_as_received(more: Json) -> None:
    assert proposals([user("go"), *edit(**more), *STEPS]) == []


def test_only_a_signature_makes_a_message_signed() -> None:
    plain = {**edit()[0], "refusal": None, "annotations": [], "reasoning_content": "", "function_call": None}
    assert is_unsigned(make_message(plain))
    plain["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": "abc"}}
    assert not is_unsigned(make_message(plain))
    assert is_unsigned(make_message({**edit()[0], "wire": [{"type": "message"}, {"type": "function_call"}]}))


def test_a_call_that_a_reference_names_stays() -> None:
    values = [user("go"), *edit(), *STEPS]
    view = build_view(values)
    name = public_id(view.keys[1])
    text = f"[12 lines: as lines 1-12 of call {name}, Edit, 2 steps before this: recall]"
    referring = Edit(view.keys[4], "text", text, "refer_repeats", "", 9, 1)
    assert proposals(values, BranchState(edits={referring.key: referring})) == []


def test_an_edit_in_force_is_repeated_and_grows_only_with_more_dead_texts() -> None:
    values = [user("go"), *edit(), *STEPS]
    view = build_view(values)
    (first,) = proposals(values)
    made = Edit(view.keys[1], "arguments", first.text, first.stage, first.reason, view.tokens[1], first.after)
    state = BranchState(edits={made.key: made})
    assert proposals(values, state) == []
    later = [*values, *edit(old=NEW, new="x"), *STEPS]
    by_index = {one.index: one for one in proposals(later, state)}
    assert by_index[1].after < made.after
    shown = render_proposal(build_view(later), by_index[1])["tool_calls"][0]["function"]["arguments"]
    assert "which a later edit has overwritten" in json.loads(shown)["new_string"]


def test_a_fork_from_before_a_later_edit_is_not_told_of_it() -> None:
    values = [user("go"), *edit(), *STEPS, *edit(old=NEW, new="x"), *STEPS]
    view = build_view(values)
    (both, _) = proposals(values)
    made = Edit(view.keys[1], "arguments", both.text, both.stage, both.reason, view.tokens[1], both.after)
    state = BranchState(edits={made.key: made}, is_new_fork=True)
    for length, ended in ((11, [made.key]), (len(values), [])):
        fork = build_view(values[:length], state=state)
        assert list(ShortenArguments().find_ended_edits(fork)) == ended
    assert (
        list(ShortenArguments().find_ended_edits(build_view(values[:11], state=BranchState(edits=state.edits)))) == []
    )


def test_arguments_dead_in_a_policy_adds_the_stage() -> None:
    def names(**more: Any) -> list[str]:
        table = {"name": "mine", "stages": [{"use": "shorten_results"}], **more}
        return [type(stage).__name__ for stage in read_policy(table, BUILT_IN_STAGES).stages]

    assert names() == ["ShortenResults"]
    assert names(arguments="keep") == ["ShortenResults"]
    assert names(arguments="dead") == ["ShortenResults", "ShortenArguments"]
    twice = [{"use": "shorten_arguments", "age": 9}]
    assert names(arguments="dead", stages=twice) == ["ShortenArguments"], "with the settings of the file"
