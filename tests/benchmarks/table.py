"""Print rows as tables in the terminal, one table per group: one line per case, with the servers side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.benchmarks.rows import Row
from tests.benchmarks.start_servers import BARE, PROXY

MAX_SIDE_BY_SIDE = 4
"""Limit on the servers side by side. More of them get a line each."""
WIDE_COLUMNS = 100
"""Columns of a terminal that is wide enough for the quartiles."""
RED_RATIO = 2.0
"""The ratio to the bare pass-through above which a figure is red."""


@dataclass(frozen=True, slots=True)
class Group:
    """The title of a table, and the note under it."""

    title: str
    note: str
    columns: str = "server"
    """The key of the rows whose values are the columns."""


def print_table(console: Console, group: Group, rows: Sequence[Row]) -> None:
    """Print the table of a group's rows."""
    console.print()
    console.print(Text(group.title, style="bold"))
    console.print(Text(group.note, style="dim"))
    heads = list(dict.fromkeys(row[group.columns] for row in rows))
    wide = console.width >= WIDE_COLUMNS
    if group.columns == "server" and len(heads) > MAX_SIDE_BY_SIDE:
        console.print(_make_long_table(rows, wide=wide))
    else:
        console.print(_make_wide_table(rows, group.columns, heads, wide=wide))
    for line in list_remarks(rows):
        console.print(Text(line, style="yellow"))


def _make_wide_table(rows: Sequence[Row], key: str, heads: Sequence[str], *, wide: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("case")
    rated = {row[key] for row in rows if "ratio" in row and row["server"] != BARE and key == "server"}
    for head in heads:
        table.add_column(head.replace(", ", ",\n").replace("context-proxy", "proxy"), justify="right", no_wrap=True)
        if head in rated:
            table.add_column("of bare", justify="right", no_wrap=True)
            if wide:
                table.add_column("quartiles", justify="right", no_wrap=True, style="dim")
    for case in dict.fromkeys(_label_line(row, key) for row in rows):
        cells = [Text(case)]
        for head in heads:
            row = next((row for row in rows if _label_line(row, key) == case and row[key] == head), None)
            cells.append(Text((format_value if key == "server" else _format_with_ratio)(row) if row else ""))
            if head in rated:
                cells += [format_ratio(row)] + ([Text(format_quartiles(row))] if wide else [])
        table.add_row(*cells)
    return table


def _label_line(row: Row, key: str) -> str:
    """Return the label of a line: the case, and the server if servers are not side by side."""
    return label_case(row) if key == "server" or row["server"] in ("", PROXY) else f"{label_case(row)}, {row['server']}"


def _make_long_table(rows: Sequence[Row], *, wide: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name in ("case", "server"):
        table.add_column(name)
    for name in ("median", "of bare", *(["quartiles"] if wide else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for case in dict.fromkeys(map(label_case, rows)):
        mine = [row for row in rows if label_case(row) == case]
        for n, row in enumerate(mine):
            cells = [Text("" if n else case), Text(row["server"]), Text(format_value(row)), format_ratio(row)]
            table.add_row(*cells, *([Text(format_quartiles(row))] if wide else []), end_section=n == len(mine) - 1)
    return table


def label_case(row: Row) -> str:
    """Return the name of the case with its number of clients."""
    clients = row.get("clients", 1)
    return str(row["case"]) + (f", x{clients}" if clients > 1 else "")


def format_value(row: Row) -> str:
    """Return the median with its unit, or a dash if there is none."""
    return f"{format_number(row['value'])} {row['unit']}" if "value" in row else "-"


def _format_with_ratio(row: Row) -> str:
    """Return the median, with the ratio in parentheses: the bare pass-through has no column of its own here."""
    return format_value(row) + (f" ({row['ratio']:.2f})" if "ratio" in row and row["server"] != BARE else "")


def format_number(value: float) -> str:
    """Return a number with separators, or with three digits if it is small."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def format_quartiles(row: Row | None) -> str:
    """Return the quartiles of the ratio."""
    return f"{row['ratio_q1']:.2f}-{row['ratio_q3']:.2f}" if row and "ratio" in row else ""


def format_ratio(row: Row | None) -> Text:
    """Return the ratio to the bare pass-through: green if it is not above 1, red if it is high."""
    if not row or "ratio" not in row or row["server"] == BARE:
        return Text("")
    value = row["ratio"]
    return Text(
        f"{value:.2f}" if value < 100 else f"{value:,.0f}", style="green" if value <= 1 else _choose_style(value)
    )


def _choose_style(value: float) -> str:
    return "red" if value > RED_RATIO else ""


def list_remarks(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the faults of a measurement: answers that were marked, and cases that failed."""
    for row in rows:
        for what, count in row.get("told", {}).items():
            yield f"{label_case(row)}, {row['server']}: {count} of {row['asked']} answers marked {what}"
    yield from dict.fromkeys(f"{row['server']}: {row['failed']}" for row in rows if "failed" in row)
