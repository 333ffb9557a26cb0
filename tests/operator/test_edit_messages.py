"""The upstream gets the prompt as the operator decided it, in every policy, whenever the agent resends all it has."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from proxy.errors import Conflict, NotFound, StoreUnavailable, Unprocessable
from proxy.operator import edit_messages, show
from proxy.store.reads import Store
from tests.operator.agent import POLICIES, RunningConversation, find_messages, list_group_messages, run_conversation
from tests.proxy_server import run_proxy
from tests.raw_upstream import run_upstream


@pytest.mark.parametrize("policy", POLICIES)
async def test_d7_a_dropped_group_is_out_until_it_is_restored(policy: str) -> None:
    async with run_conversation(policy) as talk:
        first = (await talk.groups())[0]
        changed = await edit_messages.drop(talk.parts, talk.tenant, "s", [first])
        assert changed.groups == [first]
        for _ in range(2):
            said = find_messages(await talk.ask())
            assert not said & list_group_messages(0)
            assert list_group_messages(1, 2) - said == set() or policy in ("progressive", "rolling")
        await edit_messages.restore(talk.parts, talk.tenant, "s", [first])
        for _ in range(2):
            assert list_group_messages(0) <= find_messages(await talk.ask())


@pytest.mark.parametrize("policy", POLICIES)
async def test_undone_messages_do_not_come_back_but_the_same_words_said_again_do(policy: str) -> None:
    async with run_conversation(policy) as talk:
        await edit_messages.undo(talk.parts, talk.tenant, "s")
        assert not find_messages(await talk.ask()) & list_group_messages(2)
        said = await talk.ask("Prompt number 2?")
        assert "prompt 2" in find_messages(said)
        assert not find_messages(said) & {"result 2", "answer 2"}
        await edit_messages.undo(talk.parts, talk.tenant, "s")  # the one just said
        await edit_messages.undo(talk.parts, talk.tenant, "s")  # "Go on."
        await edit_messages.undo(talk.parts, talk.tenant, "s")
        assert not find_messages(await talk.ask()) & list_group_messages(1, 2)


@pytest.mark.parametrize("policy", POLICIES)
async def test_removed_messages_are_gone_from_prompts_and_from_the_store(policy: str) -> None:
    async with run_conversation(policy) as talk:
        second = (await talk.groups())[1]
        await edit_messages.remove(talk.parts, talk.tenant, "s", [second])
        assert not find_messages(await talk.ask()) & list_group_messages(1)
        for table, column in (("messages", "body"), ("forms", "body"), ("edits", "text"), ("iterations", "body")):
            found = await talk.proxy.rows(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL")
            assert not any(b"number 1." in bytes(row[0]) for row in found), table
        with pytest.raises(Conflict):
            await edit_messages.restore(talk.parts, talk.tenant, "s", [second])
        assert not find_messages(await talk.ask()) & list_group_messages(1)
        shown = await show.preview_next_prompt(talk.parts, talk.tenant, "s")
        assert [m.status for m in shown.messages if m.group == second] == ["removed"] * 4


@pytest.mark.parametrize("policy", POLICIES)
async def test_decisions_outlive_a_restart(policy: str, tmp_path: Path) -> None:
    db = str(tmp_path / "store.sqlite3")
    async with run_conversation(policy, db=db) as talk:
        groups = await talk.groups()
        await edit_messages.drop(talk.parts, talk.tenant, "s", [groups[0]])
        tenant = talk.tenant
        async with run_upstream(talk.upstream) as upstream:
            await _restarted(talk, upstream.port, policy, db, tenant, groups)


async def _restarted(
    talk: RunningConversation, port: int, policy: str, db: str, tenant: str, groups: list[str]
) -> None:
    # The first process is idle, and gives up its store.
    await talk.proxy.app.store.close()
    async with run_proxy(port, policy=policy, db=db) as proxy:
        talk.proxy = talk.agent.proxy = proxy
        assert not find_messages(await talk.ask()) & list_group_messages(0)
        await edit_messages.undo(proxy.app.services, tenant, "s")
        await edit_messages.restore(proxy.app.services, tenant, "s", [groups[0]])
        said = find_messages(await talk.ask())
        assert list_group_messages(0) <= said


async def test_dropping_a_tool_result_drops_its_call_too() -> None:
    async with run_conversation("thrifty") as talk:
        shown = await show.preview_next_prompt(talk.parts, talk.tenant, "s")
        result = next(m for m in shown.messages if m.role == "tool")
        changed = await edit_messages.drop(talk.parts, talk.tenant, "s", [result.id])
        assert len(changed.messages) == 2
        assert find_messages(await talk.ask()) == list_group_messages(0, 1, 2) - {"result 0"}


async def test_an_edit_that_upstreams_would_refuse_is_refused_to_the_operator() -> None:
    async with run_conversation("thrifty") as talk:
        shown = await show.preview_next_prompt(talk.parts, talk.tenant, "s")
        answer = next(m for m in shown.messages if m.role == "assistant" and m.content["content"] == "Answer number 0.")
        with pytest.raises(Conflict, match="two messages would follow"):
            await edit_messages.drop(talk.parts, talk.tenant, "s", [answer.id])
        assert find_messages(await talk.ask()) == list_group_messages(0, 1, 2)


async def test_the_prompt_that_is_being_answered_is_not_touched() -> None:
    async with run_conversation("thrifty") as talk:
        talk.upstream.answers = [{"role": "assistant", "content": None, "tool_calls": [CALL]}, "Done."]
        await talk.agent.say("Prompt under way?")
        last = (await talk.groups())[-1]
        with pytest.raises(Conflict, match="never touched"):
            await edit_messages.drop(talk.parts, talk.tenant, "s", [last])
        await edit_messages.undo(talk.parts, talk.tenant, "s")
        talk.agent.brings("brought")
        await talk.agent.say()
        assert "Prompt under way?" in talk.upstream.texts()
        assert "Prompt under way?" not in await talk.ask()


CALL = {"id": "call_under_way", "type": "function", "function": {"name": "look", "arguments": "{}"}}


async def test_a_pin_keeps_a_message_as_it_is_until_it_is_taken_off() -> None:
    async with run_conversation("rolling") as talk:
        groups = await talk.groups()
        await edit_messages.pin(talk.parts, talk.tenant, "s", [groups[0]])
        said = [find_messages(await talk.ask(f"More {n}?")) for n in range(6)]
        assert list_group_messages(0) <= said[-1]
        assert not list_group_messages(1) & said[-1]
        await edit_messages.unpin(talk.parts, talk.tenant, "s", [groups[0]])
        assert list_group_messages(0) & find_messages(await talk.ask()) <= {"prompt 0"}, (
            "the first prompt stays in any case"
        )


async def test_a_branch_that_the_client_leaves_has_the_decisions_on_what_it_shares() -> None:
    async with run_conversation("thrifty") as talk:
        await edit_messages.drop(talk.parts, talk.tenant, "s", [(await talk.groups())[0]])
        del talk.agent.messages[-4:]
        said = find_messages(await talk.ask("Another way."))
        assert said == list_group_messages(1)


async def test_an_unknown_group_is_not_found() -> None:
    async with run_conversation("thrifty") as talk:
        parts, tenant = talk.parts, talk.tenant
        for place in ((tenant, "other"), ("stranger", "s")):
            with pytest.raises(NotFound):
                await edit_messages.drop(parts, *place, ["abcdefghij"])
        with pytest.raises(NotFound):
            await edit_messages.drop(parts, tenant, "s", ["abcdefghij"])
        with pytest.raises(NotFound):
            await edit_messages.drop(parts, tenant, "s", await talk.groups(), branch="none")
        with pytest.raises(Unprocessable):
            await edit_messages.drop(parts, tenant, "s", [])


async def test_a_branch_that_goes_out_as_it_comes_takes_no_decisions() -> None:
    async with run_conversation("thrifty") as talk:
        live = talk.parts.live_sessions.find_session(talk.tenant, "s")
        assert live is not None
        (branch,) = live.branches.values()
        branch.state = replace(branch.state, stopped="upstream_reject")
        with pytest.raises(Conflict, match="upstream_reject"):
            await edit_messages.drop(talk.parts, talk.tenant, "s", [(await talk.groups())[0]])


async def test_a_decision_that_cannot_be_stored_is_none() -> None:
    async with run_conversation("thrifty") as talk:
        first = (await talk.groups())[0]
        store = talk.parts.store
        talk.parts.store = cast("Store", _Away(store))
        with pytest.raises(StoreUnavailable):
            await edit_messages.drop(talk.parts, talk.tenant, "s", [first])
        talk.parts.store = store
        assert list_group_messages(0) <= find_messages(await talk.ask())


class _Away:
    """A store that still reads, and writes no more."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, rows: object) -> asyncio.Future[None]:
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused.set_exception(StoreUnavailable("the disk is full"))
        return refused
