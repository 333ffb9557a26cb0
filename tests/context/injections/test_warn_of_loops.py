"""Rows B5 to B7: what is said of loops, how often, and how urgently."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from proxy.context.analysis.lexicon import LoopSettings
from proxy.context.analysis.loops import LOOP_KINDS, Loop
from proxy.context.injections import BUILT_IN_INJECTIONS
from proxy.context.injections.warn_of_loops import TEXTS, WarnOfLoops, select_loop
from proxy.context.plan import Insert
from proxy.context.stage import make_injection
from proxy.context.summaries import placeholders
from proxy.errors import ConfigError
from tests.context.research import make_plan, make_step
from tests.conversations import Json, assistant, build_view, change_view, user

PLANS = [assistant(t) for t in ("I need to plan", "Let me plan my approach", "Planning to search")]
SOURCE = "ERROR: You're repeating yourself. Take action immediately."


def list_loop_warnings(values: Sequence[Json], injection: WarnOfLoops | None = None, **more: object) -> list[Insert]:
    view = change_view(build_view([user("a"), *values]), **more)
    return list((injection or WarnOfLoops())(view))


def test_b5_the_theme_loop_is_reported_in_the_sources_words() -> None:
    (insert,) = list_loop_warnings(PLANS)
    assert insert.text.strip() == SOURCE
    assert (insert.place, insert.persistent, insert.note_count) == ("tail", False, ("theme_loop", 3))
    assert list_loop_warnings(PLANS[:2]) == []


def test_b5_a_note_says_what_was_seen() -> None:
    (insert,) = list_loop_warnings([m for n in range(3) for m in make_step("read", "x", None, f"c{n}", path="y")])
    assert "read was called 3 times with the same arguments" in insert.text
    (insert,) = list_loop_warnings(
        [m for n in range(3) for m in make_step("run", "Error: no {braces}", None, f"c{n}", q=n)]
    )
    assert 'the same error 3 times: "Error: no {braces}". Change' in insert.text


def test_b5_five_times_is_told_more_strongly() -> None:
    same = [m for n in range(5) for m in make_step("read", "x", None, f"c{n}", path="y")]
    assert list_loop_warnings(same[:6])[0].note_count == ("same_call", 3)
    assert list_loop_warnings(same[:8], note_counts={"same_call": 3}) == []
    assert list_loop_warnings(same, note_counts={"same_call": 3})[0].note_count == ("same_call_still", 5)
    assert "Do not call it" in list_loop_warnings(same, note_counts={"same_call": 3})[0].text


def test_b6_a_kind_is_reported_once_and_again_when_its_count_has_doubled() -> None:
    told: dict[str, int] = {}
    at = []
    for n in range(3, 26):
        values = [m for k in range(n) for m in make_step("search", f"r{k}", "I need to look", f"c{k}", q=k)]
        for insert in list_loop_warnings(values, WarnOfLoops(kinds=("theme_loop",)), note_counts=told):
            assert insert.note_count is not None
            told = {**told, insert.note_count[0]: insert.note_count[1]}
            at.append(n)
    assert at == [3, 6, 12, 24]


def test_b6_kinds_are_counted_apart() -> None:
    found = [Loop("theme_loop", 4, 4, "planning"), Loop("same_error", 3, 3, "x")]
    assert select_loop(found, {"theme_loop": 3}) == found[1]
    assert select_loop(found, {"theme_loop": 3, "same_error": 2}) is None
    assert select_loop(found, {}) == found[0]


def test_one_note_at_most_and_none_for_what_another_kind_says_better() -> None:
    both = [Loop("same_call", 3, 3, "x"), Loop("no_progress", 5, 5, "")]
    assert select_loop(both, {}) == both[0]
    assert select_loop(both, {"same_call": 3}) is None
    assert select_loop(both, {"same_call": 3}, ("no_progress",)) == both[1]
    assert len(list_loop_warnings([*PLANS, *PLANS[:1]])) == 1


def test_b7_gentle_is_polite_and_off_is_silent() -> None:
    (gentle,) = list_loop_warnings(PLANS, WarnOfLoops(urgency="gentle"))
    assert "ERROR" not in gentle.text
    assert "3 thoughts were about planning" in gentle.text
    assert list_loop_warnings(PLANS, WarnOfLoops(urgency="off")) == []
    assert list_loop_warnings(PLANS, options={"urgency": "off"}) == []
    assert list_loop_warnings(PLANS, WarnOfLoops(urgency="off"), options={"urgency": "firm"})[0].text.strip() == SOURCE


@pytest.mark.parametrize("level", ["firm", "gentle"])
@pytest.mark.parametrize("kind", LOOP_KINDS)
def test_b7_every_kind_has_words_of_every_urgency(kind: str, level: str) -> None:
    text = TEXTS[kind, level]
    assert text
    assert "<" not in placeholders.fill(text, RUN=3, WHAT="x")


def test_b7_the_words_are_settings_a_kind_and_an_urgency_each() -> None:
    own = {"kind": "theme_loop", "urgency": "firm", "text": "<RUN> Mal <WHAT>."}
    injection = make_injection({"use": "warn_of_loops", "texts": [own]}, BUILT_IN_INJECTIONS)
    assert isinstance(injection, WarnOfLoops)
    assert list_loop_warnings(PLANS, injection)[0].text.strip() == "3 Mal planning."
    (gentle,) = list_loop_warnings(PLANS, injection, options={"urgency": "gentle"})
    assert "3 thoughts were about planning" in gentle.text


@pytest.mark.parametrize(
    "own",
    [
        {"kind": "theme_loops", "urgency": "firm", "text": "x"},
        {"kind": "theme_loop", "urgency": "off", "text": "x"},
        {"kind": "theme_loop", "urgency": "firm", "text": ""},
        {"kind": "theme_loop", "urgency": "firm", "text": "<RUNS>"},
        {"kind": "no_progress", "urgency": "firm", "text": "<WHAT>"},
        {"kind": "theme_loop", "urgency": "firm"},
        {"kind": "theme_loop", "urgency": "firm", "text": "x", "loud": True},
        "theme_loop",
    ],
)
def test_b7_words_that_cannot_be_used_are_refused_at_the_start(own: object) -> None:
    with pytest.raises(ConfigError, match=r"injections\.warn_of_loops\.texts"):
        make_injection({"use": "warn_of_loops", "texts": [own]}, BUILT_IN_INJECTIONS)


def test_settings_of_another_kind_are_refused() -> None:
    for wrong in ({"kinds": ("theme",)}, {"urgency": "loud"}, {"themes": (1,)}):
        with pytest.raises(ConfigError):
            WarnOfLoops(**wrong)


def test_b8_the_settings_of_the_warnings_are_those_of_loops() -> None:
    injection = WarnOfLoops(theme_window=2, consecutive_threshold=4)
    assert isinstance(injection, LoopSettings)
    assert list_loop_warnings(PLANS[:2], injection)[0].note_count == ("theme_loop", 2)


def test_b5_the_note_goes_where_the_upstream_takes_it() -> None:
    made = make_plan([user("a"), *PLANS[:2], *make_step("search", "x", "I need to search")])
    assert [(n, i.source) for n, i in made.placed_inserts] == [(4, "warn_of_loops")]
