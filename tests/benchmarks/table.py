"""Rows as tables in the terminal, one a group: a line a case, and what each server takes side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.benchmarks.rows import Row
from tests.benchmarks.starting import BARE, PROXY

ABREAST = 4
"""Servers that have room side by side; more of them stand one under the other."""
ROOM = 100
"""Columns from which quartiles have their place too."""
DEAR = 2.0
"""Times what the bare one takes, from which it is told in red."""


@dataclass(frozen=True, slots=True)
class Group:
    """What a table is called, and what is said under it."""

    title: str
    note: str
    columns: str = "server"
    """What stands side by side: a key of the rows."""


def show(console: Console, group: Group, rows: Sequence[Row]) -> None:
    """Print a table of a group's rows."""
    console.print()
    console.print(Text(group.title, style="bold"))
    console.print(Text(group.note, style="dim"))
    heads = list(dict.fromkeys(row[group.columns] for row in rows))
    wide = console.width >= ROOM
    if group.columns == "server" and len(heads) > ABREAST:
        console.print(_below(rows, wide=wide))
    else:
        console.print(_abreast(rows, group.columns, heads, wide=wide))
    for line in told(rows):
        console.print(Text(line, style="yellow"))


def _abreast(rows: Sequence[Row], key: str, heads: Sequence[str], *, wide: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("case")
    rated = {row[key] for row in rows if "ratio" in row and row["server"] != BARE and key == "server"}
    for head in heads:
        table.add_column(head.replace(", ", ",\n").replace("context-proxy", "proxy"), justify="right", no_wrap=True)
        if head in rated:
            table.add_column("of bare", justify="right", no_wrap=True)
            if wide:
                table.add_column("quartiles", justify="right", no_wrap=True, style="dim")
    for case in dict.fromkeys(_line(row, key) for row in rows):
        cells = [Text(case)]
        for head in heads:
            row = next((row for row in rows if _line(row, key) == case and row[key] == head), None)
            cells.append(Text((measured if key == "server" else _with_ratio)(row) if row else ""))
            if head in rated:
                cells += [ratio(row)] + ([Text(spread(row))] if wide else [])
        table.add_row(*cells)
    return table


def _line(row: Row, key: str) -> str:
    """What a line is headed: where servers do not stand side by side, the server too."""
    return called(row) if key == "server" or row["server"] in ("", PROXY) else f"{called(row)}, {row['server']}"


def _below(rows: Sequence[Row], *, wide: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name in ("case", "server"):
        table.add_column(name)
    for name in ("median", "of bare", *(["quartiles"] if wide else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for case in dict.fromkeys(map(called, rows)):
        mine = [row for row in rows if called(row) == case]
        for n, row in enumerate(mine):
            cells = [Text("" if n else case), Text(row["server"]), Text(measured(row)), ratio(row)]
            table.add_row(*cells, *([Text(spread(row))] if wide else []), end_section=n == len(mine) - 1)
    return table


def called(row: Row) -> str:
    """The case with how many clients it had."""
    clients = row.get("clients", 1)
    return str(row["case"]) + (f", x{clients}" if clients > 1 else "")


def measured(row: Row) -> str:
    """The median with its unit, or that there is none."""
    return f"{amount(row['value'])} {row['unit']}" if "value" in row else "-"


def _with_ratio(row: Row) -> str:
    """Where the bare one does not stand beside it."""
    return measured(row) + (f" ({row['ratio']:.2f})" if "ratio" in row and row["server"] != BARE else "")


def amount(value: float) -> str:
    """A number as one reads it."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(row: Row | None) -> str:
    """The quartiles of the ratio."""
    return f"{row['ratio_q1']:.2f}-{row['ratio_q3']:.2f}" if row and "ratio" in row else ""


def ratio(row: Row | None) -> Text:
    """How many times what the bare pass-through takes."""
    if not row or "ratio" not in row or row["server"] == BARE:
        return Text("")
    value = row["ratio"]
    return Text(f"{value:.2f}" if value < 100 else f"{value:,.0f}", style="green" if value <= 1 else _dear(value))


def _dear(value: float) -> str:
    return "red" if value > DEAR else ""


def told(rows: Sequence[Row]) -> Iterator[str]:
    """What did not go as it should in what was measured."""
    for row in rows:
        for what, count in row.get("told", {}).items():
            yield f"{called(row)}, {row['server']}: {count} of {row['asked']} answers marked {what}"
    yield from dict.fromkeys(f"{row['server']}: {row['failed']}" for row in rows if "failed" in row)
