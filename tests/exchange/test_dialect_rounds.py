"""Calls of the proxy's own tools in answers of Messages and Responses, through the running proxy.

Upstream refuses what the provider refuses and drops reasoning behind a prompt that was changed. It must do neither, and
the client must see nothing of the proxy.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.dialect_agents import MessagesAgent, ResponsesAgent
from tests.exchange.hiding import OURS, SECRET
from tests.faulty import Script, faulty
from tests.running import Heard, Running, running
from tests.strict_messages import StrictMessages
from tests.strict_responses import Ask, Say, StrictResponses, Think

Json = dict[str, Any]
Piece = tuple[str, Any]
"""A piece of an answer: ("think" | "say", text), ("ours", number) or ("theirs", number)."""

THINK: Piece = ("think", "Hm.")
SCENARIOS: dict[str, list[list[Piece]]] = {
    "only the client's": [[THINK, ("say", "Look."), ("theirs", 1)]],
    "one of ours": [[("ours", 1)]],
    "ours behind thinking": [[THINK, ("ours", 1)]],
    "ours behind thinking and text": [[THINK, ("say", "Let me see. "), ("ours", 1)]],
    "two of ours at once": [[THINK, ("ours", 1), ("ours", 2)]],
    "three rounds of ours": [
        [THINK, ("say", "One. "), ("ours", 1)],
        [THINK, ("say", "Two. "), ("ours", 2)],
        [("ours", 3)],
    ],
    "ours before the client's": [[THINK, ("ours", 1), ("theirs", 1)]],
    "ours behind the client's": [[THINK, ("say", "Both: "), ("theirs", 1), ("ours", 1)]],
    "ours between the client's": [[THINK, ("theirs", 1), ("ours", 1), ("theirs", 2), ("ours", 2), ("theirs", 3)]],
    "ours, then both": [[THINK, ("say", "First. "), ("ours", 1)], [THINK, ("say", "Both."), ("ours", 2), ("theirs", 1)]],
    "ours, then the client's": [[THINK, ("ours", 1)], [THINK, ("say", "Now yours."), ("theirs", 1)]],
    "both, and both again": [[THINK, ("ours", 1), ("theirs", 1)], [THINK, ("theirs", 2), ("ours", 2)]],
}
END: list[Piece] = [THINK, ("say", "It is so.")]


def make_block(piece: Piece) -> Json:
    kind, value = piece
    if kind == "think":
        return {"type": "thinking", "thinking": value}
    if kind == "say":
        return {"type": "text", "text": value}
    if kind == "ours":
        made = {"id": f"toolu_{SECRET}{value}", "name": "recall", "input": {"id": f"{SECRET}-{value}"}}
    else:
        made = {"id": f"toolu_{value}", "name": "read", "input": {"path": f"{value}.py"}}
    return {"type": "tool_use", **made}


def make_piece(piece: Piece) -> Any:
    kind, value = piece
    if kind == "think":
        return Think(value)
    if kind == "say":
        return Say(value)
    return Ask("recall", {"id": f"{SECRET}-{value}"}) if kind == "ours" else Ask("read", {"path": f"{value}.py"})


def number(answers: list[list[Piece]]) -> list[list[Piece]]:
    """The answers with a number of its own for each call, since ids of calls are unique."""
    made, count = [], 0
    for answer in answers:
        row: list[Piece] = []
        for kind, value in answer:
            count += kind in ("ours", "theirs")
            row.append((kind, f"{value}-{count}") if kind in ("ours", "theirs") else (kind, value))
        made.append(row)
    return made


@dataclass
class Wire:
    """One dialect: its agent, its strict upstream, and what of it a test looks at."""

    name: str
    agent: Callable[..., Any]
    model: Callable[..., Any]
    make: Callable[[Piece], Any]

    def play(self, answers: list[list[Piece]]) -> Any:
        return self.model(*([self.make(piece) for piece in answer] for answer in answers))

    def refused(self, model: Any) -> list[Any]:
        return list(model.refusals if self.name == "messages" else model.refused)

    def history(self, agent: Any) -> list[Json]:
        return list(agent.messages if self.name == "messages" else agent.items)

    def sent(self, model: Any, at: int) -> list[Json]:
        """The messages or items of one request upstream."""
        return list(model.bodies[at]["messages"] if self.name == "messages" else model.received[at]["input"])

    def count(self, model: Any) -> int:
        return len(model.bodies if self.name == "messages" else model.received)


WIRES = [
    Wire("messages", MessagesAgent, StrictMessages, make_block),
    Wire("responses", ResponsesAgent, StrictResponses, make_piece),
]
BOTH = pytest.mark.parametrize("wire", WIRES, ids=[wire.name for wire in WIRES])
STREAMING = pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])


def offering(upstream: int, **tree: Any) -> AbstractAsyncContextManager[Running]:
    """A proxy that offers its tools from the first request on."""
    tools = {"offer": "first_request", **tree.pop("tools", {})}
    return running(upstream, policy=tree.pop("policy", "thrifty"), tools=tools, **tree)


def read(name: str, arguments: Json) -> str:
    assert name == "read", "a call that is not the client's"
    return f"the text of {arguments['path']}"


def assert_hidden(heard: list[Heard]) -> None:
    for one in heard:
        assert one.whole
        assert SECRET.encode() not in one.body
        for name in OURS:
            assert name.encode() not in one.body


def assert_grows(wire: Wire, model: Any) -> None:
    """Each request begins with the messages of the one before it, and has what upstream wrote in between."""
    before: list[Json] = []
    for at in range(wire.count(model)):
        sent = wire.sent(model, at)
        assert sent[: len(before)] == before, f"request {at} has another beginning than the one before"
        before = sent


@BOTH
@STREAMING
@pytest.mark.parametrize("scenario", list(SCENARIOS))
async def test_upstream_refuses_nothing_and_the_client_sees_nothing_of_ours(
    scenario: str, stream: bool, wire: Wire
) -> None:
    answers = number([*SCENARIOS[scenario], END, END, [THINK, ("ours", 9)], END])
    model = wire.play(answers)
    async with faulty(model) as upstream, offering(upstream.port) as proxy:
        agent = wire.agent(proxy, read, stream=stream)
        for prompt in ("Hello", "Thank you", "One more thing"):
            assert (await agent.work(prompt)).endswith("It is so.")
        outcomes = await proxy.outcomes()
    assert wire.refused(model) == []
    assert model.dropped == []
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    assert wire.count(model) == len(answers)
    assert_hidden(agent.heard)
    assert_grows(wire, model)
    texts = "".join(piece[1] for answer in answers for piece in answer if piece[0] == "say")
    assert texts == read_texts(agent.answers)


def read_texts(answers: list[Json]) -> str:
    """All text that the client has."""
    found = ""
    for answer in answers:
        for one in answer.get("content") or answer.get("output") or ():
            found += one.get("text", "") if one["type"] == "text" else ""
            found += "".join(part["text"] for part in one["content"]) if one["type"] == "message" else ""
    return found
