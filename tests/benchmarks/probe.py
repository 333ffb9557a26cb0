"""How long an event loop is held, sampled on it: by the clock, and of that by the process itself.

A tick comes every millisecond. What comes later than that was kept waiting: by work on the loop, by another thread that
has the interpreter, or by another process that has the processor. What the process itself has used of the processor
between two ticks tells the first two from the last, which matters on a shared machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

TICK = 0.001


class Probe:
    """Writes the longest holds since the last SIGUSR1 into `path` at each of these signals: milliseconds, as JSON."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clock = self._own = 0.0
        self._at = self._spent = 0.0

    def start(self) -> None:
        """On the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGUSR1, self._tell)
        self._at, self._spent = time.perf_counter(), time.process_time()
        self._loop.call_later(TICK, self._tick)

    def _tick(self) -> None:
        now, spent = time.perf_counter(), time.process_time()
        late = now - self._at - TICK
        self._clock = max(self._clock, late)
        self._own = max(self._own, min(late, spent - self._spent))
        self._at, self._spent = now, spent
        self._loop.call_later(TICK, self._tick)

    def _tell(self) -> None:
        self._clock = max(self._clock, time.perf_counter() - self._at - TICK)
        told = json.dumps({"clock": self._clock * 1000, "own": self._own * 1000})
        self._clock = self._own = 0.0
        written = self._path.with_suffix(".new")
        written.write_text(told)
        written.replace(self._path)


def longest(pid: int, path: Path) -> tuple[float, float]:
    """What the process's probe has to say, and begins anew: (by the clock, by the process itself), in milliseconds."""
    path.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    end = time.monotonic() + 20
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{pid} tells nothing of its event loop")
        time.sleep(0.002)
    told = json.loads(path.read_text())
    return told["clock"], told["own"]
