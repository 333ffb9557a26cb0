"""S1, S12, H2 and H5 over every route there is, on a real socket: one answer to who may, however a path is written."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from proxy.upstream.headers import CREDENTIAL_HEADERS
from tests.exchange.helper_setup import LONG, run_proxy_with_helper
from tests.proxy_server import RunningProxy, make_key, parse_answer, run_proxy
from tests.raw_upstream import RawRequest, make_post, run_upstream, send_raw
from tests.scripted_model import ScriptedModel
from tests.web.api.calls import CALLS

KEYS = [make_key(f"cp-acme-{plane}", "acme", plane) for plane in ("data", "admin", "read", "metrics")]
KEYS += [make_key("cp-other-data", "other"), make_key("cp-all-metrics", "*", "metrics")]
HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
OPEN, PLANES = "open", {"data", "admin", "read", "metrics"}

ROUTES: dict[tuple[str, str], set[str] | str] = {
    ("GET", "/healthz"): OPEN,
    ("GET", "/readyz"): OPEN,
    ("GET", "/dashboard"): OPEN,
    ("GET", "/metrics"): set(),  # with the tenant `*`: these keys are of two tenants
    ("POST", "/v1/chat/completions"): {"data"},
    ("POST", "/chat/completions"): {"data"},
    ("POST", "/s/one/v1/chat/completions"): {"data"},
    ("GET", "/v1/models"): {"data"},
    ("GET", "/anything/else"): {"data"},
    ("GET", "/"): {"data"},
    **{key: {"admin", "read"} if call.reads else {"admin"} for key, call in CALLS.items()},
}
"""The planes that open each route. A new route has to be put here, or into `calls.py` for those of the admin API."""

HEADERS = (b"content-type: application/json",)


async def status(proxy: RunningProxy, method: str, path: str, *lines: bytes, host: bytes = b"localhost") -> int:
    body = json.dumps(HELLO).encode() if method != "GET" else b""
    head = [f"{method} {path} HTTP/1.1".encode(), b"connection: close", *([b"host: " + host] if host else [])]
    if body:
        head += [*HEADERS, b"content-length: %d" % len(body)]
    return parse_answer(await send_raw(proxy.port, b"\r\n".join([*head, *lines, b"", b""]) + body)).status


@pytest.fixture
async def keyed() -> Any:
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port, keys=KEYS) as proxy:
        yield proxy, upstream


async def test_s1_every_route_opens_to_its_keys_and_to_no_other(keyed: Any) -> None:
    proxy, _ = keyed
    for (method, path), planes in ROUTES.items():
        filled = path.replace("{tenant}", "acme").replace("{", "").replace("}", "")
        filled += "?follow=false" if path == "/api/events" else ""  # or it would go on for ever
        opened = {
            plane
            for plane in PLANES
            if await status(proxy, method, filled, f"x-context-key: cp-acme-{plane}".encode()) not in (401, 403)
        }
        assert opened == (PLANES if planes == OPEN else planes), (method, path)
        for line in ((), (b"x-context-key: cp-nobody",), (b"x-context-key: ",)):
            assert (await status(proxy, method, filled, *line) == 401) == (planes != OPEN), (method, path, line)
    assert await status(proxy, "GET", "/metrics", b"x-context-key: cp-all-metrics") == 200


TRICKS = (
    "/{0}", "/v1/..{0}", "/%2e%2e{0}", "{0}/", "{0};x=1", "{0}%00", "{0}%0a", "{0}?x", "/./{0}", "{0}/../healthz",
    "{0}%2f..%2fhealthz", "{0}/%2e%2e/healthz", "/healthz/..{0}", "/healthz%2f..{0}", "/dashboard/..{0}",
    "/dashboard/%2e%2e{0}",
)  # fmt: skip


async def test_h5_no_way_of_writing_a_path_is_let_in_as_one_thing_and_served_as_another(keyed: Any) -> None:
    proxy, upstream = keyed
    for path in ("/api/sessions", "/api/policies", "/metrics"):
        for written in (*(trick.format(path) for trick in TRICKS), path.upper(), path.title()):
            for lines in (
                (),
                (b"x-http-method-override: GET",),
                (b"x-original-url: /healthz",),
                (b"x-rewrite-url: /",),
            ):
                found = await status(proxy, "GET", written, *lines)
                # Without a key it is refused, or it is what is open to all, which is the same with any key.
                assert found in (400, 401) or (found in (200, 404) and written.startswith("/dashboard")), written
    assert upstream.requests == []
    assert await status(proxy, "GET", "/v1/../api/sessions", b"x-context-key: cp-acme-data") == 400
    for written in ("//api/sessions", "/API/sessions"):
        assert await status(proxy, "GET", written, b"x-context-key: cp-acme-data") == 200, "the upstream's own"
    assert [request.line.split()[1] for request in upstream.requests] != []


@pytest.mark.parametrize(
    "host", [b"", b"x/#@y", b"localhost/healthz?", b"localhost:80/healthz", b"evil.example", b"a b"]
)
async def test_h2_no_host_header_gives_access_without_a_key(keyed: Any, host: bytes) -> None:
    proxy, _ = keyed
    for (method, path), planes in ROUTES.items():
        if planes == OPEN:
            continue
        found = await status(proxy, method, path.replace("{", "").replace("}", ""), host=host)
        assert found in (400, 401), (path, host)
    assert await status(proxy, "GET", "/api/policies", b"host: localhost", b"x-context-key: cp-acme-read") == 400


async def test_the_tenant_is_the_keys_and_nothing_that_the_client_says(keyed: Any) -> None:
    proxy, _ = keyed
    for name in ("acme", "other"):
        key = f"x-context-key: cp-{name}-data".encode()
        found = await proxy.post(HELLO, key, b"x-context-session: one", b"x-context-tenant: acme", b"x-tenant: acme")
        assert found.status == 200
    assert await proxy.rows("SELECT tenant, session FROM sessions ORDER BY tenant") == [
        ("acme", "one"), ("other", "one")
    ]  # fmt: skip


async def test_s12_the_proxys_keys_reach_neither_upstream_nor_helper_nor_store_nor_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    canary = "cp-canary-of-a-key"
    own = f"x-context-key: {canary}".encode()
    admin = f"x-context-key: {canary}-2".encode()
    keys = [make_key(canary, "acme"), make_key(canary + "-2", "acme", "admin")]
    async with run_proxy_with_helper(tmp_path, "A summary.", db=str(tmp_path / "a.sqlite3"), keys=keys) as proxy:
        port = proxy.proxy.port
        for line in (
            b"authorization: Bearer sk-own",
            *(b"%b: Bearer %b" % (n, canary.encode()) for n in CREDENTIAL_HEADERS),
        ):
            for prompt in (LONG, f"{LONG} {line.decode().partition(':')[0]}"):
                body = json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}]}).encode()
                got = parse_answer(await send_raw(port, make_post("/v1/chat/completions", body, *HEADERS, own, line)))
                assert got.status == 200
                assert canary.encode() not in b"".join(k + v for k, v in got.headers) + got.body
            for path in ("/api/import", "/v1/files"):
                await send_raw(port, make_post(path, b"{}", *HEADERS, own, line))
        async with asyncio.timeout(30):
            while not proxy.helper.received:
                await asyncio.sleep(0.01)  # it is asked beside the requests
        for path in ("/metrics", "/api/sessions", "/api/stats", "/api/nothing"):
            assert canary.encode() not in await send_raw(port, get(path, admin))
    asked = [*proxy.model.received, *proxy.helper.received]
    assert len(asked) > 8
    assert [r.all(b"authorization") for r in proxy.model.received[:1]] == [[b"Bearer sk-own"]], "the upstream's stays"
    assert not [r.line for r in asked if canary.encode() in r.body or _carries(r, canary)]
    assert canary not in caplog.text
    for written in tmp_path.iterdir():
        assert canary.encode() not in written.read_bytes(), written.name


def get(path: str, line: bytes) -> bytes:
    return b"GET %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n%b\r\n\r\n" % (path.encode(), line)


def _carries(request: RawRequest, canary: str) -> bool:
    return any(canary.encode() in value or name.lower() == b"x-context-key" for name, value in request.headers)
