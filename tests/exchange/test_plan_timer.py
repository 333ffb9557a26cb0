"""The time limit and the pauses of a plan, by clocks that the test sets."""

from __future__ import annotations

import pytest

from proxy.errors import NotManaged
from proxy.exchange import plan_timer
from proxy.exchange.plan_timer import SLICE_S, UNDIVIDED_S, PlanTimer


class Clocks:
    """Both clocks. A pause moves the wall clock alone."""

    def __init__(self) -> None:
        self.wall = 1000.0
        self.processor = 5.0
        self.asked = 0
        self.pauses: list[float] = []

    def work(self, seconds: float, waited: float = 0.0) -> None:
        """The thread works, and waits for the interpreter lock."""
        self.wall += seconds + waited
        self.processor += seconds

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.wall += seconds

    def thread_time(self) -> float:
        self.asked += 1
        return self.processor


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(plan_timer, "monotonic", lambda: made.wall)
    monkeypatch.setattr(plan_timer, "thread_time", made.thread_time)
    monkeypatch.setattr(plan_timer, "sleep", made.sleep)
    return made


def run(clocks: Clocks, timer: PlanTimer, seconds: float, step: float, waited: float = 0.0) -> None:
    for _ in range(round(seconds / step)):
        clocks.work(step, waited)
        timer.check()


def test_a_short_plan_never_pauses_and_never_asks_for_its_processor_time(clocks: Clocks) -> None:
    timer = PlanTimer(1.0, pauses_at_once=False)
    timer.start()
    run(clocks, timer, 0.9 * UNDIVIDED_S, 0.00001)
    assert (clocks.pauses, clocks.asked) == ([], 1), "once at its start"


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("step", [0.00001, 0.0002, 0.002])
def test_a_long_plan_pauses_a_third_as_long_as_it_works(clocks: Clocks, step: float, at_once: bool) -> None:
    timer = PlanTimer(10.0, pauses_at_once=at_once)
    timer.start()
    run(clocks, timer, 1.0, step)
    divided = 1.0 - (SLICE_S if at_once else UNDIVIDED_S)
    assert sum(clocks.pauses) == pytest.approx(divided / 3, rel=0.05)
    assert max(clocks.pauses) <= (step + SLICE_S) / 3 + 1e-9
    assert clocks.asked <= 2 * len(clocks.pauses) + 2


def test_time_in_which_others_work_is_not_a_reason_to_pause(clocks: Clocks) -> None:
    timer = PlanTimer(100.0, pauses_at_once=False)
    timer.start()
    run(clocks, timer, 0.9 * UNDIVIDED_S, 0.0001, waited=0.1)
    assert clocks.pauses == []


def test_planning_stops_at_its_limit_and_when_nobody_waits(clocks: Clocks) -> None:
    timer = PlanTimer(0.5, pauses_at_once=False)
    timer.start()
    with pytest.raises(NotManaged, match=r"limits\.plan_ms"):
        run(clocks, timer, 1.0, 0.001)
    assert 1000.5 < clocks.wall < 1000.51
    timer = PlanTimer(0.5, pauses_at_once=True)
    timer.start()
    timer.check()
    timer.stop()
    with pytest.raises(NotManaged):
        timer.check()
