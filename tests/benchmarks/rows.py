"""What was measured, as rows: medians over interleaved rounds, beside the bare pass-through's in the same round.

The machines that this runs on are shared: absolute times mean little, and one round is not like the next. So each
round measures every server, and what is told is the median of the rounds' ratios, with the quartiles beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from tests.benchmarks.starting import BARE

T = TypeVar("T")
Row = dict[str, Any]
"""What is written as JSON: `group` and `case`, `server`, `unit`, `value` with `q1` and `q3`, and where a bare one ran
beside it `ratio` with `ratio_q1` and `ratio_q3`."""


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """(lower quartile, median, upper quartile)."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which so large a share of them is."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def turned(servers: Sequence[T], number: int) -> list[T]:
    """Each round begins with another one, so that none always stands behind the same."""
    at = number % len(servers)
    return [*servers[at:], *servers[:at]]


def compared(case: Row, unit: str, found: Mapping[str, Sequence[float]], base: str = BARE) -> list[Row]:
    """A row a server. found: its values, one a round; those of one round stand at the same place."""
    rows = []
    for server, values in found.items():
        low, middle, high = quartiles(values)
        row = {**case, "server": server, "unit": unit, "value": figure(middle), "q1": figure(low), "q3": figure(high)}
        if base in found:
            low, middle, high = quartiles([mine / other for mine, other in zip(values, found[base], strict=True)])
            row |= {"ratio": round(middle, 3), "ratio_q1": round(low, 3), "ratio_q3": round(high, 3)}
        rows.append({**row, "rounds": len(values)})
    return rows


def figure(value: float) -> float:
    """With four digits, which is more than a shared machine can tell."""
    return float(f"{value:.4g}")
