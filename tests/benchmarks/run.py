"""Run all benchmarks with one command, `make bench`, or some groups of them.

    python tests/benchmarks/run.py [GROUP ...] [--rounds 5] [--quick] [--folder .benchmarks]

The results are tables in the terminal, and `results.json` and SVG plots in the folder. A group that runs alone replaces
its own rows in that file. `--quick` only checks that everything runs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.benchmarks import (
    dashboard_load,
    dialects,
    disk_writes,
    event_loop,
    growth,
    memory,
    overhead,
    peers,
    planning,
    replicas,
    sessions,
    startup_time,
    store_growth,
    streams,
    system_calls,
)
from tests.benchmarks.machine import describe_machine
from tests.benchmarks.plots import draw_plots
from tests.benchmarks.rows import Row
from tests.benchmarks.scope import Scope, print_progress
from tests.benchmarks.table import Group, print_table


@dataclass(frozen=True, slots=True)
class Suite:
    """A group of cases: the function that measures it, and the title of its table."""

    run: Callable[[Scope], list[Row]]
    group: Group
    only_if_named: bool = False
    """True if the group runs only when it is named."""


SUITES = {
    "overhead": Suite(
        overhead.run,
        Group(
            "Overhead: processor time a request",
            "All threads, user and kernel; the bare one is FastAPI + httpx and does nothing else.",
        ),
    ),
    "streams": Suite(
        streams.run,
        Group(
            "Streams of 100 chunks: processor time a stream, and what is added to the time to the first token",
            "fast: as fast as the upstream can; spaced: 5 ms between two chunks. Time to first token by the clock.",
        ),
    ),
    "dialects": Suite(
        dialects.run,
        Group(
            "Dialects: processor time a request or a stream of 100 chunks",
            "Each beside the bare one that passes on the same bytes. Aim: no dialect dearer than chat completions.",
        ),
    ),
    "calls": Suite(
        system_calls.run,
        Group(
            "System calls and wake-ups an exchange",
            "Of all threads. A wake-up is a thread that waited and goes on.",
        ),
    ),
    "loop": Suite(
        event_loop.run,
        Group(
            "The event loop: for how long it is held at most while something large comes among small requests",
            "Medians of each round's longest hold: by the clock, and of that by the process itself.",
        ),
    ),
    "growth": Suite(
        growth.run,
        Group(
            "Growth with the history: processor time a request, two new messages with each",
            "Messages of 1.7 KB. The last line is the slope over all lengths; it is to be at most 1 above bare.",
        ),
    ),
    "sessions": Suite(
        sessions.run,
        Group(
            "Growth with live sessions: processor time a request",
            "Each request goes on with one of them, drawn at random.",
        ),
    ),
    "store": Suite(
        store_growth.run,
        Group(
            "The store: processor time by rows stored",
            "A whole request of the proxy and of the bare one; and the store's own part, in a process of its own.",
            "stored",
        ),
    ),
    "written": Suite(
        disk_writes.run,
        Group(
            "The store: pages, KB and system calls an exchange",
            "What comes to SQLite's log, and what its writer writes in all. Aim: 8 pages and 40 KB; 60 KB a step.",
        ),
        only_if_named=True,
    ),
    "replicas": Suite(
        replicas.run,
        Group(
            "Replicas on one PostgreSQL: processor time a request, and requests a second",
            "Steps of 1.5 KB; each request goes to the next replica. PostgreSQL syncs nothing to the disk here.",
        ),
        only_if_named=True,
    ),
    "planning": Suite(
        planning.run,
        Group(
            "Planning: processor time of one more request by messages, caches warm, in the process",
            "Messages of 2,000 characters, all known; the window is always too small. Aim: 4 ms for 400.",
            "messages",
        ),
    ),
    "peers": Suite(
        peers.run,
        Group(
            "Beside others: processor time",
            "Each as its makers ship it, in front of the same upstream; only Headroom and this proxy manage contexts.",
        ),
        only_if_named=True,
    ),
    "watching": Suite(
        dashboard_load.run,
        Group(
            "The dashboard: how late tokens come while a session of 1,660 messages is opened",
            "16 streams, 20 ms between two chunks. Aim: by the dashboard no token comes later than 20 ms.",
        ),
        only_if_named=True,
    ),
    "start": Suite(
        startup_time.run,
        Group(
            "The start: processor time of a new process, Python's own included",
            "With a new store; the bare one imports FastAPI and httpx. Aim: 0.6 s, and 0.2 s for --version.",
        ),
    ),
    "memory": Suite(
        memory.run,
        Group(
            "Memory: RSS of the process",
            "Idle under 70 MB, with 1,000 live sessions of 200 KB under 200 MB.",
        ),
    ),
}


def main() -> None:
    """Measure the named groups, print their tables, write their files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", choices=[*SUITES, []], metavar="GROUP", help=", ".join(SUITES))
    parser.add_argument("--rounds", type=int, default=5, help="number of times that each case is measured (5)")
    parser.add_argument(
        "--quick", action="store_true", help="only check that everything runs: the figures mean nothing"
    )
    parser.add_argument("--only", default="", help="measure only cases with this text in their names")
    parser.add_argument("--folder", type=Path, default=Path(".benchmarks"), help="the folder of the results")
    args = parser.parse_args()
    scope = Scope(1 if args.quick else args.rounds, args.quick, args.only, print_progress)
    args.folder.mkdir(parents=True, exist_ok=True)
    path = args.folder / "results.json"
    names = args.groups or [name for name, suite in SUITES.items() if not suite.only_if_named]
    for name in names:
        began = time.monotonic()
        rows = SUITES[name].run(scope)
        if not rows:
            parser.error(f"no case of {name} has {args.only!r} in its name")
        save_rows(path, name, {"at": datetime.now(UTC).isoformat("T", "seconds"), "rows": rows})
        print_progress(f"{name}: {time.monotonic() - began:.0f} s")
    results: dict[str, Any] = json.loads(path.read_text())
    for name, picture in draw_plots(results).items():
        (args.folder / f"{name}.svg").write_text(picture)
    console = Console()
    for name in names:
        print_table(console, SUITES[name].group, results[name]["rows"])
    console.print(f"\n{results['machine']}\nwritten: {path}, and a plot of each group beside it", highlight=False)


def save_rows(path: Path, name: str, found: dict[str, Any]) -> None:
    """Write the rows of a group at once, so that they are not lost if a later group fails."""
    results = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**results, "machine": describe_machine(), name: found}, indent=1))


if __name__ == "__main__":
    main()
