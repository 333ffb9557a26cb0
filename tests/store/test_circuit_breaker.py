"""A service that fails is left alone for a while, and tried once after it."""

from __future__ import annotations

from proxy.store.circuit_breaker import BREAK_S, DOWN_AFTER, CircuitBreaker


def test_failures_in_a_row_begin_a_pause_and_one_more_begins_the_next() -> None:
    now = [0.0]
    breaker = CircuitBreaker(lambda: now[0])
    assert [breaker.record_failure() for _ in range(DOWN_AFTER)] == [False] * (DOWN_AFTER - 1) + [True]
    assert breaker.is_open()
    assert not breaker.record_failure(), "the pause has begun before"
    now[0] = BREAK_S
    assert not breaker.is_open()
    assert breaker.record_failure(), "it was tried and failed"
    assert breaker.is_open()


def test_a_success_between_failures_starts_the_count_again_and_ends_a_pause() -> None:
    breaker = CircuitBreaker(lambda: 0.0)
    for _ in range(DOWN_AFTER - 1):
        breaker.record_failure()
    breaker.record_success()
    assert not any(breaker.record_failure() for _ in range(DOWN_AFTER - 1))
    assert breaker.record_failure()
    breaker.record_success()
    assert not breaker.is_open()


def test_a_failure_may_stand_for_several() -> None:
    breaker = CircuitBreaker(lambda: 0.0, pause_s=1.0)
    assert breaker.record_failure(weight=DOWN_AFTER)
    assert breaker.is_open()
