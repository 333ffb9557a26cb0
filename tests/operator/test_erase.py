from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.dialects.completions.request import ERASED_TEXT
from proxy.exchange.rebuild_prompt import rebuild_prompt
from proxy.operator import edit_messages, erase, show
from proxy.store.base import SessionRow
from tests.operator.agent import find_messages, list_group_messages, run_conversation
from tests.postgres import drop_database, new_store_database
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import STREAM, Connection, RawRequest, run_upstream
from tests.scripted_model import make_calls, make_events, send_completion
from tests.stores import TABLES

SECRET = "zanzibar"


@pytest.mark.parametrize("policy", ["thrifty", "reflective"])
async def test_every_form_of_what_is_removed_is_blank(policy: str) -> None:
    async with run_conversation(policy) as talk:
        # The client words it in another way, and once with blanks that no rule puts together again.
        talk.agent.messages[2] = talk.agent.messages[2] | {"content": [{"type": "text", "text": "Looking 0."}]}
        await talk.ask()
        body = {"model": "m", "messages": talk.agent.messages}
        await talk.proxy.post(json.dumps(body, indent=1).encode(), b"x-context-session: s")
        first = (await talk.groups())[0]
        await edit_messages.remove(talk.parts, talk.tenant, "s", [first])
        for table, column in (("messages", "body"), ("forms", "body"), ("edits", "text"), ("iterations", "body")):
            rows = await talk.proxy.rows(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL")
            for words in (b"number 0", b"Looking 0"):
                assert not any(words in bytes(row[0]) for row in rows), (table, words)
        hits = await talk.parts.store.search(talk.tenant, "s", "Looking number")
        assert hits
        assert not any("number 0" in hit.text or "Looking 0" in hit.text for hit in hits)


async def test_past_prompts_can_still_be_shown() -> None:
    async with run_conversation("thrifty") as talk:
        await edit_messages.drop(talk.parts, talk.tenant, "s", [(await talk.groups())[1]])
        await talk.ask()
        await edit_messages.remove(talk.parts, talk.tenant, "s", [(await talk.groups())[0]])
        for row in await talk.parts.store.read_exchanges(talk.tenant, "s", 100):
            shown = await show.read_past_prompt(talk.parts, talk.tenant, "s", row.exchange)
            assert "number 0" not in shown.body
            found = await rebuild_prompt(talk.parts.store, talk.tenant, "s", row.exchange)
            assert found is not None
            sent: list[dict[str, Any]] = json.loads(found.original_body)["messages"]
            assert sent[1] == {"role": "user", "content": ERASED_TEXT}
        await talk.ask()
        (newest,) = await talk.parts.store.read_exchanges(talk.tenant, "s", 1)
        past = await show.read_past_prompt(talk.parts, talk.tenant, "s", newest.exchange)
        assert json.loads(past.body)["messages"] == talk.upstream.last["messages"]


async def test_the_conversation_continues_after_memory_is_lost() -> None:
    async with run_conversation("rolling") as talk:
        await edit_messages.remove(talk.parts, talk.tenant, "s", [(await talk.groups())[0]])
        live = talk.parts.live_sessions.find_session(talk.tenant, "s")
        assert live is not None
        talk.parts.live_sessions.forget_session(live)
        before = await talk.parts.store.read_session(talk.tenant, "s")
        assert not find_messages(await talk.ask()) & list_group_messages(0)
        after = await talk.parts.store.read_session(talk.tenant, "s")
        assert before is not None
        assert after is not None
        assert len(after.branches) == len(before.branches)
        assert not any(b"number 0" in bytes(row[0]) for row in await talk.proxy.rows("SELECT body FROM messages"))


@pytest.fixture(params=["sqlite", "postgres"])
async def db(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "store.sqlite3")
        return
    url = await new_store_database(request.getfixturevalue("postgres"))
    yield url
    await drop_database(url)


class _Held:
    """A model that calls a tool of the proxy first where it is told to, and whose answer waits for `go`."""

    def __init__(self, *, streams: bool, calls: bool) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        self._streams, self._calls = streams, calls

    async def __call__(self, request: RawRequest, there: Connection) -> None:
        if self._calls:
            self._calls = False
            await send_completion(there, make_calls(("c1", "manage_scratchpad"), action="append", content=SECRET), None)
            return
        events = make_events({"role": "assistant", "content": f"I know {SECRET}"})
        if self._streams:
            await there.send(STREAM)
            for event in events[:2]:
                await there.chunk(event)
        self.reached.set()
        await self.go.wait()
        if not self._streams:
            await send_completion(there, {"role": "assistant", "content": f"I know {SECRET}"}, None)
            return
        for event in (*events[2:], b""):
            await there.chunk(event)


@pytest.mark.parametrize("at", ["answer", "stream", "round"])
async def test_nothing_of_a_session_is_left_that_was_deleted_while_it_was_answered(db: str, at: str) -> None:
    model = _Held(streams=at == "stream", calls=at == "round")
    tools = {"enabled": ["manage_scratchpad"], "offer": "first_request"}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, db=db, policy="thrifty", tools=tools) as proxy:
        agent = Agent(proxy, lines=(b"x-session-id: s",), stream=at == "stream")
        agent.more = {"tools": [{"type": "function", "function": {"name": "run", "parameters": {}}}]}
        waiting = asyncio.create_task(agent.say(f"Keep {SECRET}"))
        await model.reached.wait()
        ((tenant, _),) = await proxy.rows("SELECT tenant, session FROM sessions")
        assert (await erase.delete_session(proxy.app.services, tenant, "s")).verified
        model.go.set()
        assert SECRET in (await waiting).message["content"], "the client has its answer"
        await proxy.app.store.put([SessionRow(tenant, "other", True, 1.0)])
        for table in TABLES:
            left = await proxy.rows(f"SELECT count(*) FROM {table} WHERE session = 's'")
            assert left == [(0,)], table
        # Who goes on is stored whole again, and can be listed and deleted.
        await agent.say("Go on")
        assert await proxy.rows("SELECT count(*) FROM messages WHERE session = 's'") == [(4,)]
        assert ("s",) in await proxy.rows("SELECT session FROM sessions")
        assert (await erase.delete_session(proxy.app.services, tenant, "s")).verified
