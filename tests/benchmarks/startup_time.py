"""Processor time of a new process until its first answers, and of `context-proxy --version`."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager

from tests.benchmarks.driver import send_all
from tests.benchmarks.memory import MODEL_WITHOUT_VOCABULARY
from tests.benchmarks.meter import read_processor_time
from tests.benchmarks.rows import Row, compare_servers, rotate_order
from tests.benchmarks.scope import Scope
from tests.benchmarks.start_servers import BARE, COMMAND, PROXY, Server, start_bare, start_proxy, start_upstream
from tests.benchmarks.traffic import MODEL, make_short

READY = "until it can be asked"
ANSWERED = "until its first answer"
COUNTED = "until its first answer of a model with a vocabulary"
VERSION = "context-proxy --version"
Starter = Callable[[], AbstractContextManager[Server]]


def measure_first_answers(starter: Starter) -> dict[str, float]:
    """Start a server; return the seconds of processor time until each event. The start of Python is included."""
    counted = make_short("first").body()
    plain = counted.replace(f'"model": "{MODEL}"'.encode(), MODEL_WITHOUT_VOCABULARY)
    found = {}
    with starter() as server:
        found[READY] = read_processor_time(server.pid).total
        for case, body in ((ANSWERED, plain), (COUNTED, counted)):
            send_all(server, [[body]])
            found[case] = read_processor_time(server.pid).total
    return found


def measure_version_command() -> float:
    """Return the seconds of processor time of `context-proxy --version`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([COMMAND, "--version"], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(scope: Scope) -> list[Row]:
    """Start each server once per round, with a store of its own."""
    cases: dict[str, dict[str, list[float]]] = {READY: {}, ANSWERED: {}, COUNTED: {}, VERSION: {}}
    with start_upstream() as up:
        starters: dict[str, Starter] = {BARE: lambda: start_bare(up.port), PROXY: lambda: start_proxy(up.port)}
        for number in range(scope.rounds):
            scope.report(f"start, round {number + 1}")
            for name in rotate_order(list(starters), number):
                for case, seconds in measure_first_answers(starters[name]).items():
                    cases[case].setdefault(name, []).append(seconds)
            cases[VERSION].setdefault(PROXY, []).append(measure_version_command())
    return [row for case, found in cases.items() for row in compare_servers({"case": case}, "s", found)]
