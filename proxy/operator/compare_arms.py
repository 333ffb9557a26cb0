"""Comparison of the two arms of an experiment, with intervals by bootstrap over sessions.

A session is drawn whole, because its requests depend on each other. Each figure is a ratio of two sums over the drawn
sessions. A difference counts as known at a level of 98 %. Reports are read repeatedly, and each look is another chance
of a false alarm. The draws are the same in every run, so the same store gives the same report."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist, pstdev

from msgspec import Struct

DRAWS = 1000
LEVEL = 0.98
POWER = 0.8
EFFECT = 0.05
"""The relative difference for which the number of sessions that are still needed is given."""
MIN_SESSIONS = 20
"""Sessions of each arm below which no difference is called known, and an arm's figure has no interval. The interval of
10 simulated sessions held the true figure in half of the draws."""
TAIL = 0.025
"""Share of the draws on either side of an interval."""
_KNOWN_Z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
_POWER_Z = NormalDist().inv_cdf(POWER)


class SessionMeasures(Struct, frozen=True):
    """Sums over the exchanges of one session.

    dollars: as the provider reports them, or by its reported usage. own: predicted dollars of the client's own prompts.
    sent: predicted dollars of the prompts that were sent. turns: messages of the user. repeats: calls of a tool that
    the session had made before with the same arguments. refused: requests that the upstream answered with 400.
    """

    tenant: str
    session: str
    arm: str
    requests: int = 0
    turns: int = 0
    dollars: float = 0.0
    own: float = 0.0
    sent: float = 0.0
    without: float = 0.0
    """Dollars without the proxy, as in the statistics of the session."""
    rounds: float = 0.0
    """Dollars of hidden rounds after the first."""
    pings: int = 0
    """Pings that kept the provider's cache warm."""
    pinging: float = 0.0
    """Dollars of these pings."""
    missed: float = 0.0
    """Dollars of what the cache was expected to hold of changed prompts and did not."""
    edits: float = 0.0
    """Predicted dollars of changed prompts, less those of the client's own prompts in their place."""
    refetching: float = 0.0
    """Predicted dollars of what was fetched again because the proxy had cut it, in the client's own prompts."""
    offered: float = 0.0
    """Dollars of the proxy's tools beside prompts that were not changed."""
    refetched: int = 0
    calls: int = 0
    repeats: int = 0
    results: int = 0
    tool_errors: int = 0
    refused: int = 0
    first_byte_ms: float = 0.0
    timed: int = 0
    answer_tokens: int = 0
    answers: int = 0
    billed: int = 0
    """Requests with a bill."""
    unbilled: int = 0
    """Requests that were worked on and have none: no price is known, or no usage was reported."""


class Interval(Struct, frozen=True):
    """A figure with its interval of 95 %, None where it cannot be computed (`MIN_SESSIONS` for the interval)."""

    value: float | None
    low: float | None = None
    high: float | None = None


class FigureComparison(Struct, frozen=True):
    """One figure in both arms. difference: managed less control, in units of control's figure where that is not 0.
    known: the difference is not chance. sessions_needed: sessions of both arms that are still needed to see a
    difference of 5 %, None where that is unknown."""

    name: str
    control: Interval
    managed: Interval
    difference: Interval
    relative: bool
    known: bool
    sessions_needed: int | None


def _return_one(_: SessionMeasures) -> float:
    return 1.0


FIGURES: Mapping[str, tuple[Callable[[SessionMeasures], float], Callable[[SessionMeasures], float]]] = {
    "dollars for the same prompts": (lambda s: s.dollars, lambda s: s.own),
    "dollars a session": (lambda s: s.dollars, _return_one),
    "dollars a request": (lambda s: s.dollars, lambda s: s.billed),
    "requests a session": (lambda s: s.requests, _return_one),
    "turns a session": (lambda s: s.turns, _return_one),
    "requests a turn": (lambda s: s.requests, lambda s: s.turns),
    "repeated calls": (lambda s: s.repeats, lambda s: s.calls),
    "tool errors": (lambda s: s.tool_errors, lambda s: s.results),
    "refused requests": (lambda s: s.refused, lambda s: s.requests),
    "first byte in ms": (lambda s: s.first_byte_ms, lambda s: s.timed),
    "tokens an answer": (lambda s: s.answer_tokens, lambda s: s.answers),
}
"""Each figure: what is summed, and by the sum of what it is divided."""
MAIN_FIGURE = "dollars for the same prompts"
"""Least affected by chance: a long session has dear prompts in both arms."""
WORK_FIGURE = "requests a turn"
"""More of these than in the control arm are work that the main figure does not count."""


def compare_arms(
    control: Sequence[SessionMeasures], managed: Sequence[SessionMeasures], names: Sequence[str] = tuple(FIGURES)
) -> list[FigureComparison]:
    """Return every figure of both arms."""
    chance = random.Random(0)  # no secret: the same draws for the same store
    drawn = [
        [chance.choices(range(len(arm)), k=len(arm)) for _ in range(DRAWS)] if arm else [] for arm in (control, managed)
    ]
    return [_compare(name, (control, managed), drawn) for name in names]


def _compare(
    name: str, arms: tuple[Sequence[SessionMeasures], Sequence[SessionMeasures]], drawn: list[list[list[int]]]
) -> FigureComparison:
    above, below = FIGURES[name]
    values: list[float | None] = []
    samples: list[list[float]] = []
    for arm, draws in zip(arms, drawn, strict=True):
        upper, lower = [float(above(one)) for one in arm], [float(below(one)) for one in arm]
        values.append(_divide(sum(upper), sum(lower)))
        found = (_divide(sum(map(upper.__getitem__, d)), sum(map(lower.__getitem__, d))) for d in draws)
        samples.append([one for one in found if one is not None])
    control, managed = values
    intervals = [_compute_interval(*one) for one in zip(values, samples, map(len, arms), strict=True)]
    if control is None or managed is None or min(map(len, samples)) < DRAWS // 2:
        return FigureComparison(
            name, intervals[0], intervals[1], Interval(None), relative=False, known=False, sessions_needed=None
        )
    unit, fewest = control or 1.0, min(map(len, arms))
    difference = (managed - control) / unit
    spread = [(m - c) / unit for c, m in zip(*samples, strict=False)]
    error, sessions = pstdev(spread), len(arms[0]) + len(arms[1])
    needed = None
    if control:
        wanted = sessions * ((_KNOWN_Z + _POWER_Z) * error / EFFECT) ** 2
        needed = max(0, math.ceil(max(wanted, MIN_SESSIONS * sessions / fewest)) - sessions)
    known = fewest >= MIN_SESSIONS and abs(difference) > _KNOWN_Z * error and error > 0
    between = _compute_interval(difference, spread, fewest)
    return FigureComparison(name, intervals[0], intervals[1], between, bool(control), known, needed)


def _divide(above: float, below: float) -> float | None:
    return above / below if below else None


def _compute_interval(value: float | None, sample: Sequence[float], sessions: int) -> Interval:
    if value is None or not sample or sessions < MIN_SESSIONS:
        return Interval(value)
    ordered = sorted(sample)
    last = len(ordered) - 1
    return Interval(value, ordered[round(TAIL * last)], ordered[round((1 - TAIL) * last)])


def describe_verdict(main: FigureComparison, work: FigureComparison | None = None) -> str:
    """Return the outcome in one or two sentences. work: the comparison of `WORK_FIGURE`."""
    between = main.difference
    if between.value is not None and between.low is not None and between.high is not None:
        interval = f"95 % interval {between.low:+.1%} to {between.high:+.1%}"
        if main.known:
            sign = "less" if between.value < 0 else "more"
            cost = f"Managed sessions cost {abs(between.value):.1%} {sign} for the same prompts ({interval})."
            return f"{cost} {_describe_work(work.difference)}".strip() if work is not None else cost
        if main.sessions_needed == 0 and max(-between.low, between.high) >= EFFECT:
            return f"Not known: chance alone may explain a difference of {between.value:+.1%} ({interval})."
    if main.sessions_needed is None:
        return "Not known: there are no sessions with a bill in both arms."
    if main.sessions_needed:
        return f"Not known yet: about {main.sessions_needed} more sessions are needed to see a difference of 5 %."
    return "Not known: there is no difference of 5 % or more, and the sessions would show one."


def _describe_work(work: Interval) -> str:
    """Return the sentence about the requests of managed agents, "" unless they are more than in the control arm."""
    if work.value is None or work.low is None or work.low <= 0:
        return ""
    return f"Their agents needed {work.value:.1%} more requests a turn, which this figure does not count."
