from __future__ import annotations

import asyncio
import gc
import logging
import sqlite3
import weakref
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import ConfigError, StoreUnavailable
from proxy.settings.load import Settings
from proxy.store.in_memory import InMemoryStore
from proxy.store.sqlite import SqliteStore
from proxy.web.app import create_app, make_policies, make_store
from tests.proxy_server import Agent, make_settings, parse_answer, run_proxy
from tests.raw_upstream import Connection, RawRequest, free_port, make_post, run_upstream, send_raw, wait_until
from tests.scripted_model import ScriptedModel, send_reply
from tests.stores import count_rows, sqlite_store

HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}/v1"


def get(path: str) -> bytes:
    return b"GET %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % path.encode()


@pytest.mark.parametrize("base", ["/v1", ""])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
@pytest.mark.parametrize("scope", ["", "/s/alpha"])
async def test_chat_is_found_with_and_without_v1_on_either_side(scope: str, path: str, base: str) -> None:
    model = ScriptedModel("Well.")
    async with run_upstream(model) as upstream, run_proxy(f"http://127.0.0.1:{upstream.port}{base}") as proxy:
        found = await proxy.post(HELLO, path=scope + path)
        assert found.status == 200
        assert found.header("x-context-session") is not None
        assert (found.session == "alpha") == bool(scope)
    asked = base + "/chat/completions" if base else path
    assert model.received[0].line == f"POST {asked} HTTP/1.1".encode()


@pytest.mark.parametrize("scope", ["", "/s/alpha"])
async def test_every_other_path_and_method_goes_through_byte_for_byte(scope: str) -> None:
    said = [
        ("GET", "/v1/models?limit=2", b""),
        ("GET", "/v1/models/a%2Fb", b""),
        ("POST", "/v1/responses", b'{"input": "\\u00e4", "input": NaN}'),
        ("POST", "/v1/embeddings", b'{"model":"m","input":[1,2]}'),
        ("PUT", "/v1/files/x%20y", b"\x00\x01\xff"),
        ("DELETE", "/v1/files/1", b""),
        ("GET", "/v1/chat/completions", b""),
        ("POST", "/v1/chat/completions/abc", b"{}"),
        ("PATCH", "/somewhere/else", b"abc"),
    ]

    async def echo(request: RawRequest, connection: Connection) -> None:
        await send_reply(connection, b"201 Made", request.line + b"|" + request.body, b"x-own: 1", b"x-own: 2")

    async with run_upstream(echo) as upstream, run_proxy(f"http://127.0.0.1:{upstream.port}") as proxy:
        for method, path, body in said:
            raw = make_post(scope + path, body).replace(b"POST", method.encode(), 1)
            found = parse_answer(await send_raw(proxy.port, raw))
            assert found.status == 201
            assert found.body == f"{method} {path} HTTP/1.1|".encode() + body
            assert [v for k, v in found.headers if k == b"x-own"] == [b"1", b"2"]
    assert [r.body for r in upstream.requests] == [body for _, _, body in said]


async def test_our_own_pages_are_not_the_upstreams() -> None:
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port) as proxy:
        for path in ("/healthz", "/readyz", "/metrics", "/api/nothing", "/dashboard"):
            found = parse_answer(await send_raw(proxy.port, get(path)))
            assert found.status in (200, 308, 404)
    assert upstream.requests == []


async def test_a_session_in_the_path_may_be_percent_encoded() -> None:
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port) as proxy:
        plain = await proxy.post(HELLO, path="/s/two%20words/v1/chat/completions")
        slash = await proxy.post(HELLO, path="/s/a%2Fb/v1/chat/completions")
    assert plain.session == "two words"
    assert slash.session == "a/b"


async def test_unmanaged_traffic_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port) as proxy:
        with caplog.at_level(logging.WARNING, "proxy.web.app"):
            for _ in range(3):
                await proxy.post({"prompt": "a"}, path="/v1/completions")
        assert proxy.count("unmanaged_total", path="/v1/completions") == 3
    assert len([r for r in caplog.records if "/v1/completions" in r.getMessage()]) == 1


async def test_requests_are_counted_by_route_and_status() -> None:
    async def refusing(request: RawRequest, connection: Connection) -> None:
        await send_reply(connection, b"429 Slow down", b"{}")

    async with run_upstream(refusing) as upstream, run_proxy(upstream.port) as proxy:
        assert (await proxy.post(HELLO)).status == 429
        await send_raw(proxy.port, get("/v1/models"))
        assert proxy.count("requests_total", route="chat", status="429") == 1
        assert proxy.count("requests_total", route="passthrough", status="429") == 1


async def test_errors_of_the_proxys_own_are_counted_with_the_status_that_the_client_got() -> None:
    async def silent(_request: RawRequest, connection: Connection) -> None:
        await connection.left()

    async with run_upstream(silent) as upstream, run_proxy(upstream.port, timeouts={"idle_s": 0.2}) as proxy:
        assert (await proxy.post(HELLO)).status == 504
        assert proxy.count("requests_total", route="chat", status="504") == 1
    async with run_proxy(free_port()) as proxy:  # nobody listens there
        assert (await proxy.post(HELLO)).status == 502
        await send_raw(proxy.port, get("/v1/models"))
        assert proxy.count("requests_total", route="chat", status="502") == 1
        assert proxy.count("requests_total", route="passthrough", status="502") == 1


async def test_the_metrics_tell_while_the_store_takes_no_writes(tmp_path: Path) -> None:
    db = tmp_path / "store.sqlite3"
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port, db=str(db)) as proxy:
        assert proxy.count("store_up") == 1
        with closing(sqlite3.connect(db, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert (await proxy.post(HELLO)).status == 200
            await wait_until(lambda: proxy.count("store_up") == 0)
            other.execute("ROLLBACK")
        await wait_until(lambda: proxy.count("store_up") == 1)
        assert proxy.count("persist_dropped_total") == 0


async def test_several_upstreams_are_distinguished_by_the_model() -> None:
    first, second = ScriptedModel("I am the first."), ScriptedModel("I am the second.")
    async with run_upstream(first) as one, run_upstream(second) as two:
        upstreams = {
            "one": {"base_url": url(one.port), "models": ["gpt-*"]},
            "two": {"base_url": url(two.port), "models": ["claude-*", "other"], "policy": "thrifty"},
        }
        async with run_proxy("", upstreams=upstreams) as proxy:
            for model, text in (("gpt-5", "first"), ("claude-x", "second"), ("other", "second"), ("nobody's", "first")):
                found = await proxy.post(HELLO | {"model": model})
                assert text in found.message["content"]
            odd = await proxy.post(b'{"model":"claude-x","messages":[]}')
            assert odd.message["content"] == "I am the second."
            await proxy.post({"model": "claude-x", "input": "a"}, path="/v1/embeddings")
            await send_raw(proxy.port, get("/v1/files"))
            policies = await proxy.rows("SELECT upstream, policy FROM exchanges ORDER BY started_at")
    assert policies == [("one", "passthrough"), ("two", "thrifty"), ("two", "thrifty"), ("one", "passthrough")]
    assert second.received[-1].line == b"POST /v1/embeddings HTTP/1.1"
    assert first.received[-1].line == b"GET /v1/files HTTP/1.1"


async def test_an_upstream_with_a_key_of_its_own_never_sees_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", "sk-the-upstreams-own")
    model = ScriptedModel()
    async with run_upstream(model) as upstream:
        upstreams = {"a": {"base_url": url(upstream.port), "api_key_env": "UPSTREAM_KEY"}}
        async with run_proxy("", upstreams=upstreams) as proxy:
            await proxy.post(HELLO, key="sk-the-clients")
    assert model.received[0].all(b"authorization") == [b"Bearer sk-the-upstreams-own"]
    assert b"sk-the-clients" not in model.received[0].raw


@pytest.mark.parametrize("is_own", [True, False])
async def test_a_refusal_of_the_operators_key_is_counted_and_logged_with_its_upstream(
    is_own: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client reads it as a refusal of its own key, so only the operator can tell the two apart."""
    monkeypatch.setenv("UPSTREAM_KEY", "sk-the-upstreams-own")

    async def refuse(_: Any, there: Any) -> None:
        await send_reply(there, b"401 Unauthorized", b'{"error": {"message": "Incorrect API key provided"}}')

    async with run_upstream(refuse) as upstream:
        key = {"api_key_env": "UPSTREAM_KEY"} if is_own else {}
        async with run_proxy("", upstreams={"a": {"base_url": url(upstream.port), **key}}) as proxy:
            assert (await proxy.post(HELLO)).status == 401
            assert proxy.count("upstream_errors_total", upstream="a", kind="401") == int(is_own)
    assert ("upstream a refuses the key of its api_key_env" in caplog.text) is is_own


async def test_our_own_headers_do_not_reach_the_upstream() -> None:
    model = ScriptedModel()
    async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy:
        await proxy.post(HELLO, b"x-context-session: a", b"x-context-key: b", b"x-session-id: c")
    assert b"x-context" not in model.received[0].raw
    assert model.received[0].all(b"x-session-id") == [b"c"]


async def test_the_demo_answers_where_no_upstream_is_named() -> None:
    async with run_proxy("") as proxy:
        agent = Agent(proxy, stream=True)
        assert "demo" in (await agent.say("Hello")).message["content"]


async def test_a_websocket_that_no_upstream_serves_is_refused() -> None:
    said: list[Any] = []
    app = create_app(make_settings("demo"))

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        said.append(message)

    scope = {"type": "websocket", "scheme": "ws", "path": "/v1/realtime", "raw_path": b"/v1/realtime",
             "query_string": b"", "client": ("127.0.0.1", 1), "headers": [(b"host", b"localhost")]}  # fmt: skip
    await app(scope, receive, send)
    assert [one["type"] for one in said] == ["websocket.http.response.start", "websocket.http.response.body"]
    assert said[0]["status"] == 426
    assert b"use HTTP" in said[1]["body"]


async def test_a_store_that_cannot_be_opened_refuses_the_start_and_leaves_the_reason_to_the_servers_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.sqlite3"
    held = sqlite_store(path)
    await held.open()
    said: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        said.append(message)

    await create_app(make_settings("demo", db=str(path)))({"type": "lifespan"}, receive, send)
    await held.close()
    assert said[0]["type"] == "lifespan.startup.failed"
    assert str(path) in said[0]["message"]
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_the_store_is_the_one_that_the_settings_name(tmp_path: Path) -> None:
    assert isinstance(make_store(Settings(db=":memory:")), InMemoryStore)
    assert isinstance(make_store(Settings(db=str(tmp_path / "a.sqlite3"))), SqliteStore)
    with pytest.raises(ConfigError, match="db") as refused:
        make_store(Settings.model_construct(db="mysql://me:secret@host/db"))
    assert "secret" not in str(refused.value)


def test_settings_go_into_every_policy() -> None:
    settings = make_settings(
        "demo", state={"ask": "never", "guidelines": "Read on."}, groups={"observation": ["^OUT:"]}
    )
    for policy in make_policies(settings).values():
        assert policy.ask == "never"
        assert policy.guidelines == "Read on."
        assert policy.observation is not None
        assert policy.observation.search("OUT: 1")


def test_a_policy_of_the_users_own_is_found_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('name = "mine"\nschedule = "over_budget"\n')
    assert make_policies(make_settings("demo", policies_dir=str(tmp_path)))["mine"].schedule == "over_budget"
    (tmp_path / "mine.toml").write_text('name = "mine"\nschedule = "sometimes"\n')
    with pytest.raises(ConfigError, match="sometimes"):
        make_policies(make_settings("demo", policies_dir=str(tmp_path)))


def test_an_app_is_made_of_settings() -> None:
    assert create_app(Settings(db=":memory:", port=1)).settings.port == 1


async def test_an_app_that_has_ended_leaves_nothing_in_memory() -> None:
    """Frameworks remember functions for ever: one of an app's own among them would keep all its conversations."""
    left: list[weakref.ref[object]] = []
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port) as proxy:
        for stream in (False, True):
            assert (await proxy.post(HELLO | {"stream": stream})).status == 200
        for path in ("/healthz", "/readyz", "/metrics", "/api/openapi.json", "/api/sessions", "/dashboard/"):
            assert (await proxy.get(path)).status == 200
        left += [
            weakref.ref(one) for one in (proxy.app, proxy.app.api, proxy.app.services.live_sessions, proxy.metrics)
        ]
        del proxy
    await asyncio.sleep(0.05)  # connections that were closed are let go
    gc.collect()
    assert [one() for one in left if one() is not None] == []


async def test_rows_are_on_disk_after_a_stop(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port, db=str(path)) as proxy:
        await proxy.post(HELLO, b"x-context-session: a")
    again = sqlite_store(path)
    await again.open()
    assert (await count_rows(again))["messages"] == 2
    await again.close()


async def test_the_store_is_closed_whatever_else_fails_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite3"

    async def fails() -> None:
        raise ZeroDivisionError

    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port, db=str(path)) as proxy:
        await proxy.post(HELLO)
        close = proxy.app.services.client.close
        proxy.app.services.client.close = fails  # type: ignore[method-assign]
    await close()
    again = sqlite_store(path)
    await again.open()
    assert (await count_rows(again))["messages"] == 2
    await again.close()


@pytest.mark.timed
async def test_the_settings_bound_a_read_of_the_store(tmp_path: Path) -> None:
    store: Any = make_store(make_settings("demo", db=str(tmp_path / "a.sqlite3"), store={"read_s": 0.2}))
    await store.open()
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n WHERE i < 0"
    with pytest.raises(StoreUnavailable, match=r"longer than 0\.2 s"):
        await store._fetch(endless, ())
    await store.close()
