from __future__ import annotations

import pytest

from proxy.dialects.cloud_paths import add_path_values, find_plain_path, read_cloud_path, read_path_model
from proxy.dialects.completions.request import read_request
from proxy.exchange.dialect import find_dialect

VERTEX = "/projects/team/locations/us-east5/publishers/anthropic/models"

PROFILE = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/ab12"


@pytest.mark.parametrize(
    ("path", "dialect", "model"),
    [
        ("/openai/deployments/gpt-5-prod/chat/completions", "completions", "gpt-5-prod"),
        ("/openai/v1/chat/completions", "completions", ""),
        ("/openai/v1/responses", "responses", ""),
        ("/openai/responses", "responses", ""),
        ("/openai/responses/compact", "responses", ""),
        (f"/v1{VERTEX}/claude-opus-5-5@20260401:streamRawPredict", "messages", "claude-opus-5-5@20260401"),
        (f"{VERTEX}/claude-haiku-4-5:rawPredict", "messages", "claude-haiku-4-5"),
        (f"/v1beta1{VERTEX}/count-tokens:rawPredict", "messages", ""),
        ("/model/us.anthropic.claude-opus-5-5-v1:0/invoke", "messages", "us.anthropic.claude-opus-5-5-v1:0"),
        (f"/model/{PROFILE}/invoke-with-response-stream", "messages", PROFILE),
    ],
)
def test_a_path_of_a_cloud_tells_its_wire_format_and_its_model(path: str, dialect: str, model: str) -> None:
    found = read_cloud_path(path)
    assert found is not None
    assert (found.dialect, found.model) == (dialect, model)
    assert read_path_model(path) == model
    assert not model or model not in found.template, "a metric has the template, and clients choose models"
    assert find_dialect(found.plain) == dialect


@pytest.mark.parametrize(
    "path",
    [
        "/openai/deployments/gpt-5/embeddings", "/openai/deployments/a/b/chat/completions",
        "/openai/chat/completions/x", "/openai/responses/resp_1", f"{VERTEX}/claude:predict",
        "/v1/projects/t/locations/l/publishers/mistralai/models/m:rawPredict", "/v1/chat/completions", "",
        "/model/any/converse", "/model/a/b/invoke", "/model//invoke", "/model/any/invoke/x", "/v1/model/any/invoke",
    ],
)  # fmt: skip
def test_other_paths_are_none_of_them(path: str) -> None:
    assert read_cloud_path(path) is None


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/openai/deployments/embed-1/embeddings", "embed-1"),
        ("/v1beta/models/gemini-embedding-001:embedContent", "gemini-embedding-001"),
        ("/v1/projects/t/locations/l/publishers/mistralai/models/m:rawPredict", "m"),
        ("/v1/models/openai%2Fgpt-5", "openai/gpt-5"),
        ("/v1/models/claude-opus-5-5", "claude-opus-5-5"),
        ("/model/anthropic.claude-v2:1/invoke", "anthropic.claude-v2:1"),
        ("/v1/models", ""),
        ("/v1/chat/completions", ""),
        ("/v1/files/models", ""),
        ("", ""),
    ],
)
def test_the_model_of_a_path_that_is_passed_on_is_read(path: str, model: str) -> None:
    assert read_path_model(path) == model


@pytest.mark.parametrize(
    "segment", ["a%2fb", "a\\b", "a\0", "a\N{FULLWIDTH SOLIDUS}b", "a?x", "\ufffd\ufffdb", "a#", "a;b"]
)
def test_a_path_in_which_a_server_might_find_another_one_is_not_managed(segment: str) -> None:
    for path in (
        f"/openai/deployments/{segment}/chat/completions",
        f"/v1{VERTEX}/{segment}:rawPredict",
        f"/v1/projects/{segment}/locations/l/publishers/anthropic/models/m:rawPredict",
        f"/v1beta/models/{segment}:generateContent",
    ):
        assert find_dialect(path) is None, path


def test_a_model_is_read_from_an_encoded_path_and_from_geminis() -> None:
    assert read_path_model("/openai/deployments/gpt%2D5/chat/completions") == "gpt-5"
    assert read_path_model("/v1beta/models/gemini-3-pro:generateContent?alt=sse") == "gemini-3-pro"


def test_a_path_of_bedrock_tells_if_a_stream_is_wanted() -> None:
    request = read_request(b'{"messages":[{"role":"user","content":"Hello."}]}')
    path = f"/model/{PROFILE.replace('/', '%2F')}/invoke"
    assert (add_path_values(request, path).model, add_path_values(request, path).stream) == (PROFILE, False)
    assert add_path_values(request, f"{path}-with-response-stream").stream
    assert find_plain_path(f"{path}?a=b") == "/v1/messages?a=b"
    assert find_plain_path("/v1/models?a=b") == "/v1/models?a=b"
