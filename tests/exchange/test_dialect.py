"""Agents that speak Messages and Responses, on upstreams that refuse what the providers refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proxy.chat import json_spans
from proxy.dialects.responses.request import read_wire_request
from proxy.exchange.dialect import RESPONSES
from tests.dialect_agents import MessagesAgent, ResponsesAgent
from tests.faulty import Connection, Request, faulty
from tests.running import running
from tests.scripted import reply
from tests.strict_messages import StrictMessages
from tests.strict_responses import Ask, Say, StrictResponses, Think

LISTING = "\n".join(f"{n}\tdef function_{n}(argument): return argument + {n}" for n in range(1, 260))
STEPS = 25


def read(name: str, arguments: dict[str, Any]) -> str:
    """A file; each fifth file is the same as the one before."""
    return f"{LISTING}\n# {arguments.get('path', '')[:6]}"


def think(n: int) -> list[dict[str, Any]]:
    """An answer in Messages: thinking, a text, a call."""
    return [
        {"type": "thinking", "thinking": f"I look at file {n}."},
        {"type": "text", "text": f"Step {n}."},
        {"type": "tool_use", "id": f"toolu_{n:04}", "name": "read", "input": {"path": f"file{n % 3}.py"}},
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("policy", ["thrifty", "rolling", "observe"])
async def test_an_agent_on_messages_works_as_without_the_proxy_and_cheaper(
    policy: str, stream: bool, tmp_path: Path
) -> None:
    model = StrictMessages(*(think(n) for n in range(STEPS)), [{"type": "text", "text": "All done."}])
    tree: dict[str, Any] = {"policy": policy, "db": str(tmp_path / "a.sqlite3")}
    async with faulty(model) as upstream, running(upstream.port, **tree) as proxy:
        agent = MessagesAgent(proxy, read, stream=stream, more={"thinking": {"type": "adaptive"}})
        assert await agent.work("Find the fault.") == "All done."
        outcomes = await proxy.outcomes()
    assert model.refusals == []
    assert model.dropped == []
    assert len(outcomes) == STEPS + 1
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    assert len({found.session for found in agent.heard}) == 1
    assert [one["id"] for m in agent.answers for one in m["content"] if one["type"] == "tool_use"] == [
        f"toolu_{n:04}" for n in range(STEPS)
    ]
    sent, whole = len(model.received[-1].body), len(str(agent.messages))
    if policy == "observe":
        assert model.bodies[-1]["messages"] == agent.messages[:-1]
    else:
        assert sent < 0.9 * whole, "repeats are sent once"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("policy", ["thrifty", "rolling", "observe"])
async def test_an_agent_on_responses_works_as_without_the_proxy_and_cheaper(
    policy: str, stream: bool, tmp_path: Path
) -> None:
    steps: list[list[Any]] = [
        [Think(f"file {n}"), Say(f"Step {n}."), Ask("read", {"path": f"file{n % 3}.py"})] for n in range(STEPS)
    ]
    model = StrictResponses(*steps, [Think(), Say("All done.")])
    tree: dict[str, Any] = {"policy": policy, "db": str(tmp_path / "a.sqlite3")}
    async with faulty(model) as upstream, running(upstream.port, **tree) as proxy:
        agent = ResponsesAgent(proxy, read, stream=stream)
        assert await agent.work("Find the fault.") == "All done."
        outcomes = await proxy.outcomes()
    assert model.refused == []
    assert model.dropped == []
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    assert len({found.session for found in agent.heard}) == 1
    sent, whole = len(str(model.received[-1]["input"])), len(str(agent.items))
    if policy == "observe":
        assert model.received[-1]["input"] == agent.items[: len(model.received[-1]["input"])]
    else:
        assert sent < 0.9 * whole, "repeats are sent once"


@pytest.mark.parametrize("refers", [False, True])
@pytest.mark.parametrize("policy", ["thrifty", "rolling"])
async def test_reasoning_that_is_stored_at_the_provider_is_bound_too(policy: str, refers: bool, tmp_path: Path) -> None:
    steps: list[list[Any]] = [[Think(), Say(f"Step {n}."), Ask("read", {"path": f"file{n % 3}.py"})] for n in range(12)]
    model = StrictResponses(*steps, [Think(), Say("All done.")])
    tree: dict[str, Any] = {"policy": policy, "db": str(tmp_path / "a.sqlite3")}
    async with faulty(model) as upstream, running(upstream.port, **tree) as proxy:
        agent = ResponsesAgent(proxy, read, more={"store": True, "include": []}, refers=refers)
        assert await agent.work("Find the fault.") == "All done."
    assert model.refused == []
    assert model.dropped == []
    if refers:
        assert model.received[-1]["input"] == agent.items[: len(model.received[-1]["input"])]
        assert [found.header("x-context-fallback") for found in agent.heard] == [None, *["chain"] * 12]
    else:
        assert len(str(model.received[-1]["input"])) < 0.9 * len(str(agent.items))


@pytest.mark.parametrize(
    "more",
    [b'"content":[{"type":"server_tool_use","id":{"a":1}}]', b'"content":"So.","n":' + b"9" * 6000],
    ids=["id", "number"],
)
async def test_values_of_odd_types_are_passed_on_and_are_no_fault_of_the_proxy(more: bytes) -> None:
    received: list[bytes] = []

    async def answer(request: Request, there: Connection) -> None:
        received.append(request.body)
        await reply(there, b"200 OK", b"{}", b"content-type: application/json")

    asked = b'{"role":"user","content":"Go."}'
    body = b'{"model":"m","max_tokens":900,"messages":[%b,{"role":"assistant",%b},%b]}' % (asked, more, asked)
    async with faulty(answer) as upstream, running(upstream.port, policy="rolling") as proxy:
        found = await proxy.post(body, b"x-api-key: sk-one", path="/v1/messages")
        assert found.status == 200
        assert proxy.count("internal_errors_total") == 0
    assert received == [body]


@pytest.mark.parametrize("head", [b"", b'"instructions":null,', b'"instructions":"Theirs.",'])
@pytest.mark.parametrize("tail", [b"", b',"instructions":"Behind."'])
def test_the_clients_instructions_are_told_where_others_were_sent(head: bytes, tail: bytes) -> None:
    if head and tail:
        return  # a member that is there twice is not read
    body = b'{%b"model":"m","input":[{"role":"user","content":"Do."}]%b}' % (head, tail)
    request = read_wire_request(body)
    own = json_spans.read_value(body, "instructions")
    for sent in (body, body.replace(b"Do.", b"Cut."), body.replace(b"Theirs.", b"Ours."), body.replace(b"Beh", b"H")):
        same = json_spans.read_value(sent, "instructions") == own
        assert RESPONSES.find_echo(request, sent) == ({} if same else {"instructions": own})
