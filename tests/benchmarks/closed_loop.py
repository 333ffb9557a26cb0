"""The closed loop of ../shared on every policy, and its table in the documentation.

    python tests/benchmarks/closed_loop.py [--policies thrifty,rolling] [--seeds 1,2] [--keep]
    python tests/benchmarks/closed_loop.py --from FILE... --keep

An agent that is a program works in small worlds through the proxy: what the proxy leaves out or shortens changes what
the agent does. `--keep` writes the table into docs/development/closed-loop.md. The exit status is that of the loop: 1
for a leak, an invalid prompt, an error, or a run without the proxy that is not perfect.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LOOP = ROOT.parent / "shared" / "replay" / "closed_loop" / "run.py"
PAGE = ROOT / "docs" / "development" / "closed-loop.md"
BEGIN, END = "<!-- closed-loop -->", "<!-- /closed-loop -->"
DIRECT = "direct"
Row = Mapping[str, Any]


def list_policies(folder: Path = ROOT / "config" / "policies") -> list[str]:
    """The shipped policies that rewrite, the usual one first, after passthrough."""
    tables = {file.stem: tomllib.loads(file.read_text()) for file in sorted(folder.glob("*.toml"))}
    rewriting = [name for name, table in tables.items() if table.get("mode", "rewrite") == "rewrite"]
    return ["passthrough", *sorted(rewriting, key=lambda name: name != "thrifty")]


def make_table(rows: Sequence[Row]) -> str:
    """One line a policy and temperament, over all worlds and seeds; dollars and requests in relation to no proxy."""
    return "\n".join(_lines(rows))


def _lines(rows: Sequence[Row]) -> Iterator[str]:
    yield "| Policy | Agent | Dollars | Requests | Recalls | Misled | Wrong | Lost | Of tasks | Endless |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["arm"], row["temperament"]), []).append(row)
    for (arm, temperament), found in groups.items():
        if arm == DIRECT:
            continue
        places = {(row["world"], row["seed"]) for row in found}
        beside = [row for row in groups[DIRECT, temperament] if (row["world"], row["seed"]) in places]
        ratios = " | ".join(f"{_sum(found, name) / _sum(beside, name):.3f}" for name in ("dollars", "requests"))
        counts = " | ".join(str(_sum(found, n)) for n in ("recalls", "misled", "wrong", "lost", "tasks", "endless"))
        yield f"| `{arm}` | {temperament} | {ratios} | {counts} |"


def describe_run(rows: Sequence[Row]) -> str:
    """The episodes behind the table, in one sentence."""
    worlds, agents, seeds = (list(dict.fromkeys(row[n] for row in rows)) for n in ("world", "temperament", "seed"))
    return f"Worlds: {', '.join(worlds)}; agents: {', '.join(agents)}; seeds: {', '.join(map(str, seeds))}."


def _sum(rows: Iterable[Row], name: str) -> Any:
    return sum(row[name] for row in rows)


def read_rows(files: Iterable[Path]) -> list[Row]:
    """The rows of several runs; a later one replaces an earlier one of the same episode."""
    found = [row for file in files for row in json.loads(file.read_text())]
    known = {(row["arm"], row["world"], row["temperament"], row["seed"]): row for row in found}
    return list(known.values())


def keep_table(table: str, page: Path = PAGE) -> None:
    """Write the table between its markers."""
    front, _, rest = page.read_text().partition(BEGIN)
    _, _, end = rest.partition(END)
    page.write_text(f"{front}{BEGIN}\n\n{table}\n\n{END}{end}")


def main() -> int:
    """Run the loop, or read earlier runs; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default=",".join(list_policies()))
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--from", dest="files", nargs="+", type=Path, default=[])
    parser.add_argument("--keep", action="store_true")
    asked = parser.parse_args()
    status, files = 0, asked.files
    if not files:
        if not LOOP.exists():
            print(f"{LOOP} is not there", file=sys.stderr)
            return 2
        files = [ROOT / ".benchmarks" / "closed_loop.json"]
        files[0].parent.mkdir(exist_ok=True)
        command = [sys.executable, str(LOOP), "--start", str(Path(sys.executable).with_name("context-proxy"))]
        command += ["--policies", asked.policies, "--seeds", asked.seeds, "--json", str(files[0])]
        status = subprocess.run(command, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, check=False).returncode
    rows = read_rows(files)
    table = f"{make_table(rows)}\n\n{describe_run(rows)}"
    print(table)
    if asked.keep:
        keep_table(table)
    return status


if __name__ == "__main__":
    sys.exit(main())
