"""Write the tables of docs/development/benchmarks.md, between their markers, from the figures in `results.json`.

    python tests/benchmarks/write_docs.py [--from .benchmarks] [--check]

With `--from`, the figures of that run are first copied to `results.json` here, and its plots to docs/. A test compares
the documentation with `results.json`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.plots import draw_plots
from tests.benchmarks.rows import Row
from tests.benchmarks.start_servers import BARE
from tests.benchmarks.table import format_number, format_value, label_case, list_remarks

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "development" / "benchmarks.md"
RESULTS, PLOTS = HERE / "results.json", PAGE.parent / "plots"
COLUMNS = {"planning": "messages", "store": "stored"}
"""The key of the rows whose values are the columns of a group's table; the server for all other groups."""


def make_table(name: str, rows: Sequence[Row]) -> str:
    """Return the table of a group in Markdown."""
    key = COLUMNS.get(name, "server")
    heads = list(dict.fromkeys(row[key] for row in rows))
    if key == "server" and len(heads) > 4:
        return "\n".join(_list_servers_below(rows))
    return "\n".join(_list_side_by_side(rows, key, heads))


def _list_side_by_side(rows: Sequence[Row], key: str, heads: Sequence[str]) -> Iterator[str]:
    yield "| | " + " | ".join(heads) + " |"
    yield "|---|" + "---|" * len(heads)
    for case in dict.fromkeys(_label_line(row, key) for row in rows):
        cells = []
        for head in heads:
            row = next((row for row in rows if _label_line(row, key) == case and row[key] == head), None)
            cells.append(format_cell(row) if row else "")
        yield f"| {case} | " + " | ".join(cells) + " |"
    if notes := list(list_remarks(rows)):
        yield "\n" + "; ".join(notes) + "."


def _list_servers_below(rows: Sequence[Row]) -> Iterator[str]:
    servers = list(dict.fromkeys(row["server"] for row in rows))
    cases = list(dict.fromkeys(label_case(row) for row in rows))
    yield "| | " + " | ".join(cases) + " |"
    yield "|---|" + "---|" * len(cases)
    for server in servers:
        mine = {label_case(row): row for row in rows if row["server"] == server}
        yield f"| {server} | " + " | ".join(format_cell(mine[case]) if case in mine else "" for case in cases) + " |"
    for why in dict.fromkeys(f"{row['server']}: {row['failed']}" for row in rows if "failed" in row):
        yield f"\n`{why}`"


def _label_line(row: Row, key: str) -> str:
    if key == "server" or not row["server"]:
        return label_case(row)
    return f"{label_case(row)}, {row['server']}"


def format_cell(row: Row) -> str:
    """Return the figure, and its ratio to the bare pass-through in bold."""
    if "ratio" not in row or row["server"] == BARE:
        return format_value(row)
    middle = f"{row['ratio']:.2f}" if row["ratio"] < 100 else format_number(row["ratio"])
    spread = f" ({row['ratio_q1']:.2f} to {row['ratio_q3']:.2f})" if row["rounds"] > 1 else ""
    return f"{format_value(row)}, **{middle}**{spread}"


def fill_markers(text: str, results: Mapping[str, Any]) -> str:
    """Return the text with the parts between `<!-- bench:NAME -->` and `<!-- /bench:NAME -->` replaced."""
    parts = {name: make_table(name, found["rows"]) for name, found in results.items() if name != "machine"}
    parts["machine"] = results["machine"]
    for name, content in parts.items():
        start, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
        between = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
        text = between.sub(lambda _, new=f"{start}\n\n{content}\n\n{end}": new, text)  # type: ignore[misc]  # bound
    return text


def keep_results(folder: Path) -> None:
    """Copy the figures and plots of a run here. Groups that it did not measure stay as they are."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    kept |= json.loads((folder / "results.json").read_text())
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    PLOTS.mkdir(exist_ok=True)
    for name, picture in draw_plots(kept).items():
        (PLOTS / f"{name}.svg").write_text(picture)


def main() -> None:
    """Write the tables of the page, or check that they are current."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--from", dest="folder", type=Path, help="the folder of a run whose figures are copied here first"
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 where the documentation drifts"
    )
    args = parser.parse_args()
    if args.folder:
        keep_results(args.folder)
    before = PAGE.read_text("utf-8")
    after = fill_markers(before, json.loads(RESULTS.read_text()))
    if args.check and before != after:
        raise SystemExit(
            "docs/development/benchmarks.md does not say what results.json says: python tests/benchmarks/write_docs.py"
        )
    PAGE.write_text(after, "utf-8")


if __name__ == "__main__":
    main()
