"""Requests for models, and the lists of several providers as one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.dialects.model_lists import (
    ListForm,
    find_client_form,
    read_model,
    read_model_list,
    read_models_question,
    select_routed,
    write_model,
    write_model_list,
)

VERSION = [(b"Anthropic-Version", b"2023-06-01")]
GOOGLE = [(b"x-goog-api-client", b"google-genai-sdk/1")]


@pytest.mark.parametrize(
    ("path", "headers", "form", "model"),
    [
        ("/v1/models", [], "completions", ""), ("/models/", [], "completions", ""),
        ("//v1/models", [], "completions", ""), ("/v1/models", VERSION, "messages", ""),
        ("/v1/models", GOOGLE, "gemini", ""), ("/v1beta/models", [], "gemini", ""),
        ("/v1beta1/models/gemini-3", [], "gemini", "gemini-3"), ("/v1/models/openai/gpt-5", [], "completions",
        "openai/gpt-5"), ("/v1/models/claude-x/", VERSION, "messages", "claude-x"),
    ],
)  # fmt: skip
def test_a_question_about_models_is_known_by_its_path_and_headers(
    path: str, headers: list[tuple[bytes, bytes]], form: str, model: str
) -> None:
    assert read_models_question("GET", path, headers) == (form, model)


@pytest.mark.parametrize(
    ("method", "path"),
    [("HEAD", "/v1/models"), ("DELETE", "/v1/models/ft:a"), ("GET", "/v1/files"), ("GET", "/v1/modelsx"), ("GET", "/")],
)
def test_other_requests_are_no_question_about_models(method: str, path: str) -> None:
    assert read_models_question(method, path, []) is None


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 5000, b"1", b'{"data":1}', b'{"error":{}}', b'"models"'])
def test_what_is_no_list_is_none(body: bytes) -> None:
    assert read_model_list(body) is None
    assert read_model(body, "completions") is None


def test_entries_without_a_name_are_left_out() -> None:
    body = b'{"data":[1,null,{},{"id":2},{"id":""},{"id":"a"}]}'
    assert [one.name for one in read_model_list(body) or []] == ["a"]
    assert [one.name for one in read_model_list(b'[{"id":"a"},{"id":"b"}]') or []] == ["a", "b"]


def test_the_format_of_a_path() -> None:
    for path in ("/v1beta/files", "/upload/v1beta/files", "/ws/google.ai.generativelanguage.v1beta.S.Bidi"):
        assert find_client_form(path, []) == "gemini", path
    for path in ("/v1/files", "/v1beta/openai/files", "/v1betas", "/ws/other"):
        assert find_client_form(path, []) == "completions", path
        assert find_client_form(path, VERSION) == "messages", path


def convert(form: ListForm, entry: dict[str, Any], *, gemini: bool = False) -> dict[str, Any]:
    """The entry as one list in this form has it."""
    [model] = read_model_list(json.dumps({"models" if gemini else "data": [entry]}).encode()) or []
    written = json.loads(write_model_list(form, [("up", model)]))
    [found] = written["models" if form == "gemini" else "data"]
    assert found == json.loads(write_model(form, "up", model))
    assert isinstance(found, dict)
    return found


def test_an_entry_of_the_clients_form_keeps_all_its_members() -> None:
    for form, entry in (
        ("completions", {"id": "a", "object": "model", "created": 5, "owned_by": "x", "pricing": {"prompt": "1"}}),
        ("messages", {"type": "model", "id": "c", "display_name": "C", "created_at": "2026-01-01T00:00:00Z", "y": 1}),
    ):
        assert convert(form, entry) == entry  # type: ignore[arg-type]
    google = {"name": "models/g", "displayName": "G", "inputTokenLimit": 9}
    assert convert("gemini", google, gemini=True) == google


def test_an_entry_of_another_form_is_translated() -> None:
    claude = {"type": "model", "id": "c", "display_name": "C", "created_at": "2026-01-01T00:00:00Z"}
    assert convert("completions", claude) == {
        "type": "model", "id": "c", "display_name": "C", "created_at": "2026-01-01T00:00:00Z",
        "object": "model", "created": 1767225600, "owned_by": "up",
    }  # fmt: skip
    assert convert("completions", {"name": "models/g", "displayName": "G"}, gemini=True) == {
        "id": "g", "object": "model", "created": 0, "owned_by": "up",
    }  # fmt: skip
    assert convert("messages", {"id": "a", "object": "model", "created": 1767225600}) == {
        "type": "model", "id": "a", "display_name": "a", "created_at": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    assert convert("gemini", {"id": "a", "object": "model"})["name"] == "models/a"
    for odd in (None, True, "x", 1e300, -1e300):
        assert convert("messages", {"id": "a", "object": "model", "created": odd})["created_at"][:4] == "1970"
        assert convert("completions", {"id": "a", "type": "model", "created_at": odd})["created"] == 0


def test_each_model_is_listed_once_and_by_the_name_that_is_routed() -> None:
    models = read_model_list(b'{"data":[{"id":"models/g-1"},{"id":"g-1"},{"id":"g-2"},{"id":"x"}]}') or []
    kept = select_routed(models, lambda name: name.startswith("g-"))
    assert [one.name for one in kept] == ["g-1", "g-2"]
    written = json.loads(write_model_list("messages", [("up", one) for one in kept]))
    assert (written["first_id"], written["last_id"], written["has_more"]) == ("g-1", "g-2", False)
    assert json.loads(write_model_list("messages", []))["first_id"] is None
