from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from proxy.context.plan import Proposal
from proxy.context.stage import Stage, When, find_class, make_stage
from proxy.context.stages import BUILT_IN_STAGES
from proxy.context.stages.truncate_results import TruncateResults
from proxy.context.view import View
from proxy.errors import ConfigError

HERE = f"{__name__}"


@dataclass(frozen=True, slots=True)
class Mine(Stage):
    """A stage of a user's own."""

    share: float = 0.5
    words: tuple[str, ...] = ()
    name: str = "x"
    on: bool = False
    limit: int | None = None
    when: ClassVar[When] = "schedule"

    def __call__(self, view: View) -> Iterable[Proposal]:
        return ()


@dataclass(frozen=True, slots=True)
class Timeless(Stage):
    """Callable, but does not say when."""

    def __call__(self, view: View) -> Iterable[Proposal]:
        return ()


@dataclass(frozen=True, slots=True)
class Demanding(Stage):
    """Has a field without a default."""

    most: int
    when: ClassVar[When] = "last"

    def __call__(self, view: View) -> Iterable[Proposal]:
        return ()


@dataclass(frozen=True, slots=True)
class Silent(Stage):
    """A dataclass that cannot be called."""

    when: ClassVar[When] = "last"


@dataclass(frozen=True, slots=True)
class Alone:
    """A dataclass that can be called, and extends nothing."""

    when: ClassVar[When] = "last"

    def __call__(self, view: View) -> Iterable[Proposal]:
        return ()


def plain(view: View) -> Iterable[Proposal]:
    return ()


def read_refusal(table: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        make_stage(table, BUILT_IN_STAGES, source="mine.toml")
    return caught.value


def test_every_built_in_stage_has_a_docstring_and_says_when_it_runs() -> None:
    for name, kind in BUILT_IN_STAGES.items():
        made = make_stage({"use": name}, BUILT_IN_STAGES)
        assert isinstance(made, kind)
        assert isinstance(made, Stage)
        assert made.when in ("schedule", "always", "last")
        assert kind.__doc__
        assert kind.__module__ == f"proxy.context.stages.{name}"


def test_the_other_keys_of_a_table_are_the_stages_fields() -> None:
    made = make_stage({"use": "truncate_results", "recent": 7, "head": 1, "hint": "gone"}, BUILT_IN_STAGES)
    assert made == TruncateResults(recent=7, head=1, hint="gone")


def test_a_stage_of_a_users_own_is_found_as_module_and_class() -> None:
    assert find_class(f"{HERE}:Mine", BUILT_IN_STAGES) is Mine
    made = make_stage({"use": f"{HERE}:Mine", "share": 1, "words": ["a", "b"], "on": True, "limit": 5}, BUILT_IN_STAGES)
    assert made == Mine(1, ("a", "b"), "x", True, 5)


def test_an_unknown_stage_is_refused_with_the_names_that_there_are() -> None:
    error = read_refusal({"use": "shrink"})
    assert (error.key, error.value) == ("stages.use", "shrink")
    assert "truncate_results" in error.allowed
    assert "module:Class" in error.allowed


@pytest.mark.parametrize(
    "name",
    [
        "no_such_module:Mine",
        f"{HERE}:Absent",
        ":Mine",
        "..up:Mine",
        f"{HERE}:plain",
        f"{HERE}:Silent",
        f"{HERE}:Alone",
        "json:loads",
    ],
)
def test_a_class_that_cannot_be_imported_or_is_not_a_stage_is_refused(name: str) -> None:
    error = read_refusal({"use": name})
    assert (error.key, error.value) == ("stages.use", name)


def test_a_stage_that_does_not_say_when_is_refused() -> None:
    assert "when" in read_refusal({"use": f"{HERE}:Timeless"}).allowed


def test_a_field_without_a_default_has_to_be_given() -> None:
    assert make_stage({"use": f"{HERE}:Demanding", "most": 3}, BUILT_IN_STAGES) == Demanding(3)
    error = read_refusal({"use": f"{HERE}:Demanding"})
    assert "most" in str(error)


def test_an_unknown_field_is_refused_with_those_that_there_are() -> None:
    error = read_refusal({"use": "close_window", "grups": 5})
    assert (error.key, error.value, error.source) == ("stages.close_window.grups", 5, "mine.toml")
    assert error.allowed == "one of groups, tokens"
    assert re.match(r"mine\.toml: stages\.close_window\.grups = 5 is not usable", error.message)


@pytest.mark.parametrize(
    ("stage", "field", "value"),
    [
        ("close_window", "groups", "5"),
        ("close_window", "groups", 5.0),
        ("close_window", "groups", True),
        ("truncate_results", "head", "0.2"),
        ("truncate_results", "head", True),
        ("truncate_results", "hint", 7),
        (f"{HERE}:Mine", "words", "abc"),
        (f"{HERE}:Mine", "on", 1),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(stage: str, field: str, value: object) -> None:
    error = read_refusal({"use": stage, field: value})
    assert (error.key, error.value) == (f"stages.{stage}.{field}", value)
    assert error.allowed.startswith("like ")


@pytest.mark.parametrize("table", [{}, {"groups": 5}, "close_window", 7, ["close_window"]])
def test_a_stage_without_a_table_and_the_key_use_is_refused(table: Any) -> None:
    error = read_refusal(table)
    assert (error.key, error.value) == ("stages", table)
    assert "use" in error.allowed
