"""An agent that tells its state of the moment in a last message, which is not in its next request: OpenClaw is one."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.exchange.hidden_calls import TOOLS, make_answer, make_client_call, make_proxy_call, run_proxy_with_tools
from tests.proxy_server import CHAT, Agent, RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, make_calls

Json = dict[str, Any]

ROWS = "\n".join(f"row {n} of the table has the value {n * n}" for n in range(250))
STATE = {"role": "user", "content": [{"type": "text", "text": "<state>\nActive commands: none\n</state>"}]}
STEPS = 12


def make_answers(count: int = STEPS, *, text: str | None = None) -> list[Json]:
    return [make_calls((f"call_{n:02}dq7{n}f", "read"), text=text, path=f"{n}.csv") for n in range(count)]


async def work(agent: Agent, count: int, state: Json = STATE, *, cleans_ids: bool = False) -> list[str]:
    """Take so many steps, each with the state behind its messages. Return the sessions of the answers. cleans_ids: the
    agent takes all but letters and digits out of the ids of calls, as OpenClaw does."""
    sessions = []
    for _ in range(count):
        found = await agent.send(messages=[*agent.messages, state])
        assert found.status == 200
        sessions.append(found.session)
        agent.messages.append(message := found.message)
        for call in message.get("tool_calls", ()):
            call["id"] = call["id"].replace("_", "") if cleans_ids else call["id"]
            agent.messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"{call['id']}\n{ROWS}"})
    return sessions


async def read_branches(proxy: RunningProxy) -> list[tuple[Any, ...]]:
    return await proxy.rows("SELECT DISTINCT session, branch FROM exchanges")


def make_task() -> list[Json]:
    return [{"role": "user", "content": "Add up the tables."}]


@pytest.mark.parametrize("text", [None, "I go on with the next table."])
@pytest.mark.parametrize("cleans_ids", [False, True])
async def test_the_conversation_stays_on_one_branch(cleans_ids: bool, text: str | None) -> None:
    answers = make_answers(text=text)
    async with run_upstream(ScriptedModel(*answers)) as upstream, run_proxy(upstream.port) as proxy:
        sessions = await work(Agent(proxy, messages=make_task()), STEPS, cleans_ids=cleans_ids)
        assert len(set(sessions)) == 1
        assert len(await read_branches(proxy)) == 1


async def test_its_old_results_are_shortened_and_stay_as_they_were_sent() -> None:
    model = ScriptedModel(*make_answers(30))
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        await work(Agent(proxy, messages=make_task()), 30)
    sent = [body["messages"][:-1] for body in model.chats]
    assert len(str(sent[-1])) < 0.7 * 30 * len(ROWS), "something is shortened"
    broken = sum(after[: len(before)] != before for before, after in pairwise(sent))
    assert broken < 8, "the provider's cache holds the most of nearly every prompt"


async def test_after_a_restart_it_goes_on_in_its_session(tmp_path: Path) -> None:
    db = str(tmp_path / "store.sqlite3")
    async with run_upstream(ScriptedModel(*make_answers())) as upstream:
        async with run_proxy(upstream.port, db=db) as proxy:
            agent = Agent(proxy, messages=make_task())
            before = await work(agent, 3)
        async with run_proxy(upstream.port, db=db) as proxy:
            agent.proxy = proxy
            assert set(await work(agent, 3)) == set(before)


async def test_a_last_message_that_stays_is_part_of_the_same_branch() -> None:
    async with run_upstream(ScriptedModel(*make_answers())) as upstream, run_proxy(upstream.port) as proxy:
        agent = Agent(proxy, messages=make_task())
        sessions = []
        for n in range(4):
            sessions += await work(agent, 1)
            found = await agent.say(f"And table {n}, please.")
            sessions.append(found.session)
            calls = found.message["tool_calls"]
            agent.messages += [{"role": "tool", "tool_call_id": c["id"], "content": ROWS} for c in calls]
        assert len(set(sessions)) == 1
        assert len(await read_branches(proxy)) == 1


async def test_two_conversations_alike_have_a_session_each() -> None:
    """Without a sign of their own, none of them gets the state of the other."""
    answers = [one for one in make_answers(4) for _ in range(2)]
    async with run_upstream(ScriptedModel(*answers)) as upstream, run_proxy(upstream.port) as proxy:
        agents = [Agent(proxy, messages=make_task(), more={"user": name}) for name in ("one", "two")]
        found: list[list[str]] = [[], []]
        for _ in range(4):
            for n, agent in enumerate(agents):
                found[n] += await work(agent, 1)
        assert [len(set(sessions)) for sessions in found] == [1, 1]
        assert found[0][0] != found[1][0]


@pytest.mark.parametrize("text", ["Yes.", "Done"])
async def test_a_short_answer_that_others_may_have_is_no_sign(text: str) -> None:
    async with run_upstream(ScriptedModel(text)) as upstream, run_proxy(upstream.port) as proxy:
        first = await Agent(proxy, messages=[*make_task(), STATE]).send()
        without = [*make_task(), first.message, {"role": "user", "content": "Go on."}]
        assert (await Agent(proxy, messages=without).send()).session != first.session


@pytest.mark.parametrize("restarted", [False, True])
async def test_what_the_model_has_recalled_stays_in_the_prompt(restarted: bool, tmp_path: Path) -> None:
    answers = [make_answer(None, make_proxy_call(1)), make_answer(None, make_client_call(1)), *make_answers(3)]
    model, db = ScriptedModel(*answers), str(tmp_path / "store.sqlite3")
    async with run_upstream(model) as upstream:
        async with run_proxy_with_tools(upstream.port, db=db) as proxy:
            agent = Agent(proxy, messages=make_task(), more={"tools": TOOLS})
            await work(agent, 1)
            if not restarted:
                await work(agent, 2)
        if restarted:
            async with run_proxy_with_tools(upstream.port, db=db) as proxy:
                agent.proxy = proxy
                await work(agent, 2)
    sent = [json.dumps(body["messages"]) for body in model.chats]
    assert all("zq-secret-1" in prompt for prompt in sent[1:])


async def test_another_credential_finds_nothing() -> None:
    async with run_upstream(ScriptedModel(*make_answers())) as upstream, run_proxy(upstream.port) as proxy:
        agent = Agent(proxy, messages=make_task())
        (mine,) = await work(agent, 1)
        other = await proxy.post({"model": "m", "messages": [*agent.messages, STATE]}, key="sk-two", path=CHAT)
        assert other.session != mine
