from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from proxy.context.models import Model, find_model, read_models, without_cache
from proxy.errors import ConfigError

TABLE: dict[str, dict[str, Any]] = {
    "gpt-5-mini*": {"window": 1000, "w": 1.0, "r": 0.1},
    "gpt-5*": {"window": 2000},
    "*": {"w": 1.25},
}
SHIPPED = read_models(tomllib.loads((Path(__file__).parents[2] / "config/models.toml").read_text())["models"])


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("gpt-5-mini", "gpt-5-mini*"),
        ("gpt-5-mini-2025", "gpt-5-mini*"),
        ("gpt-5", "gpt-5*"),
        ("openai/gpt-5", "gpt-5*"),
        ("openrouter/openai/gpt-5-mini", "gpt-5-mini*"),
        ("GPT-5", "gpt-5*"),
        ("", "*"),
        ("other", "*"),
    ],
)
def test_the_first_pattern_that_fits_the_name_wins(name: str, pattern: str) -> None:
    assert find_model(read_models(TABLE), name).name == pattern


def test_a_pattern_may_name_the_provider() -> None:
    models = read_models({"azure/gpt-5*": {"window": 1}, "gpt-5*": {"window": 2}})
    assert find_model(models, "azure/gpt-5").window == 1
    assert find_model(models, "openai/gpt-5").window == 2


@pytest.mark.parametrize(
    "name",
    [
        "qwen3:8b",
        "deepseek-r1:671b",
        "mixtral:8x7b-instruct-q4_0",
        "mistral:latest",
        "qwen3-coder:480b-cloud",
        "deepseek-ai/DeepSeek-V3",
        "accounts/fireworks/models/deepseek-v3",
    ],
)
def test_weights_that_others_serve_have_no_vendors_price(name: str) -> None:
    """A model on one's own machine was billed as the vendor's service."""
    found = find_model(SHIPPED, name)
    assert (found.input, found.output, found.window) == (None, None, None)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4[.-]5*"),
        ("bedrock/anthropic.claude-opus-5-5", "claude-opus-5[.-]5*"),
        ("anthropic/claude-sonnet-4.5", "claude-sonnet-4[.-]5*"),
        ("deepseek/deepseek-chat-v3:free", "deepseek*"),
        ("qwen/qwen3-max", "qwen3-max*"),
    ],
)
def test_a_vendors_own_prices_hold_behind_a_provider_s_prefix(name: str, pattern: str) -> None:
    assert find_model(SHIPPED, name).name == pattern


def test_an_unknown_model_has_no_window_and_the_common_prices() -> None:
    found = find_model((), "who")
    assert (found.window, found.w, found.r, found.after_tool) == (None, 1.25, 0.1, "append")


def test_an_unknown_key_is_a_config_error_with_key_value_and_what_is_allowed() -> None:
    with pytest.raises(ConfigError) as caught:
        read_models({"m": {"windov": 5}})
    assert (caught.value.key, caught.value.value) == ('models."m".windov', 5)
    assert "window" in caught.value.allowed


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("input", -2.0), ("input", float("nan")), ("output", float("inf")), ("input", "2.0"), ("input", True),
        ("window", "128k"), ("window", 0), ("window", 1.5), ("max_output", -1), ("w", -0.1), ("r", "cheap"),
        ("ttl_s", -1), ("min", -1), ("block", 0), ("cache", "maybe"), ("after_tool", "before"), ("alternate", 1),
        ("tokenizer", "gpt2"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_a_config_error_that_names_it(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        read_models({"m": {"window": 8000, key: value}}, source="models.toml", find_line=len)
    assert caught.value.key == f'models."m".{key}'
    assert (caught.value.line, caught.value.source) == (3, "models.toml")
    assert caught.value.allowed


def test_an_entry_that_is_not_a_table_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"a table"):
        read_models({"window": 5})


def test_an_operators_entry_overrides_only_what_it_sets() -> None:
    shipped = read_models({"gpt-5-mini*": {"window": 1000, "input": 1.0, "chat": {"a": 1, "b": 2}}, "*": {"w": 1.0}})
    own = read_models({"gpt-5*": {"input": 9.0, "chat": {"b": 3}}, "*": {"r": 0.5}}, partial=True)
    mini = find_model(own + shipped, "gpt-5-mini")
    assert (mini.window, mini.input, mini.r, mini.name) == (1000, 9.0, 0.5, "gpt-5*")
    assert mini.own == {"chat": {"a": 1, "b": 3}}
    other = find_model(own + shipped, "other")
    assert (other.window, other.input, other.w, other.r) == (None, None, 1.0, 0.5)


def test_tables_inside_a_models_table_belong_to_stages() -> None:
    (found,) = read_models({"m": {"progressive": {"x": 1}, "window": 5}})
    assert found == Model("m", window=5)
    assert found.own == {"progressive": {"x": 1}}


def test_a_prompt_costs_w_for_what_is_written_and_r_for_what_is_served() -> None:
    model = Model(w=1.25, r=0.1)
    assert model.compute_cost(1000, 0) == 1250
    assert model.compute_cost(1000, 800) == pytest.approx(1.25 * 200 + 0.1 * 800)


def test_the_price_of_an_output_token_is_five_input_tokens_where_unknown() -> None:
    assert Model(input=2.0, output=8.0).output_ratio == 4.0
    assert Model(input=2.0).output_ratio == 5.0
    assert Model(input=0.0, output=8.0).output_ratio == 5.0


def test_the_models_that_we_ship_can_be_read() -> None:
    shipped = tomllib.loads((Path(__file__).parents[2] / "config/models.toml").read_text())["models"]
    models = read_models(shipped)
    assert len(models) == len(shipped)
    assert models[-1].name == "*"
    assert all(0 <= m.r <= m.w and m.ttl_s > 0 and m.block > 0 for m in models)


def test_a_model_whose_cache_never_serves_anything_has_one_price_for_all_tokens() -> None:
    model = Model("m", w=1.25, r=0.1)
    plain = without_cache(model)
    assert (plain.r, plain.cache) == (1.25, "none")
    assert without_cache(Model("m", w=1.25, r=0.1)) is plain, "facts about messages are remembered by the model"


def test_conversations_of_claude_and_gemini_begin_with_the_user_in_every_wire_format() -> None:
    models = SHIPPED
    assert {m.user_first for m in models if m.name.startswith(("claude", "gemini"))} == {True}
    assert find_model(models, "google/gemini-3-pro-preview").user_first
    assert not find_model(models, "gpt-5").user_first
