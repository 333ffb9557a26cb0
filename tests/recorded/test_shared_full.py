"""All recorded agent runs, and the figures that `thrifty` has to reach on them. Asked for with `-m full_replay`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recorded.play import read
from tests.recorded.strict import text_of
from tests.recorded.test_shared import AGENTS, DEAR, OPEN, PRICES, WAYS, Rows, assert_sound, score

pytestmark = [pytest.mark.full_replay, pytest.mark.long]

FAR_APART = ("stream and header",)
"""One of the four ways, as most clients ask; each of the four is tested on the sample."""
SHARES = ("recall_far", "lines", "in_place_text", "faults", "outcomes_cut", "outcomes_failed_cut", "misleading")


def figures(rows: Rows) -> Iterator[str]:
    """A line a file: cost and effective at every pair of prices relative to doing nothing, and the shares."""
    for name, row in rows.items():
        costs = [f"{price} {row[f'cost@{price}'] / row[f'plain@{price}']:.3f}" for price in PRICES]
        worth = [f"{price} {row[f'effective@{price}'] / row[f'plain@{price}']:.3f}" for price in PRICES]
        shares = [f"{share} {row[share]}" for share in SHARES]
        told = (
            f"cost {', '.join(costs)}",
            f"effective {', '.join(worth)}",
            ", ".join(shares),
            f"{row['median_ms']} ms",
        )
        yield f"{name}: {'; '.join(told)}"


@pytest.mark.parametrize("way", FAR_APART)
def test_thrifty_pays_on_all_agent_runs(
    shared: Path, tmp_path: Path, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = score(shared, tmp_path, "thrifty", AGENTS, *WAYS[way])
    with capsys.disabled():
        print(f"\nthrifty, {way}, relative to doing nothing\n  " + "\n  ".join(figures(rows)))
    assert_sound(rows)
    total = rows["TOTAL"]
    assert total[f"cost@{DEAR}"] <= 0.77 * total[f"plain@{DEAR}"]
    assert total[f"effective@{DEAR}"] <= 0.79 * total[f"plain@{DEAR}"]
    assert total["recall_far"] >= 0.997
    assert total["lines"] >= 0.978
    assert total["in_place_text"] >= 0.967, "the numbers of a listing left aside: most of them are thinned out"
    assert total["faults"] <= 0.010
    assert min(total["outcomes_cut"], total["outcomes_failed_cut"]) >= 0.95
    assert (total["misleading"], total["false_claims"]) == (0, 0)
    above = [
        f"{name} at {price}"
        for name in rows
        for price in PRICES
        if rows[name][f"effective@{price}"] > rows[name][f"plain@{price}"]
    ]
    assert above == [], "nowhere dearer than doing nothing"


@pytest.mark.again
def test_rolling_is_sound_on_all_agent_runs(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = score(shared, tmp_path, "rolling", AGENTS, "--stream")
    with capsys.disabled():
        print("\nrolling, relative to doing nothing\n  " + "\n  ".join(figures(rows)))
    assert_sound(rows)


@pytest.mark.again
@pytest.mark.parametrize("policy", ["thrifty", "rolling"])
def test_a_state_that_the_model_plays_is_never_seen(shared: Path, tmp_path: Path, policy: str) -> None:
    # Where the scorer adds a block to an answer it takes away the white space that the answer begins with.
    folder = shared / OPEN
    recorded = [m for name in AGENTS for c in read(folder / f"{name}.jsonl") for m in c["messages"]]
    texts = [text_of(m.get("content")) for m in recorded if m["role"] == "assistant" and not m.get("tool_calls")]
    unlike = sum(text[:1].isspace() for text in texts)
    assert unlike < 20
    assert_sound(score(shared, tmp_path, policy, AGENTS, "--play-state", "--stream"), unlike=unlike)


@pytest.mark.again
def test_recorded_chats_of_years_are_replayed_without_faults(shared: Path, tmp_path: Path) -> None:
    assert_sound(score(shared, tmp_path, "thrifty", ("rhelm",), "--stream"))
