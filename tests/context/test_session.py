from __future__ import annotations

from dataclasses import replace

from proxy.context.plan import Edit, Plan
from proxy.context.session import DRIFT_LIMIT, Asked, Session, cuts, losses

ONE = Edit(b"1" * 16, "text", "short", "s", "r", 100, 9)
TWO = Edit(b"2" * 16, "gone", None, "s", "r", 100, 0)
NOTE = Edit(b"3" * 16, "append", "note", "state", "r", 10, 14)
AGAIN = Edit(b"4" * 16, "text", "as above", "refer_repeats", "r", 100, 3)
PLAN = Plan(
    messages=(b"{}",), new=(ONE,), edits={ONE.key: ONE, TWO.key: TWO}, placed=(), asks=(), notes=(), marks=(b"m",),
    sizes=(7,), keys=(b"k",), before=200, after=9, predicted=0, asked=False,
)  # fmt: skip


def test_planning_and_sending_leave_the_session_as_it_was() -> None:
    first = Session()
    later = first.after_sending(PLAN, 5.0)
    assert first == Session()
    assert (later.edits, later.sent, later.sizes, later.sent_at) == (PLAN.edits, (b"m",), (7,), 5.0)


def test_how_much_was_lost_is_remembered_where_the_asking_was_settled() -> None:
    sent = Session(asked=Asked(1)).after_sending(replace(PLAN, asked=True), 5.0)
    assert sent.asked.losses == 1, "calls alone leave it open"
    assert sent.after_answer(predicted=0, cached=None, state=None).asked.losses == 1
    assert sent.after_answer(predicted=0, cached=None, state=None, settled=b"head").asked.losses == 2


def test_a_request_that_comes_again_finds_the_session_as_it_was() -> None:
    told = (b"k" * 24, "of the operator's")
    first = Session(states=((b"a" * 16, "old"),))
    sent = first.after_sending(PLAN, 5.0).after_answer(
        predicted=0, cached=None, state=(b"b" * 16, "1"), settled=b"head"
    )
    again = sent.after_answer(predicted=0, cached=None, state=(b"c" * 16, "2"), settled=b"head")
    again = replace(again, states=(*again.states, told))
    assert again.before(b"head").states == (*first.states, told)
    assert again.before(b"head").asked == Asked()
    assert again.before(b"other") is again
    assert Asked.read(again.asked.write()) == again.asked == Asked(2, 1, b"head")
    assert Asked.read(Asked(3).write()) is None


def test_what_loses_nothing_is_nothing_to_ask_about() -> None:
    edits = {**PLAN.edits, NOTE.key: NOTE, AGAIN.key: AGAIN}
    assert (cuts(edits), losses(edits)) == (3, 2)
    sent = Session().after_sending(replace(PLAN, asked=True, edits=edits), 5.0)
    assert sent.after_answer(predicted=0, cached=None, state=None, settled=b"head").asked.losses == 2


def test_the_newest_state_counts_and_older_ones_are_kept() -> None:
    session = Session()
    assert session.state is None
    session = session.after_answer(predicted=0, cached=None, state=(b"a", "first"))
    session = session.after_answer(predicted=0, cached=None, state=None)
    session = session.after_answer(predicted=0, cached=None, state=(b"b", "second"))
    assert session.state == "second"
    assert session.states == ((b"a", "first"), (b"b", "second"))


def drifted(session: Session, *cached: int | None, predicted: int = 1000) -> Session:
    for tokens in cached:
        session = session.after_answer(predicted=predicted, cached=tokens, state=None)
    return session


def test_new_edits_stop_when_the_cache_serves_less_than_half_of_what_was_predicted() -> None:
    assert drifted(Session(), *[499] * (DRIFT_LIMIT - 1)).may_edit
    assert not drifted(Session(), *[499] * DRIFT_LIMIT).may_edit
    assert not drifted(Session(), 1000, *[0] * DRIFT_LIMIT).may_edit
    assert drifted(Session(), *[500] * 10).may_edit


def test_one_answer_as_predicted_ends_the_drift() -> None:
    assert drifted(Session(), 0, 0, 900, 0, 0).may_edit
    assert drifted(drifted(Session(), 0, 0, 0), 1000).may_edit


def test_usage_without_cached_tokens_and_predictions_of_none_say_nothing() -> None:
    assert drifted(Session(), *[None] * 10).may_edit
    assert not drifted(Session(), 1, 0, None, 0).may_edit
    assert not drifted(Session(), *[0] * 10, predicted=0).uncached


def test_where_hits_are_never_reported_there_is_no_cache_to_spoil() -> None:
    assert not drifted(Session(), 0, 0).uncached
    found = drifted(Session(), 0, 0, None, 0)
    assert found.uncached
    assert found.may_edit
    assert not drifted(found, 900, predicted=0).uncached
    assert not drifted(Session(), 1, 0, 0, 0).uncached


def test_a_stopped_thread_makes_no_edits() -> None:
    assert not Session(stopped="upstream_reject").may_edit


def test_a_fork_inherits_what_belongs_to_the_messages_that_it_shares() -> None:
    session = Session(edits=PLAN.edits, states=((ONE.key, "one"), (TWO.key, "two")), drift=1)
    fork = session.forked([ONE.key, b"other"])
    assert fork.edits == {ONE.key: ONE}
    assert fork.states == ((ONE.key, "one"),)
    assert session.edits == PLAN.edits
