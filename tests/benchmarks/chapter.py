"""The documentation's chapter on speed: its tables, between markers, made from the figures that are kept beside it.

    python tests/benchmarks/chapter.py [--from .benchmarks] [--check]

With `--from` the figures and plots of that run are kept here first (`results.json`, `plots/`). A test sees that the
documentation says what the kept figures say.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.plots import drawn
from tests.benchmarks.rows import Row
from tests.benchmarks.starting import BARE
from tests.benchmarks.table import amount, called, measured, told

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "development" / "benchmarks.md"
RESULTS, PLOTS = HERE / "results.json", PAGE.parent / "plots"
COLUMNS = {"planning": "messages", "store": "stored"}
"""What stands side by side in a group's table, where it is not the servers."""


def table(name: str, rows: Sequence[Row]) -> str:
    """A group in Markdown."""
    key = COLUMNS.get(name, "server")
    heads = list(dict.fromkeys(row[key] for row in rows))
    if key == "server" and len(heads) > 4:
        return "\n".join(_under(rows))
    return "\n".join(_beside(rows, key, heads))


def _beside(rows: Sequence[Row], key: str, heads: Sequence[str]) -> Iterator[str]:
    yield "| | " + " | ".join(heads) + " |"
    yield "|---|" + "---|" * len(heads)
    for case in dict.fromkeys(_line(row, key) for row in rows):
        cells = []
        for head in heads:
            row = next((row for row in rows if _line(row, key) == case and row[key] == head), None)
            cells.append(cell(row) if row else "")
        yield f"| {case} | " + " | ".join(cells) + " |"
    if notes := list(told(rows)):
        yield "\n" + "; ".join(notes) + "."


def _under(rows: Sequence[Row]) -> Iterator[str]:
    servers = list(dict.fromkeys(row["server"] for row in rows))
    cases = list(dict.fromkeys(called(row) for row in rows))
    yield "| | " + " | ".join(cases) + " |"
    yield "|---|" + "---|" * len(cases)
    for server in servers:
        mine = {called(row): row for row in rows if row["server"] == server}
        yield f"| {server} | " + " | ".join(cell(mine[case]) if case in mine else "" for case in cases) + " |"
    for why in dict.fromkeys(f"{row['server']}: {row['failed']}" for row in rows if "failed" in row):
        yield f"\n`{why}`"


def _line(row: Row, key: str) -> str:
    if key == "server" or not row["server"]:
        return called(row)
    return f"{called(row)}, {row['server']}"


def cell(row: Row) -> str:
    """A figure, and how many times the bare one's it is."""
    if "ratio" not in row or row["server"] == BARE:
        return measured(row)
    middle = f"{row['ratio']:.2f}" if row["ratio"] < 100 else amount(row["ratio"])
    spread = f" ({row['ratio_q1']:.2f} to {row['ratio_q3']:.2f})" if row["rounds"] > 1 else ""
    return f"{measured(row)}, **{middle}**{spread}"


def filled(text: str, results: Mapping[str, Any]) -> str:
    """The text with what stands between `<!-- bench:NAME -->` and `<!-- /bench:NAME -->` made anew."""
    parts = {name: table(name, found["rows"]) for name, found in results.items() if name != "machine"}
    parts["machine"] = results["machine"]
    for name, content in parts.items():
        start, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
        between = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
        text = between.sub(lambda _, new=f"{start}\n\n{content}\n\n{end}": new, text)  # type: ignore[misc]  # bound
    return text


def keep(folder: Path) -> None:
    """Take a run's figures and plots over: what it measured; the others' stay."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    kept |= json.loads((folder / "results.json").read_text())
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    PLOTS.mkdir(exist_ok=True)
    for name, picture in drawn(kept).items():
        (PLOTS / f"{name}.svg").write_text(picture)


def main() -> None:
    """Write the chapter's tables, or see whether they are as they should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="folder", type=Path, help="a run's folder, whose figures are kept from now on")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 where the documentation drifts"
    )
    args = parser.parse_args()
    if args.folder:
        keep(args.folder)
    before = PAGE.read_text("utf-8")
    after = filled(before, json.loads(RESULTS.read_text()))
    if args.check and before != after:
        raise SystemExit(
            "docs/development/benchmarks.md does not say what results.json says: python tests/benchmarks/chapter.py"
        )
    PAGE.write_text(after, "utf-8")


if __name__ == "__main__":
    main()
