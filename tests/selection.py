"""Leaves files uncollected in which `-m` selects no test, and puts those first that take longest.

To collect a file costs its import and the imports of its subject, in each worker. The marks of a file's tests are found
in its text: `pytestmark` on one line has those of all its tests, the rest of it and the `conftest.py` of its folders
have those of some. A mark that a test has from elsewhere is an error of the run (`check_marks`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import chain, combinations
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FAULTS = TESTS / "faults"
OURS = frozenset(("slow", "timed", "long", "faults", "clients", "full_replay", "again"))
LONGEST = (
    "recorded/test_closed_loop.py",
    "test_benchmarks.py",
    "recorded/test_recovering.py",
    "recorded/test_shared.py",
    "recorded/test_own.py",
)
"""Files by the time that they take, from the longest on, where the number of their tests does not tell it."""
NAME = re.compile(r"[A-Za-z_]\w*")
PLAIN = re.compile(r"[\w\s()]+")
PYTESTMARK = re.compile(r"^pytestmark = .*$", re.MULTILINE)
MARK = re.compile(r"\bmark\.(\w+)")


def can_select(expression: str, file: Path) -> bool:
    """True if a test of this file can satisfy the expression of `-m`."""
    if not PLAIN.fullmatch(expression):
        return True
    sure, possible = (marks & _names_of(expression) for marks in find_marks(file))
    subsets = (combinations(possible, count) for count in range(len(possible) + 1))
    return any(_holds(expression, sure.union(some)) for some in chain.from_iterable(subsets))


@cache
def find_marks(file: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return the marks that each test of a file has, and those that some tests may have besides."""
    text = file.read_text("utf-8")
    folders = [folder for folder in file.parents if TESTS in folder.parents]
    around = "".join(_read(folder / "conftest.py") for folder in folders)
    sure = frozenset(MARK.findall("\n".join(PYTESTMARK.findall(text)))) | ({"faults"} if FAULTS in folders else set())
    drawn = {"hypothesis"} if "hypothesis" in text else set()  # the library marks each test of a property
    return sure, frozenset(drawn.union(MARK.findall(text + around))) - sure


def check_marks(items: Iterable[pytest.Item]) -> None:
    """Raise UsageError if a test has a mark that the text of its file does not tell of, for it could be left out."""
    for item in items:
        if TESTS in item.path.parents:
            hidden = {mark.name for mark in item.iter_markers()} - frozenset().union(*find_marks(item.path))
            if wrong := hidden & OURS:
                raise pytest.UsageError(f"{item.nodeid} has a mark that its file does not name: {', '.join(wrong)}")


def sort_longest_first(items: list[pytest.Item]) -> None:
    """Put the files that take longest first, then those with the most tests. Workers take whole files in this order: a
    long one that begins last would leave the other workers with nothing to do."""
    counts = Counter(item.path for item in items)
    ranks = {TESTS / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (ranks.get(item.path, len(ranks)), -counts[item.path], str(item.path)))


@cache
def _names_of(expression: str) -> frozenset[str]:
    return frozenset(NAME.findall(expression)) - {"and", "or", "not", "True", "False"}


def _holds(expression: str, marks: frozenset[str]) -> bool:
    names = {name: name in marks for name in _names_of(expression)}
    return bool(eval(expression, {"__builtins__": {}}, names))


@cache
def _read(file: Path) -> str:
    return file.read_text("utf-8") if file.is_file() else ""
