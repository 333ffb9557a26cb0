"""Three proxies on one PostgreSQL, every request to the next: what the model is sent is what one proxy sends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from proxy.notes.state_block import build_prompt as ask_for_state
from proxy.operator import session_stats
from tests.postgres import execute
from tests.proxy_server import PATIENT_LIMITS, Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.replicas.fleet import fleet
from tests.replicas.talk import Client, Model
from tests.scripted_model import ScriptedModel, make_calls

pytestmark = pytest.mark.slow

TURNS = 18
TREE: dict[str, Any] = {
    "tokens": {"count": "estimate"},
    "tools": {"offer": "first_request"},
    **PATIENT_LIMITS,
}


def clients(*, stream: bool) -> list[Client]:
    return [Client(1, stream=stream, named=True), Client(2, stream=stream, named=False)]


async def by_one(policy: str, *, stream: bool) -> list[bytes]:
    """The prompts that a single process with a store of its own sends to the model."""
    model = Model()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy=policy, **TREE) as proxy:
        for client in clients(stream=stream):
            for _ in range(TURNS):
                await client.turn(proxy.port)
    return model.received


@pytest.mark.parametrize("policy", ["thrifty", "rolling"])
@pytest.mark.parametrize("stream", [False, True])
async def test_three_replicas_send_what_one_process_sends(database: str, policy: str, stream: bool) -> None:
    model = Model()
    async with run_upstream(model) as upstream:
        tree = {**TREE, "db": database, "upstream": f"http://127.0.0.1:{upstream.port}/v1", "policy": policy}
        async with fleet(3, **tree) as proxies:
            played = clients(stream=stream)
            for client in played:
                for turn in range(TURNS):
                    await client.turn(proxies.port)
                    if turn == TURNS // 3:
                        await proxies.restart()
                    if turn == TURNS // 2:
                        await proxies.kill()
            assert all(replica.served for replica in proxies.replicas)
    assert all(len(client.sessions) == 1 for client in played)
    branches = await execute(database, "SELECT kind, count(*) FROM branches GROUP BY kind")
    assert branches == [("main", 2)], "no fork, no twin"
    held = {"edits", "hidden_rounds"} | ({"states"} if policy == "rolling" else set())
    for table in held:
        assert (await execute(database, f"SELECT count(*) FROM {table}"))[0][0], table
    alone = await by_one(policy, stream=stream)
    for n, (one, three) in enumerate(zip(alone, model.received, strict=True)):
        assert one == three, n


async def test_a_copy_that_an_agent_names_anew_goes_on_in_its_first_session_on_each_replica(database: str) -> None:
    read = make_calls(("call_7dhe2", "read"), path="a.py")
    model = ScriptedModel(read, *(f"Answer {n}." for n in range(40)))
    async with run_upstream(model) as upstream:
        tree = {**TREE, "db": database, "policy": "thrifty"}
        async with run_proxy(upstream.port, **tree) as one, run_proxy(upstream.port, **tree) as other:
            first = Agent(one, (b"x-session-id: a",))
            await first.say("Hello")
            first.brings("It is there.")
            await first.say()
            copy = Agent(other, (b"x-session-id: b",), messages=list(first.messages))
            for proxy in (other, one, other, one):
                copy.proxy = proxy
                assert (await copy.say("Another way")).session == "a"
                assert (await first.say("And?")).session == "a"
    branches = await execute(database, "SELECT session, kind FROM branches")
    assert sorted(branches) == [("a", "fork"), ("a", "main")]


async def test_replicas_agree_on_the_session_of_a_client_that_rewords_answers(database: str) -> None:
    """Each replica knew only what the client had made of its own answers: a session for each, with edits of its own."""
    answers = [make_calls((f"call_7dhe2{n}", "read"), text=f"I look at file {n}.", path=f"{n}.py") for n in range(8)]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Find the fault."}]
    sessions = []
    async with run_upstream(ScriptedModel(*answers)) as upstream:
        tree = {**TREE, "db": database, "policy": "thrifty"}
        async with run_proxy(upstream.port, **tree) as one, run_proxy(upstream.port, **tree) as other:
            for n, answer in enumerate(answers):
                proxy = one if n % 2 == 0 else other
                sessions.append((await proxy.post({"model": "m", "messages": messages})).session)
                result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "Nothing."}
                messages += [answer | {"content": None}, result]
    assert len(set(sessions[2:])) == 1, "known by all once one replica has seen its own answer again"


async def test_each_replica_shows_what_another_has_edited(database: str) -> None:
    model = Model()
    async with run_upstream(model) as upstream:
        tree = {**TREE, "db": database, "policy": "thrifty"}
        async with run_proxy(upstream.port, **tree) as one, run_proxy(upstream.port, **tree) as other:
            client = Client(1, stream=False, named=True)
            for _ in range(2):
                await client.turn(one.port)
            for _ in range(TURNS):
                await client.turn(other.port)
            ((tenant, session),) = await execute(database, "SELECT tenant, session FROM sessions")
            first, second = [
                await session_stats.compute_stats(proxy.app.services, str(tenant), str(session))
                for proxy in (one, other)
            ]
    assert second.shortened > 0
    assert (first.shortened, first.sent) == (second.shortened, second.sent)


async def test_requests_that_several_replicas_answer_at_once_agree_on_their_edits(database: str) -> None:
    model = Model()
    async with run_upstream(model) as upstream:
        tree = {**TREE, "db": database, "upstream": f"http://127.0.0.1:{upstream.port}/v1", "policy": "thrifty"}
        async with fleet(3, **tree) as proxies:
            client, _ = clients(stream=False)
            for _ in range(TURNS):
                await client.turn(proxies.port)
                answer = client.messages.pop()
                # The same again at once, on all replicas, as clients do that have waited too long.
                again = b"x-stainless-retry-count: 1"
                await asyncio.gather(*(client.again(proxies.port, again) for _ in range(3)))
                client.messages.append(answer)
    assert await execute(database, "SELECT kind, count(*) FROM branches GROUP BY kind") == [("main", 1)]
    assert (await execute(database, "SELECT count(*) FROM edits"))[0][0]
    twice = "SELECT 1 FROM edits GROUP BY branch, key HAVING count(*) > 1"
    assert await execute(database, twice) == [], "nothing was decided again"
    forms: dict[str, set[str]] = {}
    for body in model.received:
        for message in json.loads(body)["messages"]:
            if message["role"] == "tool":
                text = message["content"].removesuffix("\n\n" + ask_for_state())  # it moves along with the tail
                forms.setdefault(message["tool_call_id"], set()).add(text)
    assert max(map(len, forms.values())) == 2, "as it came, and as it was shortened once"
