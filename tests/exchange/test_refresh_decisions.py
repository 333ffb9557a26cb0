"""Whoever decides, and in whichever process: the next request has it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from proxy.errors import StoreUnavailable
from proxy.operator import edit_messages, session_settings
from proxy.sessions import load_sessions
from proxy.sessions.branch import LiveSession
from proxy.sessions.operator_decisions import SessionSettings, StoredDecisions
from tests.operator.agent import find_messages, list_group_messages, run_conversation
from tests.postgres import drop_database, new_store_database
from tests.proxy_server import run_proxy


async def test_decisions_of_another_process_are_read_where_the_store_is_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with run_conversation("thrifty") as talk:
        first = (await talk.groups())[0]
        live = talk.parts.live_sessions.find_session(talk.tenant, "s")
        assert live is not None
        await edit_messages.drop(talk.parts, talk.tenant, "s", [first])
        decided, live.stored_decisions = live.stored_decisions, StoredDecisions()  # as another process would have it
        assert list_group_messages(0) <= find_messages(await talk.ask())
        monkeypatch.setattr(talk.parts.store, "shared", True)  # as PostgreSQL is
        assert not find_messages(await talk.ask()) & list_group_messages(0)
        assert live.stored_decisions == decided


@pytest.mark.parametrize("policy", ["thrifty", "rolling", "passthrough"])
async def test_two_processes_on_one_database_apply_the_same_decisions(postgres: str, policy: str) -> None:
    db = await new_store_database(postgres)
    async with run_conversation(policy, db=db) as talk, run_proxy(talk.port, policy=policy, db=db) as other:
        parts = other.app.services
        groups = await talk.groups()
        await edit_messages.drop(parts, talk.tenant, "s", [groups[0]])
        assert not find_messages(await talk.ask()) & list_group_messages(0)
        await edit_messages.restore(parts, talk.tenant, "s", [groups[0]])
        await edit_messages.remove(parts, talk.tenant, "s", [groups[1]])
        said = find_messages(await talk.ask())
        assert list_group_messages(0) <= said
        assert not said & list_group_messages(1)
        await edit_messages.undo(parts, talk.tenant, "s")
        await session_settings.set_window(parts, talk.tenant, "s", 1)
        assert find_messages(await talk.ask()) == list_group_messages(0)
    await drop_database(db)


async def test_when_a_shared_store_is_away_known_decisions_stay_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_conversation("thrifty") as talk:
        await edit_messages.drop(talk.parts, talk.tenant, "s", [(await talk.groups())[0]])
        monkeypatch.setattr(talk.parts.store, "shared", True)  # as PostgreSQL is

        async def away(*_: object) -> StoredDecisions:
            raise StoreUnavailable("away")

        monkeypatch.setattr(load_sessions, "read_decisions", away)
        assert not find_messages(await talk.ask()) & list_group_messages(0)
        assert talk.proxy.count("internal_errors_total", where="operator_decisions") == 1


async def test_an_unnamed_new_session_is_not_looked_up() -> None:
    async with run_conversation("thrifty") as talk:
        live_session = LiveSession("t", "new", explicit=False)
        talk.parts.live_sessions.store = None  # type: ignore[assignment]  # any look at it fails
        assert (await load_sessions.refresh_decisions(talk.parts.live_sessions, live_session)).is_empty


async def test_a_live_session_gets_a_decision_at_once_and_a_stored_one_when_it_is_read(tmp_path: Path) -> None:
    async with run_conversation("thrifty", db=str(tmp_path / "s.sqlite3")) as talk:
        await session_settings.set_window(talk.parts, talk.tenant, "s", 1)
        live = talk.parts.live_sessions.find_session(talk.tenant, "s")
        assert live is not None
        assert live.stored_decisions == StoredDecisions(SessionSettings(window=1))
        talk.parts.live_sessions.forget_session(live)
        assert find_messages(await talk.ask()) == set()


async def test_a_one_time_request_for_state_is_made_once_even_with_two_concurrent_requests() -> None:
    async with run_conversation("thrifty") as talk:
        await session_settings.request_state(talk.parts, talk.tenant, "s")
        talk.agent.messages.append({"role": "user", "content": "Go on."})
        await asyncio.gather(talk.agent.send(), talk.agent.send())
        assert not (await session_settings.load_settings(talk.parts, talk.tenant, "s")).ask
        assert not any("End your answer" in text for text in await talk.ask("And?"))
