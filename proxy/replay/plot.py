"""A report as an SVG picture, written by hand: the effective cost of each policy against its share of lines kept.

Each policy is a point. A line joins the points that no other point beats in both values. The bounds from hindsight are
marked. The colours follow the reader's light or dark theme by CSS alone. The file can therefore be in a README or be
opened by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from proxy.replay.report import ReplayReport, ReportEntry

WIDTH, HEIGHT = 880, 560
LEFT, RIGHT, TOP, BOTTOM = 76, 28, 100, 64
CHARACTER_WIDTH, CHARACTER_HEIGHT = 6.7, 12
"""Width of a label's character, and its height, in pixels: near enough for any sans-serif typeface."""

STYLE = """
    .bg { fill: #ffffff } text { fill: #1f2328; font: 12px system-ui, sans-serif }
    .title { font-size: 16px; font-weight: 600 } .soft { fill: #59636e } .grid { stroke: #d1d9e0; stroke-width: 1 }
    .edge { stroke: #818b98; stroke-width: 1; fill: none } .front { stroke: #0969da; stroke-width: 1.5; fill: none }
    .policy { fill: #0969da } .baseline, .nothing { fill: #818b98 } .bound { fill: #1a7f37 }
    .least { stroke: #1a7f37; stroke-dasharray: 2 4; fill: none } .lead { stroke: #818b98; stroke-width: .7 }
    .halo { fill: none; stroke: #ffffff; stroke-width: 3px; stroke-linejoin: round }
    @media (prefers-color-scheme: dark) {
      .bg { fill: #0d1117 } text { fill: #f0f6fc } .soft { fill: #9198a1 } .grid { stroke: #2a313c }
      .edge { stroke: #656c76 } .front { stroke: #4493f8 } .policy { fill: #4493f8 }
      .baseline, .nothing { fill: #9198a1 } .bound { fill: #3fb950 } .least { stroke: #3fb950 }
      .halo { stroke: #0d1117 }
    }
"""


@dataclass(frozen=True, slots=True)
class PlotPoint:
    """A policy in the picture."""

    name: str
    kind: str
    lines: float
    """Share of lines kept."""
    cost: float
    """Effective cost, relative to doing nothing."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values on a range of pixels."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    """The values of the ticks."""
    log: bool = False
    """True if equal ratios, not equal differences, have equal distances."""

    def find_pixel(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def render_svg(report: ReplayReport) -> str:
    """Return the picture of a report, at its first price pair."""
    points = [p for p in (_make_point(entry, report.prices[0]) for entry in report.entries) if p is not None]
    bounds = [p for p in (_make_point(entry, report.prices[0]) for entry in report.bounds) if p is not None]
    lines = make_share_axis([p.lines for p in (*points, *bounds)], LEFT, WIDTH - RIGHT)
    costs = make_ratio_axis([p.cost for p in (*points, *bounds)], HEIGHT - BOTTOM, TOP)
    body = [
        *_draw_frame(report, lines, costs),
        *_draw_bounds(bounds, lines, costs),
        *_draw_frontier(points, lines, costs),
        *_draw_points(points, bounds, lines, costs),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img">'
    )
    title = f"<title>{escape(_make_title(report))}</title>"
    return "\n".join([head, title, f"<style>{STYLE}</style>", *body, "</svg>"]) + "\n"


def _make_point(entry: ReportEntry, prices: str) -> PlotPoint | None:
    cost = entry.total.cost[prices].effective_relative
    if cost is None:
        return None
    kept = entry.total.lines.all
    return PlotPoint(entry.name, entry.kind, 1.0 if kept is None else kept, cost)


def make_share_axis(values: Sequence[float], start: float, end: float) -> Axis:
    """Return an axis of shares with a margin. Its ticks are round numbers, at most seven and none above 1."""
    low, high = min(values, default=0.9), max(values, default=1.0)
    room = max((high - low) * 0.05, 0.01)
    low, high = low - room, high + room
    step = next(s for s in (0.005, 0.01, 0.02, 0.05, 0.1, 0.2) if (high - low) / s <= 7)
    first = math.floor(low / step) + 1
    ticks = [n * step for n in range(first, first + 8) if 0 <= n * step <= min(high, 1.0) + 1e-9]
    return Axis(low, high, start, end, tuple(ticks))


TICKS = (
    tuple(n / 100 for n in range(5, 1000, 5)),
    (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5),
    (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.3, 1.6, 2, 3, 4, 5, 7, 10),
    (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100),
)
"""Round numbers on an axis of ratios, from near to far apart."""


def make_ratio_axis(values: Sequence[float], start: float, end: float) -> Axis:
    """Return an axis of ratios with a margin and at most ten ticks."""
    positive = [value for value in values if value > 0] or [1.0]
    low, high = min(positive), max(positive)
    room = max((high / low) ** 0.06, 1.02)
    low, high = low / room, high * room
    ticks = next((found for each in TICKS if len(found := [t for t in each if low <= t <= high]) <= 10), [1.0])
    return Axis(low, high, start, end, tuple(ticks), log=True)


def find_frontier(points: Sequence[PlotPoint]) -> list[PlotPoint]:
    """Return the points that no other point beats in both cost and lines, by lines kept."""
    best: list[PlotPoint] = []
    for point in sorted(points, key=lambda p: (-p.lines, p.cost)):
        if not best or point.cost < best[-1].cost:
            best.append(point)
    return best[::-1]


def _make_title(report: ReplayReport) -> str:
    return f"What each policy costs, and what it keeps, at {report.prices[0]}"


def _draw_frame(report: ReplayReport, lines: Axis, costs: Axis) -> Iterator[str]:
    yield f'<rect class="bg" width="{WIDTH}" height="{HEIGHT}"/>'
    yield f'<text class="title" x="{LEFT}" y="32">{escape(_make_title(report))}</text>'
    what = report.describe_size()
    what += f", {report.model}" if report.model != "*" else ""
    how = "further down is cheaper, further right keeps more; on the line stand those that no other beats in both"
    yield f'<text class="soft" x="{LEFT}" y="74">{how}</text>'
    yield f'<text class="soft" x="{LEFT}" y="54">{escape(what)}</text>'
    for tick in costs.ticks:
        y = costs.find_pixel(tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="soft" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_format_number(tick)}</text>'
    for tick in lines.ticks:
        x = lines.find_pixel(tick)
        yield f'<line class="grid" y1="{TOP}" y2="{HEIGHT - BOTTOM}" x1="{x:.1f}" x2="{x:.1f}"/>'
        place = f'x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle"'
        yield f'<text class="soft" {place}>{_format_number(tick)}</text>'
    middle = (TOP + HEIGHT - BOTTOM) / 2
    yield (
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 16}" text-anchor="middle">'
        "lines kept, of those that the agent quoted later</text>"
    )
    yield (
        f'<text transform="translate(20 {middle}) rotate(-90)" text-anchor="middle">effective cost, '
        "doing nothing being 1</text>"
    )
    yield f'<path class="edge" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>'


def _format_number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if value else "0"


def _draw_bounds(bounds: Sequence[PlotPoint], lines: Axis, costs: Axis) -> Iterator[str]:
    for point in bounds:
        x, y = lines.find_pixel(point.lines), costs.find_pixel(point.cost)
        yield f'<line class="least" x1="{LEFT}" x2="{x:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<path class="bound" d="M{x:.1f} {y - 6:.1f}l6 6-6 6-6-6z"/>'
        what = {"results": "tool result", "messages": "message"}[point.name]
        text = f"bound: each {what} carried until its last use"
        yield from _draw_text(f"{text} ({point.cost:.2f})", LEFT + 8, y - 5, "soft")


def _draw_frontier(points: Sequence[PlotPoint], lines: Axis, costs: Axis) -> Iterator[str]:
    path = "".join(
        f"M{x:.1f} {y:.1f}V{below:.1f}H{right:.1f}" for x, y, right, below in _list_stairs(points, lines, costs)
    )
    if path:
        yield f'<path class="front" d="{path}"/>'


def _list_stairs(points: Sequence[PlotPoint], lines: Axis, costs: Axis) -> list[tuple[float, float, float, float]]:
    """Return (x, y, x, y) from each point of the frontier to the next. To keep more lines than the cheaper point one
    pays the cost of the dearer one: a stair, not a slope."""
    best = [(lines.find_pixel(p.lines), costs.find_pixel(p.cost)) for p in find_frontier(points)]
    return [(*one, *after) for one, after in pairwise(best)]


Box = tuple[float, float, float, float]
"""(left, top, right, bottom)"""


def _draw_points(points: Sequence[PlotPoint], bounds: Sequence[PlotPoint], lines: Axis, costs: Axis) -> Iterator[str]:
    places = [(p, lines.find_pixel(p.lines), costs.find_pixel(p.cost)) for p in points]
    taken: list[Box] = [(x - 6, y - 6, x + 6, y + 6) for _, x, y in places]
    for bound in bounds:
        y = costs.find_pixel(bound.cost)
        taken += [
            (LEFT, y - 17, LEFT + 370, y + 1),
            (lines.find_pixel(bound.lines) - 6, y - 6, lines.find_pixel(bound.lines) + 6, y + 6),
        ]
    for x, y, right, above in _list_stairs(points, lines, costs):
        taken += [(x - 2, above, x + 2, y), (x, above - 2, right, above + 2)]
    # Policies choose their places first. A label without a free place is drawn across others, not left out.
    order = sorted(places, key=lambda place: (place[0].kind != "policy", place[2]))
    labels = [(p, x, y, _place_label(len(_make_label(p)) * CHARACTER_WIDTH, x, y, taken)) for p, x, y in order]
    for _, x, y, box in labels:
        near_x, near_y = min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3])
        if abs(near_x - x) + abs(near_y - y) > 16:
            yield f'<line class="lead" x1="{x:.1f}" y1="{y:.1f}" x2="{near_x:.1f}" y2="{near_y:.1f}"/>'
    for point, x, y in places:
        yield f'<circle class="{point.kind}" cx="{x:.1f}" cy="{y:.1f}" r="{5 if point.kind == "policy" else 4}"/>'
    for point, _, _, box in labels:
        # A label to the left of its point ends there, however wide the reader's letters are.
        at, anchor = (box[2], "end") if box[2] < lines.find_pixel(point.lines) else (box[0], "start")
        yield from _draw_text(_make_label(point), at, box[3] - 3, "" if point.kind == "policy" else "soft", anchor)


def _make_label(point: PlotPoint) -> str:
    return f"{point.name} {point.cost:.2f}"


def _place_label(width: float, x: float, y: float, taken: list[Box]) -> Box:
    """Return the nearest free place for a label beside a point, and mark it as taken for the next label."""
    for box in _find_label_places(x, y, width):
        if _is_inside(box) and not any(_boxes_overlap(box, other) for other in taken):
            break
    else:
        box = next(_find_label_places(x, y, width))
    taken.append(box)
    return box


def _draw_text(text: str, x: float, y: float, kind: str, anchor: str = "start") -> Iterator[str]:
    """Yield a text that is readable across lines, twice: not every viewer draws the halo behind it."""
    for each in ("halo", kind):
        yield f'<text class="{each}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _find_label_places(x: float, y: float, width: float) -> Iterator[Box]:
    """Yield places for a label, the nearest first."""
    for far in (9, 22, 36, 52, 70, 92, 120):
        half = CHARACTER_HEIGHT / 2 + 2
        for left, middle in (
            (x - width - far, y),
            (x + far, y),
            (x - width / 2, y - far - half + 2),
            (x - width / 2, y + far + half - 2),
            (x - width - far * 0.7, y - far * 0.8),
            (x - width - far * 0.7, y + far * 0.8),
            (x + far * 0.7, y - far * 0.8),
            (x + far * 0.7, y + far * 0.8),
        ):
            yield (left, middle - half, left + width, middle + half)


def _is_inside(box: Box) -> bool:
    return box[0] >= LEFT + 4 and box[2] <= WIDTH - 4 and box[1] >= TOP - 12 and box[3] <= HEIGHT - BOTTOM - 2


def _boxes_overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
