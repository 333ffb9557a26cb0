from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import StoredPartMissing
from proxy.exchange.rebuild_prompt import rebuild_prompt
from tests.exchange.long_results import LONG
from tests.failing_store import FailingStore, use_store
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.recorded import record
from tests.recorded.play import model_on_a_socket, read, turns
from tests.scripted_model import ScriptedModel, make_calls, send_reply

BLOCK = "### STATE\nGoal: go on\nContext: as before"


async def assert_all_rebuilt(proxy: RunningProxy, came: list[bytes], sent: list[bytes]) -> None:
    """Each exchange gives the body that the client sent, and the one that upstream got last for it."""
    rows = await proxy.rows("SELECT tenant, session, exchange FROM exchanges ORDER BY started_at, rowid")
    assert len(rows) == len(came) == len(sent)
    for row, original, outgoing in zip(rows, came, sent, strict=True):
        found = await rebuild_prompt(proxy.app.store, *row)
        assert found is not None
        assert found.original_body == original
        assert found.sent_body == outgoing


@pytest.mark.slow
@pytest.mark.parametrize("header", [(), (b"x-session-id: s",)])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("policy", ["thrifty", "rolling", "observe", "passthrough"])
async def test_every_prompt_of_a_conversation_can_be_built_again(
    policy: str, stream: bool, header: tuple[bytes, ...]
) -> None:
    conversation = read(record.FOLDER / "side-by-side.jsonl")[0]
    came: list[bytes] = []
    async with model_on_a_socket(state=True) as (model, upstream), run_proxy(upstream.port, policy=policy) as proxy:
        for history, recorded in turns(conversation):
            body = {"model": "m", "messages": history, "tools": conversation["tools"], "stream": stream}
            came.append(json.dumps(body, separators=(",", ":") if len(history) % 3 else None).encode())
            model.answer = recorded
            assert (await proxy.post(came[-1], *header)).status == 200
        await assert_all_rebuilt(proxy, came, model.bodies)


async def test_prompts_of_each_branch_are_rebuilt_after_a_restart(tmp_path: Path) -> None:
    db = str(tmp_path / "store.sqlite3")
    model = ScriptedModel(*(make_calls((f"call_{n:09}", "look"), text=f"Step {n}.", at=n) for n in range(200)))
    came: list[bytes] = []

    async def say(agent: Agent, *contents: str) -> None:
        agent.brings(*contents)
        await ask(agent)

    async def ask(agent: Agent) -> None:
        came.append(json.dumps({"model": "m", "messages": agent.messages, "stream": True}).encode())
        agent.messages.append((await agent.proxy.post(came[-1])).message)

    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, policy="rolling", db=db) as proxy:
            agent = Agent(proxy, messages=[{"role": "system", "content": "Be."}, {"role": "user", "content": "Look"}])
            await ask(agent)
            for _ in range(12):
                await say(agent, LONG)
            branch = Agent(proxy, messages=[*agent.messages[:8], {"role": "user", "content": "Stop."}])
            await ask(branch)
        async with run_proxy(upstream.port, policy="rolling", db=db) as proxy:
            agent.proxy = branch.proxy = proxy
            await say(agent, LONG)
            await say(branch, "short")
            # The client writes an old answer in another way, puts a system message in, and takes both back.
            kept = list(agent.messages)
            agent.messages[2] = agent.messages[2] | {"content": [{"type": "text", "text": "Step 0."}]}
            agent.messages.insert(1, {"role": "system", "content": "Note."})
            await say(agent, LONG)
            agent.messages = [*kept, *agent.messages[len(kept) + 1 :]]
            await say(agent, LONG)
            assert await proxy.rows("SELECT count(*) FROM branches") == [(2,)]
            await assert_all_rebuilt(proxy, came, [r.body for r in model.received])


async def test_the_prompt_that_was_finally_sent_is_rebuilt() -> None:
    model = ScriptedModel("Well.\n\n" + BLOCK)
    bodies: list[bytes] = []

    async def picky(request: RawRequest, connection: Connection) -> None:
        bodies.append(request.body)
        if b"## Global Anchor" in request.body:
            bodies.pop()
            await send_reply(connection, b"400 Bad", b"{}", b"content-type: application/json")
        else:
            await model(request, connection)

    came: list[bytes] = []
    async with run_upstream(picky) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        agent = Agent(proxy, (b"x-session-id: s",), messages=[{"role": "system", "content": "Be."}])
        for text in ("One", "Two", "Three"):
            agent.messages.append({"role": "user", "content": text})
            came.append(json.dumps({"model": "m", "messages": agent.messages}).encode())
            agent.messages.append((await proxy.post(came[-1], *agent.lines)).message)
        await assert_all_rebuilt(proxy, came, bodies)
        assert [row[2] for row in await proxy.outcomes()] == [None, "upstream_reject", None]


async def test_edits_that_could_not_be_stored_in_time_are_not_in_the_prompt() -> None:
    model, store = ScriptedModel(*(make_calls((f"call_{n:09}", "look"), at=n) for n in range(200))), FailingStore()
    tree: dict[str, Any] = {"policy": "thrifty", "limits": {"commit_wait_ms": 10}}
    came: list[bytes] = []
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree, before=use_store(store)) as proxy:
        agent = Agent(proxy, (b"x-session-id: s",), messages=[{"role": "user", "content": "Look"}])
        for n in range(70):
            store.hold = n < 55
            if n == 55:
                store.release()
            came.append(json.dumps({"model": "m", "messages": agent.messages}).encode())
            agent.messages.append((await proxy.post(came[-1], *agent.lines)).message)
            agent.brings(LONG)
        assert proxy.count("replans_total", reason="edits_not_stored") > 0
        assert any(LONG not in json.loads(model.received[-1].body)["messages"][n]["content"] for n in range(2, 40, 2))
        await assert_all_rebuilt(proxy, came, [r.body for r in model.received])


async def test_missing_parts_of_a_past_prompt_are_reported() -> None:
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port) as proxy:
        agent = Agent(proxy, stream=True)
        for text in ("One", "Two", "Three"):
            await agent.say(text)
        rows = await proxy.rows("SELECT tenant, session, exchange FROM exchanges ORDER BY started_at")
        tenant, session, last = rows[-1]
        assert await rebuild_prompt(proxy.app.store, tenant, session, "nobody's") is None
        assert await rebuild_prompt(proxy.app.store, tenant, "another", last) is None
        assert await rebuild_prompt(proxy.app.store, "another", session, last) is None
        store: Any = proxy.app.store
        store._connection.execute("DELETE FROM exchanges WHERE exchange = ?", (rows[1][2],))
        with pytest.raises(StoredPartMissing, match=rows[1][2]):
            await rebuild_prompt(proxy.app.store, tenant, session, last)
        store._connection.execute("DELETE FROM messages WHERE position = 1")
        with pytest.raises(StoredPartMissing):
            await rebuild_prompt(proxy.app.store, tenant, session, last)
