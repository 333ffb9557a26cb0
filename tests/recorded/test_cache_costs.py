"""Costs of recorded conversations on a provider that caches at breakpoints, with the proxy's breakpoints and without.

The upstream caches as Anthropic says: entries end at marks, are found 20 blocks back, live five minutes, and have a
least size. Written tokens cost 1.25 of the input price, read ones 0.05 (Claude Opus 5.5).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.proxy_server import run_proxy
from tests.raw_upstream import run_upstream
from tests.recorded.test_dialects import list_calls, make_messages, read_history, to_blocks
from tests.strict_messages import StrictMessages

pytestmark = pytest.mark.slow

Json = dict[str, Any]
MODEL = "claude-opus-5-5"
INPUT_PRICE = 4.0
WRITE_PRICES = {"ephemeral_5m_input_tokens": 1.25, "ephemeral_1h_input_tokens": 2.0}
READ_PRICE = 0.05
LEAST_CACHED = 512
LINES = (b"x-context-session: a", b"x-api-key: k", b"anthropic-version: 2023-06-01")


class Billed(StrictMessages):
    """Adds up the dollars of all prompts."""

    dollars = 0.0
    read = 0

    def make_message(self, body: Any, answer: Any) -> Json:
        message = super().make_message(body, answer)
        usage = message["usage"]
        written = sum(WRITE_PRICES[name] * count for name, count in usage["cache_creation"].items())
        read = usage["cache_read_input_tokens"]
        self.read += read
        self.dollars += (usage["input_tokens"] + written + READ_PRICE * read) * INPUT_PRICE / 1e6
        return message


def mark_end(body: Json) -> Json:
    """The body as Claude Code marks it: the system prompt, and the newest block."""
    mark = {"cache_control": {"type": "ephemeral"}}
    body["system"] = [{"type": "text", "text": body["system"], **mark}]
    body["messages"][-1]["content"][-1] |= mark
    return body


async def play(history: list[Json], policy: str, *, marked: bool, breakpoints: bool) -> Billed:
    """The upstream after a whole conversation."""
    tools = sorted({call["function"]["name"] for message in history for call in list_calls(message)})
    turns = [n for n, message in enumerate(history) if message["role"] == "assistant" and n > 1]
    model = Billed(*[to_blocks(history[n]) for n in turns])
    model.least_cached = LEAST_CACHED
    tree: Json = {"policy": policy, "cache": {"breakpoints": breakpoints}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        for n in turns:
            body = make_messages(history[:n], tools) | {"model": MODEL}
            found = await proxy.post(mark_end(body) if marked else body, *LINES, path="/v1/messages")
            assert found.status == 200, found.body
            assert found.header("x-context-fallback") is None
    assert model.refusals == []
    return model


def read_longest(shared: Path, name: str, most: int = 100) -> list[Json]:
    """The longest conversation of a file with at most so many messages."""
    with (shared / "replay" / "open" / f"{name}.jsonl").open() as lines:
        found = [json.loads(line)["messages"] for line in lines]
    return read_history(max((one for one in found if len(one) <= most), key=lambda one: len(str(one))))


async def test_a_client_without_marks_pays_a_fraction(shared: Path) -> None:
    history = read_longest(shared, "swe-agent")
    plain = await play(history, "thrifty", marked=False, breakpoints=False)
    helped = await play(history, "thrifty", marked=False, breakpoints=True)
    assert plain.read == 0
    assert helped.dollars < 0.35 * plain.dollars


async def test_a_client_that_moves_its_marks_pays_no_more_than_without_the_proxy(shared: Path) -> None:
    history = read_longest(shared, "livemcpbench")
    direct = await play(history, "observe", marked=True, breakpoints=False)
    plain = await play(history, "thrifty", marked=True, breakpoints=False)
    helped = await play(history, "thrifty", marked=True, breakpoints=True)
    assert helped.dollars <= plain.dollars <= 1.02 * direct.dollars
