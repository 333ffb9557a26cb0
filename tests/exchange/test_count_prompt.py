"""Counts of a prompt that a client asks for: upstream counts what would be sent, and nothing is left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.dialect_agents import MessagesAgent, ResponsesAgent, read_listing
from tests.proxy_server import RawAnswer, RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.strict_messages import StrictMessages, read_step
from tests.strict_responses import Ask, Say, StrictResponses, Think

Json = dict[str, Any]
STEPS = 4


async def dump_tables(proxy: RunningProxy) -> Json:
    names = ("sessions", "branches", "messages", "forms", "edits", "states", "exchanges", "gaps", "hidden_rounds")
    return {name: await proxy.rows(f"SELECT * FROM {name}") for name in names}


async def assert_counted(proxy: RunningProxy, agent: Any, body: Json, path: str) -> RawAnswer:
    """A count changes nothing that is stored and nothing that is reported."""
    before, sent = await dump_tables(proxy), proxy.count("edits_total", stage="refer_repeats")
    found = await proxy.post(body, *agent.lines, b"x-api-key: sk-one", b"anthropic-version: 2023-06-01", path=path)
    assert found.status == 200, found.body
    assert await dump_tables(proxy) == before
    assert proxy.count("edits_total", stage="refer_repeats") == sent
    return found


@pytest.mark.parametrize("policy", ["thrifty", "rolling", "passthrough"])
async def test_messages_are_counted_as_they_would_be_sent(policy: str, tmp_path: Path) -> None:
    model = StrictMessages(*(read_step(n, "a.py") for n in range(STEPS)), [{"type": "text", "text": "Done."}])
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy=policy, db=str(tmp_path / "a.db")) as proxy,
    ):
        agent = MessagesAgent(proxy, read_listing, more={"thinking": {"type": "adaptive"}})
        await agent.work("Find the fault.")
        last = agent.messages.pop()
        body: Json = {
            "model": "claude-opus-5-5", "system": agent.system, "messages": agent.messages,
            "tools": [{"name": "read", "description": "Read a file.", "input_schema": {"type": "object"}}],
            "thinking": {"type": "adaptive"},
        }  # fmt: skip
        found = await assert_counted(proxy, agent, body, "/v1/messages/count_tokens")
        assert model.counted[-1]["messages"] == model.bodies[-1]["messages"]
        assert model.counted[-1].get("tools") == model.bodies[-1].get("tools")
        assert found.json() == {"input_tokens": len(model.received[-1].body) // 4}
        agent.messages += [last, {"role": "user", "content": "And now?"}]
        await agent.ask()
    assert model.refusals == []
    assert model.dropped == []
    if policy != "passthrough":
        assert len(json.dumps(model.counted[-1])) < 0.8 * len(json.dumps(body))


@pytest.mark.parametrize("policy", ["thrifty", "passthrough"])
async def test_items_are_counted_as_they_would_be_sent(policy: str, tmp_path: Path) -> None:
    steps: list[list[Any]] = [[Think(f"file {n}"), Ask("read", {"path": "a.py"})] for n in range(STEPS)]
    model = StrictResponses(*steps, [Say("Done.")])
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy=policy, db=str(tmp_path / "a.db")) as proxy,
    ):
        agent = ResponsesAgent(proxy, read_listing)
        await agent.work("Find the fault.")
        last = agent.items.pop()
        body: Json = {
            "model": "gpt-6.2-sol", "input": agent.items, "instructions": "You are a careful engineer.",
            "tools": [{"type": "function", "name": "read", "description": "Read.", "parameters": {"type": "object"}}],
        }  # fmt: skip
        await assert_counted(proxy, agent, body, "/v1/responses/input_tokens")
        assert model.counted[-1]["input"] == model.received[-1]["input"]
        agent.items += [last, {"type": "message", "role": "user", "content": "And now?"}]
        await agent.ask()
    assert model.refused == []
    assert model.dropped == []
    if policy != "passthrough":
        assert len(json.dumps(model.counted[-1])) < 0.8 * len(json.dumps(body))


async def test_a_count_that_cannot_be_planned_is_one_of_the_clients_own_prompt() -> None:
    model = StrictResponses("Well.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        for body, reason in (
            ({"model": "gpt-6.2-sol", "input": "Hello"}, None),
            ({"model": "gpt-6.2-sol", "input": "Hello", "previous_response_id": "resp_0"}, "chain"),
            ({"model": "gpt-6.2-sol", "input": [{"type": "item_reference", "id": "x"}, {"role": "user"}]}, "chain"),
        ):
            found = await proxy.post(body, path="/v1/responses/input_tokens")
            assert found.header("x-context-fallback") == reason
            if reason is None:
                assert found.json()["input_tokens"] > 0
        assert await proxy.outcomes() == []
