from __future__ import annotations

from msgspec.structs import replace

from proxy.context.branch_state import CACHE_MISS_LIMIT, BranchState, StateRequest, count_losses
from proxy.context.plan import Edit, Insert, Plan

ONE = Edit(b"1" * 16, "text", "short", "s", "r", 100, 9)
TWO = Edit(b"2" * 16, "gone", None, "s", "r", 100, 0)
NOTE = Edit(b"3" * 16, "append", "note", "state", "r", 10, 14)
AGAIN = Edit(b"4" * 16, "text", "as above", "refer_repeats", "r", 100, 3)
PLAN = Plan(
    messages=(b"{}",), new_edits=(ONE,), edits={ONE.key: ONE, TWO.key: TWO}, placed_inserts=(), asks=(), notes=(),
    marks=(b"m",), sizes=(7,), keys=(b"k",), before=200, after=9, predicted=0, asks_for_state=False,
)  # fmt: skip


def test_planning_and_sending_leave_the_state_as_it_was() -> None:
    first = BranchState()
    later = first.after_sending(PLAN, 5.0)
    assert first == BranchState()
    assert (later.edits, later.sent_marks, later.sent_sizes, later.sent_at) == (PLAN.edits, (b"m",), (7,), 5.0)


def test_an_answer_without_cache_news_keeps_the_branch_state() -> None:
    sent = BranchState().after_sending(PLAN, 5.0)
    assert sent.after_answer(predicted=100, cached=None, state=None) is sent, "no count proves nothing"
    hit = sent.after_answer(predicted=100, cached=90, state=None)
    assert (hit.cache_hit_seen, hit.cache_miss_streak) == (True, 0)
    assert hit.after_answer(predicted=100, cached=90, state=None) is hit
    assert hit.after_answer(predicted=100, cached=0, state=None).cache_miss_streak == 1


def test_the_number_of_losses_is_remembered_when_a_state_request_is_settled() -> None:
    sent = BranchState(last_state_request=StateRequest(1)).after_sending(replace(PLAN, asks_for_state=True), 5.0)
    assert sent.last_state_request.lossy_edits == 1, "calls alone leave it open"
    assert sent.after_answer(predicted=0, cached=None, state=None).last_state_request.lossy_edits == 1
    assert (
        sent.after_answer(predicted=0, cached=None, state=None, answered_tip=b"head").last_state_request.lossy_edits
        == 2
    )


def test_a_request_that_comes_again_finds_the_state_as_it_was() -> None:
    told = (b"k" * 24, "of the operator's")
    first = BranchState(states=((b"a" * 16, "old"),))
    sent = first.after_sending(PLAN, 5.0).after_answer(
        predicted=0, cached=None, state=(b"b" * 16, "1"), answered_tip=b"head"
    )
    again = sent.after_answer(predicted=0, cached=None, state=(b"c" * 16, "2"), answered_tip=b"head")
    again = replace(again, states=(*again.states, told))
    assert again.rewind(b"head").states == (*first.states, told)
    assert again.rewind(b"head").last_state_request == StateRequest()
    assert again.rewind(b"other") is again
    assert (
        StateRequest.parse(again.last_state_request.serialize())
        == again.last_state_request
        == StateRequest(2, 1, b"head")
    )
    assert StateRequest.parse(StateRequest(3).serialize()) is None


def test_edits_that_lose_nothing_are_no_reason_to_ask_for_state() -> None:
    edits = {**PLAN.edits, NOTE.key: NOTE, AGAIN.key: AGAIN}
    assert count_losses(edits) == 2
    sent = BranchState().after_sending(replace(PLAN, asks_for_state=True, edits=edits), 5.0)
    assert (
        sent.after_answer(predicted=0, cached=None, state=None, answered_tip=b"head").last_state_request.lossy_edits
        == 2
    )


def test_the_newest_state_counts_and_older_ones_are_kept() -> None:
    state = BranchState()
    assert state.state is None
    state = state.after_answer(predicted=0, cached=None, state=(b"a", "first"))
    state = state.after_answer(predicted=0, cached=None, state=None)
    state = state.after_answer(predicted=0, cached=None, state=(b"b", "second"))
    assert state.state == "second"
    assert state.states == ((b"a", "first"), (b"b", "second"))


def drifted(state: BranchState, *cached: int | None, predicted: int = 1000) -> BranchState:
    for tokens in cached:
        state = state.after_answer(predicted=predicted, cached=tokens, state=None)
    return state


def test_new_edits_stop_when_the_cache_serves_less_than_half_of_what_was_predicted() -> None:
    assert drifted(BranchState(), *[499] * (CACHE_MISS_LIMIT - 1)).may_edit
    assert not drifted(BranchState(), *[499] * CACHE_MISS_LIMIT).may_edit
    assert not drifted(BranchState(), 1000, *[0] * CACHE_MISS_LIMIT).may_edit
    assert drifted(BranchState(), *[500] * 10).may_edit


def test_one_answer_as_predicted_ends_the_drift() -> None:
    assert drifted(BranchState(), 0, 0, 900, 0, 0).may_edit
    assert drifted(drifted(BranchState(), 0, 0, 0), 1000).may_edit


def test_usage_without_cached_tokens_and_predictions_of_none_say_nothing() -> None:
    assert drifted(BranchState(), *[None] * 10).may_edit
    assert not drifted(BranchState(), 1, 0, None, 0).may_edit
    assert not drifted(BranchState(), *[0] * 10, predicted=0).is_never_cached


def test_an_upstream_that_never_reports_hits_has_no_cache_to_invalidate() -> None:
    assert not drifted(BranchState(), 0, 0).is_never_cached
    found = drifted(BranchState(), 0, 0, None, 0)
    assert found.is_never_cached
    assert found.may_edit
    assert not drifted(found, 900, predicted=0).is_never_cached
    assert not drifted(BranchState(), 1, 0, 0, 0).is_never_cached


def test_a_stopped_branch_makes_no_edits() -> None:
    assert not BranchState(stopped="upstream_reject").may_edit


def test_a_fork_has_no_summary_of_messages_that_it_does_not_share() -> None:
    keys = [b"prompt", b"first", b"second"]
    bearer = Edit(keys[0], "append", "3 older messages", "summarize_old", "", 9, 12)
    gone = [Edit(key, "gone", None, "summarize_old", "", 9, 0) for key in keys[1:]]
    cut = Edit(b"third", "text", "short", "shorten_results", "", 9, 1)
    edits = {edit.key: edit for edit in (bearer, *gone, cut)}
    state = BranchState(edits=edits, lasting_edits=edits)
    assert state.fork([*keys[:2], b"third"], {*edits}).edits == {b"third": cut}, "it also tells of the second"
    assert state.fork([*keys, b"third"], {*edits}).edits == edits
    assert state.fork([*keys[1:], b"third"], {*edits}).lasting_edits == {b"third": cut}, "nothing would tell of these"


def test_a_fork_has_no_notes_that_were_to_be_given_and_asks_for_its_own_state() -> None:
    note = Insert("tail", "warn_of_loops", "The same call again.", note_count=("repeat", 4))
    asked = StateRequest(3, 1, TWO.key)
    state = BranchState(
        deferred_inserts=(note,), note_counts={"repeat": 4}, states=((TWO.key, "two"),), last_state_request=asked
    )
    fork = state.fork([ONE.key])
    assert (fork.deferred_inserts, fork.note_counts, fork.last_state_request) == ((), {}, StateRequest())
    assert state.fork([ONE.key, TWO.key]).last_state_request == asked
    assert fork.is_new_fork
    assert not fork.after_sending(PLAN, 1.0).is_new_fork


def test_a_fork_inherits_what_belongs_to_the_messages_that_it_shares() -> None:
    state = BranchState(edits=PLAN.edits, states=((ONE.key, "one"), (TWO.key, "two")), cache_miss_streak=1)
    fork = state.fork([ONE.key, b"other"])
    assert fork.edits == {ONE.key: ONE}
    assert fork.states == ((ONE.key, "one"),)
    assert state.edits == PLAN.edits
