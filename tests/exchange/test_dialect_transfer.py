"""Conversations of each dialect, exported, imported and continued elsewhere: nothing of them is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.dialect_agents import MessagesAgent, ResponsesAgent
from tests.gemini_agent import GeminiAgent
from tests.proxy_server import RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.strict_gemini import StrictGemini
from tests.strict_messages import StrictMessages, read_step
from tests.strict_responses import Ask, Say, StrictResponses, Think

Json = dict[str, Any]
TREE: Json = {"policy": "thrifty", "identity": {"salt": "the same for both"}}
SESSION = b"x-context-session: a"


def read(name: str, arguments: Json) -> str:
    return f"The text of {arguments['path']}."


def make_messages_model() -> StrictMessages:
    return StrictMessages(*(read_step(n, f"a{n}.py") for n in range(3)), [{"type": "text", "text": "Done."}])


def make_responses_model() -> StrictResponses:
    steps: list[list[Any]] = [[Think(f"file {n}"), Ask("read", {"path": f"a{n}.py"})] for n in range(3)]
    return StrictResponses(*steps, [Think(), Say("Done.")])


def make_gemini_model() -> StrictGemini:
    calls: list[list[Json]] = [[{"functionCall": {"name": "read", "args": {"path": f"a{n}.py"}}}] for n in range(3)]
    return StrictGemini(*calls, "Done.")


def make_model(name: str) -> Any:
    makers = {"messages": make_messages_model, "responses": make_responses_model, "gemini": make_gemini_model}
    return makers[name]()


def make_agent(name: str, proxy: RunningProxy) -> Any:
    if name == "messages":
        return MessagesAgent(proxy, read, more={"thinking": {"type": "adaptive"}}, lines=(SESSION,))
    kind: Any = ResponsesAgent if name == "responses" else GeminiAgent
    return kind(proxy, read, lines=(SESSION,))


def list_faults(model: Any) -> list[Any]:
    refused = model.refused if isinstance(model, StrictResponses) else model.refusals
    return [*refused, *getattr(model, "dropped", ())]


async def export(proxy: RunningProxy) -> list[Json]:
    found = await proxy.get("/api/sessions/a/export")
    assert found.status == 200, found.body
    return [json.loads(line) for line in found.body.splitlines()]


async def bring_in(proxy: RunningProxy, tenant: str, lines: list[Json]) -> None:
    text = b"\n".join(json.dumps(line | {"session": "a"}).encode() for line in lines)
    url, kind = f"http://127.0.0.1:{proxy.port}/api/import?tenant={tenant}", {"content-type": "application/x-ndjson"}
    async with ClientSession() as client, client.post(url, data=text, headers=kind) as found:
        assert found.status == 200, await found.text()


@pytest.mark.parametrize("name", ["messages", "responses", "gemini"])
async def test_an_imported_conversation_is_the_one_that_was_exported(name: str) -> None:
    model = make_model(name)
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, **TREE) as proxy:
            agent = make_agent(name, proxy)
            await agent.work("Find the fault.")
            await proxy.outcomes()
            exported = await export(proxy)
            ((tenant,),) = await proxy.rows("SELECT DISTINCT tenant FROM messages")
            prompt = (await proxy.get("/api/sessions/a/prompt")).json()
        async with run_proxy(upstream.port, **TREE) as proxy:
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
    assert "a2.py" in text
    assert len(later["messages"]) > len(prompt["messages"]) > 3
    assert list_faults(model) == []


def list_tokens(name: str, agent: Any) -> list[str]:
    if name == "gemini":
        return [part["thoughtSignature"] for one in agent.answers for part in one["parts"] if "functionCall" in part]
    if name == "messages":
        return [block["signature"] for answer in agent.answers for block in answer["content"] if "signature" in block]
    return [item["encrypted_content"] for answer in agent.answers for item in answer["output"] if "summary" in item]
