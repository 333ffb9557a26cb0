"""Streams of Messages for tests: made by the strict upstream, cut anywhere, and read as a client reads them."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from proxy.stream.messages_relay import MessagesRelay
from tests.stream.round_relays import relay_rounds
from tests.strict_messages import Block, StrictMessages, events

HIDDEN = frozenset({"recall"})
BODY = {"model": "claude-opus-5-5", "max_tokens": 99, "messages": [{"role": "user", "content": "Do."}]}


def text(value: str) -> Block:
    return {"type": "text", "text": value}


def think(value: str = "Let me see.") -> Block:
    return {"type": "thinking", "thinking": value}


def call(call_id: str, name: str = "read", **arguments: Any) -> Block:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def own_call(call_id: str, **arguments: Any) -> Block:
    return call(call_id, "recall", **arguments)


def make(*blocks: Block, stop_reason: str = "", **usage: int) -> dict[str, Any]:
    """A whole message of the strict upstream."""
    message = StrictMessages().make_message(BODY, blocks)
    message["stop_reason"] = stop_reason or message["stop_reason"]
    message["usage"].update(usage)
    return message


def stream(*blocks: Block, stop_reason: str = "", **usage: int) -> bytes:
    return b"".join(events(make(*blocks, stop_reason=stop_reason, **usage)))


run = partial(relay_rounds, MessagesRelay)


def read(data: bytes) -> dict[str, Any]:
    """The message as an SDK adds it up. Fails where an SDK would: indexes with gaps, blocks that overlap or
    never start."""
    message: dict[str, Any] = {}
    inputs: dict[int, str] = {}
    running: int | None = None
    for part in data.decode().split("\n\n"):
        lines = part.splitlines()
        if not lines or part.startswith(":"):
            continue
        name = lines[0].removeprefix("event: ")
        event = json.loads(lines[1].removeprefix("data: "))
        assert event["type"] == name
        if name == "message_start":
            assert not message
            message = event["message"]
        elif name == "content_block_start":
            assert running is None
            running = event["index"]
            assert running == len(message["content"])
            message["content"].append(event["content_block"])
        elif name == "content_block_delta":
            assert running == event["index"]
            block, delta = message["content"][running], event["delta"]
            for key in ("text", "thinking"):
                if key in delta:
                    block[key] += delta[key]
            if "signature" in delta:
                block["signature"] = delta["signature"]
            inputs[event["index"]] = inputs.get(event["index"], "") + delta.get("partial_json", "")
        elif name == "content_block_stop":
            assert running == event["index"]
            running = None
            if inputs.get(event["index"]):
                message["content"][event["index"]]["input"] = json.loads(inputs[event["index"]])
        elif name == "message_delta":
            assert running is None
            message.update(event["delta"])
            message["usage"].update(event["usage"])
        elif name == "message_stop":
            message["is_done"] = True
    return message


def shapes(message: dict[str, Any]) -> list[str]:
    """Each block in a word: its text, the id of its call, or its type."""
    return [block.get("text") or block.get("id") or block["type"] for block in message["content"]]
