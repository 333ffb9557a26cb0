"""A policy: a list of stages with settings, a schedule, a budget, and rules for the model's own state.

Policies are TOML files that share the stages. A setting that a file does not give has the default value of this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, get_args

from proxy.context.models import Model
from proxy.context.stage import Injection, Stage, apply_settings, make_injection, make_stage
from proxy.errors import ConfigError

ScheduleName = Literal["always", "over_budget", "when_it_pays", "append_only", "provider"]
Mode = Literal["rewrite", "observe", "passthrough"]
AskWhen = Literal["always", "when_needed", "never"]
StatePlace = Literal["system", "tail"]
Arguments = Literal["keep", "dead"]
BoundReasoning = Literal["keep", "leave_out"]
OfferTime = Literal["first_request", "first_edit", "when_needed", "never"]

TOOLS = ("recall", "query_db", "describe_db", "manage_scratchpad", "save_memo", "retrieve_memos")
"""The tools that the proxy runs, by name, in the order in which they are offered."""


GAP_REMARK = "\n\n[Messages that followed this one have left the conversation. They are stored.]"
"""The remark after the message after which others have left (`fit.add_gap_remarks`)."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings by which prompts are rewritten."""

    name: str
    stages: tuple[Stage, ...] = ()
    injections: tuple[Injection, ...] = ()
    """Texts of the proxy in the prompt, in addition to guidelines and state."""
    schedule: ScheduleName = "when_it_pays"
    """The rule by which a proposal becomes an edit."""
    mode: Mode = "rewrite"
    """rewrite; observe (plan, record, send the original); passthrough (store and measure only)."""
    budget: float = 0.8
    """Share of the model's window that a prompt may fill."""
    window: int = 0
    """Window in tokens of a model whose window is unknown; 0: such a model has no budget."""
    low: float = 0.6
    """Share of the window down to which a prompt over its budget is brought, if edits last. That room (0.6 of 0.8 is a
    quarter of the budget) is used up before the next edits move the whole prefix again."""
    rent: float = 1.0
    """`when_it_pays`: the rent paid for stale tokens, times this number, has to reach the price of an edit."""
    payback: float = 0.0
    """`when_it_pays`: an edit has to pay back within this share of the requests so far; 0: no such test."""
    predicted_rent: float = 0.0
    """`when_it_pays`: in place of `rent`, once earlier conversations of the same agent show how many requests are left.
    An edit has to pay back within these. 0: they are not looked at."""
    read_cap: float = 0.0
    """`when_it_pays`: the most that a cached token counts for, as a share of the price of a written one. Where it costs
    more, or there is no cache, more edits pay, and the agent misses more of what they take. 0: no limit."""
    max_loss: float = 0.0
    """`when_it_pays`: the share of a conversation's cost that edits may lose, in addition to what the agent's cuts have
    saved. They lose if the conversation ends, or if the agent fetches again what was cut. 0: no limit."""
    eager: bool = False
    """`when_it_pays`: a result that was sent once does not wait for its rent, only for `payback`. Results below
    `eager_least` tokens and failed runs do (the stage `shorten_results`)."""
    arguments: Arguments = "keep"
    """Arguments of earlier calls: keep them, or shorten dead texts (the stage `shorten_arguments`)."""
    bound_reasoning: BoundReasoning = "keep"
    """Reasoning that is bound to its prompt. keep: no message that it is bound to is edited. leave_out: with a new
    prompt of the user such messages are edited too, if that pays. The reasoning that this breaks is left out from then
    on, if it has fewer tokens than the edits save."""
    ask: AskWhen = "when_needed"
    """Condition on which the model is asked to end its answer with a STATE block."""
    state_place: StatePlace = "tail"
    """Place of guidelines and state: after the system prompt (literal), or at the tail."""
    guidelines: str = ""
    """Text in place of our own history guidelines; empty: our own."""
    remark: str = GAP_REMARK
    """Text after the message after which groups or steps have left; empty: none."""
    observation: re.Pattern[str] | None = None
    """Patterns of user messages that are really tool output."""
    tools: tuple[str, ...] = ()
    """The proxy's own tools that the model is offered, if the client sent tools itself."""
    offer: OfferTime = "never"
    """Time from which the tools are offered: a branch's first request, its first edit, or never. when_needed: from the
    first request on if an earlier branch of the same tenant with the same tools has come to edits. Else, or if the
    model has no cache, they are offered from the first edit on. A reference to text that is elsewhere in the prompt
    is no edit in this sense. A definition is paid for with every request, and short chats have no use for it."""

    stands_for: str = ""
    """Name of the policy in whose place this one is run; "" for itself."""
    literal: bool = field(init=False)
    """True if edits are made again with every request, and withdrawn, as the source designs do."""
    own_budget: int | None = field(init=False)
    """The least `Stage.own_budget` of the policy's stages, None if none of them has one."""
    idle_ages: tuple[int, ...] = field(init=False)
    """Ages in seconds, in order, at which a stage of the policy wants an idle conversation to be compressed."""
    reporting_stages: tuple[Stage, ...] = field(init=False)
    """The stages that ask a helper model or leave notes: those with a `Stage.asks` or `Stage.notes` of their own."""

    def __post_init__(self) -> None:
        # Fields rather than properties: each request reads them several times.
        budgets = [budget for stage in self.stages if (budget := stage.own_budget) is not None]
        object.__setattr__(self, "literal", self.schedule == "always")
        object.__setattr__(self, "own_budget", min(budgets, default=None))
        object.__setattr__(self, "idle_ages", tuple(sorted({age for stage in self.stages for age in stage.ages})))
        reporting = (one for one in self.stages if _has_reports(type(one)))
        object.__setattr__(self, "reporting_stages", tuple(reporting))


SHARED_SETTINGS = ("aggressive", "emergency", "max_iterations", "urgency", "reflect", "reflect_batch", "low_stakes")
"""Settings that mean the same in each stage and injection that has them."""
DISABLED_SETTINGS: Mapping[str, str] = {"warn_of_loops": "loops"}
"""Settings that are switched off if a policy has an injection, by its name. Both would write the same text."""
FORMER_KEYS = {"voices": "injections"}
"""Names that keys of a policy file had before 0.1.0 was released."""
_TOOL_KEYS = ("enabled", "offer")
_KEYS_OF_OTHERS = frozenset({"offer", "stands_for"})
"""Fields of `Policy` that no key of a policy file sets: the table `tools` and the exchange set them."""
_CHOICES: dict[str, tuple[object, ...]] = {
    "schedule": get_args(ScheduleName),
    "mode": get_args(Mode),
    "ask": get_args(AskWhen),
    "arguments": get_args(Arguments),
    "bound_reasoning": get_args(BoundReasoning),
    "eager": (True, False),
    "state_place": get_args(StatePlace),
}


def read_policy(
    table: Mapping[str, Any],
    built_in: Mapping[str, type],
    injections: Mapping[str, type] | None = None,
    *,
    source: str = "",
) -> Policy:
    """The policy in a parsed TOML file. Raises ConfigError with the key, the value and the allowed values."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key == "tools":
            values["tools"], values["offer"] = _read_tools(value, source)
        elif key == "stages":
            rows = _check_tables(key, value, source)
            values[key] = tuple(make_stage(row, built_in, source=source) for row in rows)
        elif key == "injections":
            rows = _check_tables(key, value, source)
            values[key] = tuple(make_injection(row, injections or {}, source=source) for row in rows)
        elif key == "observation":
            values[key] = compile_patterns(value, source=source)
        else:
            allowed = _find_allowed_keys(key) or _find_allowed_values(key, value)
            if allowed:
                raise ConfigError(key, value, allowed, source=source)
            values[key] = value
    if "name" not in values:
        raise ConfigError("name", None, "the policy's name", source=source)
    values["stages"] = _add_argument_stage(values, built_in, source)
    return _with_shared(Policy(**values), [*table.get("stages", []), *table.get("injections", [])], source)


def _check_tables(key: str, value: Any, source: str) -> list[Any]:
    """The value, which has to be an array of tables. Raises ConfigError."""
    if not isinstance(value, list):
        raise ConfigError(key, value, f"a list of tables [[{key}]]", source=source)
    return value


def _find_allowed_keys(key: str) -> str:
    """The keys that a policy file may have, in words, if this is none of them; else an empty text."""
    known = {f.name for f in fields(Policy) if f.init} - _KEYS_OF_OTHERS
    if key in known:
        return ""
    return FORMER_KEYS[key] + ", its name now" if key in FORMER_KEYS else "one of " + ", ".join(sorted(known))


def _find_allowed_values(key: str, value: Any) -> str:
    """The values that this key may have, in words, if this is none of them; else an empty text."""
    is_number = isinstance(value, int | float) and value is not True
    if key in _CHOICES and value not in _CHOICES[key]:
        return "one of " + ", ".join(str(one).lower() for one in _CHOICES[key])
    if key in ("budget", "low") and not (is_number and 0 < value <= 1):
        return "a share between 0 and 1"
    if key == "window" and not (is_number and isinstance(value, int) and value >= 0):
        return "a number of tokens, or 0"
    if key in ("name", "guidelines", "remark") and not isinstance(value, str):
        return "a text"
    return ""


def _add_argument_stage(values: Mapping[str, Any], built_in: Mapping[str, type], source: str) -> tuple[Stage, ...]:
    """The stages, with `shorten_arguments` in addition where the policy asks for it and does not name it itself."""
    stages: tuple[Stage, ...] = values.get("stages", ())
    if values.get("arguments") != "dead":
        return stages
    made = make_stage({"use": "shorten_arguments"}, built_in, source=source)
    return stages if any(type(stage) is type(made) for stage in stages) else (*stages, made)


def _with_shared(policy: Policy, rows: Sequence[Mapping[str, Any]], source: str) -> Policy:
    """The policy with its shared settings applied to every stage and injection that has them.

    Each shared setting is given in one table and holds for all. A text that two injections would write is switched off
    in one of them. Raises ConfigError if two tables give different values."""
    shared: dict[str, Any] = {}
    for row in rows:
        for name in SHARED_SETTINGS:
            if name not in row:
                continue
            if shared.setdefault(name, row[name]) != row[name]:
                where = f"{row['use']}.{name}"
                raise ConfigError(
                    where, row[name], f"{shared[name]!r}, as another table has it: one will do", source=source
                )
    shared |= {
        name: False for injection, name in DISABLED_SETTINGS.items() if any(row["use"] == injection for row in rows)
    }
    return replace(
        policy,
        stages=tuple(apply_settings(stage, shared, "stages") for stage in policy.stages),
        injections=tuple(apply_settings(injection, shared, "injections") for injection in policy.injections),
    )


def _read_tools(table: Any, source: str) -> tuple[tuple[str, ...], OfferTime]:
    """Return (the names, the time of the offer) from a policy file's table `[tools]`."""
    if not isinstance(table, Mapping):
        raise ConfigError("tools", table, "a table [tools] with enabled and offer", source=source)
    for key in table:
        if key not in _TOOL_KEYS:
            raise ConfigError(f"tools.{key}", table[key], "one of " + ", ".join(_TOOL_KEYS), source=source)
    names = table.get("enabled", [])
    if not isinstance(names, list | tuple) or any(name not in TOOLS for name in names):
        raise ConfigError("tools.enabled", names, "some of " + ", ".join(TOOLS), source=source)
    offer = table.get("offer", "first_request")
    if offer not in get_args(OfferTime):
        raise ConfigError("tools.offer", offer, "one of " + ", ".join(get_args(OfferTime)), source=source)
    # In one order, whatever the file's order: the definitions are in the prompt, byte for byte.
    return tuple(name for name in TOOLS if name in names), offer


def compile_patterns(patterns: Any, *, source: str = "") -> re.Pattern[str] | None:
    """Join regular expressions into one; None for an empty list. Raises ConfigError for an invalid one."""
    if not isinstance(patterns, list | tuple) or not all(isinstance(p, str) for p in patterns):
        raise ConfigError("observation", patterns, "a list of regular expressions", source=source)
    try:
        return re.compile("|".join(f"(?:{p})" for p in patterns)) if patterns else None
    except re.error as problem:
        raise ConfigError("observation", patterns, f"regular expressions ({problem})", source=source) from problem


def _has_reports(stage: type[Stage]) -> bool:
    return stage.asks is not Stage.asks or stage.notes is not Stage.notes


def apply_model_settings(policy: Policy, model: Model) -> Policy:
    """The policy with the settings of the model's table [models."name".policy].

    A key sets the field of that name in each stage and injection that has such a field. Raises ConfigError if no stage
    or injection has it, or if the value is of another kind."""
    table = model.own.get(policy.name)
    if not table:
        return policy
    where = f'models."{model.name}".{policy.name}'
    parts: tuple[object, ...] = (*policy.stages, *policy.injections)
    known = {f.name for part in parts if is_dataclass(part) and not isinstance(part, type) for f in fields(part)} | {
        "window"
    }  # see `view.find_window`
    for key in table:
        if key not in known:
            raise ConfigError(f"{where}.{key}", table[key], "one of " + ", ".join(sorted(known)))
    return replace(
        policy,
        stages=tuple(apply_settings(stage, table, where) for stage in policy.stages),
        injections=tuple(apply_settings(injection, table, where) for injection in policy.injections),
    )


def check_models(policies: Mapping[str, Policy], models: Iterable[Model]) -> None:
    """Raise ConfigError if a model's table names an unknown policy, or a field that none of its parts has."""
    for model in models:
        for name in model.own:
            if name not in policies:
                allowed = "a policy's name: " + ", ".join(sorted(policies))
                raise ConfigError(f'models."{model.name}".{name}', name, allowed)
            apply_model_settings(policies[name], model)


def with_schedule(policy: Policy, schedule: ScheduleName) -> Policy:
    """The same policy under another schedule."""
    return replace(policy, schedule=schedule)
