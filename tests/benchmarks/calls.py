"""System calls and wake-ups an exchange, of all threads of a server: one client, and sixteen at once.

System calls are those that `strace` counts, where it is there; in a round of their own, since it makes everything slow.
A wake-up is a thread that waited and goes on: Linux counts them as voluntary context switches.
"""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep

from tests.benchmarks.driver import drive, send
from tests.benchmarks.meter import settled
from tests.benchmarks.overhead import CLIENTS, SMALL, Load, load
from tests.benchmarks.rows import Row, compared, turned
from tests.benchmarks.scope import Scope
from tests.benchmarks.starting import Server, field

REQUESTS = 160
TRACER_S = 10.0


def count_wakeups(pid: int) -> int:
    """Voluntary context switches of all threads so far."""
    lines = (
        line.split()
        for task in Path(f"/proc/{pid}/task").iterdir()
        for line in (task / "status").read_text().splitlines()
    )
    return sum(int(found[1]) for found in lines if found[:1] == ["voluntary_ctxt_switches:"])


def woken(server: Server, this: Load) -> float:
    """Wake-ups a request."""
    settled(server.pid)
    before = count_wakeups(server.pid)
    drive(lambda: send(server, this.lines, this.headers))
    settled(server.pid)
    return (count_wakeups(server.pid) - before) / this.requests


def traced(server: Server, this: Load) -> float:
    """System calls a request, by `strace`."""
    settled(server.pid)
    with tempfile.TemporaryDirectory() as folder:
        summary = Path(folder) / "calls"
        command = ["strace", "-f", "-c", "-o", str(summary), "-p", str(server.pid)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as tracer:
            wait_for_tracer(server.pid, tracer)
            drive(lambda: send(server, this.lines, this.headers))
            settled(server.pid)
            tracer.send_signal(signal.SIGINT)
            tracer.wait(TRACER_S)
        lines = [line.split() for line in summary.read_text().splitlines()]
    return next(int(found[3]) for found in lines if found[-1:] == ["total"]) / this.requests


def wait_for_tracer(pid: int, tracer: subprocess.Popen[str]) -> None:
    """Wait until all threads of a process are traced. Raises RuntimeError if the tracer ends before."""
    end = monotonic() + TRACER_S
    while monotonic() < end:
        tasks = [task / "status" for task in Path(f"/proc/{pid}/task").iterdir()]
        if all(f"TracerPid:\t{tracer.pid}\n" in status.read_text() for status in tasks):
            return
        if tracer.poll() is not None:
            break
        sleep(0.01)
    raise RuntimeError(f"strace cannot follow {pid}")


def measure(servers: Sequence[Server], usual: int, scope: Scope) -> list[Row]:
    """Both figures of each server. The first round warms up."""
    clients = scope.few(usual, min(usual, 2))
    each = scope.few(REQUESTS // clients, 2)
    figures: list[tuple[str, Callable[[Server, Load], float]]] = [("wake-ups", woken)]
    if shutil.which("strace"):
        figures.append(("system calls", traced))
    else:
        print("system calls are not counted: strace is not installed", file=sys.stderr)
    rows: list[Row] = []
    for name, count in figures:
        found: dict[str, list[float]] = {server.name: [] for server in servers}
        for number in range(-1, scope.rounds):
            this = load("grows", SMALL, clients, each if number >= 0 else 2, f"{name[0]}{clients}x{number + 1:02}")
            for server in turned(servers, number):
                value = (count if number >= 0 else woken)(server, this)
                if number >= 0:
                    found[server.name].append(value)
        case = {"case": f"{SMALL // 1000} KB, grows: {name}", "clients": clients, "kind": name}
        rows += compared(case, name.split()[-1], found)
    return rows


def run(scope: Scope) -> list[Row]:
    """One client, and sixteen at once."""
    with field() as (_, servers):
        return list(
            itertools.chain.from_iterable(
                measure(servers, clients, scope) for clients in CLIENTS if scope.wants(f"1 KB, grows, x{clients}")
            )
        )
