"""Plays recorded conversations through the running proxy, as the agent in front of it and the model behind it.

For every recorded assistant message the agent sends the whole history up to it, and the model answers with what was
recorded. What has to hold for each request is checked on both ends: see `Played.problems`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.proxy_server import CHAT, RunningProxy
from tests.raw_upstream import Connection, RawRequest, Upstream, run_upstream
from tests.recorded.strict import head_changed, text_of, violations
from tests.scripted_model import send_completion, send_stream

BLOCK = "### STATE\nGoal: go on\nContext: as before\nResolved: one more step\nTechnical Anchors: none"

Conversation = dict[str, Any]


def read(path: Path, limit: int = 0) -> list[Conversation]:
    """The conversations of a file, one a line."""
    with path.open() as lines:
        found = [json.loads(line) for line in lines]
    return found[:limit] if limit else found


@dataclass
class Played:
    """The result of a replay.

    problems: what must not be, in words. sent, came: bytes of the bodies that went upstream, and that came in. moved:
    requests whose prompt does not begin like the one before it. state: blocks that the model wrote. messages: one
    key for each distinct message.
    """

    requests: int = 0
    problems: list[str] = field(default_factory=list)
    sent: int = 0
    came: int = 0
    moved: int = 0
    state: int = 0
    messages: set[bytes] = field(default_factory=set)


class Model:
    """The model behind the proxy: says what was recorded, and a STATE block where it is asked for one."""

    def __init__(self, *, state: bool = False) -> None:
        self.answer: dict[str, Any] = {}
        self.bodies: list[bytes] = []
        self.state = state
        self.wrote = 0

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        self.bodies.append(request.body)
        body = json.loads(request.body)
        message = self.answer
        asked = "### STATE" in text_of(body["messages"][-1].get("content")) + text_of(
            body["messages"][0].get("content")
        )
        if self.state and asked and not message.get("tool_calls"):
            message = {**message, "content": (text_of(message.get("content")) + "\n\n" + BLOCK).strip()}
            self.wrote += 1
        usage = {"prompt_tokens": len(request.body) // 4, "completion_tokens": 9, "total_tokens": 9}
        if body.get("stream"):
            wanted = (body.get("stream_options") or {}).get("include_usage")
            await send_stream(
                connection, {**message, "content": text_of(message.get("content"))}, usage if wanted else None
            )
        else:
            await send_completion(connection, message, usage)


@asynccontextmanager
async def model_on_a_socket(*, state: bool = False) -> AsyncIterator[tuple[Model, Upstream]]:
    model = Model(state=state)
    async with run_upstream(model) as upstream:
        yield model, upstream


def read_answer_message(message: dict[str, Any]) -> Any:
    """The message that a client takes from an answer."""
    calls = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ()]
    return text_of(message.get("content")), calls


def turns(conversation: Conversation) -> Iterator[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """(the history that is sent, the answer that was recorded) of each step."""
    messages = conversation["messages"]
    for n, message in enumerate(messages):
        if message["role"] == "assistant" and any(m["role"] == "user" for m in messages[:n]):
            yield messages[:n], message


async def play(
    proxy: RunningProxy,
    model: Model,
    conversations: Sequence[Conversation],
    *,
    stream: bool = False,
    header: str = "",
    run: str = "r",
) -> Played:
    """Play them one after the other. header: the one that names the session; "" for none."""
    played = Played()
    for number, conversation in enumerate(conversations):
        # A credential for each, so that conversations that begin alike are told apart even without a name.
        key = f"sk-{run}-{number}"
        lines = (f"{header}: {run}-{number}".encode(),) if header else ()
        before: list[Any] = []
        for history, recorded in turns(conversation):
            body: dict[str, Any] = {"model": "replay", "messages": history}
            if conversation.get("tools"):
                body["tools"] = conversation["tools"]
            if stream:
                body["stream"] = True
            model.answer = recorded
            model.bodies.clear()
            found = await proxy.post(body, *lines, path=CHAT, key=key, seconds=60)
            played.requests += 1
            where = f"{conversation['id']} at {len(history)}"
            played.problems += [f"{where}: {problem}" for problem in _problems(found, model, body, recorded)]
            if model.bodies:
                before = _count(played, model.bodies[-1], body, before)
            _remember(played, key, history, recorded)
    played.state = model.wrote
    return played


def _problems(found: Any, model: Model, body: dict[str, Any], recorded: dict[str, Any]) -> Iterator[str]:
    if found.status != 200 or not found.whole:
        yield f"error: {found.status} {found.body[:200]!r}"
        return
    if len(model.bodies) != 1:
        yield f"error: the upstream was asked {len(model.bodies)} times"
        return
    if read_answer_message(found.message) != read_answer_message(recorded):
        yield "altered: the answer is not what the model said"
    sent = json.loads(model.bodies[0])
    had = set(violations(body["messages"]))
    for wrong in violations(sent["messages"]):
        if not any(wrong.partition(": ")[2] == one.partition(": ")[2] for one in had):
            yield f"invalid: {wrong}"
    for wrong in head_changed(sent, body):
        yield f"invalid: {wrong} does not begin as the client sent it"


def _count(played: Played, sent: bytes, came: dict[str, Any], before: list[Any]) -> list[Any]:
    messages: list[Any] = json.loads(sent)["messages"]
    played.sent += len(sent)
    played.came += len(json.dumps(came))
    # The last message of a prompt may bear an insert that is not there in the next.
    played.moved += before[:-1] != messages[: max(0, len(before) - 1)]
    return messages


def _remember(played: Played, key: str, history: list[dict[str, Any]], recorded: dict[str, Any]) -> None:
    chain = key.encode()
    for message in [m for m in history if m["role"] not in ("system", "developer")] + [recorded]:
        text = json.dumps([message["role"], read_answer_message(message), message.get("tool_call_id")])
        chain = hashlib.blake2b(chain + text.encode(), digest_size=16).digest()
        played.messages.add(chain)
