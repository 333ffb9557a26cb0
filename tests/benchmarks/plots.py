"""Draw the plots of docs/development/benchmarks.md as SVG, which follows the light or dark theme of the reader."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from proxy.replay.plot import STYLE, Axis
from tests.benchmarks.rows import Row
from tests.benchmarks.start_servers import BARE, PROXY
from tests.benchmarks.table import label_case

WIDTH = 760
LEFT, RIGHT, TOP = 84, 560, 56
LINE_NAMES_X = 572
"""Horizontal position at which the names of the lines begin."""
GREY = "#818b98"
COLOURS = ("#0969da", "#1a7f37", "#bc4c00", "#8250df", "#bf3989", "#1b7c83", "#9a6700")
BAR = 22
Line = tuple[str, Sequence[tuple[float, float]]]
"""A name and its points, x and y."""


def draw_frame(title: str, height: int, body: Iterator[str] | Sequence[str]) -> str:
    """Return a picture of this height with its title."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return "\n".join(
        [
            f'{head} role="img">',
            f"<title>{escape(title)}</title><style>{STYLE}</style>",
            f'<rect class="bg" width="{WIDTH}" height="{height}"/>',
            f'<text class="title" x="16" y="28">{escape(title)}</text>',
            *body,
            "</svg>\n",
        ]
    )


def draw_label(x: float, y: float, text: str, anchor: str = "start") -> str:
    """Return a small text."""
    return f'<text class="soft" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def format_tick(value: float) -> str:
    """Return the number of a tick as text."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def draw_ratios(title: str, rows: Sequence[Row]) -> str:
    """Draw one bar per row: the ratio to the bare pass-through, with the quartiles as a line. The ratio 1 is marked."""
    found = [row for row in rows if "ratio" in row and row["server"] != BARE]
    most = max([2.0, *(row["ratio_q3"] for row in found)]) * 1.05
    start, bottom = 300, TOP + BAR * len(found)
    ticks = tuple(n for n in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200) if n <= most)
    x = Axis(min(0.2, *(row["ratio_q1"] for row in found)) * 0.9, most, start, WIDTH - 60, ticks, log=True)

    def body() -> Iterator[str]:
        for tick in (t for t in ticks if t >= x.low):
            kind = "least" if tick == 1 else "grid"
            yield (
                f'<line class="{kind}" x1="{x.find_pixel(tick):.1f}" x2="{x.find_pixel(tick):.1f}"'
                f' y1="{TOP - 8}" y2="{bottom}"/>'
            )
            yield draw_label(x.find_pixel(tick), bottom + 18, f"{tick:g}", "middle")
        for n, row in enumerate(found):
            y = TOP + n * BAR
            name = label_case(row) + (f" ({row['server'].rpartition(', ')[2]})" if row["server"] != PROXY else "")
            yield f'<text x="{start - 8}" y="{y + 11}" text-anchor="end">{escape(name)}</text>'
            kind = "bound" if row["ratio"] <= 1 else "policy"
            yield (
                f'<rect class="{kind}" x="{start}" y="{y}"'
                f' width="{x.find_pixel(row["ratio"]) - start:.1f}" height="14"/>'
            )
            low, high = x.find_pixel(row["ratio_q1"]), x.find_pixel(row["ratio_q3"])
            yield f'<line class="edge" x1="{low:.1f}" x2="{high:.1f}" y1="{y + 7}" y2="{y + 7}"/>'
            yield draw_label(max(high, x.find_pixel(row["ratio"])) + 6, y + 11, f"{row['ratio']:.2f}")
        yield draw_label(start, bottom + 38, "times what FastAPI + httpx takes that does nothing")

    return draw_frame(title, bottom + 52, body())


def draw_lines(title: str, below: str, unit: str, drawn: Sequence[Line]) -> str:
    """Draw lines on two logarithmic axes, so that linear growth has a slope of 1."""
    height, bottom = 400, 344
    xs = sorted({x for _, points in drawn for x, _ in points})
    ys = [y for _, points in drawn for _, y in points if y > 0]
    low, high = 10 ** math.floor(math.log10(min(ys))), 10 ** math.ceil(math.log10(max(ys)))
    ticks = tuple(10.0**n for n in range(round(math.log10(low)), round(math.log10(high)) + 1))
    across = Axis(xs[0], max(xs[-1], xs[0] * 1.1), LEFT + 10, RIGHT - 10, tuple(xs), log=True)
    up = Axis(low, max(high, low * 10), bottom, TOP, ticks, log=True)

    def body() -> Iterator[str]:
        for tick in ticks:
            y = f"{up.find_pixel(tick):.1f}"
            yield f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y}" y2="{y}"/>'
            yield draw_label(LEFT - 6, up.find_pixel(tick) + 4, f"{format_tick(tick)} {unit}", "end")
        for tick in xs:
            yield draw_label(across.find_pixel(tick), bottom + 20, format_tick(tick), "middle")
        yield f'<text x="{(LEFT + RIGHT) / 2}" y="{bottom + 44}" text-anchor="middle">{escape(below)}</text>'
        taken: list[float] = []
        colours = itertools.cycle(COLOURS)
        for name, points in drawn:
            colour = GREY if BARE in name else next(colours)
            path = " ".join(f"{across.find_pixel(x):.1f},{up.find_pixel(y):.1f}" for x, y in points)
            yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
            for at, value in points:
                yield (
                    f'<circle cx="{across.find_pixel(at):.1f}" cy="{up.find_pixel(value):.1f}" r="3" fill="{colour}"/>'
                )
            beside = _find_free_height(up.find_pixel(points[-1][1]) + 4, taken)
            yield f'<text x="{LINE_NAMES_X}" y="{beside:.1f}" style="fill: {colour}">{escape(name)}</text>'

    return draw_frame(title, height, body())


def _find_free_height(wanted: float, taken: list[float]) -> float:
    """Find the nearest height at which there is no other name."""
    steps = itertools.chain.from_iterable((wanted + n * 3, wanted - n * 3) for n in range(100))
    found = next(at for at in steps if all(abs(at - other) >= 14 for other in taken))
    taken.append(found)
    return found


def group_lines(rows: Sequence[Row], x: str, name: Callable[[Row], str]) -> list[Line]:
    """Group rows into lines by name. x: the key of the rows for the horizontal axis."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if (at := _parse_number(row.get(x))) and row["value"] > 0:
            found.setdefault(name(row), []).append((at, row["value"]))
    return list(found.items())


def _parse_number(value: Any) -> float:
    return float(str(value or 0).replace(",", ""))


def name_server_line(row: Row) -> str:
    """Name the line of a server."""
    return str(row["server"])


def name_operation_line(row: Row) -> str:
    """Name the line of an operation of the store, short enough to be written beside the line."""
    name = str(row["case"]).partition(" (")[0]
    return f"{name}, bare" if row["server"] == BARE else name


def draw_plots(results: Mapping[str, Any]) -> dict[str, str]:
    """Draw the pictures of the measured groups, by the names of their files."""
    made: dict[str, str] = {}
    rows = {name: found["rows"] for name, found in results.items() if isinstance(found, dict) and "rows" in found}
    if "overhead" in rows:
        made["overhead"] = draw_ratios("Processor time a request", rows["overhead"])
    if "streams" in rows:
        mine = [row for row in rows["streams"] if row["what"] == "processor"]
        made["streams"] = draw_ratios("Processor time a stream of 100 chunks", mine)
    if "dialects" in rows:
        made["dialects"] = draw_ratios("Processor time a request, by dialect", rows["dialects"])
    if "growth" in rows:
        title = "Processor time a request by length of its history, two messages of it new"
        made["growth"] = draw_lines(
            title, "messages of 1.7 KB", "us", group_lines(rows["growth"], "messages", name_server_line)
        )
    if "sessions" in rows:
        title = "Processor time a request by live sessions"
        made["sessions"] = draw_lines(
            title, "live sessions", "us", group_lines(rows["sessions"], "live", name_server_line)
        )
    if "store" in rows:
        title = "Processor time by rows stored"
        made["store"] = draw_lines(
            title, "rows stored", "us", group_lines(rows["store"], "stored", name_operation_line)
        )
    if "planning" in rows:
        title = "What planning costs: processor time by policy and length of the conversation"
        made["planning"] = draw_lines(
            title, "messages of 2,000 characters", "ms", group_lines(rows["planning"], "messages", _name_policy_line)
        )
    if "peers" in rows:
        mine = [row for row in rows["peers"] if "ratio" in row]
        cases = list(dict.fromkeys(map(label_case, mine)))
        mine.sort(key=lambda row: cases.index(label_case(row)))
        made["peers"] = draw_ratios("Processor time beside others", mine)
    return made


def _name_policy_line(row: Row) -> str:
    return str(row["case"])
