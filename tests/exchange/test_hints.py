"""A7 through the running proxy: what a shortened result says of the rest names only tools that the model has."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, make_calls

TOOLS = {"tools": [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]}
ROUNDS = 8
LINES = 110
STREAMS = pytest.mark.parametrize("stream", [False, True])
MISSING = re.compile(
    r"\[shortened: \d+ of \d+ characters\]|\d+ characters are missing\]|message [a-z2-7]{10}, \d+ characters\]"
    r"|\[summary of \d+ messages, [a-z2-7]{10} to [a-z2-7]{10}\]"
)
RECALL = re.compile(r"recall\(\"([a-z2-7]{10})\"\)")


@asynccontextmanager
async def run_reading_agent(
    policy: str, *, stream: bool = False, more: dict[str, Any], **tree: Any
) -> AsyncIterator[tuple[RunningProxy, ScriptedModel]]:
    """An agent that has read a few files, and been asked again since."""
    model = ScriptedModel(*(make_calls((f"c{n}", "bash"), n=n) for n in range(ROUNDS)), "Well.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy=policy, **tree) as proxy:
        agent = Agent(proxy, (b"x-context-session: a",), stream=stream, more=more)
        await agent.say("look")
        for n in range(ROUNDS):
            agent.brings(
                f"result {n}\n"
                + "\n".join(f"line {k} of {n}: plain words that nobody reads twice" for k in range(LINES))
            )
            await agent.say()
        await agent.say("and now?")
        yield proxy, model


def list_offered_tools(body: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in body.get("tools", ())]


@STREAMS
async def test_a7_thrifty_names_recall_with_the_id_where_the_model_has_it(stream: bool) -> None:
    async with run_reading_agent("thrifty", stream=stream, more=TOOLS) as (proxy, model):
        assert list_offered_tools(model.last) == ["bash", "recall"]
        stubs = [t for t in model.texts() if t and t.startswith("[shortened: ")]
        assert stubs
        ((tenant, session),) = await proxy.rows("SELECT tenant, session FROM sessions")
        for stub in stubs:
            found = RECALL.search(stub.splitlines()[0])
            assert found is not None
            stored = await proxy.app.store.find_message(tenant, session, found[1])
            assert stored is not None
            assert stored.body.decode().count("plain words") == LINES, "by this id the whole of it is found"


@STREAMS
@pytest.mark.parametrize("how", ["no tools of its own", "never"])
async def test_a7_without_the_tool_it_is_only_said_how_much_is_missing(stream: bool, how: str) -> None:
    more, tree = ({}, {}) if how == "no tools of its own" else (TOOLS, {"tools": {"offer": "never"}})
    for policy in ("thrifty", "rolling", "hierarchical"):
        async with run_reading_agent(policy, stream=stream, more=more, **tree) as (_, model):
            text = "\n".join(t or "" for t in model.texts())
            assert MISSING.search(text)
            assert "recall(" not in text
            assert "query_db" not in text
            assert list_offered_tools(model.last) == list_offered_tools(more)


async def test_a7_rolling_names_query_db_as_its_source_does() -> None:
    async with run_reading_agent("rolling", more=TOOLS) as (_, model):
        assert "query_db" in list_offered_tools(model.last)
        cut = [t for t in model.texts() if t and "TRUNCATED" in t]
        assert cut
        hint = (
            r"\.\.\. \[TRUNCATED\. Use query_db\(sql=\"SELECT content FROM messages WHERE id='[a-z2-7]{10}'\"\) to see"
        )
        assert all(re.search(hint, text) for text in cut)
