from __future__ import annotations

import json
from typing import Any

from proxy.exchange.services import MAX_MODEL_CHARS, Incoming, ResponseWriter
from proxy.exchange.turn import make_model_key
from proxy.web.app import create_app
from proxy.web.chat import AsgiResponse
from tests.proxy_server import make_settings, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel


def test_the_parts_of_an_exchange_are_made_once_and_share_one_store() -> None:
    app = create_app(make_settings("demo"))
    assert app.services.store is app.store
    assert app.services.live_sessions.store is app.store
    assert app.services.settings is app.settings
    assert set(app.services.policies) >= {"thrifty", "rolling", "passthrough", "observe"}
    assert len(app.services.live_sessions) == 0


def test_two_apps_share_nothing_that_changes() -> None:
    one, other = (create_app(make_settings("demo")).services for _ in range(2))
    for name in (
        "learned_windows",
        "warm_counters",
        "logged_warnings",
        "live_sessions",
        "message_cache",
        "metrics",
        "client",
    ):
        assert getattr(one, name) is not getattr(other, name)


async def test_the_way_back_to_a_client_is_what_asgi_wants() -> None:
    said: list[Any] = []

    async def send(message: Any) -> None:
        said.append(message)

    back: ResponseWriter = AsgiResponse(send)
    await back.start(200, [(b"a", b"b")])
    await back.write(b"c")
    await back.end(b"d")
    assert said == [
        {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]},
        {"type": "http.response.body", "body": b"c", "more_body": True},
        {"type": "http.response.body", "body": b"d"},
    ]
    said.clear()
    await back.abort()
    assert said == [], "an answer that is broken off has no end"


def test_an_incoming_request_keeps_path_query_and_session() -> None:
    came = Incoming("POST", "/v1/chat/completions", b"a=1", [(b"host", b"x")], b"{}", None)
    assert (came.path, came.query, came.session) == ("/v1/chat/completions", b"a=1", None)


def test_models_with_long_names_are_distinguished_by_short_keys() -> None:
    assert make_model_key("t", "u", "gpt-5") == ("t", "u", "gpt-5")
    keys = {make_model_key("t", "u", "m" * 1_000_000 + end) for end in ("a", "b")}
    assert len(keys) == 2
    assert all(len(name) < MAX_MODEL_CHARS for _, _, name in keys)


async def test_long_names_of_models_and_tools_are_not_remembered() -> None:
    """The number of what is remembered is bounded, and clients choose the names: 1,000 of them took gigabytes."""
    long = "x" * 100_000
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    for n in range(12):
        text = "\n".join(f"line {line} of {n}" for line in range(400))
        called = {"id": f"c{n}", "type": "function", "function": {"name": "bash", "arguments": json.dumps({"path": n})}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [called]})
        messages.append({"role": "tool", "tool_call_id": f"c{n}", "content": text})
    tools = [{"type": "function", "function": {"name": long, "parameters": {}}}]
    async with (
        run_upstream(ScriptedModel("Well.")) as upstream,
        run_proxy(upstream.port, policy="thrifty-bold") as proxy,
    ):
        assert (await proxy.post({"model": long, "messages": messages, "tools": tools})).status == 200
        services = proxy.app.services
        assert len(services.conversations_with_edits) == 1
        remembered = repr((services.models_by_name, services.conversations_with_edits, services.breakpoint_support))
    assert len(remembered) < len(long)
