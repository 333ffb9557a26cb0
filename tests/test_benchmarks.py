"""The benchmarks run, and docs/ tells what the kept figures say. No figure is judged here: machines differ."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.benchmarks import dialects, write_docs
from tests.benchmarks.overhead import CLIENTS, KINDS
from tests.benchmarks.run import SUITES
from tests.benchmarks.start_servers import BARE, PROXY
from tests.benchmarks.wire_formats import WIRE_FORMATS

RUN = Path(__file__).parent / "benchmarks" / "run.py"
NAMED = [name for name, suite in SUITES.items() if not suite.only_if_named]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a quick run."""
    found = tmp_path_factory.mktemp("bench")
    command = [sys.executable, str(RUN), "--quick", "--folder", str(found)]
    wide = {**os.environ, "COLUMNS": "120"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=wide)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert all(SUITES[name].group.title in done.stdout for name in NAMED)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_each_benchmark_group_writes_all_its_rows(folder: Path, name: str) -> None:
    rows = json.loads((folder / "results.json").read_text())[name]["rows"]
    assert rows
    for row in rows:
        assert row["case"]
        assert isinstance(row["value"], float | int)
        assert row["unit"]
        assert "failed" not in row
    if name == "overhead":
        assert len(rows) == 2 * len(KINDS) * len(CLIENTS) * len({BARE, PROXY})
    if name == "dialects":
        assert len(rows) == len(dialects.KINDS) * len(CLIENTS) * len(WIRE_FORMATS) * len({BARE, PROXY})


@pytest.mark.slow
def test_plots_are_drawn_of_what_was_measured(folder: Path) -> None:
    drawn = {path.stem for path in folder.glob("*.svg")}
    assert drawn == {*NAMED} - {"memory", "loop", "start", "calls"}
    for path in folder.glob("*.svg"):
        assert ET.parse(path).getroot().tag.endswith("svg")


def test_the_page_says_what_the_kept_figures_say() -> None:
    text = write_docs.PAGE.read_text("utf-8")
    assert write_docs.fill_markers(text, json.loads(write_docs.RESULTS.read_text())) == text


def test_every_plot_that_is_kept_is_shown_on_a_page() -> None:
    shown = "".join(page.read_text("utf-8") for page in write_docs.PAGE.parent.glob("*.md"))
    for path in write_docs.PLOTS.glob("*.svg"):
        assert f"(plots/{path.name})" in shown
