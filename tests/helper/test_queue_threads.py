"""All branches of a session get the answer to a question, however they came into memory, and it is asked once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.exchange.helper_setup import (
    LONG,
    SESSION,
    ProxyWithHelper,
    run_proxy_with_helper,
    send_texts,
    wait_for_helper,
)
from tests.failing_store import FailingStore, use_store
from tests.proxy_server import Agent
from tests.raw_upstream import Connection, RawRequest, wait_until
from tests.scripted_model import ScriptedModel


async def test_the_same_question_is_asked_once_at_a_time_and_every_branch_has_the_answer(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def held(request: RawRequest, connection: Connection) -> None:
        await release.wait()
        await ScriptedModel("Read it.")(request, connection)

    async with run_proxy_with_helper(tmp_path, held) as proxy:
        agent = Agent(proxy.proxy, (SESSION,))
        await asyncio.gather(agent.send(), *(proxy.proxy.post(first(LONG), SESSION) for _ in range(3)))
        await asyncio.gather(*(proxy.proxy.post(first(LONG), SESSION) for _ in range(3)))
        release.set()
        await wait_for_helper(proxy.proxy)
        assert len(proxy.helper.received) == 1
        for branch in proxy.proxy.app.services.live_sessions.find_session(tenant_of(proxy), "a").branches.values():  # type: ignore[union-attr]
            assert list(branch.state.helper_answers.values()) == ["Read it."]


def first(text: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def tenant_of(proxy: ProxyWithHelper) -> str:
    (tenant,) = {tenant for tenant, _ in proxy.proxy.app.services.live_sessions._sessions}
    return tenant


def forget_answers(proxy: ProxyWithHelper) -> None:
    """As if the session's branches had been loaded before the answer was stored."""
    live_session = proxy.proxy.app.services.live_sessions.find_session(tenant_of(proxy), "a")
    assert live_session is not None
    for branch in live_session.branches.values():
        assert list(branch.state.helper_answers.values()) == ["Read it."]
        branch.state = replace(branch.state, helper_answers={})


async def test_a_branch_that_was_read_back_meanwhile_has_the_answer_too(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def held(request: RawRequest, connection: Connection) -> None:
        await release.wait()
        await ScriptedModel("Read it.")(request, connection)

    async with run_proxy_with_helper(tmp_path, held) as proxy:
        agent = Agent(proxy.proxy, (SESSION,))
        await agent.say(LONG)
        branches = proxy.proxy.app.services.live_sessions
        live_session = branches.find_session(tenant_of(proxy), "a")
        assert live_session is not None
        await proxy.proxy.rows("SELECT 1")
        branches.forget_session(live_session)
        await agent.say("And now?", b"x-context-policy: passthrough")
        release.set()
        await wait_for_helper(proxy.proxy)
        await agent.say("And then?")
        assert proxy.model.texts()[0] == "Read it."
    assert len(proxy.helper.received) == 1


async def test_a_stored_answer_of_the_helper_is_not_asked_for_again(tmp_path: Path) -> None:
    async with run_proxy_with_helper(tmp_path, "Read it.") as proxy:
        agent = await send_texts(proxy, LONG)
        forget_answers(proxy)
        await agent.say("And now?")
        await wait_for_helper(proxy.proxy)
        await agent.say("And then?")
        assert proxy.told("stored") == 1
        assert proxy.model.texts()[0] == "Read it."
    assert len(proxy.helper.received) == 1


async def test_an_answer_on_its_way_to_the_disk_is_given_at_once(tmp_path: Path) -> None:
    store, soon = FailingStore(), {"commit_wait_ms": 100}  # of each request, while the store is held
    async with run_proxy_with_helper(tmp_path, "Read it.", before=use_store(store), limits=soon) as proxy:
        agent = Agent(proxy.proxy, (SESSION,))
        store.hold = True
        await agent.say(LONG)
        live_session = proxy.proxy.app.services.live_sessions.find_session(tenant_of(proxy), "a")
        assert live_session is not None
        await wait_until(lambda: all(branch.state.helper_answers for branch in live_session.branches.values()))
        forget_answers(proxy)
        await agent.say("And now?")
        await agent.say("And then?")
        assert proxy.model.texts()[0] == "Read it."
        store.release()
        await wait_for_helper(proxy.proxy)
        assert proxy.told("kept") == 1
    assert len(proxy.helper.received) == 1
