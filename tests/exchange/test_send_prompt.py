"""Prompts that upstream refuses, and what goes out in their place. Other reasons have tests of their own:
`test_usage_option`, `test_cache_breakpoints`, `test_learned_windows`, `test_bound_reasoning`, `test_chains`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import ScriptedModel, send_reply

HELLO = {"model": "m", "messages": [{"role": "system", "content": "Be."}, {"role": "user", "content": "Hello"}]}
JSON = b"content-type: application/json"


def refusing(
    model: ScriptedModel, original: Any, *, always: bool = False, body: bytes = b'{"error":{"message":"no"}}'
) -> Any:
    """A script that answers 400 to whatever does not have the messages of the original."""

    async def script(request: RawRequest, connection: Connection) -> None:
        if always or json.loads(request.body)["messages"] != original:
            model.received.append(request)
            await send_reply(connection, b"400 Bad", body, JSON)
        else:
            await ScriptedModel.__call__(model, request, connection)

    return script


@pytest.mark.parametrize("stream", [False, True])
async def test_a_422_to_a_rewritten_prompt_is_a_refusal_as_a_400_is(stream: bool) -> None:
    model = ScriptedModel("Well.")

    async def script(request: RawRequest, connection: Connection) -> None:
        if "### STATE" in request.body.decode():
            await send_reply(connection, b"422 Unprocessable Entity", b'{"detail":[]}', JSON)
        else:
            await model(request, connection)

    async with run_upstream(script) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        found = await proxy.post(HELLO | {"stream": stream}, b"x-context-session: a")
    assert (found.status, found.header("x-context-fallback")) == (200, "upstream_reject")
    assert [r.body for r in model.received] == [json.dumps(HELLO | {"stream": stream}).encode()]


async def test_a_rewritten_prompt_that_is_refused_is_sent_once_more_as_received() -> None:
    model = ScriptedModel("Well.")
    original = HELLO["messages"]
    async with run_upstream(refusing(model, original)) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        found = await proxy.post(HELLO, b"x-context-session: a")
        assert found.status == 200
        assert found.message["content"] == "Well."
        assert found.header("x-context-fallback") == "upstream_reject"
        assert await proxy.outcomes() == [("complete", 200, "upstream_reject")]
        assert proxy.count("fallbacks_total", reason="upstream_reject") == 1
        assert [r.body == json.dumps(HELLO).encode() for r in model.received] == [False, True]


@pytest.mark.parametrize("stream", [False, True])
async def test_rewriting_stops_for_a_branch_whose_original_was_taken(stream: bool) -> None:
    model = ScriptedModel("Well.")

    async def script(request: RawRequest, connection: Connection) -> None:
        rewritten = "### STATE" in request.body.decode() or b"include_usage" in request.body
        if rewritten:
            model.received.append(request)
            await send_reply(connection, b"400 Bad", b"{}", JSON)
        else:
            await model(request, connection)

    async with run_upstream(script) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",), stream=stream, messages=[{"role": "system", "content": "Be."}])
        await agent.say("One")
        await agent.say("Two")
        await agent.say("Three")
        other = Agent(proxy, (b"x-context-session: b",), stream=stream, messages=[{"role": "system", "content": "Be."}])
        await other.say("One")
        stopped = await proxy.rows("SELECT session, stopped FROM branches ORDER BY created_at")
    assert len(model.received) == 2 + 1 + 1 + 2, "only the first request of each branch is tried twice"
    assert stopped == [("a", "upstream_reject"), ("b", "upstream_reject")]


async def test_rewriting_continues_where_the_original_is_refused_too() -> None:
    model = ScriptedModel("Well.")
    async with (
        run_upstream(refusing(model, None, always=True)) as upstream,
        run_proxy(upstream.port, policy="rolling") as proxy,
    ):
        found = await proxy.post(HELLO, b"x-context-session: a")
        assert (found.status, found.body) == (400, b'{"error":{"message":"no"}}')
        assert await proxy.rows("SELECT stopped FROM branches") == [(None,)]
        assert await proxy.outcomes() == [("rejected", 400, "upstream_reject")]
        await proxy.post(HELLO, b"x-context-session: a")
    assert len(model.received) == 4


async def test_an_untouched_request_that_is_refused_is_not_sent_again() -> None:
    model = ScriptedModel("Well.")
    async with (
        run_upstream(refusing(model, None, always=True)) as upstream,
        run_proxy(upstream.port, policy="thrifty") as proxy,
    ):
        found = await proxy.post(HELLO)
    assert found.status == 400
    assert found.header("x-context-fallback") is None
    assert len(model.received) == 1
