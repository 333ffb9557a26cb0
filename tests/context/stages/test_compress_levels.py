"""Rows E1, E2, E4, E5, E9: four levels with budgets and ages, through the whole rewrite."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from proxy.chat import chain
from proxy.chat.tokens import TokenCounter, estimate_text_tokens
from proxy.context.analysis import bm25
from proxy.context.branch_state import BranchState
from proxy.context.pipeline import rewrite
from proxy.context.plan import Plan, RewriteInputs
from proxy.context.policy import Policy
from proxy.context.stage import make_stage
from proxy.context.stages import BUILT_IN_STAGES
from proxy.context.stages.compress_levels import CompressLevels
from proxy.errors import ConfigError
from tests.context.agent import load_policy
from tests.context.ranking.test_memory_levels import step
from tests.conversations import COUNTER, INPUTS, PLAIN_MODEL, Json, assistant, build_view, make_request, system, user

DEFAULT = CompressLevels()
LONG = "line of text\n" * 40
"""520 characters; a step with it weighs 531 tokens as tests count."""
SMALL: dict[str, Any] = {"total": 100_000, "session": 25_000, "working": 50_000, "verbose": 10_000, "recent": 1}


def play(
    values: Sequence[Json], ages: Sequence[float] | None = None, *, schedule: Any = "always", **fields: Any
) -> Plan:
    """ages: seconds since each message was first seen; the last is repeated."""
    stage = CompressLevels(**{**SMALL, **fields})
    asked = make_request(values)
    given = list(ages or [0.0])
    times = [10_000 - age for age in given + given[-1:] * (len(values) - len(given))]
    policy = Policy("p", (stage,), schedule=schedule, ask="never")
    plan = rewrite(
        asked, BranchState(), policy, replace(PLAIN_MODEL, window=None), 10_000.0, RewriteInputs(COUNTER, times=times)
    )
    assert plan.refusal is None
    return plan


def list_edited(plan: Plan, values: Sequence[Json]) -> dict[int, str]:
    keys = list(chain.compute_keys("", make_request(values).messages))
    return {keys.index(k): e.action for k, e in plan.edits.items()}


def note(plan: Plan, kind: str) -> dict[str, float]:
    (found,) = [n for n in plan.notes if n.kind == kind]
    return dict(found.figures)


def test_e1_the_levels_have_the_sources_budgets_and_ages() -> None:
    assert (DEFAULT.permanent, DEFAULT.session, DEFAULT.working, DEFAULT.total) == (2000, 4000, 8000, 16_000)
    assert (DEFAULT.session_s, DEFAULT.working_s, DEFAULT.full) == (1800, 300, 0.8)
    (shipped,) = [s for s in load_policy("hierarchical").stages if isinstance(s, CompressLevels)]
    assert shipped == DEFAULT
    assert load_policy("hierarchical").literal


def test_e1_working_memory_is_compressed_after_five_minutes() -> None:
    values = [user("a"), *step(1, LONG), *step(2, LONG)]
    assert list_edited(play(values, [300]), values) == {}
    assert list_edited(play(values, [301, 301, 301, 0]), values) == {2: "text"}


def test_e1_the_session_is_compressed_after_thirty_minutes() -> None:
    values = [user("a"), assistant("b"), user("look " * 200), *step(1, LONG), *step(2, LONG), assistant("done")]
    values.append(user("go on"))
    sizes = [play(values, [age] * 8 + [0]).after for age in (0, 301, 1800, 1801)]
    assert sizes[0] == play(values).before
    assert sizes[0] > sizes[1] == sizes[2] > sizes[3]


def test_e1_volatile_leaves_first() -> None:
    values = [user("a"), *step(1, LONG), *step(2, LONG, name="grep"), *step(3, LONG), *step(4, "now")]
    assert list_edited(play(values, total=2500), values) == {}
    plan = play(values, total=2000)
    assert list_edited(plan, values) == {3: "gone", 4: "gone"}
    assert note(plan, "levels")["volatile"] == 0
    assert list_edited(play(values, total=1200), values) == {2: "text", 3: "gone", 4: "gone"}
    assert list_edited(play(values, total=800), values) == {2: "text", 3: "gone", 4: "gone", 6: "text"}


def test_e1_the_volatile_level_may_use_what_the_other_levels_leave() -> None:
    """The level has no budget of its own: it may fill the total."""
    values = [user("a"), *step(1, LONG, name="ls"), *step(2, LONG, name="ls"), *step(3)]
    assert list_edited(play(values, total=1600), values) == {}


def test_e1_a_level_over_four_fifths_of_its_budget_is_compressed_with_the_total_far_from_full() -> None:
    values = [user("a"), *step(1, LONG), *step(2, LONG), *step(3, LONG)]
    assert list_edited(play(values, working=2070), values) == {}
    assert list_edited(play(values, working=1950), values) == {2: "text"}


def test_e1_total_may_be_the_models_budget_and_the_levels_follow_in_proportion() -> None:
    values = [user("a"), *step(1, LONG), *step(2, LONG), *step(3, LONG)]
    stage = CompressLevels(total="model", verbose=10_000, recent=1)
    policy = Policy("p", (stage,), schedule="always", ask="never")

    def after(window: int | None) -> int:
        model = replace(PLAIN_MODEL, window=window)
        return rewrite(make_request(values), BranchState(), policy, model, 0.0, INPUTS).after

    whole = sum(map(COUNTER, make_request(values).messages))
    assert after(None) == whole
    assert after(100_000) == whole
    assert after(2_500) < whole * 0.8
    assert replace(stage, total=800)._limit(_view(values)) == 800


def _view(values: Sequence[Json]) -> Any:
    return build_view(values)


def test_e1_permanent_is_never_compressed_and_told_when_it_is_too_much() -> None:
    values = [system("s" * 3000), user("never do that " * 30), assistant("ok"), user("go"), *step(1, LONG), *step(2)]
    plan = play(values, [10_000], total=1000)
    assert not {0, 1, 3} & list_edited(plan, values).keys()
    assert [n.kind for n in plan.notes if n.kind == "over_level"] == ["over_level"]
    assert note(plan, "levels")["permanent"] > 3000


@pytest.mark.parametrize(
    "prompt", ["Next task: write the README", "the gardening question about tulips", "ok, next task"]
)
def test_e2_e5_a_new_task_compresses_the_last_and_clears_what_was_volatile(prompt: str) -> None:
    values = [user("fix the lexer"), *step(1, LONG), *step(2, LONG, name="grep"), *step(3, LONG), assistant("done")]
    plan = play([*values, user(prompt)])
    assert list_edited(plan, [*values, user(prompt)]) == {1: "gone", 2: "gone", 3: "gone", 4: "gone", 6: "text"} or (
        list_edited(plan, [*values, user(prompt)]) == {2: "text", 3: "gone", 4: "gone", 5: "gone", 6: "gone"}
    )
    assert note(plan, "levels")["session"] > 0
    assert note(plan, "levels")["volatile"] == 0


@pytest.mark.parametrize("prompt", ["continue", "Next", "go on!"])
def test_e5_continuing_with_a_task_compresses_nothing(prompt: str) -> None:
    values = [user("fix the lexer"), *step(1, LONG), *step(2, LONG, name="grep"), assistant("done"), user(prompt)]
    assert play(values).edits == {}


def test_e4_every_summary_names_its_sources_and_pairs_stay_whole() -> None:
    values = [user("a"), *(m for n in range(24) for m in step(n, LONG + str(n)))]
    plan = play(values, total=2000)
    texts = [e.text for e in plan.edits.values() if e.text and e.text.startswith("[summary of 20 messages, ")]
    assert len(texts) == 2
    assert plan.after < 2000
    carriers = {m: e.text for m, e in plan.edits.items() if e.text}
    assert len(carriers) >= 2
    assert all(e.reason for e in plan.edits.values())


def test_e4_summaries_of_summaries_keep_the_session_in_its_budget() -> None:
    values = [
        m for g in range(6) for m in (user(f"task {g}"), *step(2 * g, LONG), *step(2 * g + 1, LONG), assistant("ok"))
    ]
    values.append(user("Next task: the last"))
    loose, tight = play(values), play(values, session=600)
    assert note(tight, "levels")["session"] <= 600 < note(loose, "levels")["session"]


def test_e4_a_helper_is_asked_about_what_is_summarised_and_its_answer_is_used() -> None:
    values = [user("a"), *(m for n in range(11) for m in step(n, LONG)), *step(12)]
    plan = play(values, total=800)
    (ask,) = [a for a in plan.asks if a.kind == "summary"]
    assert ask.message_keys == tuple(plan.keys[1:21])
    stage = CompressLevels(**{**SMALL, "total": 800})
    policy = Policy("p", (stage,), schedule="always", ask="never")
    state = BranchState(helper_answers={ask.id: "Ten runs, all fine."})
    again = rewrite(make_request(values), state, policy, PLAIN_MODEL, 0.0, INPUTS)
    assert any("Ten runs, all fine." in (e.text or "") for e in again.edits.values())
    assert again.asks == ()
    assert again.after < plan.after


@pytest.mark.parametrize("schedule", ["over_budget", "when_it_pays"])
def test_e4_other_schedules_make_the_same_edits_when_they_say_so_and_keep_them(schedule: Any) -> None:
    values = [user("a"), *(m for n in range(12) for m in step(n, LONG)), *step(12)]
    stage = CompressLevels(**{**SMALL, "total": 3000})
    policy = Policy("p", (stage,), schedule=schedule, ask="never")
    model = replace(PLAIN_MODEL, window=5_000)
    first = rewrite(make_request(values), BranchState(), policy, model, 0.0, INPUTS)
    assert [e.action for e in first.new_edits].count("text") == 1
    assert len(first.new_edits) == (15 if schedule == "over_budget" else 19)
    state = BranchState().after_sending(first, 0.0)
    more = [*values, *step(13, LONG)]
    second = rewrite(make_request(more), state, policy, model, 1.0, INPUTS)
    assert all(second.edits[k] == e for k, e in first.edits.items())


def test_e9_an_event_tells_before_and_after_and_warns_under_twice() -> None:
    values = [user("a"), *step(1, LONG), *step(2, LONG)]
    figures = note(play(values, [301, 301, 301, 0]), "compressed")
    assert figures["before"] == 524
    assert figures["ratio"] == pytest.approx(figures["before"] / figures["after"])
    assert figures["ratio"] > 2
    assert "low_ratio" not in {n.kind for n in play(values, [301, 301, 301, 0]).notes}
    values = [user("a"), *step(1, "Error: " + "x" * 153 + "\nError: y\nError: z\n" + "w " * 80), *step(2)]
    assert "low_ratio" in {n.kind for n in play(values, [301, 301, 301, 0]).notes}


def test_e9_tokens_per_level_add_up_to_the_prompt() -> None:
    values = [
        system(),
        user("a"),
        *step(1, LONG),
        *step(2, LONG, name="grep"),
        assistant("I decided"),
        user("b"),
        *step(3),
    ]
    plan = play(values, total=1200)
    assert sum(note(plan, "levels").values()) == plan.after


@pytest.mark.parametrize(
    ("field", "value"), [("total", "models"), ("rules", ["("]), ("goes_on", [7]), ("new_task", ["a", "["])]
)
def test_settings_that_cannot_be_used_are_refused_by_their_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"compress_levels\.{field}"):
        make_stage({"use": "compress_levels", field: value}, BUILT_IN_STAGES)


@pytest.mark.parametrize(
    "fields",
    [
        {"recency": -0.1},
        {"relevance": float("nan")},
        {"mark": float("inf")},
        {"recency": 0, "references": 0, "relevance": 0, "mark": 0},
        {"references": True},
        {"summary_prompt": "Sum it up."},
        {"summary_prompt": " "},
        {"summary_prompt": 3},
    ],
)
def test_e3_e4_weights_and_the_prompt_are_checked_at_the_start(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"stages\.compress_levels\.{next(iter(fields))}"):
        make_stage({"use": "compress_levels", **fields}, BUILT_IN_STAGES)


def test_e3_the_weights_decide_what_is_compressed_first() -> None:
    values = [user("tokenizer"), *step(1, "tokenizer\n" + LONG), *step(2, "other\n" + LONG), *step(3, LONG)]
    ages = [5000.0, 5000, 5000, 100, 100, 0]
    more = {"total": 2000, "working_s": 9000, "session_s": 9000}
    assert list_edited(play(values, ages, **more), values) == {4: "text"}
    newest = {"recency": 1.0, "references": 0.0, "relevance": 0.0, "mark": 0.0}
    assert list_edited(play(values, ages, **more, **newest), values) == {2: "text"}


def test_e4_the_prompt_is_a_setting() -> None:
    values = [user("a"), *(m for n in range(11) for m in step(n, LONG)), *step(12)]
    (ask,) = play(values, total=800, summary_prompt="Fasse zusammen, in <CHARACTERS> Zeichen.").asks
    assert ask.prompt.startswith("Fasse zusammen, in 1200 Zeichen.\n\n")


def test_total_takes_a_number_or_model() -> None:
    assert make_stage({"use": "compress_levels", "total": "model"}, BUILT_IN_STAGES) == CompressLevels(total="model")
    assert make_stage({"use": "compress_levels", "total": 7}, BUILT_IN_STAGES) == CompressLevels(total=7)


def long_talk(count: int) -> list[Json]:
    values = [user("fix src/lexer.py")]
    for n in range(count // 2):
        text = "\n".join(f"{n} def name_{n * 7 % 97}_{m}(x): src/mod_{m * n % 89}.py" for m in range(45))
        values += step(n, text, name="grep" if n % 3 else "read")
        if n % 40 == 39:
            values += [assistant("done " * 20), user(f"now look at src/mod_{n}.py")]
    return values


def warm(count: int) -> float:
    asked = make_request(long_talk(count))
    keys = chain.compute_keys("", asked.messages)
    token_counter, policy = TokenCounter(estimate_text_tokens), load_policy("hierarchical")
    times = [float(n) for n in range(len(keys))]
    spent = []
    for _ in range(5):
        began = time.process_time()
        rewrite(
            asked, BranchState(), policy, PLAIN_MODEL, times[-1], RewriteInputs(token_counter, keys=keys, times=times)
        )
        spent.append(time.process_time() - began)
    return min(spent[1:])


def test_e4_planning_grows_linearly_and_reads_no_text_twice() -> None:
    """Ten times the messages take at most some twenty times as long (caches of the processor miss more often)."""
    assert warm(2000) < 25 * warm(200)


def test_no_text_is_read_again_once_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = make_request(long_talk(200))
    keys = chain.compute_keys("", asked.messages)
    counted: list[int] = []

    def count(text: str) -> int:
        counted.append(len(text))
        return estimate_text_tokens(text)

    token_counter, policy = TokenCounter(count), load_policy("hierarchical")
    times = [float(n) for n in range(len(keys))]

    def plan() -> int:
        counted.clear()
        rewrite(
            asked, BranchState(), policy, PLAIN_MODEL, times[-1], RewriteInputs(token_counter, keys=keys, times=times)
        )
        return sum(counted)

    assert plan() > sum(len(m.text) for m in asked.messages)
    assert plan() < 5_000
    monkeypatch.setattr(bm25, "count_terms", lambda _text: pytest.fail("read again"))
    plan()
