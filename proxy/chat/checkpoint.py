"""Stopping of pure work whose time is over: the caller hands in a check that raises, and long work calls it on its way.

A thread cannot be ended from outside. So what may take long passes a checkpoint before each piece: a fact of a message,
a proposal of a stage. What was found out before stays remembered, and the next attempt goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_CHECK: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


@contextmanager
def checked(check: Callable[[], None]) -> Iterator[None]:
    """Have `check` called at every checkpoint inside, in this thread or task alone. It raises where work is to stop."""
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


def checkpoint() -> None:
    """Raises what the check raises; nothing where there is none."""
    check = _CHECK.get()
    if check is not None:
        check()
