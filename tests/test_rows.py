"""Every behaviour of the source designs that a policy has is shown by a test that bears the name of its row.

`test_b3_...` shows row B3 of the feature list, `test_b5_b6_...` two of them. Each row of a policy is shown through the
running proxy too: by a test in a file that starts one (tests/proxy_server.py). Tests of faults have names of the same
form, and stand in folders of their own.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

DESIGNS = {"b": 8, "c": 5, "d": 9, "e": 9}
"""Rows by design: progressive, reflective, importance, hierarchical."""
OPERATOR = ["d5", "d6", "d7", "d8", "d9", "e8"]
"""Shown where operators are served, by fixtures that start the proxy: stats, events, the archive, the widget, functions
over a posted history, and the commands of hierarchical memory."""
ROWS = sorted({f"{design}{n}" for design, last in DESIGNS.items() for n in range(1, last + 1)} - {*OPERATOR})
FAULTS = {"faults", "upstream", "store"}
"""Folders whose tests are named after faults (U1, C3, D9), not after features."""

_NAME = re.compile(r"^ *(?:async )?def test_((?:[a-g]\d{1,2}_)+)", re.MULTILINE)


def named(tests: Path) -> tuple[Counter[str], Counter[str]]:
    """(how many tests show each row, how many of them in a file that starts the proxy)."""
    shown, running = Counter[str](), Counter[str]()
    for path in sorted(tests.rglob("test_*.py")):
        if FAULTS & {*path.relative_to(tests).parts}:
            continue
        text = path.read_text("utf-8")
        starts = re.search(r"^ *from tests\.proxy_server import ", text, re.MULTILINE) is not None
        for found in _NAME.finditer(text):
            rows = found[1].rstrip("_").split("_")
            shown.update(rows)
            running.update(rows if starts else ())
    return shown, running


@pytest.fixture(scope="module")
def found() -> tuple[Counter[str], Counter[str]]:
    return named(Path(__file__).parent)


@pytest.mark.parametrize("row", ROWS)
def test_the_row_has_its_tests(found: tuple[Counter[str], Counter[str]], row: str) -> None:
    shown, running = found
    assert shown[row] > 0
    assert running[row] > 0, "in a unit alone"


@pytest.mark.parametrize("row", OPERATOR)
def test_the_operators_row_has_its_tests(found: tuple[Counter[str], Counter[str]], row: str) -> None:
    assert found[0][row] > 0


def test_a_row_without_a_test_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_b1_it_is(): ...\ndef test_c2(): ...\n")
    text = "from tests.proxy_server import Agent\nasync def test_b2_b3_they_are(): ...\n"
    (tmp_path / "test_two.py").write_text(text)
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "test_three.py").write_text("def test_c3_of_faults(): ...\n")
    shown, running = named(tmp_path)
    assert sorted(shown) == ["b1", "b2", "b3"]
    assert sorted(running) == ["b2", "b3"]
