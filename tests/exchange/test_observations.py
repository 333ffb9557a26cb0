"""Agents whose results are written as user text, through the running proxy: nothing is configured for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel

TASK = "New task:\nFind the largest file of the project and say why it is so large."
LONG = "\n".join(f"{n} bytes in src/module_{n}.py" for n in range(300))


def acting() -> ScriptedModel:
    """A model that acts in text, as smolagents' CodeAgent has it."""
    thought = "Thought: I look at part {n}.\n<code>\nprint(sizes({n}))\n</code>"
    return ScriptedModel(*[thought.format(n=n) for n in range(60)])


async def works(agent: Agent, rounds: int) -> None:
    await agent.say(TASK)
    for n in range(rounds):
        await agent.say(f"Observation:\nExecution logs:\npart {n}\n{LONG}")


async def test_the_task_stays_under_rolling_and_observations_are_not_groups() -> None:
    model = acting()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",), messages=[{"role": "system", "content": "Be exact."}])
        await works(agent, 12)
        sent = model.last["messages"]
        assert sent[1]["content"] == TASK
        assert len(sent) == len(agent.messages) - 1, "one group, all of it in the window"
        assert "[TRUNCATED." in sent[3]["content"]
        ids = await proxy.rows("SELECT DISTINCT group_id FROM messages")
        assert len(ids) == 1


async def test_thrifty_shortens_observations_as_results() -> None:
    model = acting()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        await works(agent, 30)
        sent = model.last["messages"]
        assert [m["role"] for m in sent] == [m["role"] for m in agent.messages[:-1]]
        assert sent[0]["content"] == TASK
        short = [m for m in sent[1:-1] if m["role"] == "user" and LONG not in m["content"]]
        assert len(short) > 10
        assert {f for *_, f in await proxy.outcomes()} == {None}
        assert len(str(sent)) < 0.6 * len(str(agent.messages))


@pytest.mark.parametrize("policy", ["thrifty", "hierarchical"])
@pytest.mark.parametrize(
    "wrapper",
    ["Observation:\n", "**Observation:**\n\n", "Observation: {\n", "Observation:\nExecution logs:\n", "Observation: "],
)
async def test_the_label_of_an_observation_is_not_what_it_said(policy: str, wrapper: str) -> None:
    model, rows = acting(), "\n".join(LONG.splitlines()[:60])
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy=policy) as proxy:
        agent = Agent(proxy, (b"x-context-session: a",))
        await agent.say(TASK)
        for n in range(30):
            await agent.say(f"{wrapper}part {n} of the sizes\n{rows}")
        texts = [m["content"] for m in model.last["messages"]]
        short = [t for t in texts if t.startswith(("[shortened: ", "[extract of ", "[summary of "))]
        assert short
        for text in short:
            told = [row for row in text.splitlines()[1:] if row.startswith("- ")] or [text]
            assert any("of the sizes" in row for row in told), text
            assert not any(row.startswith("- Observation") for row in told) or wrapper == "Observation: ", text
        assert {f for *_, f in await proxy.outcomes()} == {None}


@pytest.mark.parametrize(
    "policy", ["thrifty", "rolling", "chat", "importance", "summarize", "progressive", "reflective", "hierarchical"]
)
async def test_the_task_stays_in_every_policy(policy: str, tmp_path: Path) -> None:
    model = acting()
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy=policy, models_file=small(tmp_path)) as proxy,
    ):
        agent = Agent(proxy, (b"x-context-session: a",))
        await agent.say(TASK)
        for n in range(40):
            await agent.say(f"Observation:\npart {n}\n" + "\n".join(f"{n} bytes in {k}.py" for k in range(40)))
        sent = model.last["messages"]
        assert sent[0]["content"].startswith(TASK)
        assert len(str(sent)) < 0.9 * len(str(agent.messages)) or policy == "reflective", "something has left"
        assert {f for *_, f in await proxy.outcomes()} == {None}


@pytest.mark.parametrize("policy", ["thrifty", "rolling", "chat", "hierarchical"])
async def test_the_first_prompt_of_a_long_talk_stays(policy: str, tmp_path: Path) -> None:
    model = ScriptedModel("Yes. " * 100)
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy=policy, models_file=small(tmp_path)) as proxy,
    ):
        agent = Agent(proxy, (b"x-context-session: a",))
        await agent.say(TASK)
        for n in range(40):
            await agent.say(f"{n}: " + "tell me more of it, please. " * 10)
        sent = model.last["messages"]
        assert sent[0]["content"].startswith(TASK)
        assert len(sent) < 81
        assert {f for *_, f in await proxy.outcomes()} == {None}


def small(folder: Path) -> str:
    """A models file in which the model has a small window."""
    path = folder / "models"
    path.write_text("[models.m]\nwindow = 6000\n")
    return str(path)
