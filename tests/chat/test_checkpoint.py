from __future__ import annotations

import threading
from dataclasses import fields

import pytest

from proxy.chat.checkpoint import cancellation_check, checkpoint
from proxy.chat.tokens import TokenCounter, estimate_text_tokens
from proxy.context.branch_state import BranchState
from proxy.context.models import Model
from proxy.context.pipeline import rewrite
from proxy.context.plan import Plan, RewriteInputs
from proxy.settings.load import load_settings
from proxy.web.app import make_policies
from tests.conversations import message, request, user
from tests.exchange.test_plan_request import hostile


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
    one = message(user("abc"))
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
            return rewrite(asked, BranchState(), policy, Model(window=4000), 2.0, RewriteInputs(weigh))

    weigh = TokenCounter(estimate_text_tokens)
    asked = request(hostile(300))
    stopped = 0
    for left in (0, 1, 5, 20, 60, 200):
        try:
            plan(left)
        except Over:
            stopped += 1
    assert stopped, "it passes checkpoints"
    resumed = plan(None)
    asked = request(hostile(300))
    fresh = plan(None)
    for field in fields(fresh):
        assert getattr(resumed, field.name) == getattr(fresh, field.name), field.name
