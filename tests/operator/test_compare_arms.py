"""A planted difference between the arms is found, and none is reported where there is none."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from proxy.operator.compare_arms import (
    FIGURES,
    MAIN_FIGURE,
    MIN_SESSIONS,
    FigureComparison,
    Interval,
    SessionMeasures,
    compare_arms,
    describe_verdict,
)  # fmt: skip
from tests.operator.simulated_sessions import draw_experiment, draw_pool

RUNS = 200


@pytest.fixture(scope="module")
def pool() -> list[SessionMeasures]:
    return draw_pool(1)


def compare(arms: list[list[SessionMeasures]], name: str = MAIN_FIGURE) -> FigureComparison:
    """One figure of both arms."""
    (found,) = compare_arms(arms[0], arms[1], [name])
    return found


@pytest.mark.parametrize(("effect", "word"), [(0.9, "less"), (1.05, "more")])
def test_a_planted_effect_is_found_in_400_sessions(pool: list[SessionMeasures], effect: float, word: str) -> None:
    for seed in range(3):
        main = compare(draw_experiment(pool, seed, effect))
        assert main.known
        assert main.difference.low is not None
        assert main.difference.high is not None
        assert main.difference.low < effect - 1 < main.difference.high
        assert f"% {word} for the same prompts" in describe_verdict(main)


@pytest.mark.slow
def test_without_a_planted_difference_the_report_says_not_known(pool: list[SessionMeasures]) -> None:
    alarms = 0
    for seed in range(RUNS):
        main = compare(draw_experiment(pool, 1000 + seed, 1.0))
        alarms += main.known
        assert main.known or describe_verdict(main).startswith("Not known")
    assert alarms <= 0.05 * RUNS


def test_few_sessions_are_never_known_and_the_report_says_how_many_are_missing(pool: list[SessionMeasures]) -> None:
    control, managed = draw_experiment(pool, 1, 0.5, number=40)
    assert len(control) < MIN_SESSIONS
    main = compare([control, managed])
    assert not main.known
    assert main.sessions_needed is not None
    assert main.sessions_needed > 0
    assert f"about {main.sessions_needed} more sessions" in describe_verdict(main)


def test_the_interval_of_a_few_sessions_is_not_reported(pool: list[SessionMeasures]) -> None:
    """That of one session had no width, and that of ten held the true figure in half of the draws."""
    few = compare([pool[:1], pool[1:100]])
    assert few.control.value is not None
    assert (few.control.low, few.control.high, few.difference.low, few.known) == (None, None, None, False)
    assert few.managed.low is not None
    many = compare([pool[:MIN_SESSIONS], pool[MIN_SESSIONS : 2 * MIN_SESSIONS]])
    assert None not in (many.control.low, many.managed.low, many.difference.low)


def test_a_difference_of_5_percent_is_ruled_out_only_where_the_interval_rules_it_out() -> None:
    """The report said that there was none, where the interval reached to 6.5 % less."""
    parts = ("dollars", Interval(1.0), Interval(0.966))
    wide = FigureComparison(*parts, Interval(-0.034, -0.065, -0.003), True, False, 0)
    assert describe_verdict(wide) == (
        "Not known: chance alone may explain a difference of -3.4% (95 % interval -6.5% to -0.3%)."
    )
    narrow = FigureComparison(*parts, Interval(-0.014, -0.035, 0.004), True, False, 0)
    assert describe_verdict(narrow) == (
        "Not known: there is no difference of 5 % or more, and the sessions would show one."
    )


def test_more_requests_of_managed_agents_are_reported_beside_the_saving() -> None:
    saving = FigureComparison("", Interval(1.0), Interval(0.8), Interval(-0.2, -0.25, -0.15), True, True, 0)
    sentence = "Managed sessions cost 20.0% less for the same prompts (95 % interval -25.0% to -15.0%)."
    assert describe_verdict(saving, replace(saving, difference=Interval(0.01, -0.02, 0.04))) == sentence
    more = replace(saving, difference=Interval(0.125, 0.06, 0.19))
    assert describe_verdict(saving, more) == (
        f"{sentence} Their agents needed 12.5% more requests a turn, which this figure does not count."
    )


def test_with_enough_sessions_none_is_missing_and_the_report_says_that_nothing_was_found(
    pool: list[SessionMeasures],
) -> None:
    few = compare(draw_experiment(pool, 3, 1.0, number=90))
    many = compare(draw_experiment(pool, 4, 1.0, number=2000))
    assert few.sessions_needed
    assert (many.sessions_needed, many.known) == (0, False)
    assert "no difference of 5 % or more" in describe_verdict(many)


def test_without_sessions_nothing_is_known_of_any_figure() -> None:
    figures = compare_arms([], [])
    assert [figure.name for figure in figures] == list(FIGURES)
    assert not any(figure.known for figure in figures)
    assert describe_verdict(figures[0]) == "Not known: there are no sessions with a bill in both arms."


def test_a_figure_that_is_zero_in_the_control_arm_is_compared_absolutely() -> None:
    control = [SessionMeasures("t", str(n), "control", requests=10, calls=5) for n in range(30)]
    managed = [
        SessionMeasures("t", str(n), "managed", requests=10, calls=5, repeats=1 + n % 2, refused=n % 2)
        for n in range(90)
    ]
    repeats, refused = compare_arms(control, managed, ["repeated calls", "refused requests"])
    assert (repeats.relative, repeats.known) == (False, True)
    assert repeats.difference.value == pytest.approx(0.3)
    assert refused.known
    assert refused.managed.value == pytest.approx(0.05)
    same = compare_arms(control, control, ["repeated calls"])[0]
    assert (same.difference.value, same.known) == (0.0, False)


def test_the_same_sessions_give_the_same_report(pool: list[SessionMeasures]) -> None:
    arms = draw_experiment(pool, 1, 0.9, number=60)
    assert compare(arms) == compare(arms)
