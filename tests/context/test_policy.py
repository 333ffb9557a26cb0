from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from proxy.context.fit import find_window
from proxy.context.injections import BUILT_IN_INJECTIONS
from proxy.context.models import find_model, read_models
from proxy.context.policy import TOOLS, Policy, compile_patterns, read_policy, with_schedule
from proxy.context.ranking.importance import ImportanceWeights
from proxy.context.stages import BUILT_IN_STAGES
from proxy.context.stages.close_window import CloseWindow
from proxy.context.stages.drop_unimportant import DropUnimportant
from proxy.context.stages.fit_budget import FitBudget
from proxy.context.stages.isolate_tools import IsolateTools
from proxy.context.stages.summarize_old import SummarizeOld
from proxy.context.stages.truncate_results import TruncateResults
from proxy.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "config" / "policies"


def load(name: str) -> Policy:
    return read_policy(
        tomllib.loads((FOLDER / f"{name}.toml").read_text()), BUILT_IN_STAGES, BUILT_IN_INJECTIONS, source=name
    )


def read_refusal(**table: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        read_policy({"name": "mine", **table}, BUILT_IN_STAGES, source="mine.toml")
    return caught.value


@pytest.mark.parametrize("name", sorted(p.stem for p in FOLDER.glob("*.toml")))
def test_every_policy_that_we_ship_can_be_read_and_bears_its_files_name(name: str) -> None:
    assert load(name).name == name


def test_rolling_is_the_source_design_literally() -> None:
    rolling = load("rolling")
    assert rolling.stages == (IsolateTools(), CloseWindow(groups=5), TruncateResults(5, 5000, 1000, 300), FitBudget())
    assert (rolling.schedule, rolling.ask, rolling.state_place, rolling.literal) == ("always", "always", "system", True)


def test_thrifty_makes_edits_when_they_pay_and_keeps_its_texts_at_the_tail() -> None:
    thrifty = load("thrifty")
    assert (thrifty.schedule, thrifty.ask, thrifty.state_place) == ("when_it_pays", "when_needed", "tail")
    assert (thrifty.mode, thrifty.literal, thrifty.budget) == ("rewrite", False, 0.8)
    assert thrifty.stages[0] == IsolateTools()
    assert thrifty.stages[-1] == FitBudget()


def test_observe_plans_as_thrifty_and_passthrough_does_nothing() -> None:
    assert load("observe").mode == "observe"
    assert load("observe").stages == load("thrifty").stages
    assert (load("passthrough").mode, load("passthrough").stages) == ("passthrough", ())


def test_d1_importance_is_the_source_design_with_its_words_and_weights_as_settings() -> None:
    importance = load("importance")
    assert importance.stages == (IsolateTools(), DropUnimportant(), FitBudget())
    assert (importance.schedule, importance.ask, importance.budget, importance.window) == (
        "always",
        "never",
        0.8,
        100_000,
    )
    table = tomllib.loads((FOLDER / "importance.toml").read_text())
    (row,) = (stage for stage in table["stages"] if stage["use"] == "drop_unimportant")
    assert set(row) == {"use", *(f.name for f in fields(ImportanceWeights))}


def test_d4_the_policy_summarize_has_its_stages_and_window() -> None:
    summarize = load("summarize")
    assert summarize.stages == (IsolateTools(), SummarizeOld(keep=10), FitBudget())
    assert (summarize.schedule, summarize.window) == ("always", 100_000)


@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("gemini-2.5-flash", 1_000_000),
        ("claude-4-5-sonnet", 200_000),
        ("claude-sonnet-4-5-20250929", 200_000),
        ("openai/gpt-5", 128_000),
        ("llama-4-scout", 100_000),
        ("never heard of", 100_000),
        ("gpt-4.1", 1_047_576),
    ],
)
def test_d3_importance_has_the_sources_limits_and_100k_for_what_is_unknown(name: str, window: int) -> None:
    models = read_models(tomllib.loads((FOLDER.parent / "models.toml").read_text())["models"])
    assert find_window(load("importance"), find_model(models, name)) == window


def test_only_stages_that_ask_or_note_something_report() -> None:
    assert load("summarize").reporting_stages == (SummarizeOld(keep=10),)
    assert Policy("mine", stages=(IsolateTools(), FitBudget())).reporting_stages == ()


def test_a_setting_that_a_file_omits_has_its_default() -> None:
    assert read_policy({"name": "mine"}, BUILT_IN_STAGES) == Policy("mine")


def test_only_policies_with_the_schedule_always_are_literal() -> None:
    rolling = load("rolling")
    assert with_schedule(rolling, "when_it_pays").schedule == "when_it_pays"
    assert not with_schedule(rolling, "when_it_pays").literal
    assert not with_schedule(rolling, "over_budget").literal
    assert with_schedule(with_schedule(rolling, "over_budget"), "always") == rolling


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("schedul", "always", "schedule"),
        ("schedule", "sometimes", "when_it_pays"),
        ("schedule", ["always"], "when_it_pays"),
        ("mode", "off", "passthrough"),
        ("ask", True, "when_needed"),
        ("state_place", "middle", "tail"),
        ("budget", 0, "between 0 and 1"),
        ("budget", 1.5, "between 0 and 1"),
        ("budget", "0.8", "between 0 and 1"),
        ("budget", True, "between 0 and 1"),
        ("low", -0.5, "between 0 and 1"),
        ("window", -1, "number of tokens"),
        ("window", True, "number of tokens"),
        ("window", "100K", "number of tokens"),
        ("guidelines", 7, "text"),
        ("name", 7, "text"),
        ("stages", {"use": "fit_budget"}, "list of tables"),
        ("stages", "fit_budget", "list of tables"),
        ("observation", "^OBS", "list of regular expressions"),
        ("observation", [7], "list of regular expressions"),
        ("observation", ["("], "regular expressions"),
    ],
)
def test_a_wrong_key_or_value_is_refused_with_what_is_allowed(key: str, value: Any, allowed: str) -> None:
    error = read_refusal(**{key: value})
    assert (error.key, error.value, error.source) == (key, value, "mine.toml")
    assert allowed in error.allowed
    assert str(error).startswith("mine.toml: ")


def test_a_policy_needs_a_name() -> None:
    with pytest.raises(ConfigError) as caught:
        read_policy({"schedule": "always"}, BUILT_IN_STAGES)
    assert caught.value.key == "name"


def test_a_wrong_stage_is_refused_with_its_key() -> None:
    assert read_refusal(stages=[{"use": "close_window", "groups": "five"}]).key == "stages.close_window.groups"
    assert read_refusal(stages=[{"use": "close_windows"}]).key == "stages.use"
    assert read_refusal(injections=[{"use": "tell_ledger"}]).key == "injections.use"
    assert "injections, its name now" in str(read_refusal(voices=[{"use": "count_down"}]))
    assert read_refusal(stages=["close_window"]).key == "stages"


def test_observation_patterns_are_alternatives() -> None:
    pattern = read_policy({"name": "mine", "observation": ["^OBS", "a|b"]}, BUILT_IN_STAGES).observation
    assert pattern is not None
    assert [bool(pattern.search(t)) for t in ("OBS: x", "x OBS", "xb", "x")] == [True, False, True, False]
    assert compile_patterns([]) is None


def test_a_policy_says_which_tools_it_offers_and_from_when_on() -> None:
    assert (load("rolling").tools, load("rolling").offer) == (TOOLS, "first_request")
    assert (load("thrifty").tools, load("thrifty").offer) == (("recall",), "when_needed")
    for name in ("passthrough", "observe"):
        assert (load(name).tools, load(name).offer) == ((), "never")
    made = read_policy(
        {"name": "mine", "tools": {"enabled": ["query_db", "recall"], "offer": "first_edit"}}, BUILT_IN_STAGES
    )
    assert (made.tools, made.offer) == (("recall", "query_db"), "first_edit"), "in the proxy's order, not the file's"
    assert read_policy({"name": "mine", "tools": {"enabled": ["recall"]}}, BUILT_IN_STAGES).offer == "first_request"


@pytest.mark.parametrize(
    "tools", ["recall", ["recall"], {"enabled": "recall"}, {"enabled": ["bash"]}, {"offer": "later"}, {"use": 1}]
)
def test_an_invalid_tools_table_is_refused(tools: Any) -> None:
    assert read_refusal(tools=tools).key.startswith("tools")
    assert read_refusal(offer="never").key == "offer"


def test_b7_a_number_in_one_table_holds_for_all_that_use_it() -> None:
    """Else the model would read EMERGENCY while everything is still in the prompt."""
    table = tomllib.loads((shipped_policies() / "progressive.toml").read_text())
    for row in table["stages"]:
        if row["use"] == "window_by_iteration":
            row["emergency"] = 40
    policy = read_policy(table, BUILT_IN_STAGES, BUILT_IN_INJECTIONS)
    assert policy.stages[1].emergency == policy.injections[2].emergency == 40  # type: ignore[attr-defined]  # settings of ours
    table["injections"][2]["emergency"] = 20
    with pytest.raises(ConfigError, match=r"count_down\.emergency"):
        read_policy(table, BUILT_IN_STAGES, BUILT_IN_INJECTIONS)


def shipped_policies() -> Path:
    return Path(__file__).parents[2] / "config" / "policies"
