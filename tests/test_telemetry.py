"""Spans of requests, as an OTLP receiver gets them from the running proxy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import ConfigError
from proxy.settings.load import Settings
from proxy.telemetry import Telemetry, create_telemetry
from tests.exchange.hidden_calls import TOOLS, make_answer, make_proxy_call, run_proxy_with_tools
from tests.otlp import Receiver, receiving
from tests.proxy_server import CHAT, Agent, parse_answer, run_proxy
from tests.raw_upstream import Connection, RawRequest, make_post, run_upstream, send_raw
from tests.scripted_model import ScriptedModel, send_reply

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CLIENTS = b"traceparent: 00-" + TRACE.encode() + b"-" + PARENT.encode() + b"-01"
SECRET = "the-secret-of-the-conversation"


def telling(receiver: Receiver) -> dict[str, Any]:
    return {"enabled": True, "endpoint": receiver.url, "service_name": "proxy-under-test"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_and_its_round_are_spans_of_the_clients_trace(stream: bool) -> None:
    model = ScriptedModel("Well.")
    with receiving() as receiver:
        async with (
            run_upstream(model) as upstream,
            run_proxy(upstream.port, policy="thrifty", telemetry=telling(receiver)) as proxy,
        ):
            agent = Agent(proxy, (CLIENTS, b"x-context-session: night"), stream=stream)
            await agent.say(SECRET)
        port = upstream.port
    assert set(receiver.paths) == {"/v1/traces"}
    (server,), (client,) = receiver.server_spans, receiver.client_spans
    assert {server.service, client.service} == {"proxy-under-test"}
    assert (server.trace, server.parent, server.name) == (TRACE, PARENT, "POST /v1/chat/completions")
    assert (client.trace, client.parent, client.name) == (TRACE, server.id, "chat m")
    assert client.attributes == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "m",
        "gen_ai.conversation.id": "night", "gen_ai.usage.input_tokens": 11, "gen_ai.usage.output_tokens": 3,
        "gen_ai.response.finish_reasons": ["stop"], "http.request.method": "POST", "http.response.status_code": 200,
        "server.address": "127.0.0.1", "server.port": port,
    }  # fmt: skip
    assert server.attributes["http.response.status_code"] == 200
    assert server.attributes["http.route"] == "/v1/chat/completions"
    assert server.attributes["gen_ai.conversation.id"] == "night"
    assert server.attributes["context_proxy.policy"] == "thrifty"
    assert server.attributes["context_proxy.tokens.before"] > 0
    assert 0 < client.seconds <= server.seconds
    assert model.received[0].all(b"traceparent") == [f"00-{TRACE}-{client.id}-01".encode()]
    assert all(SECRET.encode() not in raw for raw in receiver.raw), "no text of a conversation leaves in a span"


async def test_each_round_of_hidden_tools_is_a_span_with_its_own_usage() -> None:
    model = ScriptedModel(make_answer(None, make_proxy_call(1)), make_answer(None, make_proxy_call(2)), "Done.")
    with receiving() as receiver:
        async with (
            run_upstream(model) as upstream,
            run_proxy_with_tools(upstream.port, telemetry=telling(receiver)) as proxy,
        ):
            await Agent(proxy, more={"tools": TOOLS}).say("Look it up.")
    (server,) = receiver.server_spans
    rounds = receiver.client_spans
    assert len(rounds) == 3
    assert {span.parent for span in rounds} == {server.id}
    assert [span.attributes["gen_ai.usage.input_tokens"] for span in rounds] == [11, 11, 11]
    sent = [one.all(b"traceparent")[0].decode().split("-")[2] for one in model.received]
    assert sorted(sent) == sorted(span.id for span in rounds), "each round is the caller of its own request"
    assert len([span for span in rounds if "gen_ai.response.finish_reasons" in span.attributes]) == 1


async def test_an_upstream_that_is_away_is_an_error_of_both_spans() -> None:
    with receiving() as receiver:
        async with run_proxy(1, policy="thrifty", telemetry=telling(receiver)) as proxy:
            assert (await Agent(proxy, messages=[{"role": "user", "content": "Hi"}]).send()).status == 502
    (server,), (client,) = receiver.server_spans, receiver.client_spans
    assert client.attributes["error.type"] == "unreachable"
    assert server.attributes["error.type"] == "upstream_unreachable"
    assert (server.status, client.status) == (2, 2)


async def test_a_refusal_is_an_error_of_the_round_that_asked_and_not_of_the_server() -> None:
    """As the conventions for HTTP have it: a status of 400 and more for the client, of 500 and more for the server."""

    async def refuse(_: RawRequest, connection: Connection) -> None:
        await send_reply(connection, b"400 Bad Request", b'{"error": {"message": "No."}}')

    with receiving() as receiver:
        async with (
            run_upstream(ScriptedModel(refuse)) as upstream,
            run_proxy(upstream.port, policy="thrifty", telemetry=telling(receiver)) as proxy,
        ):
            assert (await Agent(proxy, messages=[{"role": "user", "content": "Hi"}]).send()).status == 400
    (server,), (client,) = receiver.server_spans, receiver.client_spans
    assert client.attributes["error.type"] == "400"
    assert (server.status, client.status) == (0, 2)


async def test_unmanaged_requests_are_traced_without_a_model_and_probes_are_not_traced() -> None:
    model = ScriptedModel("Well.")
    with receiving() as receiver:
        async with run_upstream(model) as upstream, run_proxy(upstream.port, telemetry=telling(receiver)) as proxy:
            await proxy.get("/v1/files/secret-name")
            await proxy.get("/healthz")
            await proxy.get("/metrics")
    (server,), (client,) = receiver.server_spans, receiver.client_spans
    assert (server.name, client.name, client.parent) == ("GET *", "GET", server.id)
    assert "gen_ai.operation.name" not in client.attributes
    assert all(b"secret-name" not in raw for raw in receiver.raw)


@pytest.mark.slow
async def test_a_collector_that_is_away_harms_no_request() -> None:
    away = {"enabled": True, "endpoint": "http://127.0.0.1:1"}
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port, telemetry=away) as proxy:
        assert (await Agent(proxy).say("Hi")).message["content"] == "Well."


async def test_with_the_setting_off_the_clients_header_is_passed_on_unchanged() -> None:
    model = ScriptedModel("Well.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy:
        body = b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}'
        assert parse_answer(await send_raw(proxy.port, make_post(CHAT, body, CLIENTS))).status == 200
        assert proxy.app.telemetry is None
    assert model.received[0].all(b"traceparent") == [CLIENTS.split(b": ")[1]]


@pytest.mark.slow
def test_disabled_telemetry_imports_no_sdk() -> None:
    code = (
        "import sys; from proxy.web.app import create_app; from proxy.settings.load import Settings\n"
        "create_app(Settings(db=':memory:'))\n"
        "assert not [m for m in sys.modules if 'opentelemetry.sdk' in m or 'otlp' in m]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])
    assert create_telemetry(Settings()) is None


def test_without_the_package_the_start_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="otel"):
        Telemetry(Settings.model_validate({"telemetry": {"enabled": True}}))
