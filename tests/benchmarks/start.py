"""The start: processor time of a new process until its first answers, and of `context-proxy --version`."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager

from tests.benchmarks.driver import drive, send
from tests.benchmarks.memory import UNKNOWN
from tests.benchmarks.meter import used
from tests.benchmarks.rows import Row, compared, turned
from tests.benchmarks.scope import Scope
from tests.benchmarks.starting import BARE, COMMAND, PROXY, Server, bare, proxy, upstream
from tests.benchmarks.traffic import MODEL, short

READY = "until it can be asked"
ANSWERED = "until its first answer"
COUNTED = "until its first answer of a model with a vocabulary"
VERSION = "context-proxy --version"
Starter = Callable[[], AbstractContextManager[Server]]


def first_answers(starter: Starter) -> dict[str, float]:
    """Seconds of processor time of one start, which includes Python's own, with what was used up to each moment."""
    counted = short("first").body()
    plain = counted.replace(f'"model": "{MODEL}"'.encode(), UNKNOWN)
    found = {}
    with starter() as server:
        found[READY] = used(server.pid).all
        for case, body in ((ANSWERED, plain), (COUNTED, counted)):
            drive(lambda: send(server, [[body]]))  # noqa: B023
            found[case] = used(server.pid).all
    return found


def version() -> float:
    """Seconds of processor time of the command that ends at once."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([COMMAND, "--version"], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(scope: Scope) -> list[Row]:
    """Each round starts each server once, with a store of its own."""
    cases: dict[str, dict[str, list[float]]] = {READY: {}, ANSWERED: {}, COUNTED: {}, VERSION: {}}
    with upstream() as up:
        starters: dict[str, Starter] = {BARE: lambda: bare(up.port), PROXY: lambda: proxy(up.port)}
        for number in range(scope.rounds):
            scope.say(f"start, round {number + 1}")
            for name in turned(list(starters), number):
                for case, seconds in first_answers(starters[name]).items():
                    cases[case].setdefault(name, []).append(seconds)
            cases[VERSION].setdefault(PROXY, []).append(version())
    return [row for case, found in cases.items() for row in compared({"case": case}, "s", found)]
