"""The gate by itself, in front of an app that says what it was given."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import APIRouter

from proxy.metrics import Metrics
from proxy.settings.load import Settings
from proxy.web.asgi import Message, Receive, Scope, Send
from proxy.web.auth import CALLER_KEY, ROUTE_KEY, require_access
from proxy.web.error_responses import answer_errors
from proxy.web.routes import READ, RouteTable
from tests.web.test_api_keys import entry

router = APIRouter()


@router.get("/api/things", openapi_extra=READ)
async def things() -> str:
    return ""


@router.post("/api/things")
async def made() -> str:
    return ""


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    caller = scope.get(CALLER_KEY)
    told = [scope[ROUTE_KEY].kind, caller.name if caller else None, caller.tenant if caller else None]
    body = json.dumps([*told, [name.decode() for name, _ in scope["headers"]]]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def ask(
    settings: Settings, method: str, path: str, *headers: tuple[bytes, bytes], client: str = "127.0.0.1"
) -> tuple[int, dict[bytes, bytes], Any]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {
        "type": "http", "method": method, "path": path, "headers": [(b"host", b"localhost"), *headers],
        "query_string": b"", "http_version": "1.1", "client": (client, 1),
    }  # fmt: skip
    await answer_errors(require_access(app, settings, RouteTable(router.routes)), Metrics())(scope, receive, send)
    body = b"".join(m.get("body", b"") for m in sent)
    return sent[0]["status"], dict(sent[0]["headers"]), json.loads(body) if body else None


def settings(*keys: dict[str, str], **tree: Any) -> Settings:
    return Settings.model_validate({"upstream": "http://127.0.0.1:9/v1", "keys": list(keys), **tree})


OPEN = settings()
KEYED = settings(
    entry("cp-data"), entry("cp-admin", plane="admin"), entry("cp-read", plane="read"), entry("cp-m", plane="metrics")
)


def key(name: str) -> tuple[bytes, bytes]:
    return b"x-context-key", name.encode()


JSON = (b"content-type", b"application/json")


async def test_who_was_let_in_is_told_and_the_key_is_not() -> None:
    status, _, told = await ask(KEYED, "GET", "/v1/models", key("cp-data"))
    assert (status, told) == (200, ["data", "acme-data", "acme", ["host"]])
    status, _, told = await ask(KEYED, "GET", "/api/things", key("cp-read"))
    assert (status, told) == (200, ["api", "acme-read", "acme", ["host"]])


async def test_what_is_open_to_all_has_no_caller() -> None:
    for path in ("/healthz", "/readyz", "/dashboard"):
        status, _, told = await ask(KEYED, "GET", path)
        assert (status, told[1:3]) == (200, [None, None])


async def test_without_keys_loopback_may_and_nobody_else() -> None:
    assert (await ask(OPEN, "GET", "/api/things"))[2][:3] == ["api", "loopback", "*"]
    assert (await ask(OPEN, "GET", "/api/things", client="::1"))[0] == 200
    assert (await ask(OPEN, "GET", "/api/things", client="127.9.9.9"))[0] == 200
    for path in ("/api/things", "/v1/models", "/metrics", "/healthz"):
        status, _, told = await ask(OPEN, "GET", path, client="192.0.2.7")
        assert (status, told["error"]["code"]) == (403, "forbidden")
    assert (await ask(KEYED, "GET", "/api/things", key("cp-read"), client="192.0.2.7"))[0] == 200


async def test_an_error_says_what_to_do_in_the_shape_of_its_reader() -> None:
    status, headers, told = await ask(KEYED, "GET", "/api/things")
    assert (status, headers[b"www-authenticate"]) == (401, b"Bearer")
    assert set(told["error"]) == {"message", "type", "code", "hint"}
    assert "x-context-key" in told["error"]["hint"]
    status, _, told = await ask(KEYED, "POST", "/v1/chat/completions")
    assert status == 401
    assert "x-context-key" in told["error"]["message"], "OpenAI's clients show the message alone"


async def test_answers_of_the_api_are_never_pages_and_never_kept() -> None:
    for headers in ((key("cp-read"),), ()):
        _, found, _ = await ask(KEYED, "GET", "/api/things", *headers)
        assert found[b"cache-control"] == b"no-store"
        assert found[b"x-content-type-options"] == b"nosniff"
        assert b"access-control-allow-origin" not in found


ORIGIN = (b"origin", b"https://wiki.example")
SHARED = settings(entry("cp-read", plane="read"), dashboard={"origins": ["https://wiki.example"]})


async def test_a_page_of_an_allowed_origin_asks_first_and_reads_what_it_gets() -> None:
    status, headers, _ = await ask(SHARED, "OPTIONS", "/api/things", ORIGIN)
    assert (status, headers[b"access-control-allow-origin"]) == (204, b"https://wiki.example")
    status, headers, _ = await ask(SHARED, "GET", "/api/things", ORIGIN, key("cp-read"))
    assert (status, headers[b"access-control-allow-origin"], headers[b"vary"]) == (
        200,
        b"https://wiki.example",
        b"origin",
    )
    status, headers, _ = await ask(SHARED, "GET", "/api/things", ORIGIN)
    assert (status, headers[b"access-control-allow-origin"]) == (401, b"https://wiki.example")


async def test_no_other_origin_gets_as_much_as_a_preflight() -> None:
    for method in ("OPTIONS", "GET", "POST"):
        status, headers, _ = await ask(
            SHARED, method, "/api/things", (b"origin", b"https://evil"), key("cp-read"), JSON
        )
        assert status == 403
        assert b"access-control-allow-origin" not in headers


async def test_s11_a_page_cannot_spend_what_loopback_is_trusted_with() -> None:
    for headers in ((b"origin", b"https://evil.example"), (b"sec-fetch-site", b"cross-site")):
        assert (await ask(OPEN, "POST", "/v1/chat/completions", headers))[0] == 403
        assert (await ask(OPEN, "GET", "/v1/files", headers))[0] == 403
    own = (b"authorization", b"Bearer sk-of-the-page")
    assert (await ask(OPEN, "POST", "/v1/chat/completions", headers, own))[0] == 403, "the upstream may need none"
    assert (await ask(OPEN, "OPTIONS", "/v1/chat/completions", headers))[0] == 403, "it says of none that it brings it"


async def test_a_call_that_changes_something_says_that_it_is_json() -> None:
    assert (await ask(OPEN, "POST", "/api/things"))[0] == 415
    assert (await ask(OPEN, "POST", "/api/things", (b"content-type", b"text/plain")))[0] == 415
    assert (await ask(OPEN, "POST", "/api/things", JSON))[0] == 200


@pytest.mark.parametrize("path", ["/api/things", "/metrics", "/dashboard"])
async def test_dns_rebinding_ends_at_the_name(path: str) -> None:
    scope_host = (b"host", b"evil.example")
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    scope: Scope = {
        "type": "http", "method": "GET", "path": path, "headers": [scope_host], "query_string": b"",
        "http_version": "1.1", "client": ("127.0.0.1", 1),
    }  # fmt: skip
    await require_access(app, OPEN, RouteTable(router.routes))(scope, receive, send)
    assert sent[0]["status"] == 421
