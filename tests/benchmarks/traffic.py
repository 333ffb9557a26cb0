"""The requests that are sent: what agents send, which resend their history with what is new in it.

A history holds the answers that the fake upstream gave, so that the proxy finds them there. No two conversations have
a text in common beyond their system prompt and their tools, as no two of an agent's have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks import servers

MODEL = "gpt-5-mini"
"""One that the proxy knows: its tokens are counted, its prices decide on edits."""
ENDLESS = "a-model-of-ones-own"
"""One without a window: tokens are counted, no budget is ever exceeded."""
SYSTEM = {"role": "system", "content": "You are a careful engineer. " * 4}
_RUN = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "run", "parameters": _RUN}}]


def dumped(message: dict[str, Any]) -> bytes:
    """A message's JSON as most clients write it."""
    return json.dumps(message).encode()


def source(seed: str, size: int) -> str:
    """About so many characters of a program, in lines that are nowhere else."""
    line = "{0}\tdef handler_{1}_{0}(request): return process_{0}(request)  # {1}\n"
    each = len(line.format(100, seed))
    return "".join(line.format(n + 10, seed) for n in range(size // each + 1))[: max(size, 1)]


@dataclass(slots=True)
class Conversation:
    """An agent's, as it grows. seed: what makes its texts its own. stream: whether it asks for streams, whose answers
    are text; gap: milliseconds between their chunks."""

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
        self.messages += [dumped(SYSTEM), dumped({"role": "user", "content": (text + source(self.seed, self.prompt))})]

    def turn(self, size: int) -> None:
        """The upstream's answer to what was asked, and what an agent sends next: about `size` characters."""
        text = source(f"{self.seed}_{self.turns}", size)
        if self.stream:
            self.messages.append(dumped({"role": "assistant", "content": servers.told()}))
            self.messages.append(dumped({"role": "user", "content": text}))
        else:
            answer = servers.message(self.turns)
            self.messages.append(dumped(answer))
            called = answer["tool_calls"][0]["id"]
            self.messages.append(dumped({"role": "tool", "tool_call_id": called, "content": text}))
        self.turns += 1

    def body(self) -> bytes:
        """The next request's."""
        end = f', "stream": true, "seed": {self.gap}' if self.stream else ""
        start = f'{{"model": "{self.model}", "tools": {json.dumps(TOOLS)}, "messages": ['
        return start.encode() + b", ".join(self.messages) + b"]" + end.encode() + b"}"


def long(seed: str, messages: int, size: int, *, stream: bool = False, gap: int = 0) -> Conversation:
    """A conversation that has gone on for so many messages, about `size` bytes in all."""
    found = Conversation(seed, stream, gap)
    turns = (messages - 2) // 2
    each = (size - len(found.body())) // max(1, turns) - frame(stream)
    for _ in range(turns):
        found.turn(each)
    return found


def frame(stream: bool) -> int:
    """Bytes that a turn has beside its text of 1,000 characters, their escapes counted in."""
    tried = Conversation("frame", stream)
    before = len(tried.body())
    tried.turn(1000)
    return len(tried.body()) - before - 1000


def short(seed: str, *, stream: bool = False, gap: int = 0) -> Conversation:
    """One that has just begun: about 1 KB."""
    return Conversation(seed, stream, gap, prompt=520)


def growing(conversation: Conversation, requests: int, size: int) -> Iterator[bytes]:
    """The bodies of an agent that goes on with a conversation: a turn and its result with every request."""
    for _ in range(requests):
        yield conversation.body()
        conversation.turn(size)


def talks(seed: str, requests: int) -> Iterator[bytes]:
    """Bodies of about 1 KB each: conversations of four requests."""
    for number in range(-(-requests // 4)):
        yield from growing(Conversation(f"{seed}_{number}", prompt=60), min(4, requests - number * 4), 60)


def news(seed: str, requests: int, messages: int, size: int) -> Iterator[bytes]:
    """A conversation that the proxy has never seen, with each request."""
    for number in range(requests):
        name = f"{seed}_{number}"
        yield (short(name) if messages <= 2 else long(name, messages, size)).body()
