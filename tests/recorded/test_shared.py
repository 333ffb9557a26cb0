"""The scorer of ../shared, which knows nothing of this package, through the running proxy over real agent runs."""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.proxy_server import run_proxy_in_thread
from tests.raw_upstream import free_port
from tests.recorded import policies
from tests.recorded.scorer import load_scorer

pytestmark = pytest.mark.slow

OPEN = "replay/open"
AGENTS = ("entire-cli", "livemcpbench", "mini-swe-agent", "swe-agent", "tau-bench")
WAYS: dict[str, list[str]] = {
    "plain": [],
    "stream": ["--stream"],
    "header": ["--session-header", "x-session-id"],
    "stream and header": ["--stream", "--session-header", "x-session-id"],
}
PRICES = ("1/0.5", "1/0.25", "1/0.1", "1.25/0.1")
DEAR = "1.25/0.1"

Rows = dict[str, dict[str, Any]]


def run(shared: Path, out: Path, *arguments: str) -> Rows:
    """The scorer's rows, one a file and one for all."""
    scorer = load_scorer(shared)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves closing its files to the interpreter
        patch.setattr(sys, "argv", ["replay_score.py", "--out", str(out), *arguments])
        asyncio.run(scorer.main())
    rows: Rows = json.loads(out.read_text())["rows"]
    return rows


def files(folder: Path, *names: str) -> list[str]:
    return ["--data", *(str(folder / f"{name}.jsonl") for name in names)]


def score(
    shared: Path,
    folder: Path,
    policy: str,
    names: tuple[str, ...],
    *arguments: str,
    data: Path | None = None,
    window: int = 0,
    **more: Any,
) -> Rows:
    """Through a proxy with this policy and an empty store of its own on disk. data: where the files are, else those of
    ../shared; window: what the model is known to have, in tokens; more: settings."""
    port = free_port()
    tree: dict[str, Any] = {
        "policy": policy,
        "policies_dir": policies.write(folder),
        "db": str(folder / "store.sqlite3"),
        "tokens": {"count": "exact"},
        "models_file": policies.window(folder, window) if window else "",
        # What is scored is what is planned; a machine with other work would let the original out after a second.
        "limits": {"plan_ms": 60_000},
        **more,
    }
    with run_proxy_in_thread(f"http://127.0.0.1:{port}/v1", **tree) as proxy:
        where = ["--proxy", proxy.url, "--upstream-port", str(port)]
        rows = run(shared, folder / "rows.json", *where, *files(data or shared / OPEN, *names), *arguments)
        assert proxy.count("fallbacks_total", reason="error") == 0
        assert proxy.count("fallbacks_total", reason="timeout") == 0
    return rows


def assert_sound(rows: Rows, *, unlike: int = 0) -> None:
    """unlike: answers that the scorer itself may have altered."""
    for name, row in rows.items():
        bad = {key: row[key] for key in ("invalid", "altered", "errors")}
        bad["altered"] = max(0, bad["altered"] - unlike)
        assert bad == {"invalid": 0, "altered": 0, "errors": 0}, f"{name}: {row['why']}"
        assert row["steps"] == row["upstream_calls"] > 0, name


SAMPLE = ("livemcpbench", "swe-agent", "tau-bench")
"""The small files, whole."""


def test_without_a_proxy_the_scorer_finds_what_it_says_that_doing_nothing_costs(shared: Path, tmp_path: Path) -> None:
    rows = run(shared, tmp_path / "rows.json", "--direct", *files(shared / OPEN, *SAMPLE))
    for row in rows.values():
        for price in PRICES:
            assert row[f"cost@{price}"] == row[f"effective@{price}"] == row[f"plain@{price}"] > 0


@pytest.mark.parametrize("way", WAYS)
def test_thrifty_is_sound_on_a_sample(shared: Path, tmp_path: Path, way: str) -> None:
    assert_sound(score(shared, tmp_path, "thrifty", SAMPLE, *WAYS[way]))


def test_thrifty_bold_is_sound_on_runs_with_edits(shared: Path, tmp_path: Path) -> None:
    assert_sound(score(shared, tmp_path, "thrifty-bold", ("entire-cli",), "--limit", "2", "--stream"))


def test_thrifty_is_sound_on_long_runs(shared: Path, tmp_path: Path) -> None:
    assert_sound(score(shared, tmp_path, "thrifty", ("entire-cli", "mini-swe-agent"), "--limit", "3", "--stream"))


@pytest.mark.parametrize("policy", policies.ROLLING)
def test_rolling_is_sound_on_a_sample_under_each_schedule(shared: Path, tmp_path: Path, policy: str) -> None:
    assert_sound(score(shared, tmp_path, policy, SAMPLE, "--limit", "3", "--stream"))


@pytest.mark.parametrize("policy", ["thrifty", "rolling"])
def test_a_state_that_the_model_plays_is_never_seen(shared: Path, tmp_path: Path, policy: str) -> None:
    assert_sound(score(shared, tmp_path, policy, ("tau-bench",), "--play-state", "--stream"))


@pytest.mark.long
def test_a_year_of_chats_is_sound(shared: Path, tmp_path: Path) -> None:
    assert_sound(score(shared, tmp_path, "thrifty", ("rhelm",), "--limit", "1", "--session-header", "x-session-id"))
