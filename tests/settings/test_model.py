"""The parts of the settings, each by itself: what a value may be, and that every field is told."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from proxy.cli.settings_toml import read_fields
from proxy.settings import model as settings_model
from proxy.settings.model import (
    ApiKeySettings,
    DashboardSettings,
    EmbeddingSettings,
    HelperSettings,
    MemoSettings,
    SettingsSection,
    ToolSettings,
    validate_base_url,
    validate_pattern,
    validate_policy_name,
)

PARTS = [kind for kind in vars(settings_model).values() if isinstance(kind, type) and issubclass(kind, SettingsSection)]


def test_every_field_says_what_it_does() -> None:
    assert len(PARTS) > 8
    for kind in PARTS:
        assert kind.__doc__, kind
        assert all(told.text for told in read_fields(kind)), kind


@pytest.mark.parametrize("kind", [kind for kind in PARTS if kind not in (SettingsSection, ApiKeySettings)])
def test_a_part_has_defaults_takes_no_stranger_and_cannot_be_changed(kind: type[SettingsSection]) -> None:
    made: Any = kind()
    with pytest.raises(ValidationError):
        kind.model_validate({"stranger": 1})
    with pytest.raises(ValidationError):
        setattr(made, next(iter(kind.model_fields)), None)


def test_no_helper_and_no_embeddings_unless_asked_for() -> None:
    assert (HelperSettings().upstream, HelperSettings().wait_ms, EmbeddingSettings().enabled) == ("", 0, False)


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"queue": 0}, {"dollars_a_day": -1}, {"wait_ms": -1}])
def test_helper_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        HelperSettings.model_validate(wrong)


def test_values_are_checked_where_they_are_written() -> None:
    assert validate_base_url("https://example.com/v1/") == "https://example.com/v1"
    assert validate_base_url("demo") == "demo"
    assert validate_policy_name("my-policy_2") == "my-policy_2"
    assert validate_pattern("^a+$") == "^a+$"
    for check, wrong in ((validate_base_url, "ftp://a"), (validate_policy_name, "../etc"), (validate_pattern, "(")):
        with pytest.raises(ValueError, match=r"\w"):
            check(wrong)


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("https://api.openai.com/v1/chat/completions", "https://api.openai.com/v1"),
        ("https://api.openai.com/v1/responses/", "https://api.openai.com/v1"),
        ("https://api.anthropic.com/v1/messages", "https://api.anthropic.com/v1"),
        ("http://127.0.0.1:11434/api/chat/completions", "http://127.0.0.1:11434/api"),
    ],
)
def test_the_url_of_an_endpoint_is_not_a_base_url_and_the_error_names_the_one_that_is(url: str, base: str) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(base)}$"):
        validate_base_url(url)
    assert validate_base_url(base) == base


def test_a_folder_of_a_gateway_may_have_the_name_of_an_endpoint() -> None:
    for url in ("https://gateway.example/messages", "https://gateway.example/responses/v1"):
        assert validate_base_url(url) == url


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("policy", "policy"),
        ("recall", ("recall",)),
        ("recall, query_db", ("recall", "query_db")),
        ('["recall","query_db"]', ("recall", "query_db")),
        (["save_memo"], ("save_memo",)),
        ([], ()),
    ],
)
def test_tools_are_named_in_a_file_or_in_an_environment_variable(written: object, read: object) -> None:
    assert ToolSettings.model_validate({"enabled": written}).enabled == read


def test_a_tool_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValidationError):
        ToolSettings.model_validate({"enabled": "recall,forget"})


def test_memos_need_a_session_that_the_client_names_unless_the_operator_says_otherwise() -> None:
    assert (MemoSettings().scope, MemoSettings().most, ToolSettings().offer, ToolSettings().enabled) == (
        "session",
        5,
        "policy",
        "policy",
    )


KEY = {"name": "a", "sha256": "0" * 64, "tenant": "acme", "plane": "data"}


def test_a_key_says_all_there_is() -> None:
    assert ApiKeySettings.model_validate(KEY | {"sha256": "A" * 64}).sha256 == "a" * 64
    for name in KEY:
        with pytest.raises(ValidationError):
            ApiKeySettings.model_validate({k: v for k, v in KEY.items() if k != name})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("tenant", value) for value in ("", "*", " ", "a b", "a\n", "x" * 129)],
        *[("name", value) for value in ("", "a b", "a\nb")],
        *[("sha256", value) for value in ("", "0" * 63, "g" * 64, "cp-the-key-itself")],
        *[("plane", value) for value in ("", "*", "root")],
    ],
)
def test_no_key_can_stand_for_nobody_or_chat_as_everybody(field: str, value: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ApiKeySettings.model_validate(KEY | {field: value})
    assert "the-key-itself" not in str(caught.value)


def test_keys_other_than_for_data_may_see_every_tenant() -> None:
    for plane in ("admin", "read", "metrics"):
        assert ApiKeySettings.model_validate(KEY | {"tenant": "*", "plane": plane}).tenant == "*"


@pytest.mark.parametrize(
    "wrong", ["", "*", "null", "https://a.example/", "https://a.example/x", "a.example", "ftp://a"]
)
def test_values_that_are_no_web_origin_are_refused(wrong: str) -> None:
    with pytest.raises(ValidationError):
        DashboardSettings(origins=(wrong,))
    assert DashboardSettings(origins=("https://A.example:8443",)).origins == ("https://a.example:8443",)
