"""A report as tables that fit the terminal: tokens sent and their cost, and the references that were kept.

Costs are relative to doing nothing, since that is the question: 0.82 saves 18 %. If the columns do not fit side by
side, the tables stand one below the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from proxy.replay.report import NOTHING, ReplayReport, ReportEntry

MIN_LINES_KEPT = 0.95
"""Share of the lines that a policy must keep to be named as the cheapest."""
MIN_WIDE_COLUMNS = 110
"""Width of a terminal, in columns, from which effective costs and kept references are in one table."""

ReportColumn = tuple[str, Callable[[ReportEntry], str]]


def print_report(report: ReplayReport, console: Console) -> None:
    console.print()
    console.print(Text(_render_head(report)), soft_wrap=False)
    for title, columns in _choose_columns(report, console.width):
        console.print(_build_table(report, title, columns))
    for line in _write_notes(report):
        console.print(Text(line))
    console.print(Text(summarize(report)))


def _render_head(report: ReplayReport) -> str:
    window = f", window {report.window:,}" if report.window else ""
    sources = ", ".join(f"{name} ({count})" for name, count in report.sources.items())
    model = "an unknown model" if report.model == "*" else f"model {report.model}"
    pings = f", up to {report.keep_alive_pings} pings after each answer" if report.keep_alive_pings else ""
    return (
        f"{report.describe_size()}: {sources}\n"
        f"{model}{window}, policies decide by {report.prices[0]} (write/read), "
        f"{_describe_cache(report.cache_s)}{pings}, tokens by {report.tokens}"
    )


def _describe_cache(seconds: float | None) -> str:
    return "no cache" if seconds is None else f"cache cold after {seconds / 60:g} min"


def _choose_columns(report: ReplayReport, width: int) -> list[tuple[str, list[ReportColumn]]]:
    sent: list[ReportColumn] = [
        ("prompt", lambda e: _format_tokens(e.total.prompt)),
        ("cached", lambda e: _format_percent(e.total.cached / e.total.prompt if e.total.prompt else None)),
        ("peak", lambda e: f"{e.total.peak / 1000:.1f}k"),
    ]
    paid = [(_stack_headings("cost", p), _make_cost_formatter(p, effective=False)) for p in report.prices]
    effective = [(_stack_headings("eff.", p), _make_cost_formatter(p, effective=True)) for p in report.prices]
    kept: list[ReportColumn] = [
        ("atoms", lambda e: _format_ratio(e.total.atoms.all, 3)),
        (_stack_headings("atoms", "far"), lambda e: _format_ratio(e.total.atoms.far, 3)),
        (_stack_headings("in", "place"), lambda e: _format_ratio(e.total.atoms.in_place, 3)),
        ("lines", lambda e: _format_ratio(e.total.lines.all, 3)),
        (_stack_headings("lines", "far"), lambda e: _format_ratio(e.total.lines.far, 3)),
        ("faults", lambda e: _format_percent(e.total.faults)),
    ]
    costs = ("What is sent and paid, doing nothing being 1", [*sent, *paid])
    again, still = "Effective cost: with what has to be fetched again", "What is still there"
    if width >= MIN_WIDE_COLUMNS:
        return [costs, (f"{again}; and {still[0].lower()}{still[1:]}", [*effective, *kept])]
    return [costs, (again, effective), (still, kept)]


def _stack_headings(above: str, below: str) -> str:
    return f"{above}\n{below}"


def _make_cost_formatter(prices: str, *, effective: bool) -> Callable[[ReportEntry], str]:
    def format_cost(entry: ReportEntry) -> str:
        cost = entry.total.cost[prices]
        return _format_ratio(cost.effective_relative if effective else cost.relative, 2)

    return format_cost


def _build_table(report: ReplayReport, title: str, columns: Sequence[ReportColumn]) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        collapse_padding=True,
    )
    table.add_column("policy", overflow="fold", min_width=10)
    for name, _ in columns:
        table.add_column(Text(name, justify="right"), justify="right", no_wrap=True, vertical="bottom")
    for entry in report.entries:
        style = "dim" if entry.kind in (NOTHING, "baseline") else ""
        table.add_row(Text(entry.name), *(value(entry) for _, value in columns), style=style)
    table.add_section()
    for bound in report.bounds:
        table.add_row(Text(f"bound: {bound.name}"), *(value(bound) for _, value in columns), style="dim")
    return table


def _write_notes(report: ReplayReport) -> list[str]:
    notes = []
    prices = report.prices[0]
    best = find_cheapest(report)
    if best is not None:
        cost = best.total.cost[prices].effective_relative
        notes.append(
            f"Least effective cost at {prices} with {MIN_LINES_KEPT:.0%} of the lines kept:"
            f" {best.name}, {_format_ratio(cost, 2)}."
        )
    elif report.entries and report.entries[0].kept_share is None:
        notes.append("No call refers back to anything that was said before: what a policy loses cannot be told here.")
    for entry in report.entries:
        total = entry.total
        if total.refused or total.failed:
            reasons = "; ".join(f"{reason} ({count})" for reason, count in total.why.items())
            notes.append(f"{entry.name}: {total.refused} plans refused, {total.failed} failed: {reasons}")
        if total.asks:
            notes.append(f"{entry.name}: {total.asks} questions to a helper model are neither asked nor counted.")
    return notes


def summarize(report: ReplayReport) -> str:
    """Return the result in plain sentences: what the prompts cost as they were, and with the cheapest policy."""
    nothing = report.entries[0]
    prices = report.prices[0]
    before = nothing.total.cost[prices].effective
    best = find_cheapest(report) or nothing
    after = best.total.cost[prices].effective
    share = (before - after) / before if before else 0.0
    model = "a model whose price is not known" if report.input is None else report.model
    requests = "1 request" if report.requests == 1 else f"{report.requests:,} requests"
    opening = f"The prompts of {requests}, {_format_tokens(nothing.total.prompt)} tokens, to {model}"
    dollars = [report.convert_to_dollars(cost) for cost in (before, after)]
    if dollars[0] is None or dollars[1] is None:
        costs, saved = "", f"{share:.0%} of their cost"
        hint = " Name the model with --model to see dollars." if report.model == "*" else ""
    else:
        costs, saved = f" cost ${dollars[0]:,.2f} as they were.", f"${dollars[0] - dollars[1]:,.2f} ({share:.0%})"
        hint = ""
    if best is nothing:
        none = f"Nothing here is cheaper and keeps {MIN_LINES_KEPT:.0%} of what is used again."
        return f"{opening}{costs or '.'} {none}{hint}"
    return f"{opening}{costs or '.'} With {best.name} you would save about {saved}.{hint}"


def find_cheapest(report: ReplayReport) -> ReportEntry | None:
    """Return the contender with the least effective cost that keeps enough lines, None if none does."""
    prices = report.prices[0]
    costs = [
        (entry.total.cost[prices].effective, n)
        for n, entry in enumerate(report.entries)
        if entry.kind in ("policy", NOTHING) and (entry.kept_share or 0) >= MIN_LINES_KEPT
    ]
    return report.entries[min(costs)[1]] if costs else None


def _format_tokens(tokens: int) -> str:
    return f"{tokens / 1e6:.1f}M" if tokens >= 1e6 else f"{tokens / 1e3:.1f}k"


def _format_percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


def _format_ratio(share: float | None, digits: int) -> str:
    return "-" if share is None else f"{share:.{digits}f}"
