from __future__ import annotations

import logging
from typing import Any

import pytest
from fastapi import APIRouter

from proxy.errors import BadRequest, Forbidden
from proxy.settings.model import PassthroughSettings
from proxy.upstream.headers import OLLAMA_PATH
from proxy.web.routes import READ, PathRules, RouteTable, check_path, has_dot_segments, is_conversational
from tests.proxy_server import CHAT, Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

router = APIRouter()


HEADER = "x-context-unmanaged"


@router.get("/api/sessions/{session}", openapi_extra=READ)
@router.post("/api/sessions/{session}", openapi_extra=READ)
async def one(session: str) -> str:
    return session


@router.get("/api/export")
async def export() -> str:
    return ""


DOORS = RouteTable(router.routes)


@pytest.mark.parametrize(
    ("method", "path", "kind", "planes"),
    [
        ("GET", "/healthz", "health", set()),
        ("GET", "/readyz", "health", set()),
        ("GET", "/metrics", "metrics", {"metrics", "admin"}),
        ("GET", "/dashboard", "pages", set()),
        ("GET", "/dashboard/app.js", "pages", set()),
        ("GET", "/api/sessions/a", "api", {"admin", "read"}),
        ("POST", "/api/sessions/a", "api", {"admin"}),
        ("DELETE", "/api/sessions/a", "api", {"admin"}),
        ("GET", "/api/export", "api", {"admin"}),
        ("GET", "/api", "api", {"admin"}),
        ("GET", "/api/", "api", {"admin"}),
        ("GET", "/api/sessions/a/b", "api", {"admin"}),
        ("GET", "/api/sessions/a\n", "api", {"admin", "read"}),
        ("GET", "/api/../v1/models", "api", {"admin"}),
        ("POST", "/api/chat", "data", {"data"}),
        ("GET", "/api/version", "data", {"data"}),
        ("HEAD", "/api/blobs/sha256:29fd", "data", {"data"}),
        ("POST", "/api/chat/", "api", {"admin"}),
        ("GET", "/api/blobs/a/b", "api", {"admin"}),
        ("GET", "/healthz/x", "api", {"admin"}),
        ("GET", "/metrics/", "api", {"admin"}),
        ("GET", "//api/export", "data", {"data"}),
        ("GET", "/API/export", "data", {"data"}),
        ("GET", "/apis", "data", {"data"}),
        ("GET", "/v1/../api/export", "data", {"data"}),
        ("POST", "/v1/chat/completions", "data", {"data"}),
        ("POST", "/s/a/api/export", "data", {"data"}),
        ("GET", "/", "data", {"data"}),
        ("GET", "", "data", {"data"}),
    ],
)
def test_every_path_has_one_route_and_it_is_closed(method: str, path: str, kind: str, planes: set[str]) -> None:
    found = DOORS.find_route(method, path)
    assert (found.kind, set(found.planes)) == (kind, planes)


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


RULES = PathRules(PassthroughSettings().paths)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/embeddings"), ("POST", "/embeddings"), ("POST", "//v1/embeddings"), ("GET", "/v1/models"),
        ("HEAD", "/v1/models"), ("GET", "/v1/models/meta%2Fllama"), ("POST", "/v1/%65mbeddings"),
        ("GET", "/v1/models/openai/gpt-5"), ("GET", "/v1/models/ft:gpt-4.1:org::a_b~1@2"),
        ("GET", "/v1/models/ft%3Agpt-4%2e1"),
    ],
)  # fmt: skip
def test_the_operators_key_opens_inference_and_the_list_of_models(method: str, path: str) -> None:
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
def test_the_operators_key_opens_no_other_path(method: str, path: str) -> None:
    with pytest.raises(Forbidden, match=r"passthrough\.paths"):
        RULES.check(method, path)


ODD = [
    "%c0%ae%c0%ae/files", "%e0%80%ae%e0%80%ae/files", "..%c0%af../files", "%2e%2e%c0%affiles", "%uff0e%uff0e/files",
    "%ef%bc%8e%ef%bc%8e/files", "..%00/files", "%00..%00/files", ".%00./files", "..%09/files", "..%20/files",
    "..%23/files", "..%3f/files", "..%2500/files", "...", "..:/files", "/v1/files", "x//y", "x%2f%2fy", "x\\y",
    "x%0d%0ay", "x;y", "%", "%zz", "x%252fy", "x?y", "x#y", "\xc0\xae\xc0\xae/files", "\xef\xbc\x8e/files",
]  # fmt: skip


@pytest.mark.parametrize("path", ODD)
def test_s3_segments_are_made_of_letters_digits_and_few_signs(path: str) -> None:
    for allowed in ("GET /v1/models/*", "GET /v1/models/**", "*"):
        with pytest.raises(Forbidden):
            PathRules([allowed]).check("GET", "/v1/models/" + path)


def test_patterns_of_passthrough_paths_open_further_paths() -> None:
    PathRules(["*"]).check("DELETE", "/v1/files/a")
    PathRules(["GET /**"]).check("GET", "/any/where/")
    rules = PathRules(["* /v1/files**", "GET /status", "GET /v1/batches/*", "GET /v1/threads/*/runs"])
    rules.check("DELETE", "/v1/files/a")
    rules.check("DELETE", "/v1/files/a/b")
    rules.check("GET", "/status")
    rules.check("GET", "/v1/batches/a")
    rules.check("GET", "/v1/threads/a/runs")
    for path in ("/v1/models", "/v1/batches/", "/v1/batches/a/b", "/v1/batches/a%2Fb", "/v1/threads/a/b/runs"):
        with pytest.raises(Forbidden):
            rules.check("GET", path)


@pytest.mark.parametrize(
    "path",
    ["/v1/messages", "/v1/responses", "/v1/completions", "/anthropic/v1/messages/", "/v1beta/models/g:generateContent",
     "/v1beta/models/g:streamGenerateContent", "/api/chat", "/api/generate", "/model/m/converse-stream",
     "/model/m/invoke", "/openai/deployments/d/chat/completions", "/v1/complete",
     "/v1/projects/t/locations/l/publishers/mistralai/models/m:streamRawPredict"],
)  # fmt: skip
def test_paths_of_known_wire_formats_are_conversational(path: str) -> None:
    assert is_conversational("POST", path)
    assert not is_conversational("GET", path)


@pytest.mark.parametrize(
    "path",
    ["/v1/embeddings", "/v1/files", "/v1/messages/count_tokens", "/v1/messages/batches", "/v1/responses/resp_1/cancel",
     "/v1/threads/t/messages", "/v1/models/m:embedContent", "/", "", "/v1/mymessages", "/x/chat"],
)  # fmt: skip
def test_other_paths_are_not_conversational(path: str) -> None:
    assert not is_conversational("POST", path)


def test_an_upstreams_own_path_below_api_is_an_agents_and_no_other_is() -> None:
    table = RouteTable(router.routes, base_paths=("/api/v1", "/inference/v1"))
    for path, kind in (
        ("/api/v1/chat/completions", "data"), ("/api/v1", "api"), ("/api/v1x/a", "api"), ("/api/sessions/a", "api"),
        ("/api/export", "api"), ("/API/v1/a", "data"),
    ):  # fmt: skip
        assert table.find_route("GET", path).kind == kind, path
        assert DOORS.find_route("GET", path).kind == ("data" if path.startswith("/API") else "api"), path


async def test_a_client_that_changed_the_host_alone_is_managed_under_its_providers_path() -> None:
    model = ScriptedModel()
    async with run_upstream(model) as upstream:
        base = f"http://127.0.0.1:{upstream.port}/api/v1"
        async with run_proxy("", upstreams={"main": {"base_url": base}}) as proxy:
            agent = Agent(proxy, path="/api/v1/chat/completions")
            first = await agent.say("Hello.")
            agent.path = CHAT
            plain = await agent.say("Again.")
            agent.path = "/s/own/api/v1/chat/completions"
            named = await agent.say("And again.")
            assert (await proxy.get("/api/v1/models")).status == 200
            assert (await proxy.get("/api/sessions")).json()["items"], "the admin API is where it was"
    assert first.session == plain.session
    assert named.session == "own"
    assert [one.line.split()[1] for one in model.received] == [b"/api/v1/chat/completions"] * 3 + [b"/api/v1/models"]


async def test_paths_of_ollama_are_passed_on_beside_the_admin_api() -> None:
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port) as proxy:
        found = await proxy.post({"model": "qwen3:8b", "messages": []}, path="/api/chat")
        assert found.header(HEADER) == "/api/chat"
        assert (await proxy.get("/api/tags")).header(HEADER) is None
        assert [request.line.split()[1] for request in upstream.requests] == [b"/api/chat", b"/api/tags"]
        described = (await proxy.get("/api/openapi.json")).json()["paths"]
    assert len(described) > 20
    assert not [path for path in described if OLLAMA_PATH.fullmatch(path)], "the admin API has none of these paths"


async def test_an_unmanaged_conversation_is_named_in_the_answer_and_once_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.web.app.MAX_LOGGED_PATHS", 3)
    with caplog.at_level(logging.WARNING, "proxy.web.app"):
        async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port) as proxy:
            for path in ("/v1/complete", "/v1/completions", "/s/mine/v1/complete", "/v1/complete"):
                found = await proxy.post({"model": "m", "messages": []}, path=path)
                assert found.header(HEADER) == path.removeprefix("/s/mine")
            for other in ("/v1/embeddings", "/v1/files"):
                assert (await proxy.post({"model": "m"}, path=other)).header(HEADER) is None
            managed = Agent(proxy, path=CHAT, messages=[{"role": "user", "content": "Hello"}])
            assert (await managed.send()).header(HEADER) is None
            strange = await proxy.post({}, path="/%0d%0ax:%20y/v1/complete")
            assert strange.header(HEADER) == "/%0d%0ax:%20y/v1/complete"
            await proxy.post({}, path="/one/more/v1/complete")
    said = [record.getMessage() for record in caplog.records if "unmanaged" in record.getMessage()]
    assert len(said) == 3, "a client cannot fill the log with paths of its own"
    assert [text.split()[2] for text in said[:2]] == ["/v1/complete", "/v1/completions"]
    assert "\n" not in said[2]
