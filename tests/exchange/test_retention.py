from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proxy.exchange import retention
from proxy.exchange.rebuild_prompt import rebuild_prompt
from tests.postgres import drop_database, new_store_database
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import run_upstream, wait_until
from tests.scripted_model import ScriptedModel

DAY = 86400.0
WEEK: dict[str, Any] = {"store": {"retention_days": 7}, "policy": "thrifty"}


@pytest.fixture(params=["sqlite", "postgres"])
async def db(request: pytest.FixtureRequest, tmp_path: Any) -> AsyncIterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "store.sqlite3")
        return
    url = await new_store_database(request.getfixturevalue("postgres"))
    yield url
    await drop_database(url)


def later(proxy: RunningProxy, days: float) -> None:
    """The clock of the exchanges goes on by so many days."""
    now = proxy.app.services.now
    proxy.app.services.now = lambda: now() + days * DAY


async def sessions(proxy: RunningProxy) -> set[str]:
    return {session for _, session in await proxy.app.store.read_session_names()}


async def test_sessions_unused_for_the_retention_time_are_removed_and_others_stay(db: str) -> None:
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port, db=db, **WEEK) as proxy:
        old = Agent(proxy, lines=(b"x-session-id: old",))
        used = Agent(proxy, lines=(b"x-session-id: used",))
        await old.say("Hello")
        await used.say("Hello")
        later(proxy, 6)
        assert await retention.remove_expired(proxy.app.services) == 0
        await used.say("Still there?")
        later(proxy, 2)
        assert await retention.remove_expired(proxy.app.services) == 1
        assert await sessions(proxy) == {"used"}
        assert proxy.count("retired_total") == 1
        parts = proxy.app.services
        assert [live_session.session for live_session in parts.live_sessions._sessions.values()] == ["used"]
        # Who comes back is answered, and stored whole again.
        await old.say("And I?")
        assert await sessions(proxy) == {"old", "used"}
        (count,) = await proxy.rows("SELECT count(*) FROM messages WHERE session = 'old'")
        assert count == (4,)


async def test_one_that_is_remembered_but_not_stored_any_more_is_stored_whole_again(db: str) -> None:
    async with (
        run_upstream(ScriptedModel("Well.")) as upstream,
        run_proxy(upstream.port, db=db, policy="thrifty") as proxy,
    ):
        agent = Agent(proxy, lines=(b"x-session-id: one",))
        await agent.say("Hello")
        ((tenant, _),) = await proxy.app.store.read_session_names()
        await proxy.app.store.delete_session(tenant, "one")
        if not proxy.app.store.shared:  # only another process can do that behind our back
            live_session = proxy.app.services.live_sessions.find_session(tenant, "one")
            assert live_session is not None
            proxy.app.services.live_sessions.forget_session(live_session)
        await agent.say("Go on")
        assert await proxy.rows("SELECT count(*) FROM messages") == [(4,)]
        assert await sessions(proxy) == {"one"}


async def test_a_branch_that_was_removed_from_a_session_in_use_is_stored_whole_again(db: str) -> None:
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port, db=db, **WEEK) as proxy:
        old = Agent(proxy, lines=(b"x-session-id: one",))
        used = Agent(proxy, lines=(b"x-session-id: one",))
        await old.say("Hello")
        await used.say("Another matter")
        later(proxy, 6)
        await used.say("Still there?")
        later(proxy, 2)
        assert await retention.remove_expired(proxy.app.services) == 1
        assert await proxy.rows("SELECT count(*) FROM messages") == [(4,)]
        await old.say("And I?")
        assert await proxy.rows("SELECT count(*) FROM messages") == [(8,)]
        (exchange,) = await proxy.app.store.read_exchanges(*(await proxy.app.store.read_session_names())[0], 1)
        rebuilt = await rebuild_prompt(proxy.app.store, exchange.tenant, "one", exchange.exchange)
        assert rebuilt is not None
        assert len(json.loads(rebuilt.original_body)["messages"]) == 3


async def test_retention_runs_on_one_of_two_replicas(postgres: str) -> None:
    url = await new_store_database(postgres)
    try:
        async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port, db=url, **WEEK) as one:
            await Agent(one).say("Hello")
            async with run_proxy(upstream.port, db=url, **WEEK) as two:
                later(one, 8)
                later(two, 8)
                async with one.app.store.try_lock(retention.LOCK) as mine:
                    assert mine
                    assert await retention.remove_expired(two.app.services) == 0
                    async with two.app.store.try_lock("another work") as free:
                        assert free
                assert await retention.remove_expired(two.app.services) == 1
    finally:
        await drop_database(url)


async def test_rounds_come_by_themselves_beside_requests() -> None:
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port, **WEEK) as proxy:
        await Agent(proxy).say("Hello")
        later(proxy, 8)
        task = asyncio.create_task(retention.run_retention(proxy.app.services, 0.001, 0.01))
        await wait_until(lambda: proxy.count("retired_total") == 1)
        await Agent(proxy).say("Hello")
        later(proxy, 8)
        await wait_until(lambda: proxy.count("retired_total") == 2)
        await proxy.app.store.close()
        await wait_until(lambda: proxy.count("internal_errors_total", where="retention") >= 2)
        assert not task.done(), "a store that is away for a while is no end"
        task.cancel()


async def test_a_store_with_partitions_is_maintained_though_nothing_is_ever_removed(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await new_store_database(postgres)
    try:
        async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port, db=url) as proxy:
            rounds: list[str] = []
            store = proxy.app.store
            maintain = store.maintain

            async def counted() -> None:
                await maintain()
                rounds.append("done")

            monkeypatch.setattr(store, "maintain", counted)
            task = asyncio.create_task(retention.run_retention(proxy.app.services, 0.0, 0.001))
            await wait_until(lambda: len(rounds) > 1)
            task.cancel()
            assert proxy.count("internal_errors_total", where="retention") == 0
    finally:
        await drop_database(url)


async def test_nothing_is_ever_removed_unless_it_is_asked_for() -> None:
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port) as proxy:
        await asyncio.wait_for(retention.run_retention(proxy.app.services, 0.0, 0.0), 30)
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert "retention" not in names
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port, **WEEK):
        assert "retention" in {task.get_name() for task in asyncio.all_tasks()}
