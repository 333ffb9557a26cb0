"""Cancellation of pure work past its deadline: the caller hands in a check that raises, and long work calls the check.

A thread cannot be ended from outside. So long work passes a checkpoint before each piece: a fact of a message, a
proposal of a stage. Results computed before the stop stay remembered, and the next attempt goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_CHECK: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


@contextmanager
def cancellation_check(check: Callable[[], None]) -> Iterator[None]:
    """Have `check` called at every checkpoint inside the block, in this thread or task alone. `check` raises where work
    is to stop."""
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


def checkpoint() -> None:
    """Call the current check, if there is one. Raises what the check raises."""
    check = _CHECK.get()
    if check is not None:
        check()
