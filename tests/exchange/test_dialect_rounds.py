"""Calls of the proxy's own tools in answers of Messages and Responses, through the running proxy.

Upstream refuses what the provider refuses and drops reasoning behind a prompt that was changed. It must do neither, and
the client must see nothing of the proxy.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.dialect_agents import MessagesAgent, ResponsesAgent
from tests.exchange.hidden_calls import OURS, SECRET
from tests.proxy_server import RawAnswer, RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
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
    "ours, then both": [
        [THINK, ("say", "First. "), ("ours", 1)],
        [THINK, ("say", "Both."), ("ours", 2), ("theirs", 1)],
    ],
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
        found: list[Json] = agent.messages if self.name == "messages" else agent.items
        return found

    def bring(self, agent: Any, answer: Json) -> bool:
        """Answer the calls of an answer; False if it has none."""
        if self.name == "messages":
            calls = [one for one in answer["content"] if one["type"] == "tool_use"]
            results = [
                {"type": "tool_result", "tool_use_id": one["id"], "content": read(one["name"], one["input"])}
                for one in calls
            ]
            self.history(agent).extend([{"role": "user", "content": results}] if calls else [])
            return bool(calls)
        calls = [one for one in answer["output"] if one["type"] == "function_call"]
        for one in calls:
            output = read(one["name"], json.loads(one["arguments"]))
            self.history(agent).append({"type": "function_call_output", "call_id": one["call_id"], "output": output})
        return bool(calls)

    def forget(self, agent: Any) -> None:
        """Leave out what some clients leave out: ids of items; marks of the cache move."""
        for one in self.history(agent):
            if self.name == "messages":
                for block in one["content"] if isinstance(one["content"], list) else ():
                    block.pop("cache_control", None)
            else:
                one.pop("id", None)
                one.pop("status", None)
        if self.name == "messages" and isinstance(self.history(agent)[-1]["content"], list):
            self.history(agent)[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}

    def sent(self, model: Any, at: int) -> list[Json]:
        """The messages or items of one request upstream."""
        return list(self.bodies(model)[at]["messages" if self.name == "messages" else "input"])

    def bodies(self, model: Any) -> list[Json]:
        return list(model.bodies if self.name == "messages" else model.received)


WIRES = [
    Wire("messages", MessagesAgent, StrictMessages, make_block),
    Wire("responses", ResponsesAgent, StrictResponses, make_piece),
]
BOTH = pytest.mark.parametrize("wire", WIRES, ids=[wire.name for wire in WIRES])
STREAMING = pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])


def offering(upstream: int, **tree: Any) -> AbstractAsyncContextManager[RunningProxy]:
    """A proxy that offers its tools from the first request on."""
    tools = {"offer": "first_request", **tree.pop("tools", {})}
    return run_proxy(upstream, policy=tree.pop("policy", "thrifty"), tools=tools, **tree)


def read(name: str, arguments: Json) -> str:
    assert name == "read", "a call that is not the client's"
    return f"the text of {arguments['path']}"


def assert_hidden(heard: list[RawAnswer]) -> None:
    for one in heard:
        assert one.whole
        assert SECRET.encode() not in one.body
        for name in OURS:
            assert name.encode() not in one.body


def assert_grows(wire: Wire, model: Any) -> None:
    """Each request begins with the messages of the one before it, and has what upstream wrote in between."""
    before: list[Json] = []
    for at in range(len(wire.bodies(model))):
        sent = wire.sent(model, at)
        assert sent[: len(before)] == before, f"request {at} has another beginning than the one before"
        before = sent


@BOTH
@STREAMING
@pytest.mark.parametrize("scenario", list(SCENARIOS))
async def test_upstream_refuses_nothing_and_the_client_sees_nothing_of_the_proxy(
    scenario: str, stream: bool, wire: Wire
) -> None:
    answers = number([*SCENARIOS[scenario], END, END, [THINK, ("ours", 9)], END])
    model = wire.play(answers)
    async with run_upstream(model) as upstream, offering(upstream.port) as proxy:
        agent = wire.agent(proxy, read, stream=stream)
        for prompt in ("Hello", "Thank you", "One more thing"):
            assert (await agent.work(prompt)).endswith("It is so.")
        outcomes = await proxy.outcomes()
    assert wire.refused(model) == []
    assert model.dropped == []
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    assert len(wire.bodies(model)) == len(answers)
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


@BOTH
@STREAMING
@pytest.mark.parametrize("scenario", ["three rounds of ours", "ours between the client's", "ours, then both"])
async def test_rounds_are_put_back_after_a_restart_and_for_clients_that_send_less_back(
    scenario: str, stream: bool, wire: Wire, tmp_path: Path
) -> None:
    answers = number([*SCENARIOS[scenario], END, END])
    model = wire.play(answers)
    async with run_upstream(model) as upstream:
        agent = wire.agent(None, read, stream=stream)
        wire.history(agent).append({"role": "user", "content": "Hello"})
        ended = False
        while not ended:  # each request is that of another process
            async with offering(upstream.port, db=str(tmp_path / "a.sqlite3")) as proxy:
                agent.proxy = proxy
                ended = not wire.bring(agent, await agent.ask())
                wire.forget(agent)
        async with offering(upstream.port, db=str(tmp_path / "a.sqlite3")) as proxy:
            agent.proxy = proxy
            assert await agent.work("Thank you") == "It is so."
            outcomes = await proxy.outcomes()
    assert wire.refused(model) == []
    assert model.dropped == []
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    assert len(wire.bodies(model)) == len(answers)
    assert_hidden(agent.heard)
    assert len({one.session for one in agent.heard}) == 1


NOTE = "Goal: go on\nContext: as before\nResolved: none\nTechnical Anchors: a.txt"
BLOCK = "### STATE\n" + NOTE


@BOTH
@STREAMING
@pytest.mark.parametrize(
    "answers",
    [
        [[("say", "Well.\n\n" + BLOCK)]],
        [[("say", BLOCK)]],
        [[("say", "Well.\n\n" + BLOCK), ("theirs", 1)], [("say", "Done.")]],
        [[("say", BLOCK), ("theirs", 1)], [("say", "Done.")]],
        [[("ours", 1)], [("say", "Well.\n\n" + BLOCK)]],
        [[("say", BLOCK), ("ours", 1)], [("say", "Well.\n\n" + BLOCK.replace("go on", "end"))]],
        [[("say", "First.\n\n" + BLOCK), ("ours", 1), ("theirs", 1)], [("say", "Done.")]],
    ],
    ids=["behind a text", "alone", "in front of a call", "alone and a call", "behind ours", "twice", "mixed"],
)
async def test_a_state_block_is_withheld_stored_and_comes_back_in_the_next_prompt(
    answers: list[list[Piece]], stream: bool, wire: Wire
) -> None:
    last = [("say", "Fine.")]
    played = number([*answers, last, last])
    model = wire.play(played)
    more: Json = {} if wire.name == "messages" else {"include": []}
    async with run_upstream(model) as upstream, offering(upstream.port, policy="rolling") as proxy:
        # Without an answer, a first prompt alone does not show which conversation goes on.
        lines = (b"x-context-session: a",) if wire.name == "responses" else ()
        agent = wire.agent(proxy, read, stream=stream, more=more, lines=lines)
        await agent.work("Hello")
        await agent.work("Thank you")
        await agent.work("And then?")
        outcomes = await proxy.outcomes()
        states = [text.decode() for (text,) in await proxy.rows("SELECT text FROM states ORDER BY created_at")]
    assert wire.refused(model) == []
    assert model.dropped == []
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    assert_hidden(agent.heard)
    for one in agent.heard:
        assert b"STATE" not in one.body
        assert b"Technical Anchors" not in one.body
    said = [one for one in wire.sent(model, -1) if one.get("role") == "assistant"]
    assert "STATE" not in json.dumps(said), "the newest note is quoted by the proxy; an older one would be untrue"
    assert states
    assert states[-1].startswith("Goal: ")
    assert NOTE.split("\n")[1] in json.dumps(wire.bodies(model)[-1])


@BOTH
@STREAMING
async def test_an_answer_of_nothing_but_a_state_block_after_a_round_is_the_answer(stream: bool, wire: Wire) -> None:
    model = wire.play(number([[("ours", 1)], [("say", BLOCK)]]))
    more: Json = {} if wire.name == "messages" else {"include": []}
    async with run_upstream(model) as upstream, offering(upstream.port, policy="rolling") as proxy:
        agent = wire.agent(proxy, read, stream=stream, more=more)
        await agent.work("Hello")
        outcomes = await proxy.outcomes()
        states = await proxy.rows("SELECT text FROM states")
    assert [(status, fallback) for status, _, fallback in outcomes] == [("complete", None)]
    assert [text.decode() for (text,) in states] == [NOTE]
    assert len(wire.bodies(model)) == 2, "the original request was sent too"
    assert b"STATE" not in agent.heard[0].body


@STREAMING
async def test_a_state_block_before_thinking_goes_back_with_its_round(stream: bool) -> None:
    wire = WIRES[0]
    model = wire.play(number([[("say", "Well.\n\n" + BLOCK), THINK, ("say", "So.\n\n" + BLOCK), ("ours", 1)], END]))
    async with run_upstream(model) as upstream, offering(upstream.port, policy="rolling") as proxy:
        agent = wire.agent(proxy, read, stream=stream)
        await agent.work("Hello")
        states = await proxy.rows("SELECT text FROM states")
    assert [text.decode() for (text,) in states] == [NOTE]
    texts = [one["text"] for one in wire.sent(model, 1)[1]["content"] if one["type"] == "text"]
    assert texts == ["Well.\n\n" + BLOCK, "So."]
    assert b"STATE" not in agent.heard[0].body
    assert (wire.refused(model), model.dropped) == ([], [])


@BOTH
@STREAMING
async def test_a_call_of_a_proxy_tool_that_failed_is_sent_back_as_failed(stream: bool, wire: Wire) -> None:
    model = wire.play(number([[("ours", 1)], END, END]))
    async with run_upstream(model) as upstream, offering(upstream.port) as proxy:
        agent = wire.agent(proxy, read, stream=stream)
        await agent.work("Hello")
        await agent.work("Thank you")
    assert wire.refused(model) == []
    for at in (1, 2):
        sent = wire.sent(model, at)
        if wire.name == "messages":
            assert sent[2]["content"][0]["is_error"] is True
        else:
            assert set(sent[2]) == {"type", "call_id", "output"}


@BOTH
@STREAMING
async def test_a_lost_store_costs_reasoning_and_no_conversation(stream: bool, wire: Wire) -> None:
    answers = number([[THINK, ("ours", 1)], [THINK, ("ours", 2)], END, END])
    model = wire.play(answers)
    async with run_upstream(model) as upstream:
        async with offering(upstream.port) as proxy:
            agent = wire.agent(proxy, read, stream=stream)
            assert await agent.work("Hello") == "It is so."
        async with offering(upstream.port) as proxy:
            agent.proxy = proxy
            assert await agent.work("Thank you") == "It is so."
    # The client's own bytes are refused, the request without its reasoning is taken.
    assert len(wire.refused(model)) == (1 if wire.name == "messages" else 0)


@STREAMING
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name not in ("only the client's", "one of ours")])
async def test_reasoning_that_nobody_has_stored_or_encrypted_does_not_go_back(scenario: str, stream: bool) -> None:
    """A client with `store: false` leaves such reasoning out, and ids with it. Upstream finds none by its id."""
    wire = WIRES[1]
    answers = number([*SCENARIOS[scenario], END, [THINK, ("ours", 9)], END])
    model = StrictResponses(
        *([make_piece(piece) for piece in answer] for answer in answers), binds=False, encrypts=False
    )
    async with run_upstream(model) as upstream, offering(upstream.port) as proxy:
        agent = ResponsesAgent(proxy, read, stream=stream, more={"include": []})
        for prompt in ("Hello", "Thank you"):
            agent.items.append({"role": "user", "content": prompt})
            while wire.bring(agent, await agent.ask()):
                agent.items = [one for one in agent.items if one.get("type") != "reasoning"]
                wire.forget(agent)
            agent.items = [one for one in agent.items if one.get("type") != "reasoning"]
            wire.forget(agent)
        outcomes = await proxy.outcomes()
    assert model.refused == []
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    assert len(model.received) == len(answers)
    assert_hidden(agent.heard)
    names = [item.get("call_id") for body in model.received[-1:] for item in body["input"] if "name" in item]
    assert len(names) == sum(kind in ("ours", "theirs") for answer in answers for kind, _ in answer), "none is lost"


@BOTH
@STREAMING
async def test_usage_adds_up_over_rounds(stream: bool, wire: Wire) -> None:
    answers = number([[THINK, ("ours", 1)], [THINK, ("say", "So. "), ("ours", 2)], END])
    model = wire.play(answers)
    spent: list[Json] = []
    made = model.make_message if wire.name == "messages" else model._make

    def record(*given: Any) -> Json:
        found: Json = made(*given)
        spent.append(found["usage"])
        return found

    if wire.name == "messages":
        model.make_message = record
    else:
        model._make = record
    async with run_upstream(model) as upstream, offering(upstream.port) as proxy:
        agent = wire.agent(proxy, read, stream=stream)
        await agent.work("Hello")
    usage = agent.answers[-1]["usage"]
    assert len(spent) == 3
    assert usage["output_tokens"] == sum(one["output_tokens"] for one in spent)
    assert usage["input_tokens"] == spent[-1]["input_tokens"]
    if wire.name == "responses":
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        thought = [one["output_tokens_details"]["reasoning_tokens"] for one in spent]
        assert usage["output_tokens_details"]["reasoning_tokens"] == sum(thought) > 0
        assert usage["input_tokens_details"]["cached_tokens"] == spent[-1]["input_tokens_details"]["cached_tokens"]


@pytest.mark.clients
@pytest.mark.parametrize("scenario", list(SCENARIOS))
async def test_the_reader_of_openais_sdk_accepts_the_stream(scenario: str) -> None:
    answers = number([*SCENARIOS[scenario], END])
    model = StrictResponses(*([make_piece(piece) for piece in answer] for answer in answers))
    async with AsyncExitStack() as stack, run_upstream(model) as upstream, offering(upstream.port) as proxy:
        client = await stack.enter_async_context(openai.AsyncOpenAI(base_url=proxy.url, api_key="k", max_retries=0))
        items: list[Any] = [{"role": "user", "content": "Hello"}]
        for _ in range(5):
            async with client.responses.stream(
                model="gpt-6.2-sol",
                input=items,
                store=False,
                include=["reasoning.encrypted_content"],
                tools=[{"type": "function", "name": "read", "parameters": {}, "strict": False}],
            ) as found:
                response = await found.get_final_response()
            items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                break
            items += [{"type": "function_call_output", "call_id": one.call_id, "output": "text"} for one in calls]
        assert json.dumps(items[-1]).count("It is so.") == 1
    assert model.refused == []
    assert model.dropped == []
