from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from proxy.context.policy import Policy
from proxy.replay import plot
from proxy.replay.play import Contender, ConversationResult
from proxy.replay.plot import (
    HEIGHT,
    LEFT,
    TOP,
    WIDTH,
    PlotPoint,
    find_frontier,
    make_ratio_axis,
    make_share_axis,
    render_svg,
)
from proxy.replay.report import ReplayReport, ReportBuilder
from proxy.replay.score import ReplayTotals
from tests.replay.test_report import MATCH, PART, WHOLE, make_builder

SVG = "{http://www.w3.org/2000/svg}"


def parse_plot(report: ReplayReport) -> ET.Element:
    return ET.fromstring(render_svg(report))


def crowd(count: int) -> ReplayReport:
    """Many policies with much the same figures."""
    policies = tuple(Contender(f"policy-{n}:when_it_pays", Policy(f"policy-{n}")) for n in range(count))
    made = ReportBuilder(replace(MATCH, contenders=(Contender("nothing"), *policies)))
    tallies = [replace(PART, prompt=900 + n % 7, lines=1000, lines_kept=990 - n % 5) for n in range(count)]
    made.add_result(
        ConversationResult("a", (WHOLE, *tallies), {"results": WHOLE, "messages": replace(WHOLE, prompt=700)})
    )
    return made.build_report()


def test_the_plot_is_well_formed_and_names_every_policy_once_with_its_cost() -> None:
    root = parse_plot(make_builder().build_report())
    texts = [text.text for text in root.iter(f"{SVG}text")]
    for name in ("nothing 1.00", "mine:always 0.47", "mask-10 0.47"):
        assert texts.count(name) == 2  # once as its own halo
    circles = [circle.get("class") for circle in root.iter(f"{SVG}circle")]
    assert sorted(filter(None, circles)) == ["baseline", "nothing", "policy"]
    assert root.find(f"{SVG}title") is not None


def test_the_plot_marks_its_theoretical_bounds() -> None:
    root = parse_plot(make_builder().build_report())
    assert sum(path.get("class") == "bound" for path in root.iter(f"{SVG}path")) == 2
    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert any(text.startswith("bound: each tool result carried until its last use") for text in texts)


def test_the_plot_is_readable_in_light_and_dark_and_loads_nothing() -> None:
    text = render_svg(make_builder().build_report())
    assert "prefers-color-scheme: dark" in text
    assert "href" not in text
    assert "url(" not in text
    assert text.count("http") == 1  # the name space
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert style.count("{") == style.count("}")


@pytest.mark.parametrize("count", [0, 1, 30])
def test_every_point_and_label_lies_inside(count: int) -> None:
    root = parse_plot(crowd(count))
    for circle in root.iter(f"{SVG}circle"):
        assert LEFT <= float(circle.get("cx", "")) <= WIDTH
        assert TOP <= float(circle.get("cy", "")) <= HEIGHT
    for text in root.iter(f"{SVG}text"):
        if text.get("x"):
            assert 0 <= float(text.get("x", "")) <= WIDTH
            assert 0 <= float(text.get("y", "")) <= HEIGHT


def test_labels_do_not_lie_on_each_other_while_there_is_room() -> None:
    taken: list[plot.Box] = []
    boxes = [plot._place_label(100, 400, 300, taken) for _ in range(8)]
    assert not any(plot._boxes_overlap(a, b) for n, a in enumerate(boxes) for b in boxes[:n])
    crowded = [plot._place_label(100, 400, 300, taken) for _ in range(80)]
    assert all(box[2] - box[0] == 100 for box in crowded)


def test_names_cannot_break_out_of_the_picture() -> None:
    made = ReportBuilder(replace(MATCH, contenders=(Contender("nothing"), Contender('<b a="1">&', Policy("x")))))
    made.add_result(ConversationResult("a", (WHOLE, PART), {"results": WHOLE, "messages": WHOLE}))
    texts = [text.text for text in parse_plot(made.build_report()).iter(f"{SVG}text")]
    assert '<b a="1">& 0.47' in texts


def test_the_frontier_is_what_no_other_beats_in_both() -> None:
    points = [PlotPoint(str(n), "policy", lines, cost) for n, (lines, cost) in enumerate(
        [(1.0, 1.0), (0.9, 0.5), (0.95, 0.8), (0.94, 0.9), (0.9, 0.6), (0.5, 0.5)]
    )]  # fmt: skip
    assert [point.name for point in find_frontier(points)] == ["1", "2", "0"]
    assert find_frontier([]) == []


def test_the_axis_of_ratios_is_logarithmic() -> None:
    axis = make_ratio_axis([0.5, 4.0], 0, 100)
    assert axis.find_pixel(1) - axis.find_pixel(0.5) == pytest.approx(axis.find_pixel(4) - axis.find_pixel(2))
    assert 1 in axis.ticks
    assert 2 < len(axis.ticks) <= 10
    assert 0 < axis.find_pixel(0.5) < axis.find_pixel(4.0) < 100
    assert make_ratio_axis([], 0, 1).find_pixel(0) == 0
    assert make_ratio_axis([1e-6, 1e6], 0, 1).ticks


def test_shares_have_round_ticks_and_none_above_one() -> None:
    for low in (0.0, 0.3, 0.9, 0.99, 1.0):
        axis = make_share_axis([low, 1.0], 0, 100)
        assert axis.ticks[-1] == pytest.approx(1.0)
        assert 2 <= len(axis.ticks) <= 8
        assert 0 <= axis.find_pixel(low) <= axis.find_pixel(1.0) <= 100


def test_without_quoted_lines_every_policy_is_drawn_as_keeping_all() -> None:
    made = ReportBuilder(MATCH)
    made.add_result(ConversationResult("a", (ReplayTotals(requests=1, prompt=10, fetching=[0.0, 0.0]),) * 3, {}))
    assert len(list(parse_plot(made.build_report()).iter(f"{SVG}circle"))) == 3
    assert not list(parse_plot(ReportBuilder(MATCH).build_report()).iter(f"{SVG}circle"))
