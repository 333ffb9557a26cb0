"""rewrite() step by step, with stages that propose what a test says. What holds for every plan is in the properties."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec.structs import fields
from msgspec.structs import replace as replace_fields

from proxy.chat import chain
from proxy.chat.tokens import TokenCounter, estimate_text_tokens
from proxy.context import render
from proxy.context.branch_state import BranchState
from proxy.context.models import Model, without_cache
from proxy.context.pipeline import rewrite
from proxy.context.plan import Action, Edit, Plan, Proposal, RewriteInputs
from proxy.context.policy import Policy
from proxy.context.stage import Stage, When
from proxy.context.stages.close_window import CloseWindow
from proxy.context.stages.isolate_tools import IsolateTools
from proxy.context.view import View
from tests.context.agent import POLICIES, load_policy
from tests.conversations import (
    COUNTER,
    PLAIN_MODEL,
    Json,
    assistant,
    make_messages,
    make_next_request,
    make_request,
    result,
    system,
    user,
)

TALK = [
    system(),
    user("go"),
    assistant("so", "1", "2"),
    result("1", "x" * 96),
    result("2", "y" * 96),
    assistant("done"),
    user("again"),
    assistant(None, "1"),
    result("1", "z" * 96),
]
KEYS = chain.compute_keys("", make_messages(*TALK))
LOOSE = replace(PLAIN_MODEL, after_tool="user")
"""An upstream that takes a user message after a result, so that the answer between them may go."""
MARK = {"cache_control": {"type": "ephemeral"}}


@dataclass(frozen=True, slots=True)
class Says(Stage):
    """Proposes what it is told to."""

    found: tuple[Proposal, ...]
    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        return self.found


@dataclass(frozen=True, slots=True)
class SaysAtOnce(Stage):
    """The same, as a matter of correctness."""

    found: tuple[Proposal, ...]
    when: ClassVar[When] = "always"

    def __call__(self, view: View) -> Iterable[Proposal]:
        return self.found


def propose(index: int, action: Action = "text", text: str | None = None, **more: Any) -> Proposal:
    after = 6 if action == "text_only" else 0 if text is None else 4 + len(text)
    return Proposal(index, action, "test", "because", after, text, **more)


def edit(index: int, action: Action = "text", text: str | None = None) -> Edit:
    return Edit(KEYS[index], action, text, "old", "", 100, 0 if text is None else 4 + len(text))


def policy(*found: Proposal, schedule: Any = "when_it_pays", at_once: bool = False) -> Policy:
    """A policy of one stage. The cache is cold in these tests, so `when_it_pays` takes all that saves something."""
    stage = SaysAtOnce(found) if at_once else Says(found)
    return Policy("test", stages=(stage,), schedule=schedule, ask="never")


def remember(*edits: Edit, **more: Any) -> BranchState:
    return BranchState(edits={e.key: e for e in edits}, **more)


def plan(
    wanted: Policy, state: BranchState | None = None, values: Sequence[Json] = TALK, **more: Any
) -> tuple[Plan, list[Json]]:
    """The plan, and the messages that go out."""
    asked = make_request(values)
    made = rewrite(asked, state or BranchState(), wanted, more.pop("model", LOOSE), 0.0, RewriteInputs(COUNTER, **more))
    return made, [json.loads(raw) for raw in made.messages or [m.raw for m in asked.messages]]


def without(*gone: int) -> list[Json]:
    return [m for n, m in enumerate(TALK) if n not in gone]


def test_a_plan_without_edits_and_inserts_sends_the_array_itself() -> None:
    made, _ = plan(policy())
    assert (made.messages, made.new_edits, made.edits, made.placed_inserts) == (None, (), {}, ())
    assert made.before == made.after == sum(made.sizes)


def test_a_proposal_becomes_an_edit_that_says_who_why_and_how_much() -> None:
    made, out = plan(policy(propose(3, text="short")))
    assert out == [*TALK[:3], result("1", "short"), *TALK[4:]]
    assert made.new_edits == (Edit(KEYS[3], "text", "short", "test", "because", 100, 9),)
    assert made.edits == {KEYS[3]: made.new_edits[0]}
    assert made.before - made.after == 91


def test_old_edits_are_repeated_and_are_not_new() -> None:
    state = remember(edit(3, text="short"), edit(5, "gone"))
    made, out = plan(policy(), state)
    assert out == [*TALK[:3], result("1", "short"), TALK[4], *TALK[6:]]
    assert made.new_edits == ()
    assert made.edits == state.edits


def test_a_request_after_new_edits_continues_with_the_prompt_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    first = make_request(TALK)
    both = policy(propose(3, text="short"), propose(4, text="short"))
    made = rewrite(first, BranchState(), both, LOOSE, 0.0, RewriteInputs(COUNTER))
    applied = first.memo_values["history"].edited_history
    assert ([*made.edits], [*applied.edits]) == ([KEYS[4], KEYS[3]], [KEYS[3], KEYS[4]]), "as after a restart"
    begins: list[int] = []
    render_plain = render.render_plain

    def spy(*inputs: Any) -> render.Rendering:
        begins.append(inputs[4])
        return render_plain(*inputs)

    monkeypatch.setattr(render, "render_plain", spy)
    later = [*TALK, assistant("so", "3"), result("3", "w" * 96)]
    state = BranchState().after_sending(made, 0.0)
    states = state, msgspec.structs.replace(state, edits=dict(made.edits))  # the other as read back from the store
    known, anew = (
        rewrite(make_next_request(first, later), state, policy(), LOOSE, 1.0, RewriteInputs(COUNTER))
        for state in states
    )
    assert begins == [len(TALK), 0]
    assert (known.messages, known.marks, known.sizes) == (anew.messages, anew.marks, anew.sizes)
    assert (known.after, known.predicted) == (anew.after, anew.predicted)


def test_edits_of_a_branch_that_is_not_here_stay_remembered() -> None:
    other = Edit(b"o" * 16, "gone", None, "old", "", 9, 0)
    made, _ = plan(policy(propose(3, text="short")), remember(other))
    assert made.edits == {other.key: other, KEYS[3]: made.new_edits[0]}


@dataclass(frozen=True, slots=True)
class Ends(Stage):
    """Proposes nothing, and ends the edits of these messages."""

    keys: tuple[bytes, ...] = ()
    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        return ()

    def find_ended_edits(self, view: View) -> Iterable[bytes]:
        return self.keys


def test_an_edit_is_withdrawn_once_its_stage_says_that_its_reason_has_ended() -> None:
    state = remember(*[replace_fields(edit(n, text="short"), stage="test_pipeline") for n in (3, 4)])
    for schedule, ended in (("when_it_pays", TALK[3]), ("append_only", result("1", "short"))):
        _, out = plan(replace(policy(schedule=schedule), stages=(Ends((KEYS[3],)),)), state)
        assert out == [*TALK[:3], ended, result("2", "short"), *TALK[5:]]


def test_literal_policies_withdraw_what_they_do_not_propose_again() -> None:
    made, out = plan(policy(propose(4, text="short"), schedule="always"), remember(edit(3, text="short")))
    assert out == [*TALK[:4], result("2", "short"), *TALK[5:]]
    assert set(made.edits) == {KEYS[4]}


def test_the_strongest_proposal_for_a_message_wins() -> None:
    found = (propose(5, text="d"), propose(5, "gone"), propose(5, text=""))
    assert plan(policy(*found))[0].new_edits[0].action == "gone"
    found = (propose(3, text="short"), propose(3, text="s"), propose(3, text="shorter"))
    assert plan(policy(*found))[0].new_edits[0].text == "s"


@pytest.mark.parametrize(
    ("old", "new", "superseded"),
    [
        (edit(5, text="abc"), propose(5, "gone"), True),
        (edit(5, text="abc"), propose(5, text="ab"), True),
        (edit(5, text="abc"), propose(5, text="xyz"), False),
        (edit(5, text="abc"), propose(5, text="abcd"), False),
        (edit(5, "gone"), propose(5, text=""), False),
        (edit(5, "gone"), propose(5, "gone"), False),
    ],
)
def test_an_edit_is_superseded_only_by_a_stronger_one_or_a_shorter_text(
    old: Edit, new: Proposal, superseded: bool
) -> None:
    made, _ = plan(policy(new, at_once=True), remember(old))
    assert bool(made.new_edits) is superseded
    assert (made.edits[KEYS[5]] == old) is not superseded


def test_a_stub_that_is_no_shorter_is_not_taken_except_literally() -> None:
    longer = propose(3, text="w" * 96)
    assert plan(policy(longer, at_once=True))[0].new_edits == ()
    assert len(plan(policy(longer, schedule="always"))[0].new_edits) == 1


def test_a_text_is_written_when_it_is_taken_and_knows_what_else_is_taken() -> None:
    def write(taken: frozenset[int]) -> str:
        return f"with {sorted(taken)}"

    _, out = plan(policy(propose(3, write_text=write), propose(4, text="")))
    assert out[3] == result("1", "with [3, 4]")


def test_system_messages_the_last_user_message_and_the_last_message_are_not_given_up() -> None:
    found = (propose(0, "gone"), propose(6, text=""), propose(6, "gone"), propose(8, "gone"))
    made, out = plan(policy(*found, at_once=True))
    assert (made.new_edits, out) == ((), TALK)
    assert plan(policy(propose(8, text="")))[1][-1] == result("1", "")


def test_a_step_leaves_whole_or_stays_whole() -> None:
    assert plan(policy(propose(2, "gone"), propose(3, "gone"), propose(4, "gone")))[1] == without(2, 3, 4)
    for half in ((2,), (3,), (2, 3), (3, 4), (2, 4)):
        made, out = plan(policy(*(propose(n, "gone") for n in half)))
        assert (made.new_edits, out) == ((), TALK)
    made, out = plan(policy(propose(2, "gone"), propose(3, "gone"), propose(5, "gone")))
    assert out == without(5)


def test_the_text_of_a_step_may_stay_alone_but_not_with_some_of_its_results() -> None:
    alone = (propose(2, "text_only"), propose(3, "gone"), propose(4, "gone"))
    assert plan(policy(*alone))[1] == [*TALK[:2], assistant("so"), *TALK[5:]]
    made, out = plan(policy(*alone[:2], at_once=True))
    assert (made.refusal, made.new_edits, out) == (None, (), TALK)


def test_a_text_that_was_cut_stays_cut_where_its_step_does_not_leave() -> None:
    state = remember(edit(3, text="short"))
    made, out = plan(policy(propose(2, "gone"), propose(3, "gone"), at_once=True), state)
    assert out == [*TALK[:3], result("1", "short"), *TALK[4:]]
    assert (made.new_edits, made.edits) == ((), state.edits)


# The client's cache marks.


def marked(*at: int) -> list[Json]:
    return [{**m, **MARK} if n in at else m for n, m in enumerate(TALK)]


def test_a_group_with_a_cache_mark_of_the_clients_stays() -> None:
    window = Policy("test", stages=(CloseWindow(groups=1),), schedule="always", ask="never", remark="")
    assert plan(window)[1] == [*TALK[:2], *TALK[6:]]
    for n in (1, 2, 3, 5):
        assert plan(window, values=marked(n))[1] == marked(n)
    assert plan(window, values=marked(0, 6, 8))[1] == [*marked(0)[:2], *marked(6, 8)[6:]]


def test_a_step_of_the_active_group_with_a_cache_mark_stays() -> None:
    talk = [user("go"), *TALK[2:5], assistant("so", "3"), result("3", "w", **MARK), *TALK[7:]]
    gone = [propose(n, "gone") for n in range(1, 6)]
    assert plan(policy(*gone), values=talk)[1] == [talk[0], *talk[4:]]


def test_a_marked_result_may_be_shortened_and_keeps_its_mark_and_its_stub() -> None:
    made, out = plan(policy(propose(3, text="short")), values=marked(3))
    assert out[3] == result("1", "short", **MARK)
    later, out = plan(
        policy(*(propose(n, "gone") for n in range(1, 6))), BranchState(edits=made.edits), values=marked(3)
    )
    assert (later.new_edits, out[3]) == ((), result("1", "short", **MARK))


def test_tool_traffic_of_another_strategy_is_isolated_whatever_is_marked() -> None:
    mine = Policy("test", stages=(IsolateTools(),), ask="never")
    foreign: Json = {"strategy": "gemini", "strategies": ["openai"] * len(TALK)}
    bare = [*TALK[:2], assistant("so"), *TALK[5:]]
    assert plan(mine, **foreign)[1] == bare
    assert plan(mine, values=marked(3), **foreign)[1] == bare
    assert plan(mine, strategy="gemini")[1] == TALK


# When edits may be made.


def test_matters_of_correctness_do_not_wait_for_the_schedule() -> None:
    waiting = Policy("test", stages=(Says((propose(3, text=""),)),), schedule="over_budget", ask="never")
    assert plan(waiting)[0].new_edits == ()
    both = replace(waiting, stages=(*waiting.stages, SaysAtOnce((propose(4, text=""),))))
    assert [e.key for e in plan(both)[0].new_edits] == [KEYS[4]]


def test_no_new_edits_while_the_store_cannot_take_them_or_the_cache_drifts() -> None:
    wanted = policy(propose(4, text=""))
    state = remember(edit(3, text="short"))
    for made, out in (
        plan(wanted, state, frozen=True),
        plan(wanted, msgspec.structs.replace(state, cache_miss_streak=3, cache_hit_seen=True)),
    ):
        assert made.new_edits == ()
        assert out == [*TALK[:3], result("1", "short"), *TALK[4:]]
    assert len(plan(wanted, msgspec.structs.replace(state, cache_miss_streak=2))[0].new_edits) == 1


def test_a_warm_cache_makes_edits_wait_and_a_cold_one_does_not() -> None:
    wanted = policy(propose(3, text="x" * 90, since=7))
    first, _ = plan(policy())
    warm = BranchState().after_sending(first, 0.0)
    longer = [*TALK, assistant("ok"), user("more")]
    assert plan(wanted, warm, values=longer)[0].new_edits == ()
    assert len(plan(wanted, msgspec.structs.replace(warm, sent_at=-1000.0), values=longer)[0].new_edits) == 1


def count_requests_to_edit(model: Model, read_cap: float) -> int:
    """The requests that go out until an edit of an old result is made."""
    wanted = replace(policy(propose(3, text="", since=8)), read_cap=read_cap)
    talk = [*TALK[:3], result("1", "x" * 500), *TALK[4:]]
    state = BranchState().after_sending(plan(policy(), model=model, values=talk)[0], 0.0)
    for more in range(1, 100):
        values = [*talk, *(message for _ in range(more) for message in (assistant("ok"), user("more")))]
        made, _ = plan(wanted, state, model=model, values=values)
        if made.new_edits:
            return more
        state = state.after_sending(made, 0.0)
    return 100


def test_dear_reads_and_no_cache_make_no_edit_sooner_than_the_cap_of_the_policy_allows() -> None:
    """Page faults were 1.6 % of the steps at reads of half a price and 2.0 % without a cache, not 0.96 %."""
    model = replace(PLAIN_MODEL, w=1.0, r=0.08, min=0)
    dear, uncached = replace(model, r=0.5), without_cache(model)
    cheap = replace(model, r=0.06)
    usual = count_requests_to_edit(model, 0.0)
    assert max(count_requests_to_edit(one, 0.0) for one in (dear, uncached)) < usual
    assert [count_requests_to_edit(one, 0.08) for one in (model, dear, uncached)] == [usual] * 3
    assert count_requests_to_edit(cheap, 0.08) == count_requests_to_edit(cheap, 0.0)
    assert usual < count_requests_to_edit(cheap, 0.0) < 100


def test_over_the_budget_the_oldest_edits_are_made_even_where_they_do_not_pay() -> None:
    found = (propose(3, text="x" * 50, since=7), propose(4, text="", since=7))
    first, _ = plan(policy())
    warm = BranchState().after_sending(first, 0.0)
    total = first.before
    for window, made in ((None, []), (total, []), (total - 1, [3]), (total - 46, [3]), (total - 47, [3, 4])):
        model = replace(PLAIN_MODEL, window=window, answer_apart=True)
        new = plan(replace(policy(*found), budget=1.0, low=1.0), warm, model=model)[0].new_edits
        assert sorted(KEYS.index(e.key) for e in new) == made


def test_edits_that_do_not_pay_are_made_down_to_the_low_mark_once_the_budget_forces_them() -> None:
    found = (propose(3, text="x" * 50, since=7), propose(4, text="", since=7))
    first, _ = plan(policy())
    warm = BranchState().after_sending(first, 0.0)
    total = first.before
    forced = replace(policy(*found), budget=1.0)
    apart = replace(PLAIN_MODEL, answer_apart=True)
    at, over = replace(apart, window=total), replace(apart, window=total - 1)
    assert plan(forced, warm, model=at)[0].new_edits == ()
    # One token over: the first of them takes 46 off, which is enough down to total - 46.
    for low, made in ((total - 46, [3]), (total - 47, [3, 4])):
        new = plan(replace(forced, low=low / (total - 1) + 1e-9), warm, model=over)[0].new_edits
        assert sorted(KEYS.index(e.key) for e in new) == made


def test_over_budget_goes_down_to_its_low_mark() -> None:
    found = (propose(3, text=""), propose(4, text=""))
    total = plan(policy())[0].before
    wanted = replace(policy(*found, schedule="over_budget"), budget=0.8, low=0.4)
    assert plan(wanted, model=replace(PLAIN_MODEL, window=int(total / 0.79)))[0].new_edits == ()
    assert len(plan(wanted, model=replace(PLAIN_MODEL, window=int(total / 0.81)))[0].new_edits) == 2
    assert len(plan(replace(wanted, low=0.79), model=replace(PLAIN_MODEL, window=int(total / 0.81)))[0].new_edits) == 1


# Refusals.


def test_a_plan_that_breaks_a_rule_is_refused_and_the_original_goes_out() -> None:
    state = remember(edit(3, text="short"))
    made, out = plan(policy(propose(5, text=""), at_once=True), state)
    assert (made.refusal, made.messages, made.new_edits, made.edits) == ("W8", None, (), state.edits)
    assert out == TALK
    assert made.before == made.after
    assert [n.kind for n in made.notes] == ["refused"]
    assert made.marks == tuple(m.form for m in make_messages(*TALK))


def test_a_client_that_goes_back_gets_the_newest_step_and_its_prompt_whole() -> None:
    """They left when they were old: without them the plan would be refused, and the original is over the budget."""
    session = remember(*(edit(n, "gone") for n in (2, 3, 4, 6, 7, 8)))
    for frozen in (False, True):
        made, out = plan(policy(), session, frozen=frozen)
        assert (made.refusal, out) == (None, without(2, 3, 4))
        assert {*made.edits} == {KEYS[n] for n in (2, 3, 4)}


def test_a_plan_that_cannot_be_written_is_refused() -> None:
    made, out = plan(policy(propose(7, text="said"), schedule="always"))
    assert (made.refusal, out) == ("render", TALK)


def test_a_history_that_breaks_a_rule_already_is_planned_all_the_same() -> None:
    talk = [user("go"), result("9", "x" * 96), assistant("ok"), user("on")]
    made, out = plan(policy(propose(1, text="short")), values=talk)
    assert (made.refusal, out[1]) == (None, result("9", "short"))


@pytest.mark.parametrize("name", POLICIES)
def test_a_plan_of_a_first_request_does_not_depend_on_when_it_is_made(name: str) -> None:
    chosen = load_policy(name)
    lines = "\n".join(f"line {n} of a long result" for n in range(400))
    said = [system(), user("Fix the build")]
    for n in range(40):
        said += [assistant(f"Step {n}: I will look", f"call_{n:09}"), result(f"call_{n:09}", f"{n} {lines}")]
    made = [
        rewrite(
            make_request(said),
            BranchState(),
            chosen,
            Model(window=60_000),
            now,
            RewriteInputs(TokenCounter(estimate_text_tokens)),
        )
        for now in (0.0, 1.8e9 + 0.123)
    ]
    one, other = ([getattr(plan, field.name) for field in fields(plan)] for plan in made)
    assert one == other
    assert made[0].new_edits or name in ("observe", "passthrough", "reflective"), "nothing was decided"
