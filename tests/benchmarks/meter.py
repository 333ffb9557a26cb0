"""What a process has used: processor time of all its threads in nanoseconds, and memory.

Processor time is read from outside, so that neither the driver's nor the upstream's counts, and from the process's own
clock: it is user and kernel time of all threads, those that have ended included, while /proc/PID/stat has steps of
10 ms. Linux only.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

STILL = 0.0003
"""Seconds of processor time in `PAUSE` below which a process has nothing left to do."""
PAUSE = 0.02
PATIENCE = 5.0


@dataclass(frozen=True, slots=True)
class Used:
    """Seconds of processor time: of all threads (and processes, where there are more), of the main thread alone."""

    all: float
    main: float

    def __sub__(self, other: Used) -> Used:
        return Used(self.all - other.all, self.main - other.main)


def used(pid: int) -> Used:
    """What a process and its children have used so far."""
    main = int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9
    return Used(sum(_clock(each) for each in family(pid)), main)


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for each in found:
        for task in _listed(Path(f"/proc/{each}/task")):
            found += [int(child) for child in _text(task / "children").split()]
    return found


def settled(pid: int) -> Used:
    """The same, once the process has done what it puts off until an answer is out: rows are written behind it."""
    end = time.monotonic() + PATIENCE
    before = used(pid)
    while time.monotonic() < end:
        time.sleep(PAUSE)
        now = used(pid)
        if now.all - before.all < STILL:
            return now
        before = now
    return before


def memory(pid: int) -> tuple[int, int]:
    """Bytes in memory (RSS): now, and at most since the process began."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return int(lines["VmRSS"].split()[0]) * 1024, int(lines["VmHWM"].split()[0]) * 1024


def _clock(pid: int) -> float:
    # What clock_getcpuclockid(3) gives for a process, see CPUCLOCK_SCHED in Linux's posix-timers.
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
