"""Conversations read back out of a real SQLite file that the running proxy has written."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from proxy.context.models import Model
from proxy.errors import ConfigError
from proxy.replay import stored
from proxy.replay.play import Contender, ReplaySettings, play_conversation
from proxy.replay.read import RecordedConversation
from proxy.store.in_memory import InMemoryStore
from proxy.store.readonly import ReadOnlyStore
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.replay.recorded import user
from tests.scripted_model import ScriptedModel, make_calls

TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
MATCH = ReplaySettings((Contender("nothing"),), Model(tokenizer="estimate"), ((1.25, 0.1),))


async def read_stored_branches(file: Path, *names: str) -> list[RecordedConversation]:
    store = ReadOnlyStore(file)
    await store.open()
    try:
        return [
            one
            for place in await stored.find_sessions(store, names)
            async for one in stored.read_branches(store, place, "db")
        ]
    finally:
        await store.close()


def history(one: RecordedConversation) -> list[dict[str, Any]]:
    return [json.loads(raw) for raw in one.messages]


async def test_a_branch_is_what_its_client_sent_and_the_answer_that_followed(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite3"
    model = ScriptedModel(make_calls(("c1", "read"), path="src/a.py"), "It says 31337.", "You are welcome.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, db=str(file), policy="thrifty") as proxy:
        agent = Agent(proxy, (b"x-context-session: mine",), more={"tools": TOOLS})
        agent.messages.append({"role": "system", "content": "You read."})
        await agent.say("What does src/a.py say?")
        agent.brings("src/a.py says 31337")
        await agent.say()
        await agent.say("Thanks.")
        reading = await read_stored_branches(file)  # the proxy still serves from it
    (one,) = reading
    assert one == (await read_stored_branches(file, "mine"))[0]
    assert one.id.startswith("mine/")
    assert history(one)[:4] == agent.messages[:4]
    assert [m["role"] for m in history(one)] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    assert history(one)[-1]["content"] == "You are welcome."
    assert one.tools is not None
    assert json.loads(one.tools) == TOOLS
    assert one.model == "m"
    assert list(one.times) == sorted(one.times)
    assert one.times[0] > 1e9
    assert (one.shared_messages, play_conversation(one, MATCH).totals[0].requests) == (0, 3)


async def test_a_branch_counts_its_own_requests_alone(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite3"
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port, db=str(file)) as proxy:
        agent = Agent(proxy, (b"x-context-session: mine",))
        for text in ("one", "two", "three"):
            await agent.say(text)
        branch = Agent(proxy, agent.lines, messages=agent.messages[:4])
        await branch.say("something else")
    main, fork = await read_stored_branches(file)
    assert (main.shared_messages, fork.shared_messages) == (0, 4)
    assert history(fork)[:-1] == [*agent.messages[:4], user("something else")]
    assert [play_conversation(one, MATCH).totals[0].requests for one in (main, fork)] == [3, 1]


async def test_sessions_are_found_by_their_names_and_a_wrong_name_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "store.sqlite3"
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port, db=str(file)) as proxy:
        for name in (b"a", b"b"):
            await Agent(proxy, (b"x-context-session: " + name,)).say("hello " + name.decode())
    assert [one.id[0] for one in await read_stored_branches(file)] == ["a", "b"]
    assert [one.id[0] for one in await read_stored_branches(file, "b")] == ["b"]
    with pytest.raises(ConfigError, match="a session in the store"):
        await read_stored_branches(file, "b", "c")


async def test_an_empty_store_has_no_conversations() -> None:
    store = InMemoryStore()
    await store.open()
    assert await stored.find_sessions(store, ()) == []
    with pytest.raises(ConfigError, match="which is empty"):
        await stored.find_sessions(store, ("a",))
    assert [one async for one in stored.read_branches(store, ("t", "s"), "db")] == []
    await store.close()


async def test_a_branch_of_which_a_part_is_missing_is_left_out(tmp_path: Path) -> None:

    file = tmp_path / "store.sqlite3"
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port, db=str(file)) as proxy:
        for name in (b"a", b"b"):
            await Agent(proxy, (b"x-context-session: " + name,)).say("hello")
    with sqlite3.connect(file) as connection:
        connection.execute("DELETE FROM forms WHERE session = 'a'")
    connection.close()
    assert [one.id[0] for one in await read_stored_branches(file)] == ["b"]


async def test_many_exchanges_are_read_by_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "PAGE_SIZE", 2)
    file = tmp_path / "store.sqlite3"
    async with run_upstream(ScriptedModel()) as upstream, run_proxy(upstream.port, db=str(file)) as proxy:
        agent = Agent(proxy, (b"x-context-session: mine",))
        for n in range(3):
            await agent.say(f"{n}")
        side = Agent(proxy, agent.lines)
        side.messages.append({"role": "system", "content": "Make a title."})
        for n in range(4):
            await side.say(f"{n} {n}")
    assert [len(one.messages) for one in await read_stored_branches(file)] == [6, 9]
