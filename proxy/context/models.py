"""The cost and the limits of prompts: window, prices and cache rule of each model.

`w` is the price of an input token that is written to the provider's cache. `r` is the price of an input token that the
cache serves. Both are in units of the model's plain input price. The figures are in config/models.toml, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from math import prod
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from proxy.errors import ConfigError

Tokens = Annotated[int, Meta(ge=1, le=10**12)]
Hour = Annotated[int, Meta(ge=0, le=24)]
Price = Annotated[float, Meta(ge=0, le=10**9)]
"""A price has an upper bound, so that neither `inf` nor `nan`, which TOML allows, is valid."""
FIRST_WEEKDAY, SATURDAY = 3, 5
"""The first day of Unix time was a Thursday; Monday is 0."""


@dataclass(frozen=True, slots=True)
class Model:
    """Facts about a model."""

    name: str = "*"
    window: Tokens | None = None
    """Tokens of prompt and answer together. None if unknown: then there is no budget."""
    max_output: Tokens | None = None
    answer_apart: bool = False
    """True if the window holds the prompt alone; else the answer has to fit in it as well."""
    answer: Tokens = 4096
    """Tokens of a usual answer. They are kept free in the window if a request does not limit its answer."""
    tokenizer: Literal["o200k_base", "cl100k_base", "estimate"] = "o200k_base"
    input: Price | None = None
    """Dollars per million input tokens."""
    output: Price | None = None
    """Dollars per million output tokens."""
    w: Price = 1.25
    """Price of an uncached input token that enters the cache, in units of `input`."""
    w_long: Price | None = None
    """Price of an input token that enters the cache for the provider's longer lifetime; None: the same as `w`."""
    r: Price = 0.1
    """Price of a cached input token, in units of `input`."""
    steps: tuple[tuple[Tokens, Price, Price], ...] = ()
    """(tokens, factor of input, factor of output): the prices of a prompt above these tokens are multiplied."""
    tiers: tuple[tuple[str, Price], ...] = ()
    """(name, factor): all prices of an answer are multiplied where the answer names this service tier, speed or place
    of inference."""
    off_peak: Price = 1.0
    """Factor of all prices outside of `peak_hours`."""
    peak_hours: tuple[tuple[Hour, Hour], ...] = ()
    """(first, end) in UTC on Monday to Friday; () if prices do not depend on the time."""
    cache: Literal["prefix", "breakpoint", "units", "none"] = "prefix"
    """The match of the cache: any prefix; up to explicit marks; in whole units of `block`; or no cache."""
    breakpoint_field: Literal["cache_control", ""] = ""
    """The field with which the proxy may set breakpoints of its own; empty: it sets none."""
    ttl_s: Price = 300.0
    """Seconds after which an idle cache counts as cold."""
    ttl_long_s: Price = 3600.0
    """The same for tokens that were written for the longer lifetime."""
    min: Annotated[int, Meta(ge=0, le=10**12)] = 1024
    """Tokens of a prompt below which it is not cached."""
    block: Tokens = 128
    """Unit of cached tokens: they are counted in multiples of this number."""
    after_tool: Literal["append", "user", "none"] = "append"
    """Place of a text of the proxy after a tool result: appended to the result, in a user message, or nowhere."""
    alternate: bool = False
    """True if the upstream insists that user and assistant take turns (rule W5 in `context.validate`)."""
    user_first: bool = False
    """True if the upstream refuses a conversation that begins with the assistant. Messages and Gemini do so for every
    model."""
    own: dict[str, dict[str, Any]] = field(default_factory=dict, compare=False)
    """Settings of a policy or a stage for this model alone: the tables `[models."NAME".POLICY]`."""
    partial: tuple[str, ...] | None = field(default=None, compare=False)
    """Fields that an operator's entry sets; None if the entry is complete."""
    system_between: bool = False
    """True in a wire format where a system message in a conversation comes after a user message or a result, and in
    front of an answer (M6 of Messages). It is a matter of the format, so no table of models sets it."""

    @property
    def output_ratio(self) -> float:
        """Price of an output token in units of an input token; 5 if prices are unknown (the common ratio)."""
        return self.output / self.input if self.input and self.output else 5.0

    def compute_cost(self, prompt: int, cached: int) -> float:
        """The cost of a prompt, in units of one plain input token."""
        return self.w * (prompt - cached) + self.r * cached

    def find_step(self, prompt: int) -> tuple[float, float]:
        """The factors of the prices of input and of output for a prompt of `prompt` tokens."""
        passed = [step for step in self.steps if prompt > step[0]]
        return max(passed)[1:] if passed else (1.0, 1.0)

    def find_tier_rate(self, names: Sequence[str]) -> float:
        """The factor of all prices for what an answer names; 1 for a name that is not in `tiers`."""
        return prod(factor for name, factor in self.tiers if name in names)

    def find_rate(self, at: float) -> float:
        """The factor of all prices at a time, Unix seconds."""
        if not self.peak_hours:
            return 1.0
        day, hour = divmod(at / 3600, 24)
        is_workday = (int(day) + FIRST_WEEKDAY) % 7 < SATURDAY
        return 1.0 if is_workday and any(first <= hour < end for first, end in self.peak_hours) else self.off_peak


@lru_cache(maxsize=256)
def without_cache(model: Model) -> Model:
    """The model for an upstream whose cache never reports cached tokens.

    A prefix is then worth nothing, and moving it costs nothing. The same object is returned each time, because facts
    about messages are remembered under it.
    """
    return replace(model, r=model.w, cache="none")


@lru_cache(maxsize=256)
def with_read_cap(model: Model, share: float) -> Model:
    """The model with a cached token at `share` of the price of a written one at most."""
    return replace(model, r=min(model.r, share * model.w))


@lru_cache(maxsize=256)
def with_long_cache(model: Model) -> Model:
    """The model for a client that pays for the longer lifetime of the provider's cache."""
    return replace(model, w=model.w if model.w_long is None else model.w_long, ttl_s=max(model.ttl_s, model.ttl_long_s))


@lru_cache(maxsize=256)
def with_user_first(model: Model, *, system_between: bool) -> Model:
    """The model in a wire format whose conversations begin with a user message."""
    return replace(model, user_first=True, system_between=system_between)


NON_SETTING_FIELDS = {"name", "own", "partial", "system_between"}
FindLine = Callable[[tuple[str | int, ...]], int | None]


def read_models(
    table: Mapping[str, Any], *, partial: bool = False, source: str = "", find_line: FindLine = lambda _: None
) -> tuple[Model, ...]:
    """The models of a `[models]` table, in file order.

    partial: the rows are an operator's, and are laid over the entries that come after them. source: the file.
    find_line: gives the line of a key in the file. Raises ConfigError for an unknown key, or for a value of a wrong
    kind or out of bounds.
    """
    known = [f.name for f in fields(Model) if f.name not in NON_SETTING_FIELDS]
    models = []
    for name, row in table.items():

        def refuse(key: str, value: object, allowed: str, name: str = name) -> ConfigError:
            at = find_line(("models", name, key) if key else ("models", name))
            return ConfigError(f'models."{name}"{"." * bool(key)}{key}', value, allowed, line=at, source=source)

        if not isinstance(row, Mapping):
            raise refuse("", row, f'a table [models."{name}"]')
        given = {k: v for k, v in row.items() if not isinstance(v, dict)}
        own = {k: v for k, v in row.items() if isinstance(v, dict)}
        for key, value in given.items():
            if key not in known:
                raise refuse(key, value, "one of " + ", ".join(known))
            try:
                read = getattr(msgspec.convert({key: value}, Model), key)
                given[key] = read if isinstance(value, list) else value
            except msgspec.ValidationError as error:
                allowed = str(error).partition(" - at ")[0].removeprefix("Expected ")
                raise refuse(key, value, allowed) from None
            if value != value:
                raise refuse(key, value, "a number")
        models.append(Model(name=name, own=own, partial=tuple(given) if partial else None, **given))
    return tuple(models)


def find_model(models: Sequence[Model], name: str) -> Model:
    """The first entry whose pattern matches the name, with or without a provider's prefix (`openai/gpt-5`, and
    `us.anthropic.claude-sonnet-5` of Bedrock, which has Anthropic's prices).

    An operator's entry gives only the fields that it sets. The other fields come from the next entry that matches.
    """
    name = name.lower()
    bare = name.rsplit("/", 1)[-1].rpartition("anthropic.")[2]
    above: list[Model] = []
    match = Model()
    for model in models:
        pattern = model.name.lower()
        if fnmatchcase(name, pattern) or fnmatchcase(bare, pattern):
            if model.partial is None:
                match = model
                break
            above.append(model)
    for model in reversed(above):
        changed = {field: getattr(model, field) for field in model.partial or ()}
        own = match.own | {k: {**match.own.get(k, {}), **v} for k, v in model.own.items()}
        match = replace(match, name=model.name, own=own, **changed)
    return match
