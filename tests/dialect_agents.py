"""Agents that speak Messages, Responses and chat completions as real ones do: they resend all they have, and add what
came."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.proxy_server import RawAnswer, RunningProxy, join_chunks

Json = dict[str, Any]
RunTool = Callable[[str, Json], str]
"""The result of a call, from the tool's name and its arguments."""
LISTING = "\n".join(f"{n}\tdef function_{n}(argument): return argument + {n}" for n in range(1, 260))
"""A file with line numbers, long enough to be shortened."""


def read_listing(name: str, arguments: Json) -> str:
    """The tool of an agent that reads this file whatever it is asked for."""
    return LISTING


def read_words(_: str, arguments: Json) -> str:
    """A text without anything that a policy would shorten before it is sent."""
    return " ".join(f"{arguments['path']} has word {n * n}," for n in range(600))


@dataclass
class MessagesAgent:
    """An agent in the form of Claude Code: `thinking` on, tools, all results of a step in one message."""

    proxy: RunningProxy
    run_tool: RunTool
    stream: bool = False
    lines: tuple[bytes, ...] = ()
    more: Json = field(default_factory=dict)
    system: Any = "You are a careful engineer."
    messages: list[Json] = field(default_factory=list)
    answers: list[Json] = field(default_factory=list)
    heard: list[RawAnswer] = field(default_factory=list)

    async def ask(self) -> Json:
        """One request; the answer is kept as the client has it."""
        body: Json = {
            "model": "claude-opus-5-5", "max_tokens": 4096, "system": self.system, "messages": self.messages,
            "tools": [{"name": "read", "description": "Read a file.", "input_schema": {"type": "object"}}],
            **self.more,
        }  # fmt: skip
        if self.stream:
            body["stream"] = True
        lines = (b"x-api-key: sk-one", b"anthropic-version: 2023-06-01", *self.lines)
        found = await self.proxy.post(body, *lines, path="/v1/messages")
        self.heard.append(found)
        assert found.status == 200, found.body
        message = join_messages_events(found) if self.stream else found.json()
        self.answers.append(message)
        self.messages.append({"role": "assistant", "content": message["content"]})
        return message

    async def work(self, prompt: str, most: int = 100) -> str:
        """Work on a prompt until the model calls no tool any more. Return its last text."""
        self.messages.append({"role": "user", "content": prompt})
        for _ in range(most):
            message = await self.ask()
            calls = [block for block in message["content"] if block["type"] == "tool_use"]
            if not calls:
                return "".join(block.get("text", "") for block in message["content"])
            results = [
                {"type": "tool_result", "tool_use_id": one["id"], "content": self.run_tool(one["name"], one["input"])}
                for one in calls
            ]
            self.messages.append({"role": "user", "content": results})
        raise AssertionError("the model calls tools for ever")


def join_messages_events(found: RawAnswer) -> Json:
    """The message of a stream, joined as the SDK does: blocks by index, which have no gaps."""
    message: Json = {}
    written: dict[int, str] = {}
    ended = False
    for piece in found.body.split(b"\n\n"):
        data = next((line[6:] for line in piece.split(b"\n") if line.startswith(b"data: ")), None)
        if data is None:
            continue
        event = json.loads(data)
        kind = event["type"]
        assert kind != "error", event
        if kind == "message_start":
            assert not message, "one answer has one beginning"
            message = event["message"]
        elif kind == "content_block_start":
            assert event["index"] == len(message["content"]), "indexes without gaps"
            message["content"].append(event["content_block"])
        elif kind == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            if delta["type"] == "text_delta":
                block["text"] += delta["text"]
            elif delta["type"] == "thinking_delta":
                block["thinking"] += delta["thinking"]
            elif delta["type"] == "signature_delta":
                block["signature"] = delta["signature"]
            elif delta["type"] == "input_json_delta":
                written[event["index"]] = written.get(event["index"], "") + delta["partial_json"]
        elif kind == "message_delta":
            message |= event["delta"]
            message["usage"] = message["usage"] | event["usage"]
        elif kind == "message_stop":
            ended = True
    for n, text in written.items():
        message["content"][n]["input"] = json.loads(text or "{}")
    assert ended
    return message


@dataclass
class ResponsesAgent:
    """An agent in the form of Codex: `store: false`, encrypted reasoning, each item sent back as it came."""

    proxy: RunningProxy
    run_tool: RunTool
    stream: bool = False
    lines: tuple[bytes, ...] = ()
    more: Json = field(default_factory=dict)
    refers: bool = False
    """Send references to what the provider stores, as the AI SDK does: calls alone are sent in full."""
    items: list[Json] = field(default_factory=list)
    answers: list[Json] = field(default_factory=list)
    heard: list[RawAnswer] = field(default_factory=list)

    async def ask(self) -> Json:
        """One request; the items of the answer are kept."""
        body: Json = {
            "model": "gpt-6.2-sol", "input": self.items, "store": False, "include": ["reasoning.encrypted_content"],
            "instructions": "You are a careful engineer.",
            "tools": [{"type": "function", "name": "read", "description": "Read.", "parameters": {"type": "object"}}],
            **self.more,
        }  # fmt: skip
        if self.stream:
            body["stream"] = True
        found = await self.proxy.post(body, *self.lines, path="/v1/responses")
        self.heard.append(found)
        assert found.status == 200, found.body
        response = join_responses_events(found) if self.stream else found.json()
        self.answers.append(response)
        self.items += [
            {"type": "item_reference", "id": item["id"]} if self.refers and item["type"] != "function_call" else item
            for item in response["output"]
        ]
        return response

    async def work(self, prompt: str, most: int = 100) -> str:
        """Work on a prompt until the model calls no tool any more. Return its last text."""
        self.items.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": prompt}]})
        for _ in range(most):
            response = await self.ask()
            calls = [item for item in response["output"] if item["type"] == "function_call"]
            if not calls:
                return "".join(
                    part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]
                )
            for one in calls:
                said = self.run_tool(one["name"], json.loads(one["arguments"]))
                self.items.append({"type": "function_call_output", "call_id": one["call_id"], "output": said})
        raise AssertionError("the model calls tools for ever")


def join_responses_events(found: RawAnswer) -> Json:
    """The response of a stream, with the SDK's checks: one id, numbers and indexes without gaps, items that agree."""
    response: Json = {}
    ids = set()
    items: list[Json] = []
    number = 0
    for piece in found.body.split(b"\n\n"):
        data = next((line[6:] for line in piece.split(b"\n") if line.startswith(b"data: ")), None)
        if data is None:
            continue
        event = json.loads(data)
        assert event["type"] != "error", event
        assert event["sequence_number"] == number, "numbers without gaps"
        number += 1
        if "response" in event:
            ids.add(event["response"]["id"])
        if event["type"] == "response.output_item.added":
            assert event["output_index"] == len(items), "indexes without gaps"
            items.append(event["item"])
        elif event["type"] == "response.output_item.done":
            assert event["item"]["type"] == items[event["output_index"]]["type"]
            items[event["output_index"]] = event["item"]
        elif event["type"] in ("response.completed", "response.incomplete"):
            response = event["response"]
    assert len(ids) == 1, "one answer has one id"
    assert response["output"] == items
    return response


@dataclass
class ThinkingAgent:
    """An agent that speaks chat completions to a gateway, and sends `thinking_blocks` back as they came."""

    proxy: RunningProxy
    run_tool: RunTool
    stream: bool = False
    lines: tuple[bytes, ...] = ()
    more: Json = field(default_factory=dict)
    messages: list[Json] = field(default_factory=lambda: [{"role": "system", "content": "You are a careful engineer."}])
    answers: list[Json] = field(default_factory=list)
    heard: list[RawAnswer] = field(default_factory=list)

    async def ask(self) -> Json:
        """One request; the answer is kept as the client has it."""
        read = {"name": "read", "description": "Read a file.", "parameters": {"type": "object"}}
        body: Json = {
            "model": "claude-opus-5-5", "messages": self.messages,
            "tools": [{"type": "function", "function": read}], **self.more,
        }  # fmt: skip
        if self.stream:
            body["stream"] = True
        found = await self.proxy.post(body, *self.lines)
        self.heard.append(found)
        assert found.status == 200, found.body
        message = join_chat_chunks(found) if self.stream else found.message
        self.answers.append(message)
        self.messages.append(message)
        return message

    async def work(self, prompt: str, most: int = 100) -> str:
        """Work on a prompt until the model calls no tool any more. Return its last text."""
        self.messages.append({"role": "user", "content": prompt})
        for _ in range(most):
            message = await self.ask()
            calls = message.get("tool_calls") or ()
            if not calls:
                return str(message["content"])
            for one in calls:
                said = self.run_tool(one["function"]["name"], json.loads(one["function"]["arguments"]))
                self.messages.append({"role": "tool", "tool_call_id": one["id"], "content": said})
        raise AssertionError("the model calls tools for ever")


def join_chat_chunks(found: RawAnswer) -> Json:
    """The message of a stream, with its thinking joined as LiteLLM's own clients do: a signature ends a block."""
    chunks = [json.loads(one) for one in found.events if one != b"[DONE]"]
    assert found.events[-1] == b"[DONE]"
    message = join_chunks(iter(chunks))
    blocks: list[Json] = []
    text = ""
    for chunk in chunks:
        assert "error" not in chunk, chunk
        for choice in chunk["choices"]:
            for part in choice["delta"].get("thinking_blocks") or ():
                text += part.get("thinking") or ""
                if part["type"] == "redacted_thinking":
                    blocks.append(part)
                elif part.get("signature"):
                    blocks.append({"type": "thinking", "thinking": text, "signature": part["signature"]})
                    text = ""
    if blocks:
        message["thinking_blocks"] = blocks
    return message
