"""Token counts and dollars of an answer, read from the usage object of any provider.

Providers differ in three ways. They name the counts differently. Anthropic's `input_tokens` leaves out the tokens that
the cache read and wrote. `completion_tokens` of xAI and of Gemini's compatible surface leaves out reasoning. All shapes
become one `Usage`: `prompt` is everything that was read as input, `completion` everything that is billed as output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

_EXACT = 1 << 53
"""Counts above this are not token counts, and would not fit a database column."""
_NUMBERS = (int, float)
"""The types of a count in JSON: `bool` is a subclass of `int`, and is none."""
TICKS = 1e10
"""xAI reports dollars in units of 1e-10 dollar."""
NO_DETAILS: Mapping[str, Any] = {}
TIER_FIELDS = ("service_tier", "speed", "inference_geo", "serviceTier")
"""Fields of a usage object that name what changes all prices: three of Anthropic, one of Gemini."""
STANDARD_TIERS = frozenset(("auto", "default", "standard", "global", "not_available"))
"""Their values at standard prices."""


class Usage(msgspec.Struct, frozen=True):
    """Token counts as the provider reports them; None if it does not report one, which is not zero."""

    prompt: int
    completion: int
    total: int
    cached: int | None = None
    """Tokens of the prompt that were read from the cache."""
    cache_write: int | None = None
    """Tokens of the prompt that were written to the cache, for whatever lifetime."""
    reasoning: int | None = None
    """Tokens of `completion` that the client does not see."""
    cache_write_long: int = 0
    """Tokens of `cache_write` that the cache keeps for the provider's longer lifetime (Anthropic: an hour)."""
    dollars: float | None = None
    """The price of the request, where the provider reports it."""
    unlisted: int = 0
    """Tokens of `completion` that the provider's own count of completion tokens leaves out."""
    compactions: tuple[Usage, ...] = ()
    """Usage of the provider's compactions of the history within the request. It is billed beside all other counts."""
    tiers: tuple[str, ...] = ()
    """Names of what changes all prices of the answer: a service tier, a speed, a place of inference."""


def read_count(value: Any) -> int | None:
    """Return the value as a count; None if it is not a number from 0 to `_EXACT`."""
    return int(value) if type(value) in _NUMBERS and 0 <= value <= _EXACT else None


def read_usage(value: Any, service_tier: Any = None) -> Usage | None:
    """Return the token counts in a usage object, under the names that providers give them; None if there are none.

    service_tier: that of the answer, where the answer has it beside its usage object."""
    if not isinstance(value, dict):
        return None
    usage = _read_counts(value)
    named = (service_tier, *(value.get(name) for name in TIER_FIELDS))
    tiers = tuple(one.lower() for one in named if isinstance(one, str) and one not in STANDARD_TIERS)
    return msgspec.structs.replace(usage, tiers=tiers) if usage is not None and tiers else usage


def _read_counts(value: dict[str, Any]) -> Usage | None:
    if "promptTokenCount" in value or "candidatesTokenCount" in value:
        return _read_gemini(value)
    if "prompt_tokens" in value or "completion_tokens" in value:
        return _read_completions(value)
    if isinstance(value.get("input_tokens_details"), dict):
        return _read_responses(value)
    return _read_messages(value)


def read_dollars(value: Mapping[str, Any]) -> float | None:
    """Return the price that a usage object names; None if it names none.

    OpenRouter bills its own fee as `cost` where the client's own key pays the provider, and reports the provider's
    price beside it. Perplexity divides `cost` into parts, with their sum.
    """
    ticks = _read_price(value.get("cost_in_usd_ticks"))
    if ticks is not None:
        return ticks / TICKS
    cost = value.get("cost")
    if isinstance(cost, dict):
        return _read_price(cost.get("total_cost"))
    dollars = _read_price(cost)
    if dollars is not None and value.get("is_byok") is True:
        dollars += _read_price(_find_details(value, "cost_details").get("upstream_inference_cost")) or 0.0
    return dollars


def _read_price(value: Any) -> float | None:
    return float(value) if type(value) in _NUMBERS and 0 <= value <= _EXACT else None


def _read_completions(value: dict[str, Any]) -> Usage | None:
    prompt, completion = read_count(value.get("prompt_tokens")), read_count(value.get("completion_tokens"))
    if prompt is None and completion is None:
        return None
    prompt, completion = prompt or 0, completion or 0
    of_prompt = _find_details(value, "prompt_tokens_details")
    reasoning = _read_first_count(_find_details(value, "completion_tokens_details").get("reasoning_tokens"))
    total = read_count(value.get("total_tokens"))
    cached = _read_first_count(
        of_prompt.get("cached_tokens"),
        value.get("prompt_cache_hit_tokens"),  # DeepSeek
        value.get("cache_read_input_tokens"),  # Anthropic behind LiteLLM
        value.get("cached_tokens"),  # Moonshot
    )
    written = _read_first_count(
        of_prompt.get("cache_write_tokens"),
        value.get("cache_creation_input_tokens"),
        of_prompt.get("cache_creation_tokens"),
    )
    unlisted = max(0, total - prompt - completion) if total is not None else 0
    if (cached or 0) + (written or 0) > prompt:  # a gateway that passes on Anthropic's count of fresh tokens
        prompt += (cached or 0) + (written or 0)
        unlisted = 0
    elif reasoning is not None and unlisted > reasoning:
        unlisted = 0  # not explained by reasoning
    return Usage(
        prompt,
        completion + unlisted,
        prompt + completion if total is None else total,
        cached,
        written,
        unlisted if unlisted and reasoning is None else reasoning,
        _read_long(value, of_prompt),
        read_dollars(value),
        unlisted,
    )


def _read_responses(value: dict[str, Any]) -> Usage | None:
    prompt, completion = read_count(value.get("input_tokens")), read_count(value.get("output_tokens"))
    if prompt is None and completion is None:
        return None
    read = _find_details(value, "input_tokens_details")
    total = read_count(value.get("total_tokens"))
    return Usage(
        prompt or 0,
        completion or 0,
        (prompt or 0) + (completion or 0) if total is None else total,
        _read_first_count(read.get("cached_tokens"), read.get("cache_read_input_tokens")),
        _read_first_count(read.get("cache_write_tokens"), read.get("cache_creation_input_tokens")),
        _read_first_count(_find_details(value, "output_tokens_details").get("reasoning_tokens")),
        _read_long(value, read),
        read_dollars(value),
    )


def _read_messages(value: dict[str, Any]) -> Usage | None:
    """Read a usage object of Anthropic Messages. Its `input_tokens` are those beside the cache."""
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    fresh, completion, read, written = (read_count(value.get(name)) for name in names)
    if fresh is None and completion is None:
        return None
    prompt = (fresh or 0) + (read or 0) + (written or 0)
    reasoning = _read_first_count(_find_details(value, "output_tokens_details").get("reasoning_tokens"))
    return Usage(
        prompt, completion or 0, prompt + (completion or 0), read, written, reasoning,
        _read_long(value, NO_DETAILS), read_dollars(value), compactions=_read_compactions(value.get("iterations")),
    )  # fmt: skip


def _read_compactions(iterations: Any) -> tuple[Usage, ...]:
    """The compactions of Anthropic among the iterations of an answer. No other count of the answer has their tokens."""
    entries = [one for one in iterations if isinstance(one, dict)] if isinstance(iterations, list) else []
    found = [_read_messages({**one, "iterations": None}) for one in entries if one.get("type") == "compaction"]
    return tuple(one for one in found if one is not None)


def _read_gemini(value: dict[str, Any]) -> Usage | None:
    """Read `usageMetadata` of Gemini. Thoughts are beside the candidates, and results of server tools beside the
    prompt. A count that is zero is left out, so a prompt without cached tokens names none."""
    prompt, answered = read_count(value.get("promptTokenCount")), read_count(value.get("candidatesTokenCount"))
    thoughts = read_count(value.get("thoughtsTokenCount"))
    if prompt is None and answered is None:
        return None
    prompt = (prompt or 0) + (read_count(value.get("toolUsePromptTokenCount")) or 0)
    completion = (answered or 0) + (thoughts or 0)
    cached = read_count(value.get("cachedContentTokenCount")) or 0
    return Usage(prompt, completion, prompt + completion, cached, None, thoughts)


def _read_long(value: Mapping[str, Any], of_prompt: Mapping[str, Any]) -> int:
    """Tokens that were written to the cache for the longer lifetime."""
    return (
        _read_first_count(
            _find_details(value, "cache_creation").get("ephemeral_1h_input_tokens"),
            _find_details(of_prompt, "cache_creation_token_details").get("ephemeral_1h_input_tokens"),  # LiteLLM
            _find_details(of_prompt, "cache_write_tokens_details").get("ttl_12h_tokens"),  # OpenAI
        )
        or 0
    )


def _find_details(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else NO_DETAILS


def _read_first_count(*values: Any) -> int | None:
    for value in values:
        if value is not None and (found := read_count(value)) is not None:
            return found
    return None
