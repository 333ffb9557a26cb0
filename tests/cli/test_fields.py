from __future__ import annotations

from dataclasses import dataclass

import pytest
from pydantic import BaseModel

from proxy.cli.settings_toml import DocumentedField, read_fields, read_summary
from proxy.settings.load import ApiKeySettings, Settings, SettingsSection, UpstreamSettings, WebhookSettings


@dataclass(frozen=True)
class Sample:
    """What it is,
    in two lines.

    And more.
    """

    first: int
    """The first."""
    second: tuple[str, ...] = ("a",)
    """The second,
    longer."""
    third: str = "x"


class Plain:
    """No fields."""


def test_fields_of_a_dataclass_have_their_docstrings() -> None:
    assert read_fields(Sample) == [
        DocumentedField("first", None, True, "The first."),
        DocumentedField("second", ("a",), False, "The second, longer."),
        DocumentedField("third", "x", False, ""),
    ]


@dataclass(frozen=True)
class More(Sample):
    """A sample with a field of its own."""

    fourth: int = 4
    """The fourth."""


def test_fields_of_a_dataclass_that_are_its_bases_have_their_docstrings_too() -> None:
    assert read_fields(More) == [*read_fields(Sample), DocumentedField("fourth", 4, False, "The fourth.")]


def test_summary_is_the_first_paragraph_on_one_line() -> None:
    assert read_summary(Sample) == "What it is, in two lines."


def test_a_class_without_fields_has_none() -> None:
    assert read_fields(Plain) == []


def test_required_fields_of_a_model_are_told_as_such() -> None:
    assert read_fields(UpstreamSettings)[0].name == "base_url"
    assert [told.name for told in read_fields(UpstreamSettings) if told.required] == ["base_url"]


def test_every_setting_has_a_docstring() -> None:
    kinds: list[type[BaseModel]] = [UpstreamSettings, ApiKeySettings, WebhookSettings]
    for told in read_fields(Settings):
        if isinstance(told.default, SettingsSection):
            kinds.append(type(told.default))
        elif told.name != "upstreams":
            assert told.text.endswith((".", "?")), told.name
    for kind in kinds:
        assert read_summary(kind)
        for told in read_fields(kind):
            assert told.text.endswith("."), f"{kind.__name__}.{told.name}"


@pytest.mark.parametrize("kind", [Settings, UpstreamSettings])
def test_order_is_that_of_the_source(kind: type[BaseModel]) -> None:
    assert [told.name for told in read_fields(kind)] == list(kind.model_fields)
