"""The parts of the settings, each by itself: what a value may be, and that every field is told."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from proxy import sections
from proxy.cli.fields import fields
from proxy.sections import (
    Dashboard,
    Embeddings,
    Helper,
    Key,
    Memos,
    Section,
    Tools,
    checked_name,
    checked_pattern,
    checked_url,
)

PARTS = [kind for kind in vars(sections).values() if isinstance(kind, type) and issubclass(kind, Section)]


def test_every_field_says_what_it_does() -> None:
    assert len(PARTS) > 8
    for kind in PARTS:
        assert kind.__doc__, kind
        assert all(told.text for told in fields(kind)), kind


@pytest.mark.parametrize("kind", [kind for kind in PARTS if kind not in (Section, Key)])
def test_a_part_has_defaults_takes_no_stranger_and_cannot_be_changed(kind: type[Section]) -> None:
    made: Any = kind()
    with pytest.raises(ValidationError):
        kind.model_validate({"stranger": 1})
    with pytest.raises(ValidationError):
        setattr(made, next(iter(kind.model_fields)), None)


def test_no_helper_and_no_embeddings_unless_asked_for() -> None:
    assert (Helper().upstream, Helper().wait_ms, Embeddings().enabled) == ("", 0, False)


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"queue": 0}, {"dollars_a_day": -1}, {"wait_ms": -1}])
def test_a_helper_has_its_bounds(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Helper.model_validate(wrong)


def test_values_are_checked_where_they_are_written() -> None:
    assert checked_url("https://example.com/v1/") == "https://example.com/v1"
    assert checked_url("demo") == "demo"
    assert checked_name("my-policy_2") == "my-policy_2"
    assert checked_pattern("^a+$") == "^a+$"
    for check, wrong in ((checked_url, "ftp://a"), (checked_name, "../etc"), (checked_pattern, "(")):
        with pytest.raises(ValueError, match=r"\w"):
            check(wrong)


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
    assert Tools.model_validate({"enabled": written}).enabled == read


def test_a_tool_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValidationError):
        Tools.model_validate({"enabled": "recall,forget"})


def test_memos_need_a_session_that_the_client_names_unless_the_operator_says_otherwise() -> None:
    assert (Memos().scope, Memos().most, Tools().offer, Tools().enabled) == ("session", 5, "policy", "policy")


KEY = {"name": "a", "sha256": "0" * 64, "tenant": "acme", "plane": "data"}


def test_a_key_says_all_there_is() -> None:
    assert Key.model_validate(KEY | {"sha256": "A" * 64}).sha256 == "a" * 64
    for name in KEY:
        with pytest.raises(ValidationError):
            Key.model_validate({k: v for k, v in KEY.items() if k != name})


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
        Key.model_validate(KEY | {field: value})
    assert "the-key-itself" not in str(caught.value)


def test_keys_other_than_for_data_may_see_every_tenant() -> None:
    for plane in ("admin", "read", "metrics"):
        assert Key.model_validate(KEY | {"tenant": "*", "plane": plane}).tenant == "*"


@pytest.mark.parametrize(
    "wrong", ["", "*", "null", "https://a.example/", "https://a.example/x", "a.example", "ftp://a"]
)
def test_an_origin_is_one(wrong: str) -> None:
    with pytest.raises(ValidationError):
        Dashboard(origins=(wrong,))
    assert Dashboard(origins=("https://A.example:8443",)).origins == ("https://a.example:8443",)
