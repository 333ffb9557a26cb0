"""REPLOID's context functions over a plain history: the names, arguments and results of the source."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import proxy
from proxy.chat.tokens import TokenCounter, estimate_text_tokens
from proxy.context.models import read_models
from proxy.contrib.reploid import SOURCE_MODELS, find_limit, score_history
from proxy.errors import NotManaged
from tests.conversations import Json, assistant, result, system, user

WEIGH = TokenCounter(len)
SHIPPED = read_models(tomllib.loads((Path(__file__).parents[2] / "config/models.toml").read_text())["models"])
NAMES = ("system", "user1", "model1", "user2", "model2", "user3")
EXAMPLE = [
    {"role": "model" if name.startswith("model") else name.rstrip("123"), "parts": [name.ljust(6, ".")]}
    for name in NAMES
]  # fmt: skip


def plain(history: Sequence[Any]) -> list[Json]:
    """The same history in chat completions' form."""
    role = {"model": "assistant"}
    return [{"role": role.get(i["role"], i["role"]), "content": i["parts"][0]} for i in history]


FORMS = pytest.mark.parametrize("history", [EXAMPLE, plain(EXAMPLE)], ids=["parts", "content"])


@FORMS
def test_d9_the_worked_example_in_both_forms(history: list[Json]) -> None:
    assert score_history(history) == [70, 20, 18, 36, 34, 60]
    assert [proxy.score_context_importance(item, n, 5) for n, item in enumerate(history[1:])] == [20, 18, 36, 34, 60]
    assert proxy.score_context_importance(history[0], 0, 5) == 70
    each = [proxy.estimate_tokens(item) for item in history]
    found = proxy.prune_context(history, sum(each) - each[1] - each[2])
    assert found["pruned"] == [history[n] for n in (0, 3, 4, 5)]
    assert found["removed"] == [history[n] for n in (1, 2)]
    final = sum(each) - each[1] - each[2]
    assert found["stats"] == {"original": sum(each), "final": final, "itemsRemoved": 2, "itemsKept": 4}
    assert all(one is history[n] for one, n in zip(found["pruned"], (0, 3, 4, 5), strict=True))


def test_d9_the_sources_own_tests_where_a_choice_is_forced() -> None:
    talk = [system("s" * 40), *[user(f"{n:03}" * 10) for n in range(50)], user("last")]
    found = proxy.prune_context(talk, 200, token_counter=WEIGH)
    assert found["pruned"][0] is talk[0]
    assert found["pruned"][-1] is talk[-1]
    assert found["stats"]["final"] <= 200 < found["stats"]["original"]
    assert found["pruned"][1:-1] == talk[-5:-1]  # of equal messages the newest, as many as fit: (200 - 52) // 34

    asked = [user(f"{name:.<14}") for name in ("one", "two", "four", "last")]
    for said, stays in (("ERROR: Failed.", True), ("All is well...", False)):
        model = {"role": "model", "parts": [said]}
        history = [*asked[:2], model, *asked[2:]]
        chosen = [model if stays else asked[1], *asked[2:]]  # 41 points with its words, 26 without; `two` has 28
        assert proxy.prune_context(history, 3 * 18, token_counter=WEIGH)["pruned"] == chosen


def test_d9_pruning_keeps_a_call_and_its_result_together() -> None:
    talk = [user("a"), user("b" * 60), assistant(None, "c1"), result("c1", "ERROR" + "x" * 60), user("c")]
    found = proxy.prune_context(talk, 120, token_counter=WEIGH)
    assert found["pruned"] == [talk[0], *talk[2:]]  # the call has 26 points, its result 49, `b` 28
    small = proxy.prune_context(talk, 80, token_counter=WEIGH)
    assert small["pruned"] == [*talk[:2], talk[4]]
    ends = [user("b" * 60), assistant(None, "c1"), result("c1", "x" * 60)]
    assert (
        proxy.prune_context(ends, 1, token_counter=WEIGH)["pruned"] == ends[1:]
    )  # the newest message brings its call along


def test_d9_required_messages_stay_over_the_budget() -> None:
    talk = [system("s" * 100), user("a"), user("b" * 100)]
    found = proxy.prune_context(talk, 50, token_counter=WEIGH)
    assert found["pruned"] == [talk[0], talk[2]]
    assert found["stats"]["final"] == 208


@FORMS
def test_d9_a_history_that_fits_comes_back_as_it_is(history: list[Json]) -> None:
    for found in (proxy.auto_manage_context(history), proxy.prune_context(history, 10_000)):
        assert found["pruned"] is history
        assert found["removed"] == []
        assert found["stats"]["itemsKept"] == 6


def test_d9_a_history_is_managed_to_80_percent_of_its_models_limit() -> None:
    talk = [system("s"), *[user("x" * 4996) for _ in range(30)]]
    found = proxy.auto_manage_context(talk, "gpt-5", token_counter=WEIGH)
    assert found["stats"]["final"] == 5 + 20 * 5000 <= 102_400
    assert proxy.auto_manage_context(talk, "claude-4-5-sonnet", token_counter=WEIGH)["pruned"] is talk
    assert len(proxy.auto_manage_context(talk, token_counter=WEIGH)["pruned"]) == 16


def test_d3_the_limits_are_the_sources_four_and_80_percent_is_the_target() -> None:
    names = ("gemini-2.5-flash", "claude-4-5-sonnet", "claude-sonnet-4-5", "gpt-5", "default", "who knows")
    limits = [1_000_000, 200_000, 200_000, 128_000, 100_000, 100_000]
    assert [find_limit(name) for name in names] == limits
    assert [find_limit(name, SHIPPED) for name in names] == limits
    for limit, target in ((128_000, 102_400), (100_000, 80_000)):
        name = "gpt-5" if limit == 128_000 else "who"
        at = [proxy.get_context_stats([user("x" * (n - 4))], name, token_counter=WEIGH) for n in (target, target + 1)]
        assert [s["needsPruning"] for s in at] == [False, True]
    assert SOURCE_MODELS[-1].name == "*"


def test_d3_other_models_have_the_limits_that_are_given() -> None:
    assert find_limit("grok-4.5", SHIPPED) == 500_000
    assert find_limit("gpt-6", SHIPPED) == 922_000


def test_d5_stats_report_utilization_and_when_pruning_is_needed() -> None:
    talk = [user("x" * 59_996), assistant("y" * 14_996)]
    assert proxy.get_context_stats(talk, "default", token_counter=WEIGH) == {
        "items": 2, "tokens": 75_000, "limit": 100_000, "utilizationPercent": 75.0, "needsPruning": False,
    }  # fmt: skip
    more = proxy.get_context_stats([*talk, user("z" * 9_996)], "default", token_counter=WEIGH)
    assert (more["utilizationPercent"], more["needsPruning"]) == (85.0, True)
    assert proxy.get_context_stats([])["tokens"] == 0


def test_d9_tokens_of_a_text_a_message_and_a_history() -> None:
    assert proxy.estimate_tokens("some words of text") == estimate_text_tokens("some words of text")
    item = assistant("some words", "c1")
    assert proxy.estimate_tokens(item) > estimate_text_tokens("some words")
    assert proxy.estimate_tokens([item, item]) == 2 * proxy.estimate_tokens(item)
    assert proxy.estimate_tokens(EXAMPLE) == proxy.estimate_tokens(plain(EXAMPLE))


OLD = [m for n in range(25) for m in (user(f"question {n}"), assistant(f"answer {n}", *(["c"] if n < 10 else [])))]
SENTENCE = "Previous 50 turns: 25 user messages, 25 model responses, 10 tool calls"


def test_d4_old_messages_become_the_sources_sentence_after_the_first_user_message_that_stays() -> None:
    new = [user("hello"), assistant("hi")] * 5
    for first in ([], [system("s")]):
        found = proxy.summarize_context([*first, *OLD, *new])
        assert found["summary"] == {"role": "user", "content": SENTENCE}
        assert found["stats"] == {"summarizedItems": 50, "keptItems": 10}
        assert found["summarized"] == [*first, user("hello\n\n" + SENTENCE), *new[1:]]


def test_d4_a_helper_models_words_take_the_place_of_the_count() -> None:
    new: list[Json] = [{"role": "user", "parts": ["hello"]}, {"role": "model", "parts": [{"text": "hi"}]}]
    old: list[Json] = [{"role": "user", "parts": ["a long question"]}]
    found = proxy.summarize_context(old + new, 2, text="asked")
    assert found["summarized"] == [{"role": "user", "parts": ["hello", "asked"]}, new[1]]
    assert found["summary"] == {"role": "user", "parts": [{"text": "asked"}]}
    more = proxy.summarize_context([*old, {"role": "user", "parts": [{"text": "x"}]}], 1, text="asked")
    assert more["summarized"] == [{"role": "user", "parts": [{"text": "x"}, {"text": "asked"}]}]


@pytest.mark.parametrize("text", ["", "  ", "x" * 1000, None])
def test_d4_a_summary_that_is_empty_or_too_long_leaves_the_history(text: str | None) -> None:
    talk = [user("short"), assistant("so"), user("now")]
    found = proxy.summarize_context(talk, 1, text=text)
    assert found["summarized"] is talk
    assert found["summary"] is None
    assert found["stats"] == {"summarizedItems": 0, "keptItems": 3}


def test_d4_where_no_user_message_stays_the_summary_is_one_and_no_step_is_cut() -> None:
    step = [assistant(None, "c1"), result("c1", "r")]
    found = proxy.summarize_context([system(), *OLD, *step], 1)
    assert found["summarized"] == [system(), found["summary"], *step]
    assert found["stats"] == {"summarizedItems": 50, "keptItems": 2}
    assert proxy.summarize_context(OLD, 0)["summarized"] == [user(SENTENCE)]
    media = [*OLD, user([{"type": "text", "text": "x"}])]
    end = {"type": "text", "text": SENTENCE}
    assert proxy.summarize_context(media, 1)["summarized"] == [user([{"type": "text", "text": "x"}, end])]
    assert proxy.summarize_context([*OLD, user(None)], 1)["summarized"] == [user(SENTENCE)]


@pytest.mark.parametrize(
    "item", [{}, {"content": "x"}, {"role": "user", "parts": "x"}, {"role": "user", "parts": [1]}, {"role": object()}]
)
def test_an_item_that_is_not_a_message_is_refused(item: Json) -> None:
    with pytest.raises(NotManaged):
        proxy.get_context_stats([item])


ITEMS = st.sampled_from([system(), user("u" * 50), assistant("a" * 30), user("error"), assistant("x" * 1200)])


@given(st.lists(st.one_of(ITEMS.map(lambda i: [i]), st.just([assistant(None, "c"), result("c", "r" * 40)]))))
def test_d9_whatever_the_history_nothing_is_lost_or_changed(parts: list[list[Json]]) -> None:
    talk = [item for part in parts for item in part]
    before = copy.deepcopy(talk)
    found = proxy.prune_context(talk, 300, token_counter=WEIGH)
    proxy.summarize_context(talk, 3)
    assert talk == before
    assert len(found["pruned"]) + len(found["removed"]) == len(talk)
    must = [i for i in talk if i["role"] == "system"] + talk[-1:]
    floor = sum(proxy.estimate_tokens(i, token_counter=WEIGH) for i in must) + 30
    assert found["stats"]["final"] <= max(300, floor)
