"""Run the closed loop of ../shared on every policy; write its table and picture into the documentation.

    python tests/benchmarks/closed_loop.py [--policies thrifty,rolling] [--seeds 1,2] [--keep]
    python tests/benchmarks/closed_loop.py --from FILE... --keep

An agent that is a program works in small worlds through the proxy: what the proxy leaves out or shortens changes what
the agent does. The worlds are those of ../shared and our own, `fleet`. `--keep` writes the table into
docs/development/closed-loop.md, and the picture beside the other plots. The exit status is that of the loop: 1 for a
leak, an invalid prompt, an error, or a run without the proxy that is not perfect.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the script is run by its path

from proxy.replay.plot import Axis, make_ratio_axis  # noqa: E402
from tests.benchmarks.plots import COLOURS, TOP, draw_frame, draw_label  # noqa: E402

LOOP = ROOT.parent / "shared" / "replay" / "closed_loop" / "run.py"
MARKS = ROOT / "tests" / "recorded" / "marks.json"
"""The wording of our marks, for the scripted reader."""
OWN_WORLD = ROOT / "tests" / "recorded" / "worlds" / "fleet.py"
PAGE = ROOT / "docs" / "development" / "closed-loop.md"
PICTURE = PAGE.parent / "plots" / "closed-loop.svg"
BEGIN, END = "<!-- closed-loop -->", "<!-- /closed-loop -->"
PICTURE_LINK = f"![Cost and harm of each policy in the closed loop]({PICTURE.relative_to(PAGE.parent)})"
DIRECT = "direct"
ROW_HEIGHT = 34
Row = Mapping[str, Any]


def list_policies(folder: Path = ROOT / "config" / "policies") -> list[str]:
    """The shipped policies that rewrite, the usual one first, after passthrough."""
    tables = {file.stem: tomllib.loads(file.read_text()) for file in sorted(folder.glob("*.toml"))}
    rewriting = [name for name, table in tables.items() if table.get("mode", "rewrite") == "rewrite"]
    return ["passthrough", *sorted(rewriting, key=lambda name: name != "thrifty")]


def make_table(rows: Sequence[Row]) -> str:
    """One line per policy and temperament, over all worlds and seeds. Dollars and requests are relative to no proxy."""
    return "\n".join(_list_table_lines(rows))


def _group(rows: Sequence[Row]) -> Iterator[tuple[str, str, list[Row], list[Row]]]:
    """Yield (policy, temperament, its episodes, the same episodes without the proxy)."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["arm"], row["temperament"]), []).append(row)
    for (arm, temperament), found in groups.items():
        if arm != DIRECT:
            places = {(row["world"], row["seed"]) for row in found}
            beside = [row for row in groups[DIRECT, temperament] if (row["world"], row["seed"]) in places]
            yield arm, temperament, found, beside


def _list_table_lines(rows: Sequence[Row]) -> Iterator[str]:
    yield "| Policy | Agent | Dollars | Requests | Recalls | Misled | Wrong | Lost | Of tasks | Endless |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for arm, temperament, found, beside in _group(rows):
        ratios = " | ".join(f"{_sum(found, name) / _sum(beside, name):.3f}" for name in ("dollars", "requests"))
        counts = " | ".join(str(_sum(found, n)) for n in ("recalls", "misled", "wrong", "lost", "tasks", "endless"))
        yield f"| `{arm}` | {temperament} | {ratios} | {counts} |"


def draw_picture(rows: Sequence[Row]) -> str:
    """Draw one row per policy: the dollars of each temperament as dots, the requests, and the share of failed tasks."""
    policies: dict[str, list[tuple[str, list[Row], list[Row]]]] = {}
    for arm, temperament, episodes, beside in _group(rows):
        policies.setdefault(arm, []).append((temperament, episodes, beside))
    agents = list(dict.fromkeys(name for found in policies.values() for name, *_ in found))
    colours = dict(zip(agents, COLOURS, strict=False))
    bottom = TOP + 24 + ROW_HEIGHT * len(policies)
    dollars = [_sum(a, "dollars") / _sum(b, "dollars") for found in policies.values() for _, a, b in found]
    x = make_ratio_axis([1.0, *dollars], 130, 500)
    legend = [
        f'<circle cx="{140 + 95 * n}" cy="{TOP - 4}" r="5" fill="{colours[name]}"/>'
        f'<text x="{150 + 95 * n}" y="{TOP}">{escape(name)}</text>'
        for n, name in enumerate(agents)
    ]
    heads = [draw_label(570, TOP, "requests", "middle"), draw_label(690, TOP, "tasks that failed", "middle")]
    body = [*legend, *heads, *_draw_grid(x, bottom)]
    for n, (arm, found) in enumerate(policies.items()):
        y = TOP + 30 + ROW_HEIGHT * n
        body.append(f'<text x="120" y="{y + 4}" text-anchor="end">{escape(arm)}</text>')
        body += [
            f'<circle cx="{x.find_pixel(_sum(a, "dollars") / _sum(b, "dollars")):.1f}" cy="{y}" r="5"'
            f' fill="{colours[name]}" fill-opacity="0.8"><title>{escape(name)}</title></circle>'
            for name, a, b in found
        ]
        played = [row for _, episodes, _ in found for row in episodes]
        direct = [row for _, _, beside in found for row in beside]
        body.append(draw_label(570, y + 4, f"{_sum(played, 'requests') / _sum(direct, 'requests'):.3f}", "middle"))
        failed = _sum(played, "wrong") + _sum(played, "lost")
        body.append(draw_label(690, y + 4, f"{failed} of {_sum(played, 'tasks')}", "middle"))
    body.append(draw_label(130, bottom + 40, "dollars in relation to the same episodes without the proxy"))
    return draw_frame("Closed loop: cost and harm by policy", bottom + 56, body)


def _draw_grid(x: Axis, bottom: float) -> Iterator[str]:
    for tick in x.ticks:
        at, kind = x.find_pixel(tick), "least" if tick == 1 else "grid"
        yield f'<line class="{kind}" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP + 12}" y2="{bottom}"/>'
        yield draw_label(at, bottom + 18, f"{tick:g}", "middle")


def describe_run(rows: Sequence[Row]) -> str:
    """Describe the episodes of the table in one sentence."""
    worlds, agents, seeds = (list(dict.fromkeys(row[n] for row in rows)) for n in ("world", "temperament", "seed"))
    return f"Worlds: {', '.join(worlds)}; agents: {', '.join(agents)}; seeds: {', '.join(map(str, seeds))}."


def _sum(rows: Iterable[Row], name: str) -> Any:
    return sum(row[name] for row in rows)


def read_rows(files: Iterable[Path]) -> list[Row]:
    """Return the rows of several runs. A later row replaces an earlier one of the same episode."""
    found = [row for file in files for row in json.loads(file.read_text())]
    known = {(row["arm"], row["world"], row["temperament"], row["seed"]): row for row in found}
    return list(known.values())


def keep_table(table: str, page: Path = PAGE) -> None:
    """Write the link to the picture and the table between the markers."""
    front, _, rest = page.read_text().partition(BEGIN)
    _, _, end = rest.partition(END)
    page.write_text(f"{front}{BEGIN}\n\n{PICTURE_LINK}\n\n{table}\n\n{END}{end}")


def keep_picture(rows: Sequence[Row], file: Path = PICTURE) -> None:
    """Write the picture."""
    file.write_text(draw_picture(rows))


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
        command += ["--marks", str(MARKS), "--world-path", str(OWN_WORLD)]
        files[0].unlink(missing_ok=True)  # else a run that breaks off would be told as the one before it
        status = subprocess.run(command, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, check=False).returncode
        if not files[0].exists():
            print(f"the loop ended with status {status} and left no rows", file=sys.stderr)
            return status or 1
    rows = read_rows(files)
    table = f"{make_table(rows)}\n\n{describe_run(rows)}"
    print(table)
    if asked.keep:
        keep_table(table)
        keep_picture(rows)
    return status


if __name__ == "__main__":
    sys.exit(main())
