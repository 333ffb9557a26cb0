"""Conversations that only their own text decides: a model without memory, and clients that do as they are told.

The same clients therefore bring the same requests whoever is between them and the model, as long as what is between
keeps its promises: what the model has been sent by three proxies can be laid beside what one has sent.
"""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

from tests.proxy_server import CHAT, RawAnswer, parse_answer
from tests.raw_upstream import Connection, RawRequest, make_post, send_raw
from tests.scripted_model import send_completion, send_stream

Json = dict[str, Any]

TOOLS: list[Json] = [
    {"type": "function", "function": {"name": name, "description": "The client's own.", "parameters": {}}}
    for name in ("read_file", "run_tests")
]
ASKED = "End your answer with"
BLOCK = "### STATE\nGoal: all of it\nResolved: {n} answers\nContext: the rest\nTechnical Anchors: none"


class Model:
    """received: the bodies, in their order."""

    def __init__(self) -> None:
        self.received: list[bytes] = []

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        self.received.append(request.body)
        body = json.loads(request.body)
        message = choose_answer(body)
        usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
        if body.get("stream"):
            await send_stream(connection, message, usage)
        else:
            await send_completion(connection, message, usage)


def choose_answer(body: Json) -> Json:
    """Two calls of the client's tools after a prompt, one of ours before the text where it is offered, then a text."""
    messages = body["messages"]
    names = {tool["function"]["name"] for tool in body.get("tools", ())}
    last = max(n for n, m in enumerate(messages) if m["role"] == "user")
    since = [m for m in messages[last:] if m["role"] == "assistant"]
    mark = hashlib.blake2b(json.dumps([messages[last], len(messages)]).encode(), digest_size=4).hexdigest()
    if len(since) < 2:
        found = [call(f"call_{mark}{n}", TOOLS[n]["function"]["name"], {"path": f"src/{mark}.py"}) for n in range(2)]
        return {"role": "assistant", "content": f"Looking at {mark}.", "tool_calls": found}
    hidden = [c for m in since for c in m.get("tool_calls") or () if c["function"]["name"] == "recall"]
    if "recall" in names and not hidden:
        return {"role": "assistant", "content": None, "tool_calls": [call(f"call_{mark}r", "recall", {"id": "none"})]}
    text = f"It is {mark}."
    if any(ASKED in str(m.get("content")) or "### STATE" in str(m.get("content")) for m in messages):
        text += "\n\n" + BLOCK.format(n=len(messages))
    return {"role": "assistant", "content": text}


def call(name: str, tool: str, arguments: Json) -> Json:
    return {"id": name, "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}


class Client:
    """One conversation, drawn by its seed. More than one can take turns."""

    def __init__(self, seed: int, *, stream: bool, named: bool) -> None:
        self.chance = random.Random(seed)
        self.stream = stream
        self.lines = [b"x-session-id: conversation-%d" % seed] if named else []
        self.messages: list[Json] = [{"role": "system", "content": f"You are agent {seed}."}]
        self.sessions: set[str] = set()
        self.step = 0

    async def turn(self, port: int) -> RawAnswer:
        """The next request: a new prompt, or the results of what was called."""
        self.step += 1
        calls = self.messages[-1].get("tool_calls") or ()
        for made in calls:
            text = "\n".join(
                f"{made['id']} line {n}: {self.chance.getrandbits(64):x}"
                for n in range(self.chance.choice((3, 60, 200)))
            )
            self.messages.append({"role": "tool", "tool_call_id": made["id"], "content": text})
        if not calls:
            self.messages.append(
                {"role": "user", "content": f"Task {self.step}: look into {self.chance.getrandbits(32):x}"}
            )
        found = await self.again(port)
        self.messages.append(found.message)
        return found

    async def again(self, port: int, *lines: bytes) -> RawAnswer:
        """The request as the history stands."""
        body: Json = {"model": "m", "messages": self.messages, "tools": TOOLS}
        if self.stream:
            body["stream"] = True
        head = (b"content-type: application/json", b"authorization: Bearer k", *self.lines, *lines)
        found = parse_answer(await send_raw(port, make_post(CHAT, json.dumps(body).encode(), *head)))
        assert found.status == 200, found.body
        assert found.header("x-context-fallback") is None
        self.sessions.add(found.session)
        assert all(c["function"]["name"] != "recall" for c in found.message.get("tool_calls") or ())
        return found
