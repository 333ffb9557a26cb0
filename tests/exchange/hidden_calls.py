"""A model that calls tools of the proxy's between those of the client, and what both sides may see of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from proxy.chat import json_spans
from proxy.dialects.completions.request import read_message, read_request
from proxy.exchange.rebuild_prompt import RebuiltPrompt, rebuild_prompt
from proxy.sessions.hidden_rounds import HiddenRound, append_messages, decode_round
from proxy.store.reads import Store
from tests.proxy_server import Agent, RawAnswer, RunningProxy, run_proxy
from tests.scripted_model import Answer, ScriptedModel

Json = dict[str, Any]

TOOLS = [
    {"type": "function", "function": {"name": name, "description": "The client's own.", "parameters": {}}}
    for name in ("look", "write_file")
]
OURS = ("recall", "query_db", "describe_db", "manage_scratchpad", "save_memo", "retrieve_memos")
SECRET = "zq-secret"
"""Stands in every argument and id of hidden calls, and so in what comes of them."""


def make_proxy_call(n: int, tool: str = "recall", **more: Any) -> Json:
    """A call of ours: one that finds nothing, and says so with what it was asked."""
    arguments = json.dumps({"id": f"{SECRET}-{n}"})
    return {"id": f"{SECRET}{n}", "type": "function", "function": {"name": tool, "arguments": arguments}, **more}


def make_client_call(n: int) -> Json:
    """A call of the client's."""
    return {"id": f"call_{n}", "type": "function", "function": {"name": "look", "arguments": f'{{"at": {n}}}'}}


def make_answer(text: str | None, *calls: Json, **more: Any) -> Json:
    """An assistant message as upstream writes it."""
    return {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {}), **more}


def run_proxy_with_tools(
    upstream: int, policy: str = "thrifty", **tree: Any
) -> AbstractAsyncContextManager[RunningProxy]:
    """A proxy that offers its tools from the first request on."""
    tools = {"offer": "first_request", **tree.pop("tools", {})}
    return run_proxy(upstream, policy=policy, tools=tools, **tree)


class PlayedConversation:
    """A conversation with everything that went over the wire."""

    def __init__(self, proxy: RunningProxy, model: ScriptedModel, *, stream: bool, **more: Any) -> None:
        self.model = model
        self.agent = Agent(proxy, stream=stream, more={"tools": TOOLS, **more})
        self.heard: list[RawAnswer] = []

    async def turn(self, text: str | None, *lines: bytes) -> RawAnswer:
        """One request of the client; whatever calls it gets are answered in the next."""
        if text is None:
            calls = self.agent.messages[-1]["tool_calls"]
            self.agent.brings(*(f"result of {call['id']}" for call in calls))
        found = await self.agent.say(text, *lines)
        self.heard.append(found)
        return found

    async def all(self, prompt: str) -> None:
        """A prompt, and the results of whatever is called, until there is a text."""
        await self.turn(prompt)
        while self.agent.messages[-1].get("tool_calls"):
            await self.turn(None)


def list_sent_messages(model: ScriptedModel, at: int) -> list[bytes]:
    """The bytes of each message of one request upstream."""
    body = model.received[at].body
    found = json_spans.find_member(body, "messages")
    assert found is not None
    array = body[found.start : found.end]
    return [array[start:end] for start, end in json_spans.find_elements(array) or ()]


def assert_true(model: ScriptedModel, answers: Sequence[Answer]) -> None:
    """Each request has what upstream itself wrote before, in place and in full, and begins with the bytes of the one
    before it; every call has its result behind it, in the order of the calls."""
    before: list[bytes] = []
    for at in range(len(model.received)):
        raws = list_sent_messages(model, at)
        assert raws[: len(before)] == before, f"request {at} has another beginning than the one before"
        before = raws
        messages = [json.loads(raw) for raw in raws]
        written = [normalize_answer(a) for a in answers[:at]]
        assert [normalize_answer(m) for m in messages if m["role"] == "assistant"] == written
        for n, message in enumerate(messages):
            ids = [call["id"] for call in message.get("tool_calls") or ()]
            assert [m.get("tool_call_id") for m in messages[n + 1 : n + 1 + len(ids)]] == ids


def normalize_answer(answer: Any) -> Json:
    """An assistant message without the differences that streaming makes."""
    message = make_answer(answer) if isinstance(answer, str) else answer
    return {name: value for name, value in message.items() if value} | {"role": "assistant"}


def assert_hidden(heard: Sequence[RawAnswer]) -> None:
    """Nothing of a hidden call reached the client, and what did is one sound answer each time."""
    for one in heard:
        assert one.whole
        assert SECRET.encode() not in one.body
        for name in OURS:
            assert name.encode() not in one.body
        if one.header("content-type") == "application/json":
            choices = one.json()["choices"]
            assert len(choices) == 1
            assert choices[0]["finish_reason"] == ("tool_calls" if choices[0]["message"].get("tool_calls") else "stop")
        else:
            assert_one_stream(one)


def assert_one_stream(one: RawAnswer) -> None:
    """One id, one role, one finish reason, indexes from 0 without a gap, one [DONE] at the end."""
    assert one.events[-1] == b"[DONE]"
    assert one.events.count(b"[DONE]") == 1
    chunks = [json.loads(event) for event in one.events[:-1]]
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    choices = [choice for c in chunks for choice in c["choices"]]
    assert sum("role" in choice["delta"] for choice in choices) == 1
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    parts = [part for choice in choices for part in choice["delta"].get("tool_calls") or ()]
    assert reasons == ["tool_calls" if parts else "stop"]
    indexes = list(dict.fromkeys(part["index"] for part in parts))
    assert indexes == list(range(len(indexes)))


def list_offered_tools(model: ScriptedModel, at: int = -1) -> list[str]:
    return [tool["function"]["name"] for tool in model.chats[at].get("tools", ())]


async def assert_rebuilt(proxy: RunningProxy, model: ScriptedModel, firsts: list[int]) -> None:
    """Each exchange gives the bodies that upstream got for it. firsts: which requests were the first of one."""
    ends = [*firsts[1:], len(model.received)]
    rows = await proxy.rows("SELECT tenant, session, exchange FROM exchanges ORDER BY started_at, rowid")
    assert len(rows) == len(firsts)
    for row, at, end in zip(rows, firsts, ends, strict=True):
        found = await rebuild_prompt(proxy.app.store, *row)
        assert found is not None
        later = await rebuild_later_bodies(proxy.app.store, found)
        assert [found.sent_body, *later] == [r.body for r in model.received[at:end]]


async def rebuild_later_bodies(store: Store, found: RebuiltPrompt) -> list[bytes]:
    """The bodies of the rounds after the first, from what is stored of the exchange."""
    row, body, bodies = found.exchange, found.sent_body, list[bytes]()
    for stored in await store.read_hidden_rounds(row.tenant, row.session, [row.answer]) if row.answer else ():
        if stored.exchange != row.exchange:
            continue
        one = decode_round(stored.key, stored.tip, stored.body, stored.created_at)
        for more in split_requests(one):
            body = append_messages(body, more)
            bodies.append(body)
        tools = read_request(found.original_body).tools
        if one.without_tools and bodies and tools is not None:
            bodies[-1] = json_spans.set_member(body, "tools", tools)
    return bodies


def split_requests(one: HiddenRound) -> list[tuple[bytes, ...]]:
    """The messages that each later request added to the one before it: an answer, and the results of its calls."""
    found: list[tuple[bytes, ...]] = []
    for raw in one.replaces[:-1]:
        if read_message(raw).role == "assistant":
            found.append((raw,))
        else:
            found[-1] += (raw,)
    return found
