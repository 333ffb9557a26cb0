"""A client that does what it likes with a conversation of bound reasoning: none of its requests fails of the proxy."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.exchange import plan_request
from tests.faulty import faulty
from tests.running import Heard, Running, running
from tests.strict_messages import StrictMessages

Json = dict[str, Any]
LISTINGS = ["\n".join(f"{n}\tdef function_{kind}_{n}(argument): return {n}" for n in range(80)) for kind in range(3)]
THINKING: Json = {"thinking": {"type": "adaptive"}}
BREAKING = ("date", "tools")
"""Actions by which a client changes its own prompt. Then it has to forget its reasoning."""
ACTIONS = (
    "step", "many", "ask_again", "fork", "compact", "mark", "date", "tools", "detour", "off", "restart", "lose_store",
    "fail", "rolling", "observe", "passthrough", "eager",
)  # fmt: skip


def think(n: int) -> list[Json]:
    """The n-th answer: calls alone and in parallel, with thinking between, redacted or empty; now and then a text."""
    call: Json = {"type": "tool_use", "id": f"toolu_{n:04}", "name": "read", "input": {"path": f"{n % 3}.py"}}
    other = {**call, "id": f"toolu_{n:04}_b", "input": {"path": "b.py"}}
    return [
        [{"type": "thinking", "thinking": f"First {n}."}, call],
        [{"type": "thinking", "thinking": ""}, call, {"type": "thinking", "thinking": f"And {n}."}, other],
        [{"type": "redacted_thinking", "data": ""}, call],
        [{"type": "thinking", "thinking": f"So {n}."}, {"type": "text", "text": f"I read on {n}."}, call, other],
        [{"type": "thinking", "thinking": f"Then {n}."}, {"type": "text", "text": f"Done {n}."}],
        [call],
    ][n % 6]


@dataclass
class Client:
    """A client of Messages. It forgets its reasoning if that is refused, as real ones do."""

    proxy: Running
    messages: list[Json] = field(default_factory=lambda: [{"role": "user", "content": "Find the fault."}])
    day: int = 1
    tools: int = 1
    marks: bool = False
    told: list[Heard] = field(default_factory=list)

    def make_body(self, *, stream: bool) -> Json:
        names = ["read", "write", "search"][: self.tools]
        messages = json.loads(json.dumps(self.messages))
        if self.marks:
            last = messages[-1]
            if isinstance(last["content"], str):
                last["content"] = [{"type": "text", "text": last["content"]}]
            last["content"][-1]["cache_control"] = {"type": "ephemeral"}
        return {
            "model": "claude-opus-5-5", "max_tokens": 4096, "stream": stream, **THINKING,
            "system": f"You are careful. Today is day {self.day}.", "messages": messages,
            "tools": [{"name": one, "description": one, "input_schema": {"type": "object"}} for one in names],
        }  # fmt: skip

    async def ask(self, *lines: bytes) -> Heard:
        """One request, and what follows it: results of the calls, or the next prompt."""
        head = (b"x-api-key: k", b"anthropic-version: 2023-06-01", *lines)
        found = await self.proxy.post(self.make_body(stream=False), *head, path="/v1/messages", seconds=30)
        self.told.append(found)
        if found.status == 200:
            content = found.json()["content"]
            self.messages.append({"role": "assistant", "content": content})
            calls = [one["id"] for one in content if one["type"] == "tool_use"]
            results = [
                {"type": "tool_result", "tool_use_id": one, "content": LISTINGS[len(self.messages) // 2 % 3]}
                for one in calls
            ]
            self.messages.append({"role": "user", "content": results or f"Go on {len(self.messages)}."})
        return found

    def forget_reasoning(self) -> None:
        for message in self.messages:
            if message["role"] == "assistant":
                kept = [one for one in message["content"] if "thinking" not in one["type"]]
                message["content"] = kept or [{"type": "text", "text": "."}]

    def cut(self, *, again: bool) -> None:
        """Back to the last answer, or to an earlier prompt in other words."""
        if len(self.messages) < 3:
            return
        if again:
            del self.messages[-2:]
            return
        prompts = [n for n, one in enumerate(self.messages) if isinstance(one["content"], str)]
        at = prompts[len(prompts) // 2]
        del self.messages[at:]
        self.messages.append({"role": "user", "content": f"In other words: go on {at}."})


class World:
    """A client, an upstream and a proxy that may be replaced."""

    def __init__(self, port: int, folder: Path, stack: AsyncExitStack) -> None:
        self.port = port
        self.folder = folder
        self.stack = stack
        self.stores = 0
        self.client: Client

    async def start(self, *, new_store: bool) -> Running:
        await self.stack.aclose()
        self.stores += new_store
        made = running(
            self.port, policy="thrifty", db=str(self.folder / f"{self.stores}.sqlite3"), policies_dir=str(self.folder)
        )
        return await self.stack.enter_async_context(made)

    async def act(self, action: str) -> None:
        """One action of the client, and what it does if it is refused."""
        client, lines = self.client, ()
        if action in BREAKING:
            client.day += action == "date"
            client.tools = client.tools % 3 + 1 if action == "tools" else client.tools
            client.forget_reasoning()
        elif action in ("ask_again", "fork"):
            client.cut(again=action == "ask_again")
        elif action == "compact":
            client.messages = [{"role": "user", "content": f"Nothing is done yet ({len(client.told)}). Go on."}]
        elif action == "mark":
            client.marks = not client.marks
        elif action in ("restart", "lose_store"):
            client.proxy = await self.start(new_store=action == "lose_store")
        if action == "detour":
            proxy = client.proxy
            async with running(self.port, policy="passthrough") as client.proxy:
                await self.ask_as_without_proxy()
                await self.ask_as_without_proxy()
            client.proxy = proxy
        elif action == "off":
            await self.ask_as_without_proxy(b"x-context-off: 1")
        elif action == "fail":
            with mock.patch.object(plan_request, "rewrite", side_effect=RuntimeError("a stage that fails")):
                await self.ask()
        elif action in ("rolling", "observe", "passthrough", "eager"):
            await self.ask(b"x-context-policy: " + action.encode())
        else:
            for _ in range(3 if action == "many" else 1):
                await self.ask(*lines)

    async def ask(self, *lines: bytes) -> None:
        found = await self.client.ask(*lines)
        assert found.status == 200, found.body

    async def ask_as_without_proxy(self, *lines: bytes) -> None:
        """A request that the proxy does not see: its client has to live with a refusal."""
        found = await self.client.ask(*lines)
        if found.status != 200:
            assert found.status == 400
            self.client.forget_reasoning()
            assert (await self.client.ask(*lines)).status == 200


async def play(actions: Sequence[str]) -> tuple[StrictMessages, World]:
    model = StrictMessages(*[think(n) for n in range(400)])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = (Path(__file__).parents[2] / "config" / "policies" / "thrifty.toml").read_text()
        text = text.replace('"when_it_pays"', '"always"').replace('name = "thrifty"', 'name = "eager"')
        (folder / "eager.toml").write_text(text)
        async with faulty(model) as upstream, AsyncExitStack() as stack:
            world = World(upstream.port, folder, stack)
            world.client = Client(await world.start(new_store=True))
            for n, action in enumerate(actions):
                refused = len(model.refusals)
                # A store that was lost may have edited any part of the conversation.
                is_seen = action not in ("detour", "off") and "lose_store" not in actions[: n + 1]
                await world.act(action)
                assert not is_seen or len(model.refusals) == refused, (action, model.refusals[-1])
            await world.ask()  # a store that was lost is known to be lost by now
            refused = len(model.refusals)
            for _ in range(3):
                await world.ask()
            assert len(model.refusals) == refused
            await stack.aclose()
    return model, world


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(ACTIONS), min_size=2, max_size=12))
@example(["many", "fail", "many"])
@example(["many", "passthrough", "many"])
@example(["many", "observe", "step", "eager", "many"])
@example(["many", "off", "step", "off", "step"])
@example(["many", "detour", "many", "detour", "ask_again"])
@example(["many", "lose_store", "many", "restart", "many"])
@example(["many", "date", "many", "tools", "many", "fork", "many"])
@example(["mark", "many", "mark", "compact", "many", "fork", "restart"])
def test_no_sequence_of_actions_ends_a_conversation(actions: list[str]) -> None:
    model, _ = asyncio.run(play(actions))
    assert model.dropped == []


def test_a_short_sequence() -> None:
    model, world = asyncio.run(play(["many", "fail", "ask_again", "mark", "fork", "step"]))
    assert model.dropped == model.refusals == []
    assert any(one.header("x-context-fallback") == "bound" for one in world.client.told)
