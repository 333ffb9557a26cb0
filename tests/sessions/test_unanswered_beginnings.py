"""First requests that had no answer, and come again without a word that they are retries."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from proxy.upstream.client import UpstreamClient
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import STREAM, free_port, run_upstream
from tests.scripted_model import ScriptedModel

TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}
REFUSALS = (429, 529, 500, 503)


def refuse(status: int) -> Any:
    """An upstream that refuses."""

    async def say(_: Any, there: Any) -> None:
        await there.send(b"HTTP/1.1 %d No\r\ncontent-length: 0\r\n\r\n" % status)

    return say


async def break_off(_: Any, there: Any) -> None:
    """An upstream whose stream is an error and nothing else."""
    await there.send(STREAM)
    await there.chunk(b'data: {"error":{"message":"overloaded","code":529}}\n\n')
    await there.chunk(b"data: [DONE]\n\n")
    await there.send(b"0\r\n\r\n")


async def list_statuses(proxy: RunningProxy) -> list[list[int]]:
    """The statuses of each session's exchanges, in their order."""
    rows = await proxy.rows("SELECT session, http_status FROM exchanges ORDER BY started_at, exchange")
    return [[status for name, status in rows if name == session] for session in dict.fromkeys(row[0] for row in rows)]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_first_request_that_was_refused_and_comes_again_is_one_session(stream: bool) -> None:
    refusals = [refuse(status) for status in REFUSALS]
    model = ScriptedModel(*refusals, "One.", "Two.", "Again.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy:
        agent = Agent(proxy, stream=stream)
        agent.messages.append({"role": "user", "content": "Hello"})
        for status in REFUSALS:
            assert (await agent.send()).status == status
        answer = await agent.send()
        agent.messages.append(answer.message)
        assert (await agent.say("Go on")).session == answer.session
        other = Agent(proxy, stream=stream)
        assert (await other.say("Hello")).session != answer.session, "the first has its answer: this is another user"
        assert await list_statuses(proxy) == [[*REFUSALS, 200, 200], [200]]
        assert await proxy.rows("SELECT kind FROM branches") == [("main",), ("main",)]


async def test_a_first_request_whose_stream_was_an_error_alone_is_one_session_with_the_next() -> None:
    async with run_upstream(ScriptedModel(break_off, "One.")) as upstream, run_proxy(upstream.port) as proxy:
        agent = Agent(proxy, stream=True)
        agent.messages.append({"role": "user", "content": "Hello"})
        await agent.send()
        await agent.send()
        assert await list_statuses(proxy) == [[200, 200]]


async def test_a_first_request_that_found_nobody_is_one_session_with_the_next() -> None:
    async with run_upstream(ScriptedModel("One.")) as upstream, run_proxy(free_port()) as proxy:
        agent = Agent(proxy)
        agent.messages.append({"role": "user", "content": "Hello"})
        assert (await agent.send()).status == 502
        transport = proxy.app.services.client._transports[proxy.app.services.client.targets[0].name]
        target = replace(transport.target, base_url=f"http://127.0.0.1:{upstream.port}/v1")
        client = UpstreamClient(proxy.app.settings, proxy.metrics, [target])
        proxy.app.services.client._transports.update(client._transports)
        assert (await agent.send()).status == 200
        assert await list_statuses(proxy) == [[502, 200]]


@pytest.mark.parametrize(
    "other",
    [
        {"system": "You are another."}, {"user": "another"}, {"key": "sk-other"}, {"tools": [TOOL]},
        {"lines": (b"x-session-id: s",)},
    ],
)  # fmt: skip
async def test_a_refused_first_request_is_taken_up_by_its_own_alone(other: dict[str, Any]) -> None:
    model = ScriptedModel(refuse(429), "One.", "Two.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy:
        agents = [Agent(proxy, key=other.get("key", "sk-one"), lines=other.get("lines", ())), Agent(proxy)]
        for agent, more in zip(agents, (other, {}), strict=True):
            agent.messages = [{"role": "system", "content": more.get("system", "You are one.")}]
            agent.messages.append({"role": "user", "content": "Hello"})
        body = {name: other[name] for name in ("user", "tools") if name in other}
        assert (await agents[1].send()).status == 429
        await agents[0].send(**body)
        await agents[1].send()
        assert await list_statuses(proxy) == [[429, 200], [200]]


async def test_two_users_whose_same_first_requests_were_refused_have_a_session_each() -> None:
    """Also if both come again at the same time: no session is taken up twice."""
    model = ScriptedModel(refuse(429), refuse(429), "One.", "Two.", "Three.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy:
        agents = [Agent(proxy) for _ in range(3)]
        for agent in agents:
            agent.messages.append({"role": "user", "content": "Hello"})
        held = asyncio.Barrier(2)

        async def send(agent: Agent) -> None:
            await held.wait()
            await agent.send()

        for _ in range(2):
            await asyncio.gather(*map(send, agents[:2]))
        await agents[2].send()
        found = await list_statuses(proxy)
        assert sum(map(len, found)) == 5
        assert all(statuses.count(200) == 1 for statuses in found), found


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}),
        ("/v1/responses", {"input": "Hello", "store": False}),
        ("/v1beta/models/g:generateContent", {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]}),
    ],
)
async def test_in_every_wire_format_a_refused_first_request_that_comes_again_is_one_session(
    path: str, body: dict[str, Any]
) -> None:
    async with run_upstream(refuse(529)) as upstream, run_proxy(upstream.port) as proxy:
        for _ in range(3):
            assert (await proxy.post({"model": "m", **body}, path=path)).status == 529
        assert await list_statuses(proxy) == [[529, 529, 529]]


async def test_with_a_store_that_replicas_share_a_session_that_was_deleted_is_begun_anew(database: str) -> None:
    model = ScriptedModel(refuse(429), refuse(429), "One.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, db=database) as proxy:
        agent = Agent(proxy)
        agent.messages.append({"role": "user", "content": "Hello"})
        first = await agent.send()
        assert (await agent.send()).session == first.session
        assert await list_statuses(proxy) == [[429, 429]]
        async with run_proxy(upstream.port, db=database) as other:
            ((tenant,),) = await proxy.rows("SELECT DISTINCT tenant FROM sessions")
            assert await other.app.store.delete_session(tenant, first.session)
        assert (await agent.send()).session != first.session
        assert await list_statuses(proxy) == [[200]]


async def test_among_many_that_begin_alike_only_the_newest_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator of load begins thousands of conversations with the same words."""
    slow, quick = asyncio.Event(), asyncio.Event()

    async def wait(request: Any, there: Any) -> None:
        quick.set()
        await slow.wait()
        await refuse(429)(request, there)

    for most, sessions in ((2, 3), (1, 4)):
        slow.clear()
        quick.clear()
        monkeypatch.setattr("proxy.sessions.live.MAX_ALIKE", most)
        model = ScriptedModel(wait, "One.", "Two.", "Three.")
        async with run_upstream(model) as upstream, run_proxy(upstream.port) as proxy:
            refused = asyncio.create_task(Agent(proxy).say("Hello"))
            await quick.wait()
            await Agent(proxy).say("Hello")
            slow.set()
            with pytest.raises(AssertionError):
                await refused
            await Agent(proxy).say("Hello")
            await Agent(proxy).say("Hello")
            assert len(await list_statuses(proxy)) == sessions
