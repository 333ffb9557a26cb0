"""The rows of a result: medians over interleaved rounds, and ratios to the bare pass-through of the same round.

The machines are shared, so absolute times mean little and rounds differ. Each round therefore measures every server.
The result is the median of the ratios of all rounds, with their quartiles.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from tests.benchmarks.start_servers import BARE

T = TypeVar("T")
Row = dict[str, Any]
"""A row of `results.json`: `case`, `server`, `unit`, `value` with `q1` and `q3`. If a bare pass-through was measured
beside it, also `ratio` with `ratio_q1` and `ratio_q3`."""


def compute_quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return (lower quartile, median, upper quartile)."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def find_percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies. share: from 0 to 1."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def rotate_order(servers: Sequence[T], number: int) -> list[T]:
    """Return the servers in the order of a round. Each round begins with another server, so that none always
    follows the same one."""
    at = number % len(servers)
    return [*servers[at:], *servers[:at]]


def compare_servers(case: Row, unit: str, found: Mapping[str, Sequence[float]], base: str = BARE) -> list[Row]:
    """Return one row per server, with its ratio to `base`. found: the values of each server, one per round."""
    rows = []
    for server, values in found.items():
        low, middle, high = compute_quartiles(values)
        row = {
            **case,
            "server": server,
            "unit": unit,
            "value": round_figure(middle),
            "q1": round_figure(low),
            "q3": round_figure(high),
        }
        if base in found:
            low, middle, high = compute_quartiles(
                [mine / other for mine, other in zip(values, found[base], strict=True)]
            )
            row |= {"ratio": round(middle, 3), "ratio_q1": round(low, 3), "ratio_q3": round(high, 3)}
        rows.append({**row, "rounds": len(values)})
    return rows


def round_figure(value: float) -> float:
    """Round to four digits, which is already more than a shared machine can measure."""
    return float(f"{value:.4g}")
