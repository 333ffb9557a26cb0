"""Conversations of Messages and Responses exported, imported elsewhere and continued there: nothing of them is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.dialect_agents import MessagesAgent, ResponsesAgent
from tests.faulty import faulty
from tests.running import Running, running
from tests.strict_messages import StrictMessages
from tests.strict_responses import Ask, Say, StrictResponses, Think

Json = dict[str, Any]
TREE: Json = {"policy": "thrifty", "identity": {"salt": "the same for both"}}
SESSION = b"x-context-session: a"


def read(name: str, arguments: Json) -> str:
    return f"The text of {arguments['path']}."


def make_messages_model() -> StrictMessages:
    calls: list[list[Json]] = [
        [
            {"type": "thinking", "thinking": f"I look at {n}."},
            {"type": "tool_use", "id": f"t{n}", "name": "read", "input": {"path": f"a{n}.py"}},
        ]
        for n in range(3)
    ]
    return StrictMessages(*calls, [{"type": "text", "text": "Done."}])


def make_responses_model() -> StrictResponses:
    steps: list[list[Any]] = [[Think(f"file {n}"), Ask("read", {"path": f"a{n}.py"})] for n in range(3)]
    return StrictResponses(*steps, [Think(), Say("Done.")])


async def export(proxy: Running) -> list[Json]:
    found = await proxy.get("/api/sessions/a/export")
    assert found.status == 200, found.body
    return [json.loads(line) for line in found.body.splitlines()]


async def bring_in(proxy: Running, tenant: str, lines: list[Json]) -> None:
    text = b"\n".join(json.dumps(line | {"session": "a"}).encode() for line in lines)
    url, kind = f"http://127.0.0.1:{proxy.port}/api/import?tenant={tenant}", {"content-type": "application/x-ndjson"}
    async with ClientSession() as client, client.post(url, data=text, headers=kind) as found:
        assert found.status == 200, await found.text()


@pytest.mark.parametrize("name", ["messages", "responses"])
async def test_an_imported_conversation_is_the_one_that_was_exported(name: str) -> None:
    model: Any = make_messages_model() if name == "messages" else make_responses_model()
    kind: Any = MessagesAgent if name == "messages" else ResponsesAgent
    more: Json = {"thinking": {"type": "adaptive"}} if name == "messages" else {}
    async with faulty(model) as upstream:
        async with running(upstream.port, **TREE) as proxy:
            agent = kind(proxy, read, more=more, lines=(SESSION,))
            await agent.work("Find the fault.")
            await proxy.outcomes()
            exported = await export(proxy)
            ((tenant,),) = await proxy.rows("SELECT DISTINCT tenant FROM messages")
            prompt = (await proxy.get("/api/sessions/a/prompt")).json()
        async with running(upstream.port, **TREE) as proxy:
            await bring_in(proxy, tenant, exported)
            again = await export(proxy)
            assert [one["messages"] for one in again] == [one["messages"] for one in exported]
            agent.proxy = proxy
            await agent.work("Go on.")
            await proxy.outcomes()
            assert await proxy.rows("SELECT count(DISTINCT branch) FROM messages") == [(1,)], "it goes on from there"
            later = (await proxy.get("/api/sessions/a/prompt")).json()
    text = json.dumps(exported)
    tokens = list_tokens(name, agent)
    assert len(tokens) >= 3
    assert all(token in text for token in tokens[:3]), "what binds the reasoning is kept"
    assert "t2" in text or "call_" in text
    assert len(later["messages"]) > len(prompt["messages"]) > 3
    assert (model.refusals if name == "messages" else model.refused, model.dropped) == ([], [])


def list_tokens(name: str, agent: Any) -> list[str]:
    if name == "messages":
        return [block["signature"] for answer in agent.answers for block in answer["content"] if "signature" in block]
    return [item["encrypted_content"] for answer in agent.answers for item in answer["output"] if "summary" in item]
