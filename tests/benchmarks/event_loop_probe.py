"""Samples how long an event loop is held: by the clock, and by the processor time of the process itself.

A tick is due every millisecond. A late tick had to wait: for work on the loop, for another thread that held the
interpreter, or for another process that had the processor. The processor time of the process between two ticks tells
the first two from the last. That matters on a shared machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

TICK_S = 0.001


class EventLoopProbe:
    """Writes the longest holds since the last SIGUSR1 into `path` at each of these signals: milliseconds, as JSON."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._longest_by_clock = self._longest_by_process = 0.0
        self._last_tick = self._last_cpu = 0.0

    def start(self) -> None:
        """Start the ticks on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGUSR1, self._write_holds)
        self._last_tick, self._last_cpu = time.perf_counter(), time.process_time()
        self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        now, spent = time.perf_counter(), time.process_time()
        late = now - self._last_tick - TICK_S
        self._longest_by_clock = max(self._longest_by_clock, late)
        self._longest_by_process = max(self._longest_by_process, min(late, spent - self._last_cpu))
        self._last_tick, self._last_cpu = now, spent
        self._loop.call_later(TICK_S, self._tick)

    def _write_holds(self) -> None:
        self._longest_by_clock = max(self._longest_by_clock, time.perf_counter() - self._last_tick - TICK_S)
        told = json.dumps({"clock": self._longest_by_clock * 1000, "own": self._longest_by_process * 1000})
        self._longest_by_clock = self._longest_by_process = 0.0
        written = self._path.with_suffix(".new")
        written.write_text(told)
        written.replace(self._path)


def read_longest_hold(pid: int, path: Path) -> tuple[float, float]:
    """Return the longest hold since the last call: (by the clock, by the process itself), in milliseconds."""
    path.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    end = time.monotonic() + 20
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{pid} does not report on its event loop")
        time.sleep(0.002)
    told = json.loads(path.read_text())
    return told["clock"], told["own"]
