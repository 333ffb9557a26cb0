"""Time limit and pauses of a plan that is made in a worker thread.

The plan calls `check` at each of its checkpoints: 2,000 times for a new history of 218 KB. So a check reads the clock,
which costs 0.1 us, and compares it once. The processor time of the thread costs 1 to 2 us. It is read only when a pause
may be due.
"""

from __future__ import annotations

from time import monotonic, sleep, thread_time

from proxy.errors import NotManaged

UNDIVIDED_S = 0.02
"""Seconds of processor time after which a plan begins to pause. A pause is a third as long as the work before it. So a
history of 2 MB holds the event loop for 6 ms instead of 50. A new one of 218 KB takes less: pauses under load cost it
10 %."""
SLICE_S = 0.0005
"""Seconds of processor time between two pauses of a plan."""


class PlanTimer:
    """Stops a plan after its time limit, or when nobody waits for it, and pauses a plan that takes long.

    The event loop needs the interpreter lock for each socket that is ready, and waits for it each time.
    """

    def __init__(self, allowed_s: float, *, pauses_at_once: bool) -> None:
        """allowed_s: seconds by the clock. pauses_at_once: a person looks at the plan, so it pauses from the start."""
        self.allowed_s = allowed_s
        self._until = monotonic() + allowed_s
        self._undivided = SLICE_S if pauses_at_once else UNDIVIDED_S
        self._stopped = False
        self._pause_at = 0.0  # of the thread's processor time
        # By the clock, which no thread's processor time overtakes. 0 once the plan is to stop.
        self._look_at = 0.0

    def start(self) -> None:
        """Begin in the thread that makes the plan."""
        self._pause_at = thread_time() + self._undivided
        self._look_next(monotonic() + self._undivided)

    def stop(self) -> None:
        """Stop the plan at its next checkpoint. Called from any thread."""
        self._stopped = True
        self._look_at = 0.0

    def check(self) -> None:
        """Pause if that is due. Raises NotManaged if the plan is to stop."""
        now = monotonic()
        if now < self._look_at:
            return
        if now > self._until or self._stopped:
            raise NotManaged("timeout", "planning took longer than limits.plan_ms")
        worked = thread_time()
        if worked > self._pause_at:
            sleep((worked - self._pause_at + SLICE_S) / 3)
            self._pause_at, now = worked + SLICE_S, monotonic()
        self._look_next(now + self._pause_at - worked)

    def _look_next(self, at: float) -> None:
        self._look_at = min(at, self._until)
        if self._stopped:  # by another thread, whose value was overwritten
            self._look_at = 0.0
