from __future__ import annotations

from typing import Any

import pytest

from proxy.errors import BadRequest, Forbidden
from proxy.sections import Passthrough
from proxy.web.path_rules import PathRules, check_path, has_dot_segments


@pytest.mark.parametrize(
    "path",
    [
        "/..", "/v1/../x", "/v1/./x", "/v1/x/..", "/v1/%2e%2e/x", "/v1/%2E./x", "/v1/.%2e/x", "/v1%2f..%2fx",
        "/v1/..%5cx", "/v1\\..\\x", "/v1/%252e%252e/x", "/v1/%25252e./x", "/v1/..;a=b/x", "/v1/%2e%2e%3b/x",
        "/v1/%2525252525252e%2525252525252e/x",
    ],
)  # fmt: skip
def test_a_dot_segment_is_found_however_it_is_written(path: str) -> None:
    assert has_dot_segments(path)
    scope: dict[str, Any] = {"raw_path": path.encode(), "path": "/"}
    with pytest.raises(BadRequest):
        check_path(scope)


@pytest.mark.parametrize(
    "path",
    ["/", "/v1/models/gpt-4.1", "/v1/models/a..b", "/v1/...", "/v1/.well-known/x", "/v1/a%20b", "/100%", "/v1/x.%2ex"],
)
def test_a_dot_in_a_name_is_none(path: str) -> None:
    assert not has_dot_segments(path)


RULES = PathRules(Passthrough().paths)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/embeddings"), ("POST", "/embeddings"), ("POST", "//v1/embeddings"), ("GET", "/v1/models"),
        ("HEAD", "/v1/models"), ("GET", "/v1/models/meta%2Fllama"), ("POST", "/v1/%65mbeddings"),
    ],
)  # fmt: skip
def test_inference_is_allowed(method: str, path: str) -> None:
    RULES.check(method, path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/files"), ("DELETE", "/v1/files/a"), ("GET", "/v1/organization/api_keys"),
        ("GET", "/v1/embeddings"), ("DELETE", "/v1/models/ft:mine"), ("GET", "/v1/responses/resp_1"),
        ("POST", "/v1/embeddings/x"),
        ("GET", "/v1/chat/completions"), ("POST", "/v1/EMBEDDINGS"), ("POST", "/v2/embeddings"), ("GET", "/"),
    ],
)  # fmt: skip
def test_nothing_else_is(method: str, path: str) -> None:
    with pytest.raises(Forbidden, match=r"passthrough\.paths"):
        RULES.check(method, path)


def test_the_operator_says_what_else() -> None:
    PathRules(["*"]).check("DELETE", "/v1/files/a")
    rules = PathRules(["* /v1/files*", "GET /status"])
    rules.check("DELETE", "/v1/files/a")
    rules.check("GET", "/status")
    with pytest.raises(Forbidden):
        rules.check("GET", "/v1/models")
