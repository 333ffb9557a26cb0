"""Row B5 on recorded traffic: what each rule flags, what of it is a false alarm, and that planted loops are found.

Printed with `-s`. Exact evidence flags four of 117 conversations, and is right. Hints are hints: `theme_loop` as the
source has it flags one conversation in four, since healthy agents say "I need to" as well. That is why notes are
rate-limited (1.7 % of the requests get one), and why there is `results_end_themes` for those who want fewer.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from proxy.context.analysis.lexicon import LoopSettings
from proxy.context.analysis.loops import LOOP_KINDS
from proxy.context.injections.warn_of_loops import select_loop
from tests.context.loops import PLANTED, find_loops_by_request
from tests.conversations import make_messages

pytestmark = pytest.mark.slow

HINTS = ("theme_loop", "repeated_planning", "no_progress")
EXACT = tuple(kind for kind in LOOP_KINDS if kind not in HINTS)

Flagged = dict[tuple[str, str], list[int]]
"""(file, kind) -> the conversations in which it was spoken of, by their line in the file."""


@cache
def recorded(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The open conversations by file."""
    files = sorted((folder / "replay" / "open").glob("*.jsonl"))
    return {file.stem: [json.loads(line) for line in file.read_text("utf-8").splitlines()] for file in files}


def succeeded(meta: Mapping[str, Any]) -> bool:
    """By the recording's own mark, where it has one; people went on working with the others."""
    return bool(meta.get("reward", 1.0) == 1.0 and meta.get("exit_status", "Submitted") == "Submitted")


def notes(values: list[dict[str, Any]], settings: LoopSettings, kinds: tuple[str, ...]) -> Iterator[str]:
    """The kind of each note that the agent would have been given, rate-limited as the injection does it."""
    told: dict[str, int] = {}
    talk = make_messages(*values)
    for _, found in find_loops_by_request(talk, settings):
        loop = select_loop(found, told, kinds)
        if loop is not None:
            told[loop.kind] = loop.total
            yield loop.kind


def flagged(
    shared: Path, kinds: tuple[str, ...], settings: LoopSettings, *, successful: bool | None = None
) -> tuple[Flagged, int]:
    """(where each kind was spoken of, how many notes that were)."""
    found: Flagged = defaultdict(list)
    count = 0
    for name, conversations in recorded(shared).items():
        for line, one in enumerate(conversations):
            if successful is None or succeeded(one.get("meta") or {}) == successful:
                given = list(notes(one["messages"], settings, kinds))
                count += len(given)
                for kind in sorted(set(given)):
                    found[name, kind].append(line)
    return dict(found), count


def test_b5_exact_evidence_flags_next_to_nothing_and_what_it_flags_is_there(shared: Path) -> None:
    found, count = flagged(shared, EXACT, LoopSettings())
    print(f"exact evidence: {count} notes", found)
    assert found == {
        ("livemcpbench", "same_call"): [14],  # a canvas is made for the third time, with the same result
        ("mini-swe-agent", "same_call"): [5],  # the same patch is written for the third time
        ("swe-agent", "same_text"): [2],  # the same command three times, to the same effect
        ("tau-bench", "same_error"): [2],  # a flight that is not available is asked for three times: the run failed
    }
    assert count == 4


def test_b5_false_alarms_on_successful_runs_are_these(shared: Path) -> None:
    """Of chats, and of agents without tool calls whose observations are not marked as such (`groups.observation`),
    each answer is a thought without a call."""
    found, count = flagged(shared, HINTS, LoopSettings(), successful=True)
    requests = sum(
        m["role"] == "assistant" for ones in recorded(shared).values() for one in ones for m in one["messages"]
    )
    print(f"hints, literally: {count} notes in {requests} requests, on successful runs", found)
    assert found == {
        ("entire-cli", "theme_loop"): [1, 8, 13, 14, 15, 23, 36, 38, 40, 44],
        ("entire-cli", "repeated_planning"): [1],
        ("livemcpbench", "theme_loop"): [13],
        ("mini-swe-agent", "theme_loop"): [0, 1, 2, 5, 6, 7, 8, 13, 15, 17, 19, 23, 24, 25, 26, 27],
        ("rhelm", "theme_loop"): [0, 1],
        ("rhelm", "repeated_planning"): [0, 1],
        ("swe-agent", "repeated_planning"): [0, 1, 2, 3, 4],
        ("tau-bench", "repeated_planning"): [3],
    }
    assert count <= 0.02 * requests


def test_b5_where_new_results_end_themes_false_alarms_are_few(shared: Path) -> None:
    kinds = (*EXACT, "theme_loop", "no_progress")
    found, count = flagged(shared, kinds, LoopSettings(results_end_themes=True), successful=True)
    print(f"themes ended by new results: {count} notes on successful runs", found)
    assert found == {
        ("entire-cli", "theme_loop"): [40],  # a long talk about one plan, with no call between
        ("livemcpbench", "same_call"): [14],
        ("mini-swe-agent", "same_call"): [5],
        ("rhelm", "theme_loop"): [0, 1],  # a year of chats, without tools
        ("swe-agent", "same_text"): [2],
    }


@pytest.mark.parametrize("kind", LOOP_KINDS)
def test_b5_planted_in_recordings_each_loop_is_found(shared: Path, kind: str) -> None:
    every = [one["messages"] for name, ones in recorded(shared).items() if name != "rhelm" for one in ones]
    missed = []
    for seed in range(20):
        chance = random.Random(f"{kind} {seed}")
        values = chance.choice(every)
        ends = [n for n, m in enumerate(values) if m["role"] == "assistant" and n > 1]
        values = values[: chance.choice(ends)]
        talk = make_messages(*values, *PLANTED[kind](chance))
        *_, (_, loops) = find_loops_by_request(talk, LoopSettings())
        if kind not in [loop.kind for loop in loops]:
            missed.append(seed)
    assert missed == []
