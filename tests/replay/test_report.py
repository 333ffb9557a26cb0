from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
import pytest

from proxy.context.models import Model
from proxy.context.policy import Policy
from proxy.replay.play import Contender, ConversationResult, ReplaySettings
from proxy.replay.report import ReplayReport, ReportBuilder, format_price_pair
from proxy.replay.score import ReplayTotals

MATCH = ReplaySettings(
    (
        Contender("nothing"),
        Contender("mine:always", Policy("mine", schedule="always")),
        Contender("mask-10", None, "mask-10"),
    ),
    Model("gpt-x*", window=1000, tokenizer="estimate"),
    ((1.25, 0.1), (1.0, 0.5)),
)
WHOLE = ReplayTotals(
    requests=4, prompt=1000, cached=600, peak=300, atoms=10, atoms_kept=10, far_atoms=4, far_atoms_kept=4, in_place=10,
    lines=5, lines_kept=5, far_lines=2, far_lines_kept=2, fetching=[0.0, 0.0],
)  # fmt: skip
PART = ReplayTotals(
    requests=4, prompt=500, cached=400, peak=200, atoms=10, atoms_kept=8, far_atoms=4, far_atoms_kept=2, in_place=5,
    lines=5, lines_kept=4, far_lines=2, far_lines_kept=1, faults=1, fetching=[100.0, 90.0], asks=2, refused=1, failed=3,
    why=Counter({"rule W1": 1, "ValueError: x": 3}),
)  # fmt: skip


def make_builder(*sources: str) -> ReportBuilder:
    made = ReportBuilder(MATCH)
    for source in sources or ("a.jsonl",):
        made.add_result(ConversationResult(source, (WHOLE, PART, PART), {"results": WHOLE, "messages": WHOLE}))
    return made


def shape(value: Any) -> Any:
    """Keys of a JSON value, all the way down."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value else type(value).__name__


KEPT = {"all": "float", "near": "float", "far": "float", "wanted": "int", "wanted_far": "int"}
ROW = {
    "requests": "int", "prompt": "int", "cached": "int", "peak": "int",
    "cost": {
        name: {"paid": "float", "effective": "float", "relative": "float", "effective_relative": "float"}
        for name in ("1.25/0.1", "1/0.5")
    },
    "atoms": KEPT | {"in_place": "float"}, "lines": KEPT | {"in_place": "NoneType"},
    "faults": "float", "written": "int", "asks": "int", "refused": "int", "failed": "int", "why": {},
    "pings": "int",
}  # fmt: skip
ENTRY = {
    "name": "str",
    "kind": "str",
    "policy": "NoneType",
    "schedule": "NoneType",
    "total": ROW,
    "sources": {"a.jsonl": ROW},
}


def test_the_json_has_the_names_that_it_is_known_by() -> None:
    found = json.loads(msgspec.json.encode(make_builder().build_report()))
    assert shape(found) == {
        "format": "int", "tokens": "str", "model": "str", "window": "int", "prices": ["str"], "played_state": "bool",
        "conversations": "int", "requests": "int", "sources": {"a.jsonl": "int"}, "entries": [ENTRY], "bounds": [ENTRY],
        "input": "NoneType", "cache_s": "float", "keep_alive_pings": "int",
    }  # fmt: skip
    assert found["format"] == 1
    assert (
        msgspec.json.decode(msgspec.json.encode(make_builder().build_report()), type=ReplayReport)
        == make_builder().build_report()
    )


def test_costs_are_reported_and_compared_with_doing_nothing() -> None:
    report = make_builder().build_report()
    nothing, mine, plain = report.entries
    paid = 1.25 * 100 + 0.1 * 400
    assert nothing.total.cost["1.25/0.1"].paid == 1.25 * 400 + 0.1 * 600 == 560
    found = mine.total.cost["1.25/0.1"]
    assert (found.paid, found.effective) == (paid, paid + 100)
    assert (found.relative, found.effective_relative) == (round(paid / 560, 4), round((paid + 100) / 560, 4))
    assert [(e.name, e.kind, e.policy, e.schedule) for e in report.entries] == [
        ("nothing", "nothing", None, None),
        ("mine:always", "policy", "mine", "always"),
        ("mask-10", "baseline", None, None),
    ]
    assert [(b.name, b.kind) for b in report.bounds] == [("results", "bound"), ("messages", "bound")]
    assert plain.total == mine.total


def test_kept_references_are_a_share_of_those_wanted() -> None:
    total = make_builder().build_report().entries[1].total
    assert (total.atoms.all, total.atoms.near, total.atoms.far, total.atoms.in_place) == (0.8, 1.0, 0.5, 0.5)
    assert (total.lines.all, total.lines.near, total.lines.far, total.lines.in_place) == (0.8, 1.0, 0.5, None)
    assert (total.faults, total.asks, total.refused, total.failed) == (0.25, 2, 1, 3)
    assert total.why == {"ValueError: x": 3, "rule W1": 1}


def test_sources_are_added_up_each_for_itself_and_all_together() -> None:
    made = make_builder("a.jsonl", "b.jsonl", "a.jsonl")
    report = made.build_report()
    assert (report.sources, report.conversations, report.requests) == ({"a.jsonl": 2, "b.jsonl": 1}, 3, 12)
    entry = report.entries[1]
    assert (entry.sources["a.jsonl"].prompt, entry.sources["b.jsonl"].prompt, entry.total.prompt) == (1000, 500, 1500)
    assert entry.total.cost == {**entry.total.cost}
    assert entry.total.peak == 200
    assert made.request_count == 12


def test_a_report_without_conversations_is_valid() -> None:
    report = ReportBuilder(MATCH).build_report()
    assert (report.requests, report.conversations, report.bounds) == (0, 0, [])
    assert report.entries[0].total.cost["1/0.5"].relative is None
    assert report.entries[0].total.atoms.all is None


@pytest.mark.parametrize(("prices", "text"), [((1.25, 0.1), "1.25/0.1"), ((1.0, 0.5), "1/0.5"), ((2.0, 0.0), "2/0")])
def test_price_pairs_are_written_without_trailing_zeros(prices: tuple[float, float], text: str) -> None:
    assert format_price_pair(prices) == text
