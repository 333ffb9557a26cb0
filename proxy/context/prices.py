"""What a prompt costs and how much of one a model takes: limits, prices and cache rule of each model.

`w` and `r` are the prices of an input token that the provider's cache has to be written for and of one that it
serves, in units of the model's plain input price. Figures live in config/models.toml, not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, Literal

from proxy.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Model:
    """What is known of a model. window: tokens of prompt and answer, None where unknown: then there is no budget."""

    name: str = "*"
    window: int | None = None
    max_output: int | None = None
    tokenizer: str = "o200k_base"
    input: float | None = None
    """Dollars per million input tokens."""
    output: float | None = None
    """Dollars per million output tokens."""
    w: float = 1.25
    """Price of an uncached input token that enters the cache, in units of `input`."""
    r: float = 0.1
    """Price of a cached input token, in units of `input`."""
    cache: Literal["prefix", "breakpoint", "units", "none"] = "prefix"
    """How the cache matches: any prefix; up to explicit marks; in whole units of `block`; or there is none."""
    ttl_s: float = 300.0
    """Seconds after which an idle cache is taken for cold."""
    min: int = 1024
    """Prompts shorter than this are not cached."""
    block: int = 128
    """Cached tokens are counted in multiples of this."""
    after_tool: Literal["append", "user", "none"] = "append"
    """Where a text of ours goes after a tool result: appended to it, in a user message, or nowhere."""
    alternate: bool = False
    """Whether the upstream insists on user and assistant taking turns (WIRE.md W5)."""
    own: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)
    """What a policy or a stage has for this model alone: the tables `[models."NAME".POLICY]`."""

    @property
    def output_ratio(self) -> float:
        """Price of an output token in units of an input token; 5 where prices are unknown (the common ratio)."""
        return self.output / self.input if self.input and self.output else 5.0

    def cost(self, prompt: int, cached: int) -> float:
        """What a prompt costs, in units of one plain input token."""
        return self.w * (prompt - cached) + self.r * cached


def read_models(table: Mapping[str, Mapping[str, Any]]) -> tuple[Model, ...]:
    """The models of a `[models]` table, in file order. Raises ConfigError for an unknown key or a wrong kind."""
    known = {f.name for f in fields(Model)} - {"name", "own"}
    found = []
    for name, row in table.items():
        extra = {k: v for k, v in row.items() if not isinstance(v, dict)}
        for wrong in sorted(set(extra) - known):
            raise ConfigError(f'models."{name}".{wrong}', extra[wrong], "one of " + ", ".join(sorted(known)))
        own = {k: v for k, v in row.items() if isinstance(v, dict)}
        found.append(Model(name=name, own=own, **extra))
    return tuple(found)


def find_model(models: Sequence[Model], name: str) -> Model:
    """The first entry whose pattern matches the name, with or without a provider's prefix (`openai/gpt-5`)."""
    name = name.lower()
    bare = name.rsplit("/", 1)[-1]
    for model in models:
        pattern = model.name.lower()
        if fnmatchcase(name, pattern) or fnmatchcase(bare, pattern):
            return model
    return Model()
