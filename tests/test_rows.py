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

FEATURES = {
    "a2": "the window of groups or tokens",
    "a3": "each stored message bears the wire format that it was made for",
    "a4": "tool traffic goes only to an upstream of the format that it was made for",
    "a5": "calls and texts are read from a stored message by its wire format",
    "a6": "tool results are cut by age, in three tiers",
    "a7": "the hint of a truncated result, with the id to recall it",
    "a8": "the model's own STATE block",
    "a9": "the order of guidelines, anchor, scratchpad and memos in a prompt",
    "a10": "the scratchpad",
    "a13": "memos, and those that fit the user's message",
    "a14": "the budget, and what leaves when a prompt does not fit",
    "b1": "progressive: results, thoughts and research are separate streams",
    "b2": "progressive: the iteration, and its maximum",
    "b3": "progressive: what stays at which iteration, and the countdown",
    "b4": "progressive: the progress note",
    "b5": "progressive: loops and their warnings",
    "b6": "progressive: a warning is repeated only when its count has doubled",
    "b7": "progressive: thresholds by model, and the urgency",
    "b8": "progressive: the settings of loops, and the limit in tokens",
    "c1": "reflective: records of iterations",
    "c2": "reflective: who writes a reflection, and how it is read",
    "c3": "reflective: a line for each call, ranked",
    "c4": "reflective: the note for an agent that is stuck",
    "c5": "reflective: calls that are not reflected on, and batches",
    "d1": "importance: the score of a message",
    "d2": "importance: what stays under the budget",
    "d3": "importance: the limits of models",
    "d4": "importance: the summary of old messages",
    "d5": "importance: figures of a session",
    "d6": "importance: events of pruning and summarising",
    "d7": "importance: what was pruned is listed and can be restored",
    "d8": "importance: the widget",
    "d9": "importance: functions over a posted history",
    "e1": "hierarchical: four levels with budgets and ages",
    "e2": "hierarchical: what belongs to which level",
    "e3": "hierarchical: the priority of a step",
    "e4": "hierarchical: the order of compression, and summaries of summaries",
    "e5": "hierarchical: what is compressed or retrieved in which situation",
    "e6": "hierarchical: the word index",
    "e7": "hierarchical: pinned messages",
    "e8": "hierarchical: commands of the operator",
    "e9": "hierarchical: figures of compression, and compression ahead of time",
    "g1": "predicted and reported cache hits",
    "g2": "replay of recorded conversations under several policies",
    "g8": "the activity record",
    "t1": "a failed run is never reported as a success",
    "t2": "a failed edit is no edit, and source text is no error",
    "t3": "the order of the entries of the activity record",
    "t4": "the lines that a stub keeps of a run",
    "t5": "the first line of a stub says something",
    "t6": "the names that a stub lists",
}
"""Each row in words. Rows `b` to `e` are those of the designs from which policies are taken; `a`, `g` and `t` are the
proxy's own. Rules (`w`: `proxy/context/validate.py`) and promises (`p`: docs/development/promises.md) are elsewhere."""
OPERATOR = ["d5", "d6", "d7", "d8", "d9", "e8"]
"""Shown where operators are served, by fixtures that start the proxy: stats, events, the archive, the widget, functions
over a posted history, and the commands of hierarchical memory."""
ROWS = sorted(row for row in FEATURES if row[0] in "bcde" and row not in OPERATOR)
FAULTS = {"faults", "upstream", "store", "web"}
"""Folders whose tests are named after faults (U1, C3, D9), not after features."""
SERVED = {"api", "dashboard"}
"""Folders in `web` whose tests are named after features all the same."""

_NAME = re.compile(r"^ *(?:async )?def test_((?:[a-gt]\d{1,2}_)+)", re.MULTILINE)


def count_named_tests(tests: Path) -> tuple[Counter[str], Counter[str]]:
    """(how many tests show each row, how many of them in a file that starts the proxy)."""
    shown, running = Counter[str](), Counter[str]()
    for path in sorted(tests.rglob("test_*.py")):
        folders = {*path.relative_to(tests).parts}
        if FAULTS & folders and not SERVED & folders:
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
    return count_named_tests(Path(__file__).parent)


@pytest.mark.parametrize("row", ROWS)
def test_each_behaviour_of_a_source_design_has_a_running_test(
    found: tuple[Counter[str], Counter[str]], row: str
) -> None:
    shown, running = found
    assert shown[row] > 0
    assert running[row] > 0, "in a unit alone"


@pytest.mark.parametrize("row", OPERATOR)
def test_the_operators_row_has_its_tests(found: tuple[Counter[str], Counter[str]], row: str) -> None:
    assert found[0][row] > 0


def test_every_row_that_a_test_names_is_explained(found: tuple[Counter[str], Counter[str]]) -> None:
    assert set(found[0]) <= set(FEATURES)


def test_a_row_without_a_test_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_b1_it_is(): ...\ndef test_c2(): ...\n")
    text = "from tests.proxy_server import Agent\nasync def test_b2_b3_they_are(): ...\n"
    (tmp_path / "test_two.py").write_text(text)
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "test_three.py").write_text("def test_c3_of_faults(): ...\n")
    shown, running = count_named_tests(tmp_path)
    assert sorted(shown) == ["b1", "b2", "b3"]
    assert sorted(running) == ["b2", "b3"]
