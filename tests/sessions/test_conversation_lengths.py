"""Lengths of conversations: those of one agent say how long its next one may go on, and to nobody else."""

from __future__ import annotations

import json
from typing import Any

from proxy.chat.message import Request
from proxy.dialects.completions.request import read_request
from proxy.sessions.agent_statistics import MAX_AGENTS, MAX_LENGTHS, KnownAgents
from tests.exchange.test_page_faults import asks
from tests.proxy_server import RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel


def make_request(*tools: str, system: str = "") -> Request:
    """The first request of an agent with these tools."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    defined = [{"type": "function", "function": {"name": name}} for name in tools]
    return read_request(json.dumps({"model": "m", "messages": messages, "tools": defined}).encode())


def test_tenants_and_tools_and_the_beginning_of_the_system_prompt_tell_agents_apart() -> None:
    agents = KnownAgents()
    agents.find("a", make_request("grep", "read")).note_length("s1", 5)
    agents.find("a", make_request("read", "grep")).note_length("s2", 7)
    assert sorted(agents.find("a", make_request("grep", "read")).list_lengths()) == [5, 7]
    assert agents.find("a", make_request("read")).list_lengths() == ()
    assert agents.find("b", make_request("grep", "read")).list_lengths() == ()
    assert agents.find("a", make_request("grep", "read", system="You play chess.")).list_lengths() == ()
    long = "You are an agent. " * 10
    agents.find("a", make_request("grep", system=long + "The folder is /one.")).note_length("s3", 9)
    assert agents.find("a", make_request("grep", system=long + "The folder is /two.")).list_lengths() == (9,)


def test_only_the_longest_branch_of_a_session_counts() -> None:
    agents = KnownAgents()
    for length in (3, 9, 4):
        agents.find("a", make_request()).note_length("s", length)
    assert agents.find("a", make_request()).list_lengths() == (9,)


def test_agents_and_conversations_are_bounded_and_the_last_used_stay() -> None:
    agents = KnownAgents()
    for n in range(MAX_LENGTHS + 5):
        agents.find("a", make_request()).note_length(f"s{n}", n + 1)
        agents.find("a", make_request()).note_length("s0", 1)
    assert agents.find("a", make_request()).list_lengths() == (*range(7, MAX_LENGTHS + 6), 1)
    for n in range(MAX_AGENTS):
        agents.find("b", make_request(f"tool{n}")).note_length("s", 1)
    assert agents.find("a", make_request()).list_lengths() == ()


TOOLS = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}]


def make_answer(name: str, step: int) -> dict[str, Any]:
    """The call of one step of a task. Files are not shortened before they are 18 steps old."""
    return asks("read_file", step, path=f"{name}{step}.txt", why="or else " * 100)


def make_history(name: str, steps: int) -> list[dict[str, Any]]:
    """A task of an agent after this many steps, with results that only this task has."""
    made: list[dict[str, Any]] = [{"role": "user", "content": f"Look for {name}"}]
    for step in range(steps):
        text = f"{name} {step}\n" + "nothing that was seen here is said again anywhere else\n" * 60
        made += [make_answer(name, step), {"role": "tool", "tool_call_id": f"c{step}", "content": text}]
    return made


async def count_steps_until_cut(proxy: RunningProxy, model: ScriptedModel, name: str, key: str) -> int:
    """Play a task; return the number of steps after which its prompt is shortened for the first time."""
    model.answers = [make_answer(name, step) for step in range(80)]
    for steps in range(80):
        await send_history(proxy, name, steps, key)
        if "[shortened: " in str(model.last["messages"]):
            return steps
    raise AssertionError("the task was never shortened")


async def send_history(proxy: RunningProxy, name: str, steps: int, key: str) -> None:
    body = {"model": "replay", "messages": make_history(name, steps), "tools": TOOLS}
    assert (await proxy.post(body, key=key)).status == 200


async def test_an_agent_whose_tasks_were_long_has_its_next_one_shortened_earlier() -> None:
    model = ScriptedModel()
    model.usage = {}  # none is reported, so that the proxy's own prediction of the cache stands
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        for key in ("sk-one", "sk-two"):  # from its second task on, an agent has the tools that come with edits
            await count_steps_until_cut(proxy, model, "first", key)
        for n in range(3):
            await send_history(proxy, f"long{n}", 200, "sk-one")
        early = await count_steps_until_cut(proxy, model, "next", "sk-one")
        assert early < await count_steps_until_cut(proxy, model, "next", "sk-two"), "another tenant's task waits"
