"""How much of everything is measured."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass


def quietly(_: str) -> None:
    """Say nothing."""


def loudly(text: str) -> None:
    """On stderr."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Scope:
    """rounds: how often each case is measured. quick: whether only to see that all of it runs; then the figures mean
    nothing."""

    rounds: int = 5
    quick: bool = False
    only: str = ""
    """Part of the names of the cases that are measured; empty: all."""
    say: Callable[[str], None] = quietly
    """Told what is measured next."""

    def wants(self, case: str) -> bool:
        """Whether a case is measured; if so it is announced."""
        if self.only not in case:
            return False
        self.say(case)
        return True

    def few(self, usual: int, least: int) -> int:
        """How many of something: as many as usual, or as few as can be."""
        return least if self.quick else usual
