"""Lengths of conversations: those of one agent say how long its next one may go on, and to nobody else."""

from __future__ import annotations

from typing import Any

from proxy.sessions.live import MAX_KINDS, MAX_LENGTHS, ConversationLengths
from tests.exchange.test_page_faults import asks
from tests.proxy_server import RunningProxy, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel


def test_tenants_and_tools_tell_kinds_apart() -> None:
    lengths = ConversationLengths()
    lengths.note_length("a", ["grep", "read"], "s1", 5)
    lengths.note_length("a", ["read", "grep"], "s2", 7)
    assert sorted(lengths.list_lengths("a", ["read", "grep"])) == [5, 7]
    assert lengths.list_lengths("a", ["read"]) == lengths.list_lengths("b", ["read", "grep"]) == ()


def test_of_a_session_the_longest_branch_counts_once() -> None:
    lengths = ConversationLengths()
    for length in (3, 9, 4):
        lengths.note_length("a", (), "s", length)
    assert lengths.list_lengths("a", ()) == (9,)


def test_kinds_and_conversations_are_bounded_and_the_last_used_stay() -> None:
    lengths = ConversationLengths()
    for n in range(MAX_LENGTHS + 5):
        lengths.note_length("a", (), f"s{n}", n + 1)
        lengths.note_length("a", (), "s0", 1)
    assert lengths.list_lengths("a", ()) == (*range(7, MAX_LENGTHS + 6), 1)
    for n in range(MAX_KINDS):
        lengths.note_length("b", [f"tool{n}"], "s", 1)
    assert lengths.list_lengths("a", ()) == ()


TOOLS = [{"type": "function", "function": {"name": "grep", "parameters": {"type": "object"}}}]


def make_answer(name: str, step: int) -> dict[str, Any]:
    """The call of one step of a task: longer than the stub of its result."""
    return asks("grep", step, pattern=f"{name}{step} " + "or else " * 60)


def make_history(name: str, steps: int) -> list[dict[str, Any]]:
    """A task of an agent after this many steps, with results that only this task has."""
    made: list[dict[str, Any]] = [{"role": "user", "content": f"Look for {name}"}]
    for step in range(steps):
        text = f"{name} {step}\n" + "nothing that was seen here is said again anywhere else\n" * 17
        made += [make_answer(name, step), {"role": "tool", "tool_call_id": f"c{step}", "content": text}]
    return made


async def count_steps_until_cut(proxy: RunningProxy, model: ScriptedModel, name: str, key: str) -> int:
    """Play a task; return the number of steps after which its prompt is shortened for the first time."""
    model.answers = [make_answer(name, step) for step in range(40)]
    for steps in range(40):
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
        assert early < await count_steps_until_cut(proxy, model, "next", "sk-two") / 2, "another tenant's task waits"
