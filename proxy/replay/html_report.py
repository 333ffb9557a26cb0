"""A report as one HTML file that can be sent to others: a conclusion, a chart and a table for each price pair.

The file loads nothing: the chart library, the style and the figures are in it, and its policy forbids every request.
"""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import Any, Final

import msgspec

from proxy.replay.report import NOTHING, ReplayReport, ReportEntry
from proxy.replay.table import find_cheapest

SECURITY_POLICY: Final = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
STYLE: Final = """
:root { color-scheme: light dark; --paper: light-dark(#fbfaf7, #131314); --ink: light-dark(#1d1c19, #eceae4);
  --soft: light-dark(#5b584f, #aaa79f); --line: light-dark(#e4e0d7, #2b2d30); --cost: light-dark(#1f5f5b, #7ccbc0);
  --kept: light-dark(#b5721f, #dfa055); }
body { margin: 0 auto; max-width: 1000px; padding: 24px 16px 60px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0 0 4px; } h2 { font-size: 1.1rem; margin: 32px 0 8px; }
.soft { color: var(--soft); } .conclusion { font-size: 1.1rem; border-left: 4px solid var(--cost); padding-left: 12px; }
.legend span { margin-right: 18px; } .legend i { display: inline-block; width: 11px; height: 11px; margin-right: 6px; }
.cost { background: var(--cost); } .kept { background: var(--kept); }
.scrolls { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } .best td { font-weight: 650; }
.plot { height: 320px; overflow: hidden; } caption { text-align: left; color: var(--soft); padding-bottom: 6px; }
"""
NOTE: Final = (
    "Cost counts fetching again what a policy took out and the agent quoted later. Doing nothing is 100 %. Lines kept "
    "are those that the agent quoted later and that still stood in its prompt. Made by context-proxy replay. The "
    "charts are drawn by uPlot 1.6.32 (MIT)."
)
SCRIPT: Final = """
"use strict";
const found = JSON.parse(document.getElementById("figures").textContent);
const colour = (name) => getComputedStyle(document.querySelector(`.legend .${name}`)).backgroundColor;
const soft = () => getComputedStyle(document.querySelector(".soft")).color;
const lines = () => getComputedStyle(document.querySelector("td")).borderBottomColor;
const bars = (name, label, align) => ({ label, stroke: () => colour(name), fill: () => colour(name), width: 0,
  points: { show: false }, paths: uPlot.paths.bars({ size: [0.36, 40], align }) });
const axis = { stroke: soft, font: "12px system-ui, sans-serif", ticks: { show: false } };
for (const box of document.querySelectorAll(".plot")) {
  const { names, cost, kept } = found[box.dataset.prices];
  const size = () => ({ width: box.clientWidth, height: 320 });
  const plot = new uPlot({ ...size(), legend: { show: false }, cursor: { show: false }, padding: [8, 8, 0, 0],
    scales: { x: { time: false, range: [-0.6, names.length - 0.4] },
      y: { range: (_, low, high) => [0, Math.max(1, high) * 1.05] } },
    axes: [{ ...axis, grid: { show: false }, incrs: [1], space: 12, size: 120, rotate: -50,
      values: (_, at) => at.map((n) => names[n] ?? "") },
      { ...axis, grid: { stroke: lines, width: 1 }, values: (_, at) => at.map((one) => `${Math.round(one * 100)} %`) }],
    series: [{}, bars("cost", "effective cost", -1), bars("kept", "lines kept", 1)] },
    [names.map((_, n) => n), cost, kept], box);
  addEventListener("resize", () => plot.setSize(size()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plot.redraw(false));
}
"""


def render_html(report: ReplayReport) -> str:
    """Return the report as a whole HTML document."""
    figures = {prices: _list_plot_values(report, prices) for prices in report.prices}
    model = "" if report.model == "*" else f", {report.model}"
    sources = ", ".join(f"{name} ({count:,})" for name, count in report.sources.items())
    style = _read_library("uPlot.min.css") + STYLE
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{SECURITY_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Policies compared</title><style>{style}</style></head>\n<body><h1>Policies compared</h1>\n"
        f'<p class="soft">{report.describe_size()}{escape(model)}: '
        f"{escape(sources)}</p>\n"
        f'<p class="conclusion">{escape(conclude(report))}</p>\n'
        + "\n".join(_render_section(report, prices) for prices in report.prices)
        + f'\n<p class="soft">{NOTE}</p>\n'
        f'<script type="application/json" id="figures">{_encode_json(figures)}</script>\n'
        f"<script>{_read_library('uPlot.iife.min.js')}</script>\n<script>{SCRIPT}</script></body></html>\n"
    )


def conclude(report: ReplayReport) -> str:
    """Return in one sentence which policy costs least and keeps enough."""
    best = find_cheapest(report)
    prices = report.prices[0]
    share = best.total.cost[prices].effective_relative if best is not None else None
    if best is None or share is None:
        return (
            "These conversations do not show which policy is cheapest: too little was quoted again, or nothing kept it."
        )
    kept = f"{_format_percent(best.kept_share)} of what was quoted later"
    if best.kind == NOTHING:
        return f"Doing nothing costs least here: every policy that keeps enough costs more at {prices}."
    return f"{best.name} costs least: {_format_percent(1 - share)} less than doing nothing at {prices}. It kept {kept}."


def _render_section(report: ReplayReport, prices: str) -> str:
    best = find_cheapest(report)
    write, _, read = escape(prices).partition("/")
    rows = "".join(_render_row(entry, prices, is_best=entry is best) for entry in report.entries)
    heads = ("Policy", "Cost", "Cost without refetching", "Lines kept", "Names kept", "Missed", "Refused")
    return (
        f"<h2>Prices {write} and {read}: a token that the cache is written for, and one that it serves</h2>"
        '<p class="legend"><span><i class="cost"></i>cost</span><span><i class="kept"></i>lines kept</span></p>'
        f'<div class="plot" data-prices="{escape(prices)}" role="img" aria-label="Cost and lines kept of each policy; '
        'the table has the same figures"></div>'
        '<div class="scrolls" tabindex="0"><table><thead><tr>'
        + "".join(f'<th scope="col">{head}</th>' for head in heads)
        + f"</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _render_row(entry: ReportEntry, prices: str, *, is_best: bool) -> str:
    total, cost = entry.total, entry.total.cost[prices]
    cells = (
        entry.name,
        _format_percent(cost.effective_relative),
        _format_percent(cost.relative),
        _format_percent(total.lines.all),
        _format_percent(total.atoms.all),
        _format_percent(total.faults),
        str(total.refused + total.failed),
    )
    row = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr class="best">{row}</tr>' if is_best else f"<tr>{row}</tr>"


def _list_plot_values(report: ReplayReport, prices: str) -> dict[str, Any]:
    return {
        "names": [entry.name for entry in report.entries],
        "cost": [entry.total.cost[prices].effective_relative for entry in report.entries],
        "kept": [entry.kept_share for entry in report.entries],
    }


def _format_percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f} %"


def _encode_json(value: object) -> str:
    """Return JSON that cannot end the element that it is in."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")


def _read_library(name: str) -> str:
    return files("proxy.web.dashboard").joinpath("static").joinpath(name).read_text("utf-8")
