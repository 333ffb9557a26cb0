"""The extent of a run: the cases that are measured, and how often."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass


def report_nothing(_: str) -> None:
    """Print nothing."""


def print_progress(text: str) -> None:
    """Print a line to stderr."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Scope:
    """The extent of a run. rounds: number of times that each case is measured. quick: only check that everything runs;
    the figures then mean nothing."""

    rounds: int = 5
    quick: bool = False
    only: str = ""
    """A text that the names of the measured cases contain; empty for all cases."""
    report: Callable[[str], None] = report_nothing
    """Called with the name of the case that is measured next."""

    def selects(self, case: str) -> bool:
        """True if a case is to be measured; then it is reported."""
        if self.only not in case:
            return False
        self.report(case)
        return True

    def choose_count(self, usual: int, least: int) -> int:
        """Return a count for this run: the usual one, or the least possible one of a quick run."""
        return least if self.quick else usual
