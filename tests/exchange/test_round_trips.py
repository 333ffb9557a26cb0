"""Round trips to PostgreSQL: an exchange has one read at most and one commit, whichever replica has it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.postgres import drop_database, new_store_database
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, make_calls
from tests.store.round_trips import RoundTrips, counted

LIMIT = 2
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "read_file", "description": "Reads.", "parameters": {}}}
]
TREE: dict[str, Any] = {"policy": "thrifty"}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look at the connection while nothing is written, and rows held until they are awaited."""
    monkeypatch.setattr("proxy.store.postgres_writer._CHECK_S", 600.0)
    monkeypatch.setattr("proxy.store.write_queue.HOLD_S", 60.0)


async def count_round_trips(trips: RoundTrips, proxy: RunningProxy, agent: Agent, text: str | None = None) -> int:
    """The round trips of one exchange, its commit included."""
    before = trips.count
    agent.proxy = proxy
    found = await agent.say(text)
    assert found.header("x-context-fallback") is None
    assert found.header("x-context-persist") is None
    proxy.app.store.flush_deferred()
    async with asyncio.timeout(20):
        while proxy.app.store.queued:
            await asyncio.sleep(0.005)
    return trips.count - before


async def test_a_small_exchange_takes_two_at_most_on_its_own_replica_and_on_another(postgres: str) -> None:
    url = await new_store_database(postgres)
    try:
        async with (
            run_upstream(ScriptedModel("Well.")) as upstream,
            counted(url) as (way, trips),
            run_proxy(upstream.port, db=way, **TREE) as one,
            run_proxy(upstream.port, db=way, **TREE) as two,
        ):
            other = Agent(one, lines=(b"x-session-id: other",))
            for proxy in (one, two):  # statements are prepared once for each connection
                other = Agent(proxy, lines=(b"x-session-id: other",))
                await other.say("Hello")
                await other.say("Go on")
            for proxy in (one, two, one):
                await count_round_trips(trips, proxy, other, "Once more")
            named, plain = Agent(one, lines=(b"x-session-id: named",)), Agent(one)
            found = {
                "first request of a session": await count_round_trips(trips, one, named, "Hello"),
                "remembered": await count_round_trips(trips, one, named, "Go on"),
                "cold": await count_round_trips(trips, two, named, "And now?"),
                "moved on elsewhere": await count_round_trips(trips, one, named, "And here?"),
                "without a name": await count_round_trips(trips, one, plain, "Good morning"),
                "without a name, remembered": await count_round_trips(trips, one, plain, "Go on"),
            }
            assert {name: count for name, count in found.items() if count > LIMIT} == {}, found
            # Its session has to be found first, by what it holds.
            assert await count_round_trips(trips, two, plain, "And now?") <= LIMIT + 1
    finally:
        await drop_database(url)


async def test_a_step_of_an_agent_takes_two_at_most(postgres: str) -> None:
    url = await new_store_database(postgres)
    answers = [make_calls((f"call_{n}", "read_file"), path=f"{n}.py") for n in range(12)]
    try:
        async with (
            run_upstream(ScriptedModel(*answers)) as upstream,
            counted(url) as (way, trips),
            run_proxy(upstream.port, db=way, **TREE) as one,
            run_proxy(upstream.port, db=way, **TREE) as two,
        ):
            agent = Agent(one, lines=(b"x-session-id: agent",), more={"tools": TOOLS})
            steps = []
            await agent.say("Read them all.")
            for n in range(10):
                agent.brings(f"line of {n}\n" * 40)
                steps.append(await count_round_trips(trips, (one, two)[n >= 6], agent))
            # The first ones prepare their statements, on either replica.
            assert max(steps[3:6] + steps[8:]) <= LIMIT, steps
    finally:
        await drop_database(url)
