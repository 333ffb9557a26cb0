from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.exchange.exchange_rows import MessageForms, SentTexts
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, make_calls

SYSTEM = {"role": "system", "content": "Be."}


async def counts(proxy: RunningProxy) -> dict[str, int]:
    tables = ("sessions", "branches", "messages", "forms", "edits", "exchanges")
    found = await proxy.rows("SELECT " + ", ".join(f"(SELECT count(*) FROM {table})" for table in tables))
    return dict(zip(tables, found[0], strict=True))


@pytest.mark.parametrize("stream", [False, True])
async def test_every_message_is_stored_once_in_order_and_as_received(stream: bool) -> None:
    step = make_calls(("call_abcdef01", "look"), path="ä.txt")
    async with run_upstream(ScriptedModel(step, "Done.", "Fine.")) as upstream, run_proxy(upstream.port) as proxy:
        agent = Agent(proxy, stream=stream, messages=[SYSTEM])
        await agent.say("Look")
        agent.brings("It is there.")
        await agent.say()
        await agent.say("Thanks")
        rows = await proxy.rows(
            "SELECT seq, position, role, status, answer, reached, call_id, body FROM messages ORDER BY seq"
        )
    told = [(seq, position, role, status, answer, reached) for seq, position, role, status, answer, reached, *_ in rows]
    assert told == [
        (1, 0, "user", "completed", 0, 0),
        (2, 1, "assistant", "tool_call", 1, 1),
        (3, 2, "tool", "completed", 0, 1),
        (4, 3, "assistant", "completed", 1, 1),
        (5, 4, "user", "completed", 0, 1),
        (6, 5, "assistant", "completed", 1, 1),
    ]
    bodies = [json.loads(row[-1]) for row in rows]
    assert [b["content"] for b in bodies[2:]] == ["It is there.", "Done.", "Thanks", "Fine."]
    assert bodies[1]["tool_calls"] == step["tool_calls"]
    assert rows[2][-2] == "call_abcdef01"


async def test_messages_of_one_prompt_share_a_group() -> None:
    step = make_calls(("call_abcdef01", "look"))
    async with run_upstream(ScriptedModel(step, "Done.", "Fine.")) as upstream, run_proxy(upstream.port) as proxy:
        agent = Agent(proxy, messages=[SYSTEM])
        await agent.say("Look")
        agent.brings("It is there.")
        await agent.say()
        await agent.say("Thanks")
        groups = [group for (group,) in await proxy.rows("SELECT group_id FROM messages ORDER BY seq")]
    assert groups == [groups[0]] * 4 + [groups[4]] * 2
    assert groups[0] != groups[4]


async def test_an_envelope_and_a_system_prompt_are_stored_once_while_they_stay_the_same() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    async with run_upstream(ScriptedModel("One.")) as upstream, run_proxy(upstream.port) as proxy:
        agent = Agent(proxy, messages=[SYSTEM], more={"tools": tools, "temperature": 0.5})
        for n in range(5):
            await agent.say(f"Remark {n}")
        before = (await counts(proxy))["forms"]
        await agent.say("Another", temperature=0.7)
        after = (await counts(proxy))["forms"]
    assert after == before + 1


async def test_a_fork_stores_only_its_new_messages() -> None:
    async with (
        run_upstream(ScriptedModel(*(f"Answer {n}." for n in range(20)))) as upstream,
        run_proxy(upstream.port) as proxy,
    ):
        agent = Agent(proxy)
        for n in range(5):
            await agent.say(f"Remark {n}")
        before = await counts(proxy)
        branch = Agent(proxy, messages=agent.messages[:8])
        await branch.say("Something else")
        after = await counts(proxy)
    assert after["messages"] == before["messages"] + 2
    assert after["branches"] == before["branches"] + 1


async def test_a_request_sent_again_stores_no_message_again() -> None:
    async with run_upstream(ScriptedModel("One.")) as upstream, run_proxy(upstream.port) as proxy:
        agent = Agent(proxy, (b"x-session-id: s",), messages=[SYSTEM])
        await agent.say("Hello")
        agent.messages.pop()
        for _ in range(5):
            await agent.send(b"x-stainless-retry-count: 1")
        found = await counts(proxy)
    assert (found["messages"], found["exchanges"], found["branches"]) == (2, 6, 1)


async def measure_store(folder: Path, steps: int, *, stream: bool, policy: str) -> tuple[int, int]:
    """(bytes of the file, bytes of the messages) after an agent has made so many steps."""
    db = folder / f"{steps}.sqlite3"
    text = "\n".join(f"line {n} of a result that is not long" for n in range(25))
    model = ScriptedModel(*(make_calls((f"call_{n:09}", "look"), text=f"Step {n}.", at=n) for n in range(steps + 1)))
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy=policy, db=str(db)) as proxy:
        agent = Agent(proxy, (b"x-session-id: s",), stream=stream, messages=[SYSTEM])
        await agent.say("Look at all of it")
        for n in range(steps):
            agent.brings(f"{n}\n{text}")
            await agent.say()
        found = await counts(proxy)
        assert found["messages"] == 2 * steps + 2
    return db.stat().st_size, len(json.dumps(agent.messages))


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("policy", ["thrifty", "passthrough"])
async def test_the_file_grows_with_the_conversation_and_not_with_its_square(
    tmp_path: Path, policy: str, stream: bool
) -> None:
    small, _ = await measure_store(tmp_path, 100, stream=stream, policy=policy)
    large, content = await measure_store(tmp_path, 200, stream=stream, policy=policy)
    print(f"\n{policy}, stream {stream}: {small} bytes at 100 steps, {large} at 200, of which {content} are messages")
    assert large < 2.2 * small
    # What an empty file has of tables and indexes is in both.
    assert large - small < 4 * content / 2


def test_the_stored_forms_of_an_exchange_are_small_and_can_be_read_back() -> None:
    forms = MessageForms(system=[(0, "aa")], other=[(3, "bb")], whole="cc")
    assert msgspec.json.decode(msgspec.json.encode(forms), type=MessageForms) == forms
    assert msgspec.json.encode(MessageForms()) == b"{}"
    sent: Any = SentTexts(inserts=[(4, "tail", "dd")], usage=True)
    assert msgspec.json.decode(msgspec.json.encode(sent), type=SentTexts) == sent


async def test_messages_that_the_store_has_lost_are_stored_again_although_the_history_is_known() -> None:
    """A large body is known by its beginning, but what of it is stored is known of this session's memory alone."""
    async with (
        run_upstream(ScriptedModel(*(f"Answer {n}." for n in range(9)))) as upstream,
        run_proxy(upstream.port) as proxy,
    ):
        agent = Agent(proxy, messages=[SYSTEM])
        name = b"x-context-session: mine"
        await agent.say("Look at this: " + "word " * 4000, name)
        await agent.say("And this", name)
        tenant = (await proxy.rows("SELECT tenant FROM sessions"))[0][0]
        branches = proxy.app.services.live_sessions
        live_session = branches.find_session(tenant, "mine")
        assert live_session is not None
        await proxy.app.store.delete_session(tenant, "mine")
        branches.forget_session(live_session)
        await agent.say("Go on", name)
        told = [text for (text,) in await proxy.rows("SELECT body FROM messages ORDER BY seq")]
    assert [json.loads(raw)["role"] for raw in told] == ["user", "assistant"] * 3


async def test_a_session_whose_row_is_missing_gets_one_with_its_next_request(tmp_path: Path) -> None:
    """Earlier versions left such sessions behind a deletion in the middle of a request: no list had them."""
    path = tmp_path / "db"
    async with run_upstream(ScriptedModel("Well.")) as upstream:
        async with run_proxy(upstream.port, db=str(path)) as proxy:
            agent = Agent(proxy, lines=(b"x-session-id: mine",))
            await agent.say("Hello")
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DELETE FROM sessions")
        async with run_proxy(upstream.port, db=str(path)) as proxy:
            agent.proxy = proxy
            await agent.say("Go on")
            assert await proxy.rows("SELECT session FROM sessions") == [("mine",)]
            assert await proxy.rows("SELECT count(*) FROM messages") == [(4,)]
