"""Work with long results, which thrifty shortens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.proxy_server import Agent
from tests.scripted_model import ScriptedModel, make_calls

LONG = "\n".join(f"line {n} of a long result" for n in range(200))


def make_looking_model() -> ScriptedModel:
    """A model that calls `look` in each of its answers."""
    return ScriptedModel(*[make_calls((f"call_{n:09}", "look"), n=n) for n in range(200)])


def has_short_result(body: dict[str, Any]) -> bool:
    """True if a result went out in another form than the client sent it."""
    return any(m["role"] == "tool" and not m["content"].startswith(LONG) for m in body["messages"])


async def work_until(agent: Agent, is_done: Callable[[], bool]) -> None:
    """Let the agent work until thrifty has had a reason to make edits."""
    await agent.say("Look at all of them")
    for _ in range(150):
        if is_done():
            return
        agent.brings(LONG)
        await agent.say()
    raise AssertionError("thrifty made no edit")
