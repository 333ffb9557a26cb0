"""Literal policies by header: what they take out holds for requests under literal policies alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from proxy.exchange.rebuild_prompt import rebuild_prompt
from tests.exchange.long_results import LONG, make_looking_model
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

PROGRESSIVE = b"x-context-policy: progressive"


async def let_agent_work(agent: Agent, rounds: int, *lines: bytes, result: str = "found it") -> None:
    """Let the agent make so many calls, from a prompt on where it has none yet."""
    if not agent.messages:
        await agent.say("Look at all of them", *lines)
    for n in range(rounds):
        agent.brings(f"{result} {len(agent.messages)} {n}")
        await agent.say(None, *lines)


async def assert_rebuilt_as_sent(proxy: RunningProxy, sent: list[bytes]) -> None:
    """Each exchange gives the bytes that upstream got."""
    rows = await proxy.rows("SELECT tenant, session, exchange FROM exchanges ORDER BY started_at, rowid")
    assert len(rows) == len(sent)
    for row, outgoing in zip(rows, sent, strict=True):
        found = await rebuild_prompt(proxy.app.store, *row)
        assert found is not None
        assert found.sent_body == outgoing


async def test_one_request_under_a_literal_policy_leaves_the_session_unedited() -> None:
    model = make_looking_model()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        await let_agent_work(agent, 24)
        count = len(agent.messages)
        agent.brings("the newest")
        await agent.say(None, PROGRESSIVE)
        assert len(model.last["messages"]) < count / 2, "progressive is in an emergency"
        agent.brings("one more")
        await agent.say()
        assert model.last["messages"] == agent.messages[:-1], "the default policy had taken nothing out"
        await assert_rebuilt_as_sent(proxy, [r.body for r in model.received])


async def test_lasting_edits_are_repeated_byte_for_byte_after_a_literal_request() -> None:
    model = make_looking_model()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        await let_agent_work(agent, 24, result=LONG)
        before = model.last["messages"]
        assert before != agent.messages[: len(before)], "thrifty has made edits"
        agent.brings(LONG)
        await agent.say(None, PROGRESSIVE)
        agent.brings("one more")
        await agent.say(None, PROGRESSIVE)
        agent.brings("and another")
        await agent.say()
        after = model.last["messages"]
        same = [one == other for one, other in zip(before, after, strict=False)]
        assert all(same[: len(before) - 8]), "what was sent before goes out as it did"
        assert len(after) == len(agent.messages) - 1
        await assert_rebuilt_as_sent(proxy, [r.body for r in model.received])


@asynccontextmanager
async def run_edited_agent(
    port: int, model: ScriptedModel, tree: Mapping[str, Any]
) -> AsyncIterator[tuple[Agent, list[Any]]]:
    """An agent under `thrifty` with another result to send, and the messages that went out before, with edits."""
    async with run_proxy(port, **tree) as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        await let_agent_work(agent, 24, result=LONG)
        before = model.last["messages"]
        assert before != agent.messages[: len(before)], "thrifty has made edits"
        agent.brings("the newest")
        yield agent, before


def make_stored_settings(path: Path) -> dict[str, Any]:
    return {"policy": "thrifty", "db": str(path / "store.sqlite3")}


async def test_a_restart_between_literal_and_lasting_requests_changes_nothing(tmp_path: Path) -> None:
    tree = make_stored_settings(tmp_path)
    model = make_looking_model()
    async with run_upstream(model) as upstream:
        async with run_edited_agent(upstream.port, model, tree) as (agent, before):
            await agent.say(None, PROGRESSIVE)
            assert len(model.last["messages"]) < len(before) / 2
        async with run_proxy(upstream.port, **tree) as proxy:
            agent.proxy = proxy
            agent.brings("one more")
            await agent.say()
            after = model.last["messages"]
            assert len(after) == len(agent.messages) - 1
            assert after[: len(before) - 8] == before[: len(before) - 8]
            await assert_rebuilt_as_sent(proxy, [r.body for r in model.received])


async def test_a_session_under_a_literal_policy_continues_as_usual() -> None:
    model = make_looking_model()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="progressive") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        await let_agent_work(agent, 24)
        assert len(model.last["messages"]) < 10
        await assert_rebuilt_as_sent(proxy, [r.body for r in model.received])


async def test_a_fork_under_a_literal_policy_inherits_what_it_left_out_and_lasting_edits(tmp_path: Path) -> None:
    tree = make_stored_settings(tmp_path)
    model = make_looking_model()
    async with run_upstream(model) as upstream:
        async with run_edited_agent(upstream.port, model, tree) as (agent, before):
            for _ in range(2):  # the second one is a twin: a branch of its own
                await agent.send(PROGRESSIVE)
            (count,) = await agent.proxy.rows("SELECT count(DISTINCT branch) FROM exchanges")
            assert count == (2,)
            await assert_rebuilt_as_sent(agent.proxy, [r.body for r in model.received])
        async with run_proxy(upstream.port, **tree) as proxy:
            agent.proxy = proxy
            await agent.send()
            after = model.last["messages"]
            assert after[: len(before) - 8] == before[: len(before) - 8]
            await assert_rebuilt_as_sent(proxy, [r.body for r in model.received])
