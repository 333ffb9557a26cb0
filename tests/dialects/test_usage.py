"""Usage objects of every provider become one: the cases beside those in tests/context/usages.json."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.usage import Usage, read_count, read_dollars, read_usage


@pytest.mark.parametrize(
    ("value", "dollars"),
    [
        ({"cost": 0.95, "cost_details": {"upstream_inference_cost": 19}}, 0.95),
        ({"cost": 0.05, "is_byok": True, "cost_details": {"upstream_inference_cost": 1.0}}, 1.05),
        ({"cost": 0.05, "is_byok": True}, 0.05),
        ({"cost": 0, "is_byok": False}, 0.0),
        ({"cost": {"input_tokens_cost": 0.1, "output_tokens_cost": 0.2, "total_cost": 0.35}}, 0.35),
        ({"cost_in_usd_ticks": 37756000}, 0.0037756),
        ({"cost": -1}, None),
        ({"cost": True}, None),
        ({"cost": "1"}, None),
        ({}, None),
    ],
)
def test_the_price_is_read_where_a_provider_names_one(value: dict[str, Any], dollars: float | None) -> None:
    assert read_dollars(value) == (None if dollars is None else pytest.approx(dollars))


@pytest.mark.parametrize(
    ("total", "reasoning", "completion"),
    [
        (300, 190, 200),  # beside the completion
        (110, 6, 10),  # inside it
        (300, None, 200),  # not named
        (300, 0, 10),  # unexplained: it is nobody's output
    ],
)
def test_reasoning_is_output_wherever_it_is_counted(total: int, reasoning: int | None, completion: int) -> None:
    details = {} if reasoning is None else {"completion_tokens_details": {"reasoning_tokens": reasoning}}
    found = read_usage({"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": total, **details})
    assert found is not None
    assert (found.completion, found.completion - found.unlisted) == (completion, 10)


def test_what_a_wire_calls_input_tokens_depends_on_the_wire() -> None:
    messages = {"input_tokens": 5, "output_tokens": 1, "cache_read_input_tokens": 70, "cache_creation_input_tokens": 20}
    responses = {"input_tokens": 95, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 70}}
    assert read_usage(messages) == Usage(95, 1, 96, 70, 20)
    assert read_usage(responses) == Usage(95, 1, 96, 70)


def test_a_compaction_of_the_provider_is_beside_all_other_counts() -> None:
    top = {"input_tokens": 23_000, "output_tokens": 1000}
    spent = {"type": "compaction", "input_tokens": 5, "output_tokens": 3500, "cache_read_input_tokens": 180_000}
    found = read_usage({**top, "iterations": [spent, {**top, "type": "message"}, {"type": "compaction"}, "odd"]})
    assert found is not None
    assert (found.prompt, found.completion) == (23_000, 1000)
    assert found.compactions == (Usage(180_005, 3500, 183_505, 180_000),)
    nested: dict[str, Any] = dict(spent)
    for _ in range(3000):
        nested = {**spent, "iterations": [nested]}
    assert read_usage(nested) is not None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.dictionaries(
            st.sampled_from(
                [
                    "prompt_tokens",
                    "input_tokens",
                    "cost",
                    "is_byok",
                    "cost_details",
                    "prompt_tokens_details",
                    "input_tokens_details",
                    "cached_tokens",
                    "promptTokenCount",
                    "cache_creation",
                    "total_tokens",
                    "ephemeral_1h_input_tokens",
                    "completion_tokens_details",
                    "cache_creation_input_tokens",
                ]
            ),
            inner,
        )
        | st.lists(inner, max_size=2)
    ),
    max_leaves=8,
)


@given(JSON)
def test_no_usage_object_is_too_odd(value: Any) -> None:
    found = read_usage(value)
    assert found is None or min(found.prompt, found.completion, found.unlisted, found.cache_write_long) >= 0


def test_gemini_leaves_out_a_count_of_zero() -> None:
    counts = {"promptTokenCount": 5000, "candidatesTokenCount": 20, "totalTokenCount": 5020}
    missed, served = read_usage(counts), read_usage({**counts, "cachedContentTokenCount": 4096})
    assert missed is not None
    assert served is not None
    assert (missed.cached, served.cached) == (0, 4096)


def test_a_count_is_a_whole_number_of_tokens() -> None:
    assert [read_count(value) for value in (3, 3.0, True, -1, 1e300, "3", None)] == [3, 3, None, None, None, None, None]


def test_what_changes_all_prices_is_named() -> None:
    """Gemini and Anthropic name it in the usage object, OpenAI beside it."""
    gemini = {"promptTokenCount": 5, "candidatesTokenCount": 2, "serviceTier": "FLEX"}
    claude = {"input_tokens": 5, "output_tokens": 2, "service_tier": "standard", "speed": "fast", "inference_geo": "us"}
    openai = {"prompt_tokens": 5, "completion_tokens": 2}
    for value, service_tier, tiers in (
        (gemini, None, ("flex",)), (claude, None, ("fast", "us")), (openai, "priority", ("priority",)),
        (openai, "default", ()), (openai, 7, ()), (claude | {"speed": 3, "inference_geo": None}, None, ()),
    ):  # fmt: skip
        found = read_usage(value, service_tier)
        assert found is not None
        assert (found.prompt, found.tiers) == (5, tiers)
