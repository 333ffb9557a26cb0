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
from tests.proxy_server import RawAnswer, RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.strict_messages import StrictMessages
from tests.strict_responses import Ask, Say, StrictResponses, Think

Json = dict[str, Any]
LISTINGS = ["\n".join(f"{n}\tdef function_{kind}_{n}(argument): return {n}" for n in range(80)) for kind in range(3)]
THINKING: Json = {"thinking": {"type": "adaptive"}}
BREAKING = ("date", "tools")
"""Actions by which a client changes its own prompt. Then it has to forget its reasoning."""
ACTIONS = (
    "step", "many", "ask_again", "fork", "compact", "mark", "date", "tools", "detour", "off", "restart", "lose_store",
    "fail", "rolling", "observe", "passthrough", "eager",
)  # fmt: skip

PLAIN = {"off", "detour", "lose_store", "fail", "observe", "passthrough"}
"""Actions that send the client's own prompt, or lose the bindings. On Responses, reasoning behind another one is left
out then, and nothing is refused: the request goes on, and costs thinking."""


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

    proxy: RunningProxy
    messages: list[Json] = field(default_factory=lambda: [{"role": "user", "content": "Find the fault."}])
    day: int = 1
    tools: int = 1
    marks: bool = False
    told: list[RawAnswer] = field(default_factory=list)

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

    async def ask(self, *lines: bytes) -> RawAnswer:
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


def reason(n: int) -> list[Any]:
    """The n-th answer on Responses, with reasoning in the same places."""
    call, other = Ask("read", {"path": f"{n % 3}.py"}), Ask("read", {"path": "b.py"})
    answers: list[list[Any]] = [
        [Think(f"First {n}."), call],
        [Think(), call, Think(f"And {n}."), other],
        [Think(f"So {n}."), Say(f"I read on {n}."), call, other],
        [Think(f"Then {n}."), Say(f"Done {n}.")],
        [call],
    ]
    return answers[n % 5]


class ResponsesClient(Client):
    """A client of Responses. Each entry of `messages` is a list of items. The provider leaves out reasoning behind
    another prompt, and refuses nothing: the client sees no difference."""

    def make_body(self, *, stream: bool) -> Json:
        names = ["read", "write", "search"][: self.tools]
        self._begin()
        groups: Any = self.messages
        items = [item for group in groups for item in group]
        if self.marks and items[-1].get("role") == "user":
            marked = {
                "type": "input_text",
                "text": items[-1]["content"],
                "prompt_cache_breakpoint": {"mode": "explicit"},
            }
            items[-1] = {**items[-1], "content": [marked]}
        return {
            "model": "gpt-6.2-sol", "store": False, "include": ["reasoning.encrypted_content"], "stream": stream,
            "instructions": f"You are careful. Today is day {self.day}.", "input": items,
            "tools": [{"type": "function", "name": one, "parameters": {"type": "object"}} for one in names],
        }  # fmt: skip

    def _begin(self) -> None:
        """Make the first prompt, which may be that of a client of Messages, a list of items."""
        if isinstance(self.messages[0], dict):
            self.messages[0] = self._say(self.messages[0]["content"])

    def _say(self, text: str) -> Any:
        return [{"type": "message", "role": "user", "content": text}]

    async def ask(self, *lines: bytes) -> RawAnswer:
        found = await self.proxy.post(self.make_body(stream=False), *lines, path="/v1/responses", seconds=30)
        self.told.append(found)
        if found.status == 200:
            output = found.json()["output"]
            self.messages.append(output)
            listing = LISTINGS[len(self.messages) // 2 % 3]
            calls = [one["call_id"] for one in output if one["type"] == "function_call"]
            results: Any = [{"type": "function_call_output", "call_id": one, "output": listing} for one in calls]
            self.messages.append(results or self._say(f"Go on {len(self.messages)}."))
        return found

    def forget_reasoning(self) -> None:
        self._begin()
        groups: Any = self.messages
        for group in groups:
            # An item with an id is refused without the reasoning that led to it.
            group[:] = [
                {name: value for name, value in item.items() if name != "id"}
                for item in group
                if item["type"] != "reasoning"
            ]

    def cut(self, *, again: bool) -> None:
        groups: Any = self.messages
        if len(groups) < 3:
            return
        if again:
            del groups[-2:]
            return
        prompts = [n for n, group in enumerate(groups) if group[0].get("role") == "user"]
        at = prompts[len(prompts) // 2]
        groups[at:] = [self._say(f"In other words: go on {at}.")]


class World:
    """A client, an upstream and a proxy that may be replaced."""

    def __init__(self, port: int, folder: Path, stack: AsyncExitStack) -> None:
        self.port = port
        self.folder = folder
        self.stack = stack
        self.stores = 0
        self.client: Client

    async def start(self, *, new_store: bool) -> RunningProxy:
        await self.stack.aclose()
        self.stores += new_store
        made = run_proxy(
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
            async with run_proxy(self.port, policy="passthrough") as client.proxy:
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


def list_refusals(model: StrictMessages | StrictResponses) -> list[Any]:
    return list(model.refusals if isinstance(model, StrictMessages) else model.refused)


async def play(actions: Sequence[str], model: StrictMessages | StrictResponses, client: type[Client] = Client) -> World:
    """Have a client do these things, one after the other."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = (Path(__file__).parents[2] / "config" / "policies" / "thrifty.toml").read_text()
        text = text.replace('"when_it_pays"', '"always"').replace('name = "thrifty"', 'name = "eager"')
        (folder / "eager.toml").write_text(text)
        async with run_upstream(model) as upstream, AsyncExitStack() as stack:
            world = World(upstream.port, folder, stack)
            world.client = client(await world.start(new_store=True))
            for n, action in enumerate(actions):
                refused, dropped = len(list_refusals(model)), len(model.dropped)
                # A store that was lost may have edited any part of the conversation.
                is_seen = action not in ("detour", "off") and "lose_store" not in actions[: n + 1]
                await world.act(action)
                assert not is_seen or len(list_refusals(model)) == refused, (action, list_refusals(model)[-1])
                is_known = not PLAIN & set(actions[: n + 1])
                assert not is_known or len(model.dropped) == dropped, (action, model.dropped[-1])
            await world.ask()  # a store that was lost is known to be lost by now
            refused = len(list_refusals(model))
            for _ in range(3):
                await world.ask()
            assert len(list_refusals(model)) == refused
            await stack.aclose()
    return world


def make_messages_model() -> StrictMessages:
    return StrictMessages(*[think(n) for n in range(400)])


def make_responses_model() -> StrictResponses:
    return StrictResponses(*[reason(n) for n in range(400)])


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
    model = make_messages_model()
    asyncio.run(play(actions, model))
    assert model.dropped == []


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.lists(st.sampled_from(ACTIONS), min_size=2, max_size=10))
@example(["many", "fail", "many", "observe", "step", "eager", "many"])
@example(["many", "off", "step", "detour", "ask_again", "lose_store", "many"])
@example(["many", "date", "many", "tools", "mark", "many", "fork", "many", "restart", "rolling", "eager", "compact"])
def test_no_sequence_of_actions_is_refused_or_loses_reasoning_on_responses(actions: list[str]) -> None:
    model = make_responses_model()
    asyncio.run(play(actions, model, ResponsesClient))
    assert model.refused == []


SHORT = ["many", "fail", "ask_again", "mark", "fork", "step"]


def test_messages_requests_with_bound_reasoning_are_never_refused_in_a_short_sequence() -> None:
    model = make_messages_model()
    world = asyncio.run(play(SHORT, model))
    assert model.dropped == model.refusals == []
    assert any(one.header("x-context-fallback") == "bound" for one in world.client.told)


def test_responses_requests_with_bound_reasoning_are_never_refused_in_a_short_sequence() -> None:
    model = make_responses_model()
    asyncio.run(play(SHORT, model, ResponsesClient))
    assert model.refused == []
    assert len(model.dropped) == 3, "in the request that a fault of the proxy sent as it came, and in no later one"
