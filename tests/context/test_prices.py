"""Bills against bills: what providers charged themselves, and hand-reckoned sums of their public price pages."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from proxy.context.models import Model, find_model, read_models, with_long_cache
from proxy.context.prices import estimate_usage, price_usage
from proxy.dialects.usage import Usage, read_usage

RECORDED: list[dict[str, Any]] = json.loads((Path(__file__).parent / "usages.json").read_text())
MODELS = read_models(tomllib.loads((Path(__file__).parents[2] / "config/models.toml").read_text())["models"])
LARGEST_ERROR = 0.005


def test_thirty_usage_objects_of_five_providers_and_more() -> None:
    assert len(RECORDED) >= 30
    assert len({one["shape"] for one in RECORDED}) >= 10
    assert sum("billed" in one for one in RECORDED) >= 6, "some were billed by the provider, with the price beside them"


@pytest.mark.parametrize("one", RECORDED, ids=lambda one: f"{one['shape']}: {one['where']}"[:90])
def test_the_bill_is_that_of_the_provider(one: dict[str, Any]) -> None:
    usage, model = read_usage(one["usage"]), find_model(MODELS, one["model"])
    assert usage is not None
    charged = one["billed"] if "billed" in one else sum(tokens * price for tokens, price in one["lines"]) / 1e6
    found = price_usage(model, usage, model.find_rate(one.get("at", 0.0)))
    assert found.total == pytest.approx(charged, rel=LARGEST_ERROR)
    if usage.dollars is not None:
        assert usage.dollars == pytest.approx(charged)


PLAIN = Model(input=1.0, output=5.0, w=1.25, w_long=2.0, r=0.1)


def test_tokens_that_were_neither_read_nor_written_cost_their_plain_price() -> None:
    assert price_usage(PLAIN, Usage(1000, 0, 1000, 0, 0)).prompt == pytest.approx(1000e-6)
    assert price_usage(PLAIN, Usage(1000, 0, 1000, 0)).prompt == pytest.approx(1250e-6), "writes are not reported"
    assert price_usage(PLAIN, Usage(1000, 0, 1000, 400, 600, cache_write_long=600)).prompt == pytest.approx(1240e-6)


def test_counts_that_contradict_each_other_never_make_a_negative_bill() -> None:
    bill = price_usage(PLAIN, Usage(10, 0, 10, 50, 900, cache_write_long=5000))
    assert bill.prompt == pytest.approx(10 * 0.1e-6)


def test_a_model_without_prices_costs_nothing() -> None:
    assert price_usage(Model(), Usage(10, 5, 15)).total == 0.0


def test_a_prompt_that_was_not_sent_is_written_to_the_cache_in_the_same_share() -> None:
    sent = Usage(1000, 10, 1010, 500, 400, cache_write_long=100)
    found = estimate_usage(sent, 3000, 2000, 10)
    assert (found.prompt, found.cached, found.cache_write, found.cache_write_long) == (3000, 2000, 800, 200)
    assert estimate_usage(Usage(1000, 10, 1010, 500), 3000, 5000, 10).cached == 3000
    assert estimate_usage(Usage(1000, 0, 1000, 1000, 0), 2000, 500, 0).cache_write == 1500, "all of the prompt was read"


def test_a_client_that_pays_for_the_long_lifetime_has_a_warm_cache_for_an_hour() -> None:
    long = with_long_cache(Model(w=1.25, w_long=2.0, ttl_s=300.0))
    assert (long.w, long.ttl_s) == (2.0, 3600.0)
    assert with_long_cache(Model(w=1.25, ttl_s=7200.0)).ttl_s == 7200.0
    assert with_long_cache(Model(w=1.25)).w == 1.25
