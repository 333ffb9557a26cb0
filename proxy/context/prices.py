"""The price of one answer, by the usage that the provider reported and the rules by which it bills.

`price_usage` is the one function: metrics, the API, reports and the helper's budget call it. Its rules: a token that
was written to the cache costs `w`, or `w_long` for the longer lifetime. A token that was read from the cache costs `r`,
any other token 1. A prompt above a step has all its prices multiplied. Some providers charge less outside of their peak
hours. A provider that does not report writes is taken to have written all that it did not read."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from proxy.context.models import Model
from proxy.dialects.usage import Usage

MILLION = 1_000_000


class Dollars(NamedTuple):
    """The price of a prompt and of its answer."""

    prompt: float
    answer: float

    @property
    def total(self) -> float:
        """Both together."""
        return self.prompt + self.answer


def price_usage(model: Model, usage: Usage, rate: float = 1.0) -> Dollars:
    """Dollars of one answer; nothing without prices. rate: the factor of the time of day (`Model.find_rate`)."""
    step_input, step_output = model.find_step(usage.prompt)
    cached = min(usage.cached or 0, usage.prompt)
    units = model.r * cached + _count_units(model, usage, usage.prompt - cached)
    return Dollars(
        units * step_input * rate * (model.input or 0.0) / MILLION,
        usage.completion * step_output * rate * (model.output or 0.0) / MILLION,
    )


def _count_units(model: Model, usage: Usage, uncached: int) -> float:
    """Price of the tokens that did not come from the cache, in units of a plain input token."""
    if usage.cache_write is None:
        return model.w * uncached
    written = min(usage.cache_write, uncached)
    long = min(usage.cache_write_long, written)
    w_long = model.w if model.w_long is None else model.w_long
    return uncached - written + model.w * (written - long) + w_long * long


def estimate_usage(first: Usage, prompt: int, cached: int, completion: int) -> Usage:
    """Return the usage of a prompt that was not sent, estimated from the prompt that was sent in its place. The same
    share of the uncached tokens is written to the cache."""
    cached = min(cached, prompt)
    if first.cache_write is None:
        return msgspec.structs.replace(
            first, prompt=prompt, cached=cached, completion=completion, total=prompt + completion
        )
    uncached = first.prompt - (first.cached or 0)
    share = (prompt - cached) / uncached if uncached > 0 else 0.0
    written = round(first.cache_write * share) if uncached > 0 else prompt - cached
    return msgspec.structs.replace(
        first,
        prompt=prompt,
        cached=cached,
        completion=completion,
        total=prompt + completion,
        cache_write=written,
        cache_write_long=round(first.cache_write_long * share),
    )
