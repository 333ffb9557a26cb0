"""The savings that are told, against those that are counted: the same agent, once through the proxy and once direct.

The upstream counts dollars by the rules of a provider with a prefix cache. The agent is a program that looks up lines
in long documents, and reads a document again if the line is gone from its prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from proxy.chat.tokens import estimate_text_tokens
from tests.proxy_server import RunningProxy, run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import send_completion

INPUT, OUTPUT, WRITE, READ = 2e-6, 1e-5, 1.25, 0.1
PRICES = """
[models."counted"]
tokenizer = "estimate"
input = 2.0
output = 10.0
w = 1.25
r = 0.1
min = 0
block = 1
"""
DOCUMENTS = {
    f"docs/{n}.md": "\n".join(
        f"- the value of key_{n}_{k} is {n * 7919 + k * 104_729}, as the board has set it" for k in range(60)
    )
    for n in range(8)
}
QUESTIONS = [(at % (2 + at // 6) % 8, at * 7 % 60) for at in range(40)]
TOOLS = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}]
NOTE = (
    "\n\n### STATE\nGoal: tell the values\nContext: some are told\nResolved: "
    + "one more value, " * 30
    + "\nTechnical Anchors: docs"
)


class Provider:
    """A provider with a prefix cache: what it has read costs a tenth, and all else is written.

    call_tokens: what it counts of each call in addition to our count."""

    def __init__(self, call_tokens: int) -> None:
        self.call_tokens = call_tokens
        self.dollars = 0.0
        self.prompts: list[list[str]] = []

    def ask(self, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (the answer, its usage)."""
        pieces = [json.dumps(body.get("tools")), *map(write_plain, body["messages"])]
        more = [self.call_tokens if one.startswith(" read_file") else 0 for one in pieces]
        sizes = [estimate_text_tokens(one) + 3 + extra for one, extra in zip(pieces, more, strict=True)]
        message = answer(body["messages"])
        served = max((count_common(pieces, earlier) for earlier in self.prompts), default=0)
        read, size, said = sum(sizes[:served]), sum(sizes), estimate_text_tokens(write_plain(message))
        self.prompts.append(pieces)
        self.dollars += INPUT * (WRITE * (size - read) + READ * read) + OUTPUT * said
        usage = {"prompt_tokens": size, "completion_tokens": said, "prompt_tokens_details": {"cached_tokens": read}}
        return message, usage

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        await send_completion(connection, *self.ask(json.loads(request.body)))


def write_plain(message: dict[str, Any]) -> str:
    """The text of a message, as a model reads it."""
    calls = (f"{one['function']['name']} {one['function']['arguments']}" for one in message.get("tool_calls") or ())
    return " ".join((message["content"] or "", *calls))


def count_common(first: list[str], second: list[str]) -> int:
    """Number of pieces at the front that are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The value that was asked for last, if the prompt has it; else a call that reads its document."""
    asked = re.findall(r"Tell (key_(\d)_\d+)\.", "".join(str(m["content"]) for m in messages if m["role"] == "user"))
    key, number = asked[-1]
    seen = "\n".join(str(m["content"]) for m in messages if m["role"] == "tool")
    if found := re.search(rf"value of {key} is (\d+),", seen):
        note = NOTE if "note to yourself" in str(messages[-1]["content"]) else ""
        return {"role": "assistant", "content": f"{key} is {found[1]}.{note}"}
    call = {"name": "read_file", "arguments": json.dumps({"path": f"docs/{number}.md"})}
    named = {"id": f"c{len(messages)}_{len(seen)}", "type": "function", "function": call}
    return {"role": "assistant", "content": None, "tool_calls": [named]}


async def work(ask: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]) -> int:
    """Ask all questions; return the number of requests."""
    history: list[dict[str, Any]] = []
    requests = 0
    for document, line in QUESTIONS:
        history.append({"role": "user", "content": f"Tell key_{document}_{line}."})
        while history[-1]["role"] != "assistant":
            message = await ask({"model": "counted", "messages": history, "tools": TOOLS})
            requests += 1
            history.append(message)
            for call in message.get("tool_calls") or ():
                path = json.loads(call["function"]["arguments"])["path"]
                history.append({"role": "tool", "tool_call_id": call["id"], "content": DOCUMENTS[path]})
    return requests


async def read_sessions(proxy: RunningProxy) -> tuple[float, float]:
    """(dollars paid, dollars without the proxy) as the sessions tell them."""
    lines = (await proxy.get("/api/live")).json()["items"]
    return sum(one["figures"]["cost"] for one in lines), sum(one["figures"]["cost_without"] for one in lines)


@pytest.mark.parametrize(("policy", "call_tokens"), [("thrifty", 0), ("thrifty", 300), ("rolling", 0)])
async def test_the_savings_that_are_told_are_those_that_are_counted(
    policy: str, call_tokens: int, tmp_path: Path
) -> None:
    """They were told by a third of the cost too high: what had been cut and was read again counted without the proxy
    too, and so did the notes that the proxy asks for. With other counts than ours of what is not cut, the client's own
    prompt was scaled by that of the short one."""
    prices = tmp_path / "models.toml"
    prices.write_text(PRICES)
    direct, through = Provider(call_tokens), Provider(call_tokens)

    async def ask_direct(body: dict[str, Any]) -> dict[str, Any]:
        return direct.ask(body)[0]

    async def ask_proxy(body: dict[str, Any]) -> dict[str, Any]:
        return (await on.post(body)).message

    least = await work(ask_direct)
    async with (
        run_upstream(through) as upstream,
        run_proxy(upstream.port, models_file=str(prices), policy=policy) as on,
    ):
        requests = await work(ask_proxy)
        paid, without = on.read_dollars()
        assert (paid, without) == pytest.approx(await read_sessions(on)), "the metrics and the sessions tell the same"
    assert requests > least, "the agent reads again what was cut"
    assert paid == pytest.approx(through.dollars)
    told, counted = without - paid, direct.dollars - through.dollars
    assert told / direct.dollars == pytest.approx(counted / direct.dollars, abs=0.01)
