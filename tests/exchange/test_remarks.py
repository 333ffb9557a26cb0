"""A remark stands for groups that have left a prompt: once, in the same place, in the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.context import validate
from proxy.context.models import Model
from proxy.context.policy import GAP_REMARK
from proxy.dialects.completions.request import read_request
from tests.exchange.test_literal import assert_rebuilt_as_sent
from tests.proxy_server import Agent, run_proxy
from tests.raw_upstream import run_upstream
from tests.scripted_model import ScriptedModel, make_calls

NAMED = (b"x-context-session: a",)
LONG = "plain words of a long result " * 16


def small(folder: Path, **more: Any) -> str:
    path = folder / "models"
    path.write_text("[models.m]\nwindow = 2000\n" + "".join(f"{name} = {value}\n" for name, value in more.items()))
    return str(path)


def remarks(body: dict[str, Any]) -> list[int]:
    """The indexes of the messages with a remark."""
    return [n for n, m in enumerate(body["messages"]) if GAP_REMARK in (m.get("content") or "")]


async def test_rolling_keeps_the_promise_of_its_guidelines() -> None:
    model = ScriptedModel("Yes.")
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        agent = Agent(proxy, NAMED, messages=[{"role": "system", "content": "Be brief."}])
        for n in range(9):
            await agent.say(f"question {n}")
        assert [remarks(body) for body in model.chats] == [[]] * 5 + [[1]] * 4
        assert {str(body["messages"][1]) for body in model.chats[5:]} == {str(model.last["messages"][1])}
        assert model.last["messages"][1] == {"role": "user", "content": "question 0" + GAP_REMARK}
        assert sum(m["role"] == "system" for m in model.last["messages"]) == 1
        await assert_rebuilt_as_sent(proxy, [r.body for r in model.received])


@pytest.mark.parametrize("stream", [False, True])
async def test_thrifty_marks_the_gap_once_and_repeats_it_byte_for_byte(tmp_path: Path, stream: bool) -> None:
    model = ScriptedModel("Yes. " * 30)
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="thrifty", models_file=small(tmp_path)) as proxy,
    ):
        agent = Agent(proxy, NAMED, stream=stream)
        for n in range(40):
            await agent.say(f"question {n} " + "and more of it " * 10)
        marked = [body for body in model.chats if remarks(body)]
        assert 10 < len(marked) < 40
        assert {tuple(remarks(body)) for body in marked} == {(0,)}
        assert len({str(body["messages"][0]) for body in marked}) == 1
        assert len(model.last["messages"]) < 30
        await assert_rebuilt_as_sent(proxy, [r.body for r in model.received])


@pytest.mark.parametrize("more", [{}, {"alternate": "true"}, {"after_tool": '"append"'}, {"after_tool": '"none"'}])
async def test_no_remark_breaks_a_rule(tmp_path: Path, more: dict[str, str]) -> None:
    rounds: list[Any] = [make_calls((f"call_{n}", "read"), n=n) for n in range(3)]
    model = ScriptedModel(*[answer for n in range(12) for answer in (*rounds, f"Done {n}.")])
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="thrifty", models_file=small(tmp_path, **more)) as proxy,
    ):
        agent = Agent(proxy, NAMED, messages=[{"role": "system", "content": "Be brief."}])
        for n in range(12):
            await agent.say(f"task {n}")
            for k in range(3):
                agent.brings(f"{n} {k} {LONG}")
                await agent.say()
        strict = Model(alternate="alternate" in more, after_tool=more.get("after_tool", '"append"').strip('"'))  # type: ignore[arg-type]  # one of them
        for body in model.chats:
            sent = read_request(json.dumps(body).encode()).messages
            assert not validate._find_violations(validate.as_outgoing(sent), strict)
            assert sum(m.is_system for m in sent) == 1
        assert len(model.last["messages"]) < len(agent.messages) / 2
        assert remarks(model.last) == [1]
        assert {f for *_, f in await proxy.outcomes()} == {None}


async def test_a_policy_may_leave_out_the_gap_remark(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'name = "mine"\nschedule = "always"\nask = "never"\nremark = ""\n[[stages]]\nuse = "close_window"\ngroups = 2\n'
    )
    model = ScriptedModel("Yes.")
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="mine", policies_dir=str(tmp_path)) as proxy,
    ):
        agent = Agent(proxy, NAMED)
        for n in range(5):
            await agent.say(f"question {n}")
    assert model.texts() == ["question 0", "question 3", "Yes.", "question 4"]
