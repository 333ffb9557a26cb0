from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.chat.message import Message
from proxy.context.models import Model
from proxy.replay.atoms import WireTokenCounter
from proxy.replay.cache import ProviderCache, count_common_characters, count_served_tokens
from tests.replay.recorded import assistant, messages, user

PLAIN = Model(min=1, block=1)
ROLE = len("<|user|>")


def make_cache(model: Model = PLAIN, head: int = 0) -> ProviderCache:
    return ProviderCache(model, WireTokenCounter(len), head)


def make_user_messages(*texts: str) -> list[Message]:
    return list(messages(*map(user, texts)))


def test_a_growing_prompt_is_served_from_the_cache_up_to_the_end_of_the_last_one() -> None:
    found, prompt = make_cache(head=100), make_user_messages("a" * 92, "b" * 42)
    assert found.send_prompt(prompt[:1], 0) == (200, 0)
    assert found.send_prompt(prompt, 1) == (250, 200)
    assert found.send_prompt(prompt, 2) == (250, 250)


def test_a_different_message_counts_up_to_its_first_different_character() -> None:
    found = make_cache()
    found.send_prompt(make_user_messages("a" * 32, "b" * 40), 0)
    assert found.send_prompt(make_user_messages("a" * 32, "b" * 12 + "c" * 8, "d"), 1)[1] == ROLE + 32 + ROLE + 12
    assert found.send_prompt(make_user_messages("x"), 2)[1] == ROLE


def test_equal_messages_in_other_objects_are_the_same() -> None:
    found = make_cache()
    found.send_prompt(make_user_messages("a" * 50), 0)
    assert found.send_prompt(make_user_messages("a" * 50), 1)[1] == ROLE + 50


def test_the_last_four_prompts_are_remembered() -> None:
    found, first = make_cache(), make_user_messages("a" * 50)
    found.send_prompt(first, 0)
    for n in range(3):
        found.send_prompt(list(messages(assistant(f"{n}"))), 0)
    assert found.send_prompt(first, 0)[1] == ROLE + 50
    for n in range(4):
        found.send_prompt(list(messages(assistant(f"{n}"))), 0)
    assert found.send_prompt(first, 0)[1] == len("<|")


def test_only_whole_blocks_are_served_and_none_below_the_minimum() -> None:
    model = Model(min=1024, block=128)
    assert [count_served_tokens(hit, model) for hit in (0, 1023, 1024, 1151, 1152)] == [0, 0, 1024, 1024, 1152]
    assert count_served_tokens(1200, replace(model, min=1100)) == 1152


def test_a_cache_that_was_idle_too_long_serves_nothing() -> None:
    found, prompt = make_cache(replace(PLAIN, ttl_s=300)), make_user_messages("a" * 50)
    found.send_prompt(prompt, 0)
    assert found.send_prompt(prompt, 300)[1] > 0
    assert found.send_prompt(prompt, 601)[1] == 0


@pytest.mark.parametrize(
    ("until", "most", "pings", "served_until"),
    [(280, 2, 0, 300), (281, 2, 1, 580), (560, 2, 1, 580), (900, 2, 2, 860), (math.inf, 3, 3, 1140), (900, 0, 0, 300)],
)
def test_pings_keep_the_cache_warm_up_to_the_next_prompt(
    until: float, most: int, pings: int, served_until: int
) -> None:
    for late in (0, 1):
        found, prompt = make_cache(replace(PLAIN, ttl_s=300)), make_user_messages("a" * 50)
        found.send_prompt(prompt, 0)
        assert found.send_pings(until, most) == (pings, pings * 280)
        assert (found.send_prompt(prompt, served_until + late)[1] > 0) == (not late)


@pytest.mark.parametrize("model", [replace(PLAIN, cache="none"), replace(PLAIN, ttl_s=15)])
def test_a_cache_that_does_not_outlive_a_ping_has_none(model: Model) -> None:
    found = make_cache(model)
    found.send_prompt(make_user_messages("a"), 7)
    assert found.send_pings(math.inf, 2) == (0, 7)


def test_a_model_without_a_cache_serves_nothing() -> None:
    found, prompt = make_cache(replace(PLAIN, cache="none")), make_user_messages("a" * 50)
    found.send_prompt(prompt, 0)
    assert found.send_prompt(prompt, 1) == (ROLE + 50, 0)


def test_with_breakpoints_only_a_whole_earlier_prompt_is_served() -> None:
    found, prompt = make_cache(replace(PLAIN, cache="breakpoint")), make_user_messages("a" * 50, "b", "c")
    found.send_prompt(prompt[:2], 0)
    assert found.send_prompt(prompt, 1)[1] == ROLE + 50 + ROLE + 1
    assert found.send_prompt([prompt[0], *make_user_messages("other")], 2)[1] == 0
    assert found.send_prompt(prompt[:1], 3)[1] == 0


@pytest.mark.parametrize(("a", "b", "same"), [("", "", 0), ("a", "", 0), ("ab", "ac", 1), ("ab", "ab", 2)])
def test_the_common_prefix_of_two_texts_is_counted(a: str, b: str, same: int) -> None:
    assert count_common_characters(a, b) == same


@given(st.text("ab", max_size=40), st.text("ab", max_size=40))
def test_the_common_prefix_is_the_longest(a: str, b: str) -> None:
    same = count_common_characters(a, b)
    assert a[:same] == b[:same]
    assert same == min(len(a), len(b)) or a[same] != b[same]
