"""S1, S3, S5: what others must not do with a key of the operator's, on real sockets."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any
from urllib.parse import quote

import pytest

from tests.faults.test_content import ANSWER, fine
from tests.proxy_server import CHAT, RawAnswer, RunningProxy, make_key, parse_answer, run_proxy
from tests.raw_upstream import HEAD, Connection, RawRequest, connect, make_post, run_upstream, send_raw

KEY = "sk-the/operators+own=key"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello"}]}).encode()
PAGE = b"origin: https://evil.com"
BROUGHT = (b"authorization: Bearer x", b"x-api-key: x", b"api-key: x")


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPERATORS_KEY", KEY)


def upstreams(port: int, env: str = "OPERATORS_KEY") -> dict[str, Any]:
    return {"upstreams": {"main": {"base_url": f"http://127.0.0.1:{port}/v1", "api_key_env": env}}}


async def ask(proxy: RunningProxy, method: str, path: str, *lines: bytes, host: bytes = b"localhost") -> RawAnswer:
    body = BODY if method in ("POST", "PUT") else b""
    head = [f"{method} {path} HTTP/1.1".encode(), b"host: " + host, b"connection: close", *lines]
    head += [b"content-type: application/json", b"content-length: %d" % len(body)] if body else []
    return parse_answer(await send_raw(proxy.port, b"\r\n".join([*head, b"", b""]) + body))


@pytest.mark.usefixtures("lent")
@pytest.mark.parametrize("line", BROUGHT)
async def test_s1_a_page_cannot_spend_the_operators_key_with_a_credential_that_goes_nowhere(line: bytes) -> None:
    async with run_upstream(fine) as upstream, run_proxy("", **upstreams(upstream.port)) as proxy:
        for method, path in (("POST", CHAT), ("DELETE", "/v1/models/a"), ("GET", "/v1/models")):
            assert (await ask(proxy, method, path, line, PAGE)).status == 403
            assert (await ask(proxy, method, path, line, b"sec-fetch-site: cross-site")).status == 403
            assert (await ask(proxy, method, path, line, host=b"evil.com")).status == 421, "a name pointed at us"
        assert upstream.requests == []
        assert (await ask(proxy, "POST", CHAT, line)).status == 200
        assert upstream.requests[0].all(b"authorization") == [b"Bearer " + KEY.encode()]


CREDENTIALS = (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key")


@pytest.mark.usefixtures("lent")
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/models"])
async def test_anthropic_gets_the_operators_key_as_x_api_key_and_no_credential_of_the_client(path: str) -> None:
    async with run_upstream(fine) as upstream:
        tree = upstreams(upstream.port)
        tree["upstreams"]["main"]["strategy"] = "anthropic"
        method = "POST" if path == "/v1/messages" else "GET"
        async with run_proxy("", **tree, keys=[make_key("cp-tenant")]) as proxy:
            assert (await ask(proxy, method, path, DATA, *BROUGHT)).status == 200
        sent = upstream.requests[0]
        assert [sent.all(name) for name in CREDENTIALS] == [[], [KEY.encode()], [], []]
        tree["upstreams"]["main"]["key_header"] = "api-key"
        async with run_proxy("", **tree) as proxy:
            assert (await ask(proxy, method, path, *BROUGHT)).status == 200
        assert [upstream.requests[1].all(name) for name in CREDENTIALS] == [[], [], [KEY.encode()], []]


@pytest.mark.parametrize("line", BROUGHT)
async def test_s1_a_page_with_a_made_up_credential_does_not_reach_an_upstream_that_needs_none(line: bytes) -> None:
    async with run_upstream(fine) as upstream, run_proxy(upstream.port) as proxy:
        for method, path in (("POST", CHAT), ("DELETE", "/v1/models/a"), ("GET", "/v1/files"), ("OPTIONS", "/v1/x")):
            assert (await ask(proxy, method, path, line, PAGE)).status == 403
            assert (await ask(proxy, method, path, line, b"origin: null")).status == 403
            assert (await ask(proxy, method, path, line, b"sec-fetch-site: cross-site")).status == 403
            assert (await ask(proxy, method, path, line, host=b"evil.com")).status == 421, "a name pointed at us"
            same = (b"origin: http://evil.com:8080", b"sec-fetch-site: same-origin")
            assert (await ask(proxy, method, path, line, *same, host=b"evil.com:8080")).status == 421
        got = await ask(proxy, "OPTIONS", CHAT, PAGE, *WANTS)
        assert (got.status, got.header("access-control-allow-origin")) == (403, None)
        assert upstream.requests == []
        for host in (b"localhost", b"127.0.0.1:80", b"[::1]:80", b"workstation:8080"):
            assert (await ask(proxy, "POST", CHAT, line, host=host)).status == 200
        assert len(upstream.requests) == 4


NEAR = (
    b"http://localhost:3000",
    b"https://127.0.0.1:5173",
    b"http://[::1]:80",
    b"http://tauri.localhost",
    b"app://obsidian.md",
)


async def test_s1_a_page_of_this_machine_or_of_an_application_may_bring_a_credential_that_goes_upstream() -> None:
    shared: dict[str, Any] = {"dashboard": {"origins": ["https://wiki.example"], "hosts": ["box.lan"]}}
    async with run_upstream(fine) as upstream, run_proxy(upstream.port, **shared) as proxy:
        for page in (*NEAR, b"https://wiki.example"):
            lines = (b"origin: " + page, b"sec-fetch-site: cross-site")
            assert (await ask(proxy, "POST", CHAT, b"authorization: Bearer x", *lines)).status == 200, page
            assert upstream.requests.pop().all(b"authorization") == [b"Bearer x"]
            got = await ask(proxy, "OPTIONS", CHAT, *lines, *WANTS)
            assert (got.status, got.header("access-control-allow-origin")) == (204, page.decode())
            if page in NEAR:
                assert (await ask(proxy, "POST", CHAT, *lines)).status == 403, "it brings nothing"
        assert (await ask(proxy, "POST", CHAT, b"x-api-key: x", host=b"box.lan")).status == 200
        for far in (
            b"file://",
            b"//evil.com",
            b"http://localhost@evil.com",
            b"file:///a.html",
            b"http://localhost.evil.com",
            b"http://128.0.0.1",
            b"http://xlocalhost",
        ):
            got = await ask(proxy, "POST", CHAT, b"authorization: Bearer x", b"origin: " + far)
            assert got.status == 403, far


WANTS = (b"access-control-request-method: POST", b"access-control-request-headers: Authorization, content-type")


@pytest.mark.usefixtures("lent")
async def test_s1_a_preflight_of_another_site_is_answered_here() -> None:
    async with run_upstream(fine) as upstream:
        shared: dict[str, Any] = {"dashboard": {"origins": ["https://wiki.example"]}}
        async with run_proxy("", **upstreams(upstream.port), **shared) as proxy:
            got = await ask(proxy, "OPTIONS", CHAT, PAGE, *WANTS)
            assert (got.status, got.header("access-control-allow-origin")) == (403, None)
            got = await ask(proxy, "OPTIONS", CHAT, b"origin: https://wiki.example", *WANTS)
            assert (got.status, got.header("access-control-allow-origin")) == (204, "https://wiki.example")
        async with run_proxy(upstream.port) as proxy:
            near = b"origin: http://localhost:3000"
            got = await ask(proxy, "OPTIONS", CHAT, near, *WANTS)
            assert (got.status, got.header("access-control-allow-origin")) == (204, "http://localhost:3000"), "its own"
            assert got.header("access-control-allow-headers") == "Authorization, content-type"
            assert got.header("access-control-allow-credentials") is None
            assert (await ask(proxy, "OPTIONS", CHAT, near, WANTS[0])).status == 403, "it would bring nothing"
        assert upstream.requests == []


DATA = b"x-context-key: cp-tenant"


@pytest.mark.usefixtures("lent")
async def test_s3_a_data_key_reaches_inference_and_nothing_else_that_the_operators_key_opens() -> None:
    async with run_upstream(fine) as upstream:
        tree = {**upstreams(upstream.port), "keys": [make_key("cp-tenant")]}
        async with run_proxy("", **tree) as proxy:
            for method, path in (
                ("GET", "/v1/files"), ("DELETE", "/v1/files/file-1"), ("GET", "/v1/organization/api_keys"),
                ("POST", "/v1/files"), ("DELETE", "/v1/models/ft:a"), ("GET", "/s/one/v1/files"),
            ):  # fmt: skip
                got = await ask(proxy, method, path, DATA)
                assert (got.status, "passthrough.paths" in got.error["message"]) == (403, True), path
            assert upstream.requests == []
            for method, path in (
                ("POST", "/v1/embeddings"),
                ("GET", "/v1/models"),
                ("POST", CHAT),
                ("POST", "/s/a" + CHAT),
            ):
                assert (await ask(proxy, method, path, DATA)).status == 200, path
        async with run_proxy("", **tree, passthrough={"paths": ["GET /v1/files/*"]}) as proxy:
            assert (await ask(proxy, "GET", "/v1/files/a", DATA)).status == 200
            assert (await ask(proxy, "DELETE", "/v1/files/a", DATA)).status == 403
        async with run_proxy(upstream.port) as proxy:
            assert (await ask(proxy, "DELETE", "/v1/files/a", b"authorization: Bearer own")).status == 200


@pytest.mark.parametrize(
    "path", ["/v1/../../team-b/v1/files", "/v1/%2e%2e/x", "/v1/x%2f..%2fy", "/s/one/v1/../x", "/v1/..%5cx"]
)
async def test_s3_dot_segments_go_nowhere(path: str) -> None:
    async with run_upstream(fine) as upstream, run_proxy(upstream.port) as proxy:
        for method in ("GET", "POST", "DELETE"):
            got = await ask(proxy, method, path, b"authorization: Bearer own")
            assert (got.status, "dot segment" in got.error["message"]) == (400, True)
        assert upstream.requests == []


@pytest.mark.usefixtures("lent")
async def test_s3_no_spelling_of_a_dot_segment_goes_upstream_with_the_operators_key() -> None:
    async with run_upstream(fine) as upstream, run_proxy("", **upstreams(upstream.port)) as proxy:
        for odd in (
            "%c0%ae%c0%ae/files", "%e0%80%ae%e0%80%ae/files", "..%c0%af../files", "%uff0e%uff0e/files",
            "%ef%bc%8e%ef%bc%8e/files", "..%00/files", "..%09/files", "..%20/files", "..%23/files", "..%3f/files",
            "..%2500/files", "/v1/files",
        ):  # fmt: skip
            got = await ask(proxy, "GET", "/v1/models/" + odd)
            assert (got.status, "segment" in got.error["message"]) == (403, True), odd
        assert upstream.requests == []
        for fine_one in (
            "/v1/models/gpt-5",
            "/v1/models/openai/gpt-5",
            "/v1/models/openai%2Fgpt-5",
            "/v1/models?a=b/..",
        ):
            assert (await ask(proxy, "GET", fine_one)).status == 200, fine_one
    async with run_upstream(fine) as upstream, run_proxy(upstream.port) as proxy:
        own = b"authorization: Bearer own"
        assert (await ask(proxy, "GET", "/v1/models/a%20b//%c3%a9", own)).status == 200, "as before"


ODD_SEGMENTS = ("a%c0%af..%c0%afb", "a%5cb", "a%00", "a%ef%bc%8fb", "a%252fb", "a%23", "a%3fb")


@pytest.mark.usefixtures("lent")
async def test_s3_a_managed_path_with_an_odd_segment_does_not_go_out_with_the_operators_key() -> None:
    async with run_upstream(fine) as upstream, run_proxy("", **upstreams(upstream.port)) as proxy:
        for odd in ODD_SEGMENTS:
            for path in (
                f"/openai/deployments/{odd}/chat/completions",
                f"/v1/projects/{odd}/locations/l/publishers/anthropic/models/m:rawPredict",
                f"/v1beta/models/{odd}:generateContent",
            ):
                got = await ask(proxy, "POST", path)
                assert (got.status, "segment" in got.error["message"]) == (403, True), path
        assert upstream.requests == []
        assert (await ask(proxy, "POST", "/openai/deployments/gpt%2D5/chat/completions")).status == 200


@pytest.mark.usefixtures("lent")
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/embeddings", "/v1beta/models/m:generateContent"])
async def test_no_credential_in_a_query_goes_along_with_the_operators_key(path: str) -> None:
    query = "?key=brought&access_token=brought&%6bEY=brought&$userProject=brought&alt=json"
    async with run_upstream(fine) as upstream:
        async with run_proxy("", **upstreams(upstream.port)) as proxy:
            assert (await ask(proxy, "POST", path + query)).status == 200
        assert upstream.requests[0].line.split()[1].endswith(b"?alt=json")
        async with run_proxy(upstream.port) as proxy:
            assert (await ask(proxy, "POST", path + query, b"authorization: Bearer own")).status == 200
        assert b"access_token=brought" in upstream.requests[1].line, "with its own key as it came"


STEERING = (
    b"x-http-method-override: DELETE", b"X-HTTP-Method: DELETE", b"x-method-override: DELETE",
    b"x-original-url: /v1/files", b"x-rewrite-url: /v1/files", b"x-forwarded-host: evil", b"x-forwarded-prefix: /x",
    b"openai-organization: org-other", b"OpenAI-Project: p2", b"cookie: a=b",
)  # fmt: skip


@pytest.mark.usefixtures("lent")
@pytest.mark.parametrize("path", [CHAT, "/v1/responses"])
async def test_s1_no_header_steers_the_operators_key_to_another_account_or_path(path: str) -> None:
    names = {line.partition(b":")[0].lower() for line in STEERING}
    async with run_upstream(fine) as upstream, run_proxy("", **upstreams(upstream.port)) as proxy:
        assert (await ask(proxy, "POST", path, *STEERING, b"x-mine: 1")).status == 200
        [request] = upstream.requests
        assert not [name for name in names if request.all(name)]
        assert request.all(b"x-mine") == [b"1"]
    async with run_upstream(fine) as upstream, run_proxy(upstream.port) as proxy:
        assert (await ask(proxy, "POST", path, *STEERING, b"authorization: Bearer own")).status == 200
        assert not [name for name in names if not upstream.requests[0].all(name)], "with its own key as it came"


ENCODED: dict[bytes, bytes] = {
    b"quoted": quote(KEY, safe="").encode(),
    b"quoted partly": quote(KEY).encode(),
    b"quoted in lower case": re.sub("%..", lambda found: found[0].lower(), quote(KEY, safe="")).encode(),
    b"base64": base64.b64encode(KEY.encode()).rstrip(b"="),
    b"base64url": base64.urlsafe_b64encode(KEY.encode()).rstrip(b"="),
}


async def echo(request: RawRequest, connection: Connection) -> None:
    """Refuses, and says with what it was asked."""
    said = b"wrong key: " + b", ".join(request.all(b"authorization")) + b" (%d)" % len(request.body)
    mode = next(iter(request.all(b"x-mode")), b"")
    if mode in (b"gzip", b"packed"):
        said = gzip.compress(said)
        coding = b"gzip" if mode == b"gzip" else b"x-packed"
        await connection.send(
            b"HTTP/1.1 401 No\r\ncontent-encoding: %b\r\ncontent-length: %d\r\n\r\n%b" % (coding, len(said), said)
        )
    elif mode in ENCODED:
        form = ENCODED[mode]
        said = b"wrong key: Bearer " + form + b" (" + form[:9] + b")"
        await connection.send(b"HTTP/1.1 401 No\r\nx-echo: %b\r\ncontent-length: %d\r\n\r\n" % (form, len(said)) + said)
    elif mode == b"moved":
        await connection.send(
            b"HTTP/1.1 302 %b\r\nlocation: /?%b\r\ncontent-length: %d\r\n\r\n" % (said, said, len(said)) + said
        )
    elif mode == b"pieces":
        await connection.send(b"HTTP/1.1 500 No\r\ntransfer-encoding: chunked\r\n\r\n")
        for n in range(0, len(said), 7):
            await connection.chunk(said[n : n + 7])
        await connection.send(b"0\r\n\r\n")
    else:
        head = b"HTTP/1.1 401 No\r\nx-echo: %b\r\ncontent-length: %d\r\n\r\n"
        await connection.send(head % (said, len(said)) + said)


@pytest.mark.usefixtures("lent")
@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
@pytest.mark.parametrize("mode", [b"plain", b"pieces", b"gzip", b"packed", b"moved", *ENCODED])
async def test_s5_an_error_that_repeats_the_operators_key_arrives_without_it(path: str, mode: bytes) -> None:
    async with run_upstream(echo) as upstream, run_proxy("", **upstreams(upstream.port)) as proxy:
        lines = (b"x-mode: " + mode, b"accept-encoding: gzip")
        for more in ((), (b"x-context-off: 1",)):
            raw = await send_raw(
                proxy.port, make_post(path, BODY, *lines, *more).replace(b"host: test", b"host: localhost")
            )
            got = parse_answer(raw)
            assert got.status in (302, 401, 500)
            assert got.whole
            assert not [form for form in (KEY.encode(), *ENCODED.values()) if form in raw]
            if mode == b"packed":
                assert "compressed" in got.error["message"]
            else:
                assert got.body.startswith(b"wrong key: Bearer " + b"*" * len(ENCODED.get(mode, KEY)))
    assert upstream.requests


@pytest.mark.parametrize("path", [CHAT, "/v1/responses"])
async def test_an_upstreams_x_context_headers_do_not_reach_the_client(path: str) -> None:
    async def spoofing(request: RawRequest, connection: Connection) -> None:
        head = b"HTTP/1.1 %b\r\nX-Context-Session: spoof\r\nx-context-other: spoof\r\nx-fine: 1\r\n"
        head += b"content-length: 2\r\n\r\n{}"
        await connection.send(head % (next(iter(request.all(b"x-status")), b"") or b"200 OK"))

    async with run_upstream(spoofing) as upstream, run_proxy(upstream.port) as proxy:
        for status in (b"200 OK", b"401 No"):
            got = await ask(proxy, "POST", path, b"authorization: Bearer own", b"x-status: " + status)
            assert got.status == int(status[:3])
            assert got.header("x-fine") == "1"
            assert [value for _, value in got.headers if value == b"spoof"] == []


@pytest.mark.parametrize("origin", [b"http://[evil", b"http://\xff\xfe[x]y"])
async def test_an_origin_that_is_not_a_url_is_a_page_of_another_site(origin: bytes) -> None:
    async with run_upstream(fine) as upstream, run_proxy(upstream.port) as proxy:
        for method, path in (("POST", CHAT), ("GET", "/api/sessions"), ("GET", "/v1/models")):
            assert (await ask(proxy, method, path, b"origin: " + origin)).status == 403
        assert upstream.requests == []


@pytest.mark.usefixtures("lent")
async def test_requests_that_the_rules_refuse_are_not_logged_as_passed(caplog: pytest.LogCaptureFixture) -> None:
    async with run_upstream(fine) as upstream, run_proxy("", **upstreams(upstream.port)) as proxy:
        assert (await ask(proxy, "POST", "/v1/other/messages")).status == 403
        assert proxy.count("unmanaged_total", path="/v1/other/messages") == 0
        assert (await ask(proxy, "POST", "/v1/completions")).header("x-context-unmanaged") == "/v1/completions"
    said = [r.getMessage() for r in caplog.records if "passed on unmanaged" in r.getMessage()]
    assert len(said) == 1
    assert "/v1/completions " in said[0]


@pytest.mark.parametrize("status", [b"304 Not Modified", b"204 No Content"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_r6_an_answer_without_a_body_may_tell_a_length(status: bytes, method: str) -> None:
    async def bodiless(request: RawRequest, connection: Connection) -> None:
        await connection.send(b'HTTP/1.1 %b\r\netag: "a"\r\ncontent-length: 5\r\n\r\n' % status)

    async with run_upstream(bodiless) as upstream, run_proxy(upstream.port) as proxy:
        client = await connect(proxy.port)
        for _ in range(2):  # on a connection that stays
            body = BODY if method == "POST" else b""
            raw = make_post(CHAT if body else "/v1/x", body).replace(b"connection: close\r\n", b"")
            await client.send(raw.replace(b"POST", method.encode(), 1).replace(b"host: test", b"host: localhost"))
            head = await client.reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 " + status[:3])
            assert b'etag: "a"' in head
            assert b"content-length" not in head
        client.writer.transport.abort()
        assert proxy.count("internal_errors_total", where="web") == 0


async def test_an_answer_without_the_key_is_unchanged() -> None:
    async with run_upstream(fine) as upstream, run_proxy(upstream.port) as proxy:
        got = await ask(proxy, "GET", "/v1/models", b"authorization: Bearer own")
        assert (got.body, got.header("content-length")) == (ANSWER, str(len(ANSWER)))
    assert HEAD.startswith(b"HTTP/1.1 200")
