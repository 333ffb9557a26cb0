"""The protocol of a stage, and the search for a stage by its name or by `module:Class`.

A stage is a frozen dataclass called with a View. Its fields are its settings, and its docstring is its entry in
docs/reference/stages.md. Its module's name is its name in config, metrics and notes. A stage says what could go; the
schedule says when.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar

from proxy.context.plan import Ask, Edit, Insert, Note, Proposal
from proxy.context.view import View
from proxy.errors import ConfigError

T = TypeVar("T")

When = Literal["schedule", "always", "last"]
"""schedule: as the policy says. always: a matter of correctness, at once. last: only while the budget is exceeded."""


class Stage(ABC):
    """A source of proposals: content that could leave a conversation. A subclass is a frozen dataclass."""

    __slots__ = ()

    when: ClassVar[When]
    ranks: ClassVar[bool] = False
    """True if the stage reads `View.relevance`: the nearness of messages to the task is looked up for it."""

    @property
    def ages(self) -> Sequence[int]:
        """Ages in seconds at which the stage wants an idle conversation to be compressed."""
        return ()

    @property
    def own_budget(self) -> int | None:
        """Tokens that the stage allows for the whole prompt, whatever the model's window; None: as many as fit."""
        return None

    @abstractmethod
    def __call__(self, view: View) -> Iterable[Proposal]:
        """Proposals for messages of the view, in any order; no message twice."""

    def find_ended_edits(self, view: View) -> Iterable[bytes]:  # noqa: ARG002  a hook
        """Keys of edits of the stage whose reason has ended, as the client has gone back to an earlier message."""
        return ()

    def asks(self, view: View) -> Iterable[Ask]:  # noqa: ARG002  a hook
        """Questions for a helper model. `view.branch.helper_answers` has the answers to earlier ones, by `Ask.id`."""
        return ()

    def notes(self, view: View, edits: Mapping[bytes, Edit], new: Sequence[Edit]) -> Iterable[Note]:  # noqa: ARG002  a hook
        """Notes for the record once the plan is made. edits: all in force, by chain key. new: this request's."""
        return ()


class Injection(ABC):
    """A text of the proxy in a prompt. A subclass is a frozen dataclass; its fields are its settings."""

    __slots__ = ()

    searches: ClassVar[bool] = False
    """True if the injection reads `RewriteInputs.retrieved_texts`: the store is searched for it."""
    recollects: ClassVar[Literal["scratchpad", "memos"] | None] = None
    """The notes of the model that are loaded for the injection."""

    @abstractmethod
    def __call__(self, view: View) -> Iterable[Insert]:
        """The inserts of this request."""


def find_class(name: str, known: Mapping[str, type], section: str = "stages", source: str = "") -> type:
    """The class of that name: a known one (built in, or of a file beside the policy), or one of an installed package
    as `module:Class`. section: the table of a policy file that names it. Raises ConfigError if there is none."""
    key = f"{section}.use"
    candidate: object = known.get(name)
    if candidate is None:
        module, colon, attribute = name.partition(":")
        if not colon:
            raise ConfigError(key, name, "one of " + ", ".join(known) + ", or module:Class", source=source)
        try:
            candidate = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError, TypeError, SyntaxError) as problem:
            # The last three: an empty or relative module name, or a module that cannot be compiled.
            allowed = f"a class of a file beside the policy, or of an installed package ({problem})"
            raise ConfigError(key, name, allowed, source=source) from problem
    if not (isinstance(candidate, type) and is_dataclass(candidate) and callable(candidate)):
        raise ConfigError(key, name, "a dataclass that can be called with a View", source=source)
    return candidate


def make_stage(table: Mapping[str, Any], built_in: Mapping[str, type], *, source: str = "") -> Stage:
    """A stage from its table in a policy file: `use` names it, the other keys are its fields."""
    made = _make("stages", table, built_in, source)
    if not isinstance(made, Stage) or not hasattr(made, "when"):
        raise ConfigError("stages.use", table["use"], "a class that extends `Stage` and has `when`", source=source)
    return made


def make_injection(table: Mapping[str, Any], built_in: Mapping[str, type], *, source: str = "") -> Injection:
    """An injection from its table in a policy file, as `make_stage`."""
    made = _make("injections", table, built_in, source)
    if not isinstance(made, Injection):
        raise ConfigError("injections.use", table["use"], "a class that extends `Injection`", source=source)
    return made


def _make(section: str, table: Mapping[str, Any], built_in: Mapping[str, type], source: str) -> object:
    row: object = table  # parsed from a file, so it may be anything
    if not isinstance(row, Mapping) or "use" not in row:
        raise ConfigError(section, row, "a table with a key `use`", source=source)
    kind = find_class(str(table["use"]), built_in, section, source)
    if "__call__" in getattr(kind, "__abstractmethods__", ()):
        raise ConfigError(f"{section}.use", table["use"], "a class that can be called with a View", source=source)
    known = {f.name: f for f in fields(kind)}
    settings = {name: value for name, value in table.items() if name != "use"}
    for name, value in settings.items():
        if name not in known:
            raise ConfigError(f"{section}.{table['use']}.{name}", value, "one of " + ", ".join(known), source=source)
        default = known[name].default
        or_text = isinstance(value, str) and "str" in str(known[name].type).split(" | ")
        if default is not MISSING and not (or_text or _fits(value, default)):
            raise ConfigError(f"{section}.{table['use']}.{name}", value, f"like {default!r}", source=source)
        if isinstance(value, list):
            settings[name] = tuple(value)
    for name, one in known.items():
        if one.default is MISSING and one.default_factory is MISSING and name not in settings:
            raise ConfigError(f"{section}.{table['use']}.{name}", None, "a value: it has no default", source=source)
    return kind(**settings)


def apply_settings(part: T, table: Mapping[str, Any], where: str) -> T:
    """The stage or injection with those of its fields changed that the table has.

    Raises ConfigError for a value of another kind; the error names `where` and the key.
    """
    if not is_dataclass(part) or isinstance(part, type):
        return part
    new = {}
    for field in fields(part):
        if field.name in table:
            value = table[field.name]
            if not _fits(value, field.default):
                raise ConfigError(f"{where}.{field.name}", value, f"like {field.default!r}")
            new[field.name] = tuple(value) if isinstance(value, list) else value
    return replace(part, **new) if new else part


def _fits(value: object, default: object) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, float):
        return isinstance(value, int | float)
    if isinstance(default, tuple):
        return isinstance(value, list)
    return default is None or default is MISSING or isinstance(value, type(default))
