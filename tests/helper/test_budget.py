"""Dollars a day, held before they are spent; and a rest for a helper that is down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from proxy.errors import StoreUnavailable
from proxy.helper import budget
from proxy.helper.budget import DAY_S, Budget, HelperCircuitBreaker
from proxy.store import circuit_breaker
from proxy.store.circuit_breaker import BREAK_S, DOWN_AFTER
from proxy.store.derived import NO_CONVERSATION, SpendingRow
from tests.failing_store import FailingStore


class Clock:
    def __init__(self, at: float = 5 * DAY_S + 100.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


@pytest.fixture
async def store() -> AsyncIterator[FailingStore]:
    """A store that can be made to fail; closed again, since an open one is warned of."""
    made = FailingStore()
    await made.open()
    yield made
    await made.close()


async def test_a_reservation_counts_until_it_is_settled(store: FailingStore) -> None:
    daily_budget = Budget(1.0, Clock())
    assert await daily_budget.reserve(store, "t", 0.6)
    assert not await daily_budget.reserve(store, "t", 0.6)
    row = daily_budget.settle_reserve("t", "summary", 0.6, (100, 20), 0.25)
    assert row == [SpendingRow(*NO_CONVERSATION, 5, "summary", 1, 100, 20, 0.25)]
    assert await daily_budget.reserve(store, "t", 0.6)
    daily_budget.settle_reserve("t", "summary", 0.6, (0, 0), 0.6)
    assert not await daily_budget.reserve(store, "t", 0.2)
    assert daily_budget.spent == pytest.approx(0.85)
    assert daily_budget.reserved == 0.0


async def test_stored_spending_counts_after_a_restart_and_starts_over_on_a_new_day(store: FailingStore) -> None:
    clock = Clock()
    await store.put([SpendingRow(*NO_CONVERSATION, 5, "summary", 1, 0, 0, 0.9)])
    daily_budget = Budget(1.0, clock)
    assert not await daily_budget.reserve(store, "t", 0.2)
    clock.at += DAY_S
    assert await daily_budget.reserve(store, "t", 0.2)


async def test_many_at_once_never_hold_more_than_the_limit(store: FailingStore) -> None:
    daily_budget = Budget(1.0, Clock())
    taken = await asyncio.gather(*(daily_budget.reserve(store, "t", 0.3) for _ in range(10)))
    assert sum(taken) == 3


async def test_a_free_question_is_always_allowed_unless_the_budget_is_zero(store: FailingStore) -> None:
    daily_budget = Budget(1.0, Clock())
    daily_budget.settle_reserve("t", "summary", 0.0, (0, 0), 1.0)
    assert await Budget(0.1, Clock()).reserve(store, "t", 0.0)
    assert not await Budget(0.0, Clock()).reserve(store, "t", 0.0)


async def test_nothing_is_spent_while_the_spending_is_unknown(store: FailingStore) -> None:
    daily_budget = Budget(1.0, Clock())
    store.reads = False
    with pytest.raises(StoreUnavailable):
        await daily_budget.reserve(store, "t", 0.1)
    store.reads = True
    assert await daily_budget.reserve(store, "t", 0.1)
    store.reads = False
    assert await daily_budget.reserve(store, "t", 0.1), "the day is known by now"


async def test_a_tenant_takes_no_more_than_its_part_of_the_day_also_after_a_restart(store: FailingStore) -> None:
    daily_budget = Budget(1.0, Clock(), tenant_limit=0.3)
    assert await daily_budget.reserve(store, "greedy", 0.2)
    assert not await daily_budget.reserve(store, "greedy", 0.2)
    assert await daily_budget.reserve(store, "modest", 0.2), "what one has taken is nothing to another"
    await store.put(daily_budget.settle_reserve("greedy", "summary", 0.2, (100, 20), 0.25))
    again = Budget(1.0, Clock(), tenant_limit=0.3)
    assert not await again.reserve(store, "greedy", 0.1)
    assert await again.reserve(store, "modest", 0.3)
    assert again.spent == pytest.approx(0.25)
    for name in ("third", "fourth"):
        assert await again.reserve(store, name, 0.2)
    assert not await again.reserve(store, "fifth", 0.2), "all tenants together keep to the whole budget"
    await store.delete_tenant("greedy")
    assert await store.sum_spending(5, "greedy") == 0.0
    assert await store.sum_spending(5) == pytest.approx(0.25)


async def test_tenants_that_are_kept_in_memory_are_bounded(
    store: FailingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "MAX_TENANTS", 2)
    daily_budget = Budget(100.0, Clock(), tenant_limit=0.3)
    assert await daily_budget.reserve(store, "first", 0.2)
    for n in range(10):
        assert await daily_budget.reserve(store, f"t{n}", 0.2)
        await store.put(daily_budget.settle_reserve(f"t{n}", "summary", 0.2, (1, 1), 0.2))
    assert not await daily_budget.reserve(store, "first", 0.2), "a question that is under way counts"
    assert not await daily_budget.reserve(store, "t0", 0.2), "read from the store again"


def test_three_failures_in_a_row_begin_a_rest() -> None:
    clock = Clock(0.0)
    breaker = HelperCircuitBreaker(clock)
    begun = [
        breaker.record_call(outcome, "t")
        for outcome in ("timeout", "failed", "answered", "timeout", "refused", "garbage")
    ]
    assert begun == [False] * 5 + [True]
    assert breaker.is_open("t")
    clock.at = BREAK_S - 0.1
    assert breaker.is_open("t")
    clock.at = BREAK_S
    assert not breaker.is_open("t")


def test_answers_that_do_not_fit_and_a_spent_budget_are_not_failures_of_the_helper() -> None:
    breaker = HelperCircuitBreaker(Clock(0.0))
    assert not any(
        breaker.record_call(outcome, "t") for outcome in ("cut", "over_budget", "store") for _ in range(DOWN_AFTER)
    )
    assert not breaker.is_open("t")


def test_refusals_begin_a_rest_of_their_tenant_and_other_failures_one_of_all() -> None:
    breaker = HelperCircuitBreaker(Clock(0.0))
    assert [breaker.record_call("refused", "t") for _ in range(DOWN_AFTER)] == [False, False, True]
    assert (breaker.is_open("t"), breaker.is_open("other")) == (True, False)
    assert [breaker.record_call("timeout", name) for name in ("a", "b", "c")] == [False, False, True]
    assert breaker.is_open("other")


def test_failures_of_any_number_of_tenants_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_breaker, "MAX_TENANTS", 2)
    breaker = HelperCircuitBreaker(Clock(0.0))
    for n in range(10):
        for _ in range(DOWN_AFTER + 1):
            breaker.record_call("refused", f"t{n}")
    assert [breaker.is_open(f"t{n}") for n in range(10)] == [False] * 8 + [True] * 2
    assert len(breaker._failures) <= 2
