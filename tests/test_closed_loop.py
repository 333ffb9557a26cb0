"""The table of the closed loop: made from its rows, and with a line for each shipped policy that rewrites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.benchmarks import closed_loop
from tests.benchmarks.closed_loop import (
    BEGIN,
    END,
    PAGE,
    PICTURE_LINK,
    describe_run,
    keep_picture,
    keep_table,
    list_policies,
    make_table,
    read_rows,
)


def row(arm: str, seed: int, **more: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("recalls", "misled", "wrong", "lost", "endless"), 0)
    return {
        "arm": arm, "world": "w", "temperament": "trusting", "seed": seed, "dollars": 1.0, "requests": 10, "tasks": 5,
        **counts, **more,
    }  # fmt: skip


def test_dollars_and_requests_are_in_relation_to_the_same_episodes_without_the_proxy() -> None:
    rows = [row("direct", 1), row("direct", 2, dollars=99.0), row("thrifty", 1, dollars=0.5, requests=11, wrong=2)]
    assert make_table(rows).splitlines()[2:] == ["| `thrifty` | trusting | 0.500 | 1.100 | 0 | 0 | 2 | 0 | 5 | 0 |"]


def test_the_page_says_which_episodes_stand_behind_its_table() -> None:
    assert describe_run([row("direct", 1), row("direct", 2)]) == "Worlds: w; agents: trusting; seeds: 1, 2."


def test_a_later_run_replaces_the_same_episode(tmp_path: Path) -> None:
    for name, dollars in (("a", 0.5), ("b", 0.25)):
        (tmp_path / name).write_text(json.dumps([row("direct", 1), row("thrifty", 1, dollars=dollars)]))
    assert "| 0.250 |" in make_table(read_rows([tmp_path / "a", tmp_path / "b"]))


def test_a_run_that_breaks_off_is_not_reported_like_the_run_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".benchmarks").mkdir()
    (tmp_path / ".benchmarks" / "closed_loop.json").write_text(json.dumps([row("direct", 1), row("thrifty", 1)]))
    (tmp_path / "run.py").write_text("import sys; sys.exit(3)")
    monkeypatch.setattr(closed_loop, "ROOT", tmp_path)
    monkeypatch.setattr(closed_loop, "LOOP", tmp_path / "run.py")
    monkeypatch.setattr("sys.argv", ["closed_loop.py"])
    assert closed_loop.main() == 3
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "the loop ended with status 3 and left no rows\n")


def test_the_table_is_kept_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"Front.\n\n{BEGIN}\nold\n{END}\n\nEnd.\n")
    keep_table("| new |", page)
    assert page.read_text() == f"Front.\n\n{BEGIN}\n\n{PICTURE_LINK}\n\n| new |\n\n{END}\n\nEnd.\n"


def test_the_page_has_every_policy_that_rewrites() -> None:
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    for policy in list_policies():
        assert f"| `{policy}` |" in table


def test_the_picture_has_a_dot_for_each_agent_and_says_how_many_tasks_failed(tmp_path: Path) -> None:
    rows = [row("direct", 1), row("thrifty", 1, dollars=0.5, requests=11, wrong=1, lost=1)]
    keep_picture(rows, tmp_path / "picture.svg")
    picture = ET.fromstring((tmp_path / "picture.svg").read_text())
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"thrifty", "1.100", "2 of 5"} <= set(texts)
    legend, dot = picture.iter("{http://www.w3.org/2000/svg}circle")
    assert legend.get("fill") == dot.get("fill")
