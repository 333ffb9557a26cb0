"""The requests of a benchmark, as agents send them: the whole history, with its new messages at the end.

A history contains the answers of the fake upstream, so that the proxy recognises them. As with real agents, two
conversations share no text but their system prompt and their tools.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks import servers

MODEL = "gpt-5-mini"
"""A model that the proxy knows: its tokens are counted, and its prices decide on edits."""
MODEL_WITHOUT_WINDOW = "a-model-of-ones-own"
"""A model without a window: its tokens are counted, and no budget is ever exceeded."""
SYSTEM = {"role": "system", "content": "You are a careful engineer. " * 4}
_RUN = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "run", "parameters": _RUN}}]


def dump_message(message: dict[str, Any]) -> bytes:
    """Return the JSON of a message as most clients write it."""
    return json.dumps(message).encode()


def make_source_text(seed: str, size: int) -> str:
    """Return about `size` characters of a program whose lines no other seed has."""
    line = "{0}\tdef handler_{1}_{0}(request): return process_{0}(request)  # {1}\n"
    each = len(line.format(100, seed))
    return "".join(line.format(n + 10, seed) for n in range(size // each + 1))[: max(size, 1)]


@dataclass(slots=True)
class Conversation:
    """The growing conversation of an agent. seed: makes its texts unique. stream: ask for streams, with text answers.
    gap: milliseconds between the chunks of a stream, or until another answer."""

    seed: str
    stream: bool = False
    gap: int = 0
    messages: list[bytes] = field(default_factory=list)
    turns: int = 0
    prompt: int = 40
    """Characters of the user's first message."""
    model: str = MODEL

    def __post_init__(self) -> None:
        text = f"Find out why the build fails {self.seed}. "
        self.messages += [
            dump_message(SYSTEM),
            dump_message({"role": "user", "content": (text + make_source_text(self.seed, self.prompt))}),
        ]

    def add_turn(self, size: int) -> None:
        """Append the answer of the upstream, and the next message of the agent: about `size` characters."""
        text = make_source_text(f"{self.seed}_{self.turns}", size)
        if self.stream:
            self.messages.append(dump_message({"role": "assistant", "content": servers.join_stream_text()}))
            self.messages.append(dump_message({"role": "user", "content": text}))
        else:
            answer = servers.make_answer_message(self.turns)
            self.messages.append(dump_message(answer))
            called = answer["tool_calls"][0]["id"]
            self.messages.append(dump_message({"role": "tool", "tool_call_id": called, "content": text}))
        self.turns += 1

    def body(self) -> bytes:
        """Return the body of the next request."""
        end = ', "stream": true' if self.stream else ""
        if self.stream or self.gap:
            end += f', "seed": {self.gap}'
        start = f'{{"model": "{self.model}", "tools": {json.dumps(TOOLS)}, "messages": ['
        return start.encode() + b", ".join(self.messages) + b"]" + end.encode() + b"}"


def make_long(seed: str, messages: int, size: int, *, stream: bool = False, gap: int = 0) -> Conversation:
    """Return a conversation of this many messages, about `size` bytes in all."""
    found = Conversation(seed, stream, gap)
    turns = (messages - 2) // 2
    each = (size - len(found.body())) // max(1, turns) - measure_turn_frame(stream)
    for _ in range(turns):
        found.add_turn(each)
    return found


def measure_turn_frame(stream: bool) -> int:
    """Return the bytes of a turn besides its text, measured with 1,000 characters. The escapes of the text count."""
    tried = Conversation("frame", stream)
    before = len(tried.body())
    tried.add_turn(1000)
    return len(tried.body()) - before - 1000


def make_short(seed: str, *, stream: bool = False, gap: int = 0) -> Conversation:
    """Return a conversation that has just begun: about 1 KB."""
    return Conversation(seed, stream, gap, prompt=520)


def iter_growing(conversation: Conversation, requests: int, size: int) -> Iterator[bytes]:
    """Yield the bodies of an agent that continues a conversation: one more turn with every request."""
    for _ in range(requests):
        yield conversation.body()
        conversation.add_turn(size)


def iter_short_conversations(seed: str, requests: int, gap: int = 0) -> Iterator[bytes]:
    """Yield bodies of about 1 KB: conversations of four requests each. gap: milliseconds until an answer."""
    for number in range(-(-requests // 4)):
        conversation = Conversation(f"{seed}_{number}", gap=gap, prompt=60)
        yield from iter_growing(conversation, min(4, requests - number * 4), 60)


def iter_new_conversations(seed: str, requests: int, messages: int, size: int) -> Iterator[bytes]:
    """Yield bodies that each begin a new conversation."""
    for number in range(requests):
        name = f"{seed}_{number}"
        yield (make_short(name) if messages <= 2 else make_long(name, messages, size)).body()
