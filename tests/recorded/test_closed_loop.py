"""The closed loop of ../shared through the running proxy: agents whose every step depends on the prompt that arrived.

One seed of each world and temperament; the agents are programs, so that the figures are the same in every run. The
reader knows our wording by `marks.json`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.proxy_server import run_proxy_in_thread
from tests.raw_upstream import free_port

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
WORLDS = ("tickets", "tests", "customers")
OURS = HERE / "worlds" / "fleet.py"
TEMPERAMENTS = ("trusting", "recalling", "rereading", "forgetful")
SEED = 1
PERFECT = ("lost", "endless", "invalid", "leaks", "errors")
"""Figures of which every count is a fault, in a direct run too."""

Rows = dict[tuple[str, str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def rows(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """The figures of each episode, by (arm, world, temperament)."""
    folder, port = tmp_path_factory.mktemp("closed-loop"), free_port()
    told = folder / "rows.json"
    with run_proxy_in_thread(
        f"http://127.0.0.1:{port}/v1", policy="thrifty", db=str(folder / "store.sqlite3")
    ) as proxy:
        command = [sys.executable, str(shared / "replay" / "closed_loop" / "run.py")]
        command += ["--proxy", proxy.url, "--upstream-port", str(port), "--marks", str(HERE / "marks.json")]
        command += ["--worlds", ",".join(WORLDS), "--world-path", str(OURS), "--seeds", str(SEED), "--json", str(told)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(told.read_text())
    return {(row["arm"], row["world"], row["temperament"]): row for row in found}


def ratio(rows: Rows, figure: str, world: str = "", temperament: str = "") -> float:
    """A figure of the proxy's episodes in relation to the direct ones, of one world and temperament or of all."""
    picked = [key for key in rows if key[1].startswith(world) and key[2].startswith(temperament)]
    sums = {arm: sum(rows[key][figure] for key in picked if key[0] == arm) for arm in ("direct", "proxy")}
    return float(sums["proxy"] / sums["direct"])


EPISODES = [(world, temperament) for world in (*WORLDS, OURS.stem) for temperament in TEMPERAMENTS]


@pytest.mark.parametrize(("world", "temperament"), EPISODES)
def test_no_episode_is_dearer_than_without_the_proxy(rows: Rows, world: str, temperament: str) -> None:
    assert ratio(rows, "dollars", world, temperament) <= 1.0, rows["proxy", world, temperament]


@pytest.mark.parametrize(("world", "temperament"), EPISODES)
def test_nothing_is_lost_and_every_episode_ends(rows: Rows, world: str, temperament: str) -> None:
    for arm in ("direct", "proxy"):
        row = rows[arm, world, temperament]
        assert {figure: row[figure] for figure in PERFECT} == dict.fromkeys(PERFECT, 0), row["why"]


KNOWN = {("tickets", "recalling"): 2}
"""Steps that still went wrong when this was written: edits of a line that a stub showed as it was before an edit."""


@pytest.mark.parametrize(("world", "temperament"), EPISODES)
def test_the_proxy_misleads_no_agent_more_often_than_no_proxy(rows: Rows, world: str, temperament: str) -> None:
    direct, row = rows["direct", world, temperament], rows["proxy", world, temperament]
    for figure in ("misled", "wrong", "failed_edits"):
        assert row[figure] <= direct[figure] + KNOWN.get((world, temperament), 0), row["why"]


def test_the_default_pays_over_the_shared_worlds_and_where_the_agent_recalls(rows: Rows) -> None:
    theirs = {key: row for key, row in rows.items() if key[1] in WORLDS}
    assert ratio(theirs, "dollars") <= 0.70
    assert ratio(theirs, "dollars", temperament="recalling") <= 0.75
    assert ratio(rows, "requests") <= 1.05
