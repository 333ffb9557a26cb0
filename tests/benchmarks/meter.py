"""Processor time and memory of a process, read from outside, so that driver and upstream do not count. Linux only.

Processor time comes from the CPU clock of the process. It is the user and kernel time of all threads, also of those
that have ended, in nanoseconds; /proc/PID/stat has steps of 10 ms.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

IDLE_CPU_S = 0.0003
"""Seconds of processor time within `PAUSE_S` below which a process counts as idle."""
PAUSE_S = 0.02
MAX_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Seconds of processor time: of all threads and child processes, and of the main thread alone."""

    total: float
    main: float

    def __sub__(self, other: ProcessorTime) -> ProcessorTime:
        return ProcessorTime(self.total - other.total, self.main - other.main)


def read_processor_time(pid: int) -> ProcessorTime:
    """Return the processor time that a process and its children have used so far."""
    main = int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9
    return ProcessorTime(sum(_read_process_clock(each) for each in list_process_tree(pid)), main)


def list_process_tree(pid: int) -> list[int]:
    """List the ids of a process and of all its descendants."""
    found = [pid]
    for each in found:
        for task in _list_folder(Path(f"/proc/{each}/task")):
            found += [int(child) for child in _read_text(task / "children").split()]
    return found


def wait_until_idle(pid: int) -> ProcessorTime:
    """Wait until a process is idle; return the processor time that it has used so far.

    The proxy is not idle when its answer has come: it still writes rows.
    """
    end = time.monotonic() + MAX_WAIT_S
    before = read_processor_time(pid)
    while time.monotonic() < end:
        time.sleep(PAUSE_S)
        now = read_processor_time(pid)
        if now.total - before.total < IDLE_CPU_S:
            return now
        before = now
    return before


def read_memory(pid: int) -> tuple[int, int]:
    """Return the resident memory (RSS) in bytes: now, and the maximum since the process began."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return int(lines["VmRSS"].split()[0]) * 1024, int(lines["VmHWM"].split()[0]) * 1024


def _read_process_clock(pid: int) -> float:
    # The clock id that clock_getcpuclockid(3) returns for a process; see CPUCLOCK_SCHED in Linux's posix-timers.
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def _list_folder(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
