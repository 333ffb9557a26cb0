"""System calls and wake-ups per exchange, of all threads of a server: with one client, and with sixteen at once.

`strace` counts the system calls, if it is installed. They are counted in rounds of their own, because a traced process
is slow. A wake-up is a thread that waited and runs again: Linux counts it as a voluntary context switch.
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

from tests.benchmarks.driver import send_all
from tests.benchmarks.meter import wait_until_idle
from tests.benchmarks.overhead import CLIENTS, SMALL, Load, make_load
from tests.benchmarks.rows import Row, compare_servers, rotate_order
from tests.benchmarks.scope import Scope
from tests.benchmarks.start_servers import Server, start_all

REQUESTS = 160
TRACER_TIMEOUT_S = 10.0


def count_wakeups(pid: int) -> int:
    """Voluntary context switches of all threads of a process so far."""
    lines = (
        line.split()
        for task in Path(f"/proc/{pid}/task").iterdir()
        for line in (task / "status").read_text().splitlines()
    )
    return sum(int(found[1]) for found in lines if found[:1] == ["voluntary_ctxt_switches:"])


def measure_wakeups(server: Server, load: Load) -> float:
    """Send the load; return the wake-ups per request."""
    wait_until_idle(server.pid)
    before = count_wakeups(server.pid)
    send_all(server, load.lines, load.headers)
    wait_until_idle(server.pid)
    return (count_wakeups(server.pid) - before) / load.requests


def count_system_calls(server: Server, load: Load) -> float:
    """Send the load under `strace`; return the system calls per request."""
    wait_until_idle(server.pid)
    with tempfile.TemporaryDirectory() as folder:
        summary = Path(folder) / "calls"
        command = ["strace", "-f", "-c", "-o", str(summary), "-p", str(server.pid)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as tracer:
            wait_for_tracer(server.pid, tracer)
            send_all(server, load.lines, load.headers)
            wait_until_idle(server.pid)
            tracer.send_signal(signal.SIGINT)
            tracer.wait(TRACER_TIMEOUT_S)
        lines = [line.split() for line in summary.read_text().splitlines()]
    return next(int(found[3]) for found in lines if found[-1:] == ["total"]) / load.requests


def wait_for_tracer(pid: int, tracer: subprocess.Popen[str]) -> None:
    """Wait until all threads of a process are traced. Raises RuntimeError if the tracer ends before that."""
    end = monotonic() + TRACER_TIMEOUT_S
    while monotonic() < end:
        tasks = [task / "status" for task in Path(f"/proc/{pid}/task").iterdir()]
        if all(f"TracerPid:\t{tracer.pid}\n" in status.read_text() for status in tasks):
            return
        if tracer.poll() is not None:
            break
        sleep(0.01)
    raise RuntimeError(f"strace cannot follow {pid}")


def measure(servers: Sequence[Server], usual: int, scope: Scope) -> list[Row]:
    """Measure wake-ups and system calls of each server. The first round warms up and is not counted."""
    clients = scope.choose_count(usual, min(usual, 2))
    each = scope.choose_count(REQUESTS // clients, 2)
    figures: list[tuple[str, Callable[[Server, Load], float]]] = [("wake-ups", measure_wakeups)]
    if shutil.which("strace"):
        figures.append(("system calls", count_system_calls))
    else:
        print("system calls are not counted: strace is not installed", file=sys.stderr)
    rows: list[Row] = []
    for name, count in figures:
        found: dict[str, list[float]] = {server.name: [] for server in servers}
        for number in range(-1, scope.rounds):
            load = make_load("grows", SMALL, clients, each if number >= 0 else 2, f"{name[0]}{clients}x{number + 1:02}")
            for server in rotate_order(servers, number):
                value = (count if number >= 0 else measure_wakeups)(server, load)
                if number >= 0:
                    found[server.name].append(value)
        case = {"case": f"{SMALL // 1000} KB, grows: {name}", "clients": clients, "kind": name}
        rows += compare_servers(case, name.split()[-1], found)
    return rows


def run(scope: Scope) -> list[Row]:
    """Measure with one client, and with sixteen at once."""
    with start_all() as (_, servers):
        return list(
            itertools.chain.from_iterable(
                measure(servers, clients, scope) for clients in CLIENTS if scope.selects(f"1 KB, grows, x{clients}")
            )
        )
