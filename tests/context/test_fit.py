"""B1 to B4: the budget holds where groups and old steps are not enough, and says so where it cannot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from proxy.chat.chain import public_id
from proxy.context import fit
from proxy.context.branch_state import CACHE_MISS_LIMIT, BranchState
from proxy.context.pipeline import rewrite
from proxy.context.plan import Plan, RewriteInputs
from proxy.context.policy import Policy
from proxy.context.stages.fit_budget import FitBudget
from tests.context.agent import LONG, load_policy
from tests.conversations import COUNTER, PLAIN_MODEL, Json, assistant, build_view, make_request, result, system, user

FIT = Policy("fit", stages=(FitBudget(),), ask="never")
HUGE = LONG * 10
"""90,000 characters, which are as many tokens here."""


def fit_prompt(
    values: Sequence[Json], window: int, policy: Policy = FIT, state: BranchState | None = None, **more: Any
) -> tuple[Plan, list[Json]]:
    """The plan, and the messages that go out."""
    made = rewrite(
        make_request(values),
        state or BranchState(),
        policy,
        replace(PLAIN_MODEL, window=window),
        0.0,
        RewriteInputs(COUNTER, **more),
    )
    assert made.refusal is None, made.notes
    return made, list(values) if made.messages is None else [json.loads(raw) for raw in made.messages]


def test_a_result_larger_than_the_window_is_cut_to_its_head_and_tail() -> None:
    talk = [system(), user("Look."), assistant(None, "1"), result("1", HUGE)]
    made, out = fit_prompt(talk, 8_000, offered_tools=frozenset({"recall"}))
    assert 4_000 < made.after <= 6_400
    text = out[-1]["content"]
    head, _, rest = text.partition("\n[... ")
    mark, _, tail = rest.partition("]\n")
    assert HUGE.startswith(head)
    assert HUGE.endswith(tail)
    assert min(len(head), len(tail)) > 1_000
    assert str(len(HUGE)) in mark
    assert f'recall("{public_id(made.keys[-1])}")' in mark
    assert out[:-1] == talk[:-1]
    assert [(e.stage, e.action) for e in made.new_edits] == [("fit_budget", "text")]
    assert "characters cut to" in made.new_edits[0].reason
    assert not any(note.kind == "over_budget" for note in made.notes)


def test_the_largest_results_of_the_last_steps_are_cut_and_small_ones_stay() -> None:
    talk = [user("Look.")]
    for n, size in enumerate((300, 5_000, 20, 7_000)):
        talk += [assistant(None, str(n)), result(str(n), LONG[:size])]
    made, out = fit_prompt(talk, 8_000)
    contents = [m["content"] for m in out if m["role"] == "tool"]
    assert contents[0] == LONG[:300]
    assert contents[2] == LONG[:20]
    assert abs(len(contents[1]) - len(contents[3])) < 250  # the cuts are made between lines
    assert made.after <= 4_800  # the low mark


def test_a_cut_is_repeated_byte_for_byte_while_the_prompt_grows() -> None:
    talk = [user("Look."), assistant(None, "1"), result("1", HUGE)]
    first, out = fit_prompt(talk, 40_000)
    state = BranchState().after_sending(first, 0.0)
    more = [*talk, assistant(None, "2"), result("2", "short")]
    second, again = fit_prompt(more, 40_000, state=state)
    assert second.new_edits == ()
    assert again[:3] == out


def test_results_that_are_cut_again_bear_one_mark() -> None:
    talk = [user("Look."), assistant(None, "1"), result("1", HUGE)]
    state = BranchState().after_sending(fit_prompt(talk, 20_000)[0], 0.0)
    more = [*talk, assistant(None, "2"), result("2", HUGE)]
    made, out = fit_prompt(more, 20_000, state=state)
    assert made.after <= 16_000
    for message in (out[2], out[4]):
        assert message["content"].count("characters are left out") == 1


def test_more_results_at_once_than_fit_at_a_gentle_length_leave_with_the_oldest_steps() -> None:
    calls = [str(n) for n in range(12)]
    talk = [user("Look.")]
    for _ in range(3):
        talk += [assistant(None, *calls), *(result(c, LONG[:900]) for c in calls)]
    made, out = fit_prompt(talk, 7_900)
    assert [m["role"] for m in out] == ["user", *["assistant", *["tool"] * 12] * 2]
    assert made.after <= 6_320


def test_pinned_messages_and_the_last_message_are_never_cut_and_a_note_says_so() -> None:
    talk = [user("[pin] " + HUGE), assistant("Yes."), user("Well? " + HUGE)]
    made, out = fit_prompt(talk, 8_000)
    assert [m["content"] for m in out] == [talk[0]["content"], talk[2]["content"]]
    note = next(note for note in made.notes if note.kind == "over_budget")
    assert made.limit == 6_400
    assert note.figures == {"tokens": made.after - 6_400}


def test_an_older_prompt_larger_than_the_window_is_cut_at_last() -> None:
    talk = [user("Read this: " + HUGE), assistant("Yes."), user("Well?")]
    made, out = fit_prompt(talk, 8_000)
    assert out[0]["content"].startswith("Read this: 000")
    assert made.after <= 6_400


def test_a_text_just_recalled_is_cut_only_where_nothing_else_helps() -> None:
    talk = [user("Look."), assistant(None, "1"), result("1", LONG[:5_000]), assistant(None, "2"), result("2", HUGE)]
    keys = build_view(talk).keys
    made, out = fit_prompt(talk[:3], 6_000, guarded_keys=frozenset({keys[2]}))
    assert made.after <= 4_800
    assert len(out[2]["content"]) < 5_000
    made, out = fit_prompt(
        [*talk[:4], result("2", LONG[:3_000])], 9_000, guarded_keys=frozenset({build_view(talk[:3]).keys[2]})
    )
    assert len(out[2]["content"]) == 5_000
    assert len(out[4]["content"]) < 3_000


def test_inserted_texts_count_towards_the_budget() -> None:
    """B2: guidelines, state and scratchpad are sent too, and messages make room for them."""
    talk = [system(), user("First " * 10)]
    for n in range(8):
        talk += [assistant(None, str(n)), result(str(n), LONG[:900])]
    made, out = fit_prompt(
        talk, 8_000, load_policy("rolling"), scratchpad="- note " * 100, offered_tools=frozenset({"query_db"})
    )
    sent = sum(len(json.dumps(m)) for m in out)
    assert made.placed_inserts
    assert made.after <= 6_400 < sent  # JSON adds some to it


def test_inserts_are_left_out_where_nothing_else_makes_room_for_them() -> None:
    talk = [system("s" * 2_900), user("Go on.")]
    made, out = fit_prompt(talk, 4_000, load_policy("rolling"), scratchpad="- note " * 100)
    assert made.after <= 3_200
    assert any(note.kind == "inserts_left_out" for note in made.notes)
    assert out[0]["content"].startswith("s" * 2_900)


def test_drift_stops_edits_that_pay_and_never_the_budget() -> None:
    """B1."""
    talk = [user("u")]
    for n in range(30):
        talk += [assistant(None, str(n)), result(str(n), LONG[:900])]
    drifting = BranchState(sent_at=0.0, cache_miss_streak=CACHE_MISS_LIMIT, cache_hit_seen=True)
    wide, _ = fit_prompt(talk, 100_000, load_policy("thrifty"), drifting)
    assert wide.new_edits == ()
    narrow, _ = fit_prompt(talk, 20_000, load_policy("thrifty"), drifting)
    assert narrow.after <= 16_000


def test_where_no_hit_is_ever_reported_edits_cost_nothing_and_are_made_at_once() -> None:
    """B1: and where one is reported after all, they wait again until they pay. With its cap `thrifty` waits all the
    same."""
    usual = load_policy("thrifty")
    at_once = replace(usual, read_cap=0.0)
    talk = [user("u"), assistant(None, "1"), result("1", "a line of output\n" * 60)]
    for n in range(4):
        talk += [assistant(None, str(n)), result(str(n), "done")]
    talk += [assistant("Well."), user("x" * 50_000)]
    first, _ = fit_prompt(talk, 100_000)
    warm = BranchState().after_sending(first, 0.0)
    talk += [assistant(None, "9"), result("9", "done")]
    assert fit_prompt(talk, 100_000, at_once, warm)[0].new_edits == ()
    for cached in (0, 0, 0):
        warm = warm.after_answer(predicted=5_000, cached=cached, state=None)
    made, _ = fit_prompt(talk, 100_000, at_once, warm)
    assert [made.keys.index(e.key) for e in made.new_edits] == [2]
    assert made.predicted == 0
    capped, _ = fit_prompt(talk, 100_000, usual, warm)
    assert (capped.new_edits, capped.predicted) == ((), 0)
    served = warm.after_answer(predicted=0, cached=4_000, state=None)
    assert fit_prompt(talk, 100_000, at_once, served)[0].new_edits == ()


def test_a_stopped_branch_is_fitted_where_it_would_not_fit_its_window() -> None:
    """I2: the stages of last resort act alone, with the window less the answer's room as the mark."""
    talk = [system(), user("u")]
    for n in range(30):
        talk += [assistant(None, str(n)), result(str(n), LONG[:900])]
    stopped = BranchState(stopped="upstream_reject")
    size = build_view(talk).total
    for name in ("thrifty", "rolling"):
        whole, _ = fit_prompt(talk, size * 5 // 4 + 5, load_policy(name), stopped)
        assert (whole.messages, whole.new_edits, whole.placed_inserts) == (None, (), ())
        cut, _ = fit_prompt(talk, size, load_policy(name), stopped)
        assert cut.after <= size - 4_096
        assert {e.stage for e in cut.new_edits} == {"fit_budget", "remark"}, "what has left is marked"
        assert cut.placed_inserts == ()


@pytest.mark.parametrize(("over", "level"), [(10, 95), (60, 73), (100, 60), (170, 42), (1_000, 30)])
def test_the_largest_come_down_to_one_size(over: int, level: int) -> None:
    assert fit._find_common_size([100, 80, 100, 60], over, 30) == level
