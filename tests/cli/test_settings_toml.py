from __future__ import annotations

import tomllib
from dataclasses import dataclass

import pytest
from pydantic import BaseModel, SecretStr

from proxy.cli.settings_toml import (
    TABLE_SETTINGS,
    DocumentedField,
    read_fields,
    read_summary,
    render_defaults,
    render_literal,
    render_settings,
)
from proxy.settings.load import Settings, UpstreamSettings, WebhookSettings, find_shipped_file
from proxy.settings.model import ApiKeySettings, SettingsSection


def test_default_toml_is_what_the_code_says() -> None:
    assert find_shipped_file("default.toml").read_text("utf-8") == render_defaults(), "run `context-proxy docs`"


def test_default_toml_equals_the_defaults() -> None:
    tree = tomllib.loads(render_defaults())
    assert Settings.model_validate(tree) == Settings()
    assert set(tree) == set(Settings.model_fields) - TABLE_SETTINGS
    for name, section in tree.items():
        if isinstance(section, dict):
            assert set(section) == set(type(getattr(Settings(), name)).model_fields)


def test_the_example_of_an_upstream_is_toml_once_it_is_uncommented() -> None:
    example = render_defaults().partition("# [upstreams.main]\n")[2].partition("\n\n")[0]
    text = "[upstreams.main]\n" + "\n".join(line.removeprefix("# ") for line in example.splitlines())
    settings = Settings.model_validate(tomllib.loads(text))
    assert settings.upstreams["main"].base_url == "https://api.openai.com/v1"


def test_the_example_of_a_key_is_toml_once_it_is_uncommented() -> None:
    example = render_defaults().partition("# [[keys]]\n")[2]
    text = "[[keys]]\n" + "\n".join(line.removeprefix("# ") for line in example.splitlines())
    assert Settings.model_validate(tomllib.loads(text)).keys[0].plane == "data"


def test_the_example_of_a_webhook_is_toml_once_it_is_uncommented() -> None:
    example = render_defaults().partition("# [[webhooks]]\n")[2].partition("\n\n")[0]
    text = "[[webhooks]]\n" + "\n".join(line.removeprefix("# ") for line in example.splitlines())
    assert Settings.model_validate(tomllib.loads(text)).webhooks[0].events == ("*",)


def test_what_is_in_force_is_toml_that_gives_the_same_settings() -> None:
    settings = Settings.model_validate(
        {
            "port": 99,
            "policies_dir": 'a "quoted" \\ name',
            "groups": {"observation": ["^a\\d+", "x" * 150]},
            "upstreams": {"main": {"base_url": "https://a.example"}, "odd.name": {"base_url": "demo"}},
        }
    )
    assert Settings.model_validate(tomllib.loads(render_settings(settings))) == settings


def test_printed_settings_show_secrets_as_stars() -> None:
    settings = Settings.model_validate(
        {
            "db": "postgresql://me:canary@h/x",
            "identity": {"salt": "canary"},
            "upstreams": {"a": {"base_url": "demo", "proxy": "http://me:canary@h"}},
            "keys": [{"name": "k", "sha256": "ab" * 32, "tenant": "t", "plane": "read"}],
            "webhooks": [{"url": "https://h.example/canary?k=canary", "secret_env": "A"}],
        }
    )
    assert "canary" not in repr(settings)
    text = render_settings(settings)
    assert "canary" not in text
    assert "abab" not in text
    assert text.count("***") == 5
    assert "https://h.example/***" in text
    assert tomllib.loads(text)["keys"][0]["plane"] == "read"


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (3, "3"), (2.5, "2.5"), ("a\n", '"a\\n"'), ((), "[]"), (("a", "b"), '["a", "b"]')],
)
def test_values_are_written_as_toml(value: object, text: str) -> None:
    assert render_literal(value) == text
    assert tomllib.loads(f"x = {text}")["x"] == (list(value) if isinstance(value, tuple) else value)


def test_an_empty_secret_is_printed_as_an_empty_string() -> None:
    assert render_literal(SecretStr("")) == '""'


@dataclass(frozen=True)
class Sample:
    """A sample,
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
    assert read_summary(Sample) == "A sample, in two lines."


def test_a_class_without_fields_has_none() -> None:
    assert read_fields(Plain) == []


def test_required_fields_of_a_model_are_listed_as_required() -> None:
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
