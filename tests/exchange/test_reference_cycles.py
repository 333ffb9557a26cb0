"""Requests leave no reference cycles behind: the garbage collector runs rarely (`proxy.cli.serve`), so the prompts of a
cycle would stay in memory for thousands of requests."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.closed_loop import list_policies
from tests.clients.loops import make_gemini_model, make_messages_model, make_responses_model
from tests.dialect_agents import MessagesAgent, ResponsesAgent
from tests.exchange.hidden_calls import make_answer, make_client_call, make_proxy_call, run_proxy_with_tools
from tests.gemini_agent import GeminiAgent
from tests.proxy_server import Agent, RunningProxy, run_proxy
from tests.raw_upstream import STREAM, Connection, RawRequest, run_upstream
from tests.scripted_model import ScriptedModel, make_calls

STEPS = 24


def make_result(n: int) -> str:
    return "\n".join(f"line {k} of {n}: word{k * 7 % 31} alpha{n} beta" for k in range(60))


@contextmanager
def find_cycles() -> Iterator[Counter[str]]:
    """Count, at the end, the types of the proxy's objects that only the collector would have freed."""
    found = Counter[str]()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found.update(type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith("proxy."))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def work(agent: Agent, steps: int) -> None:
    """Go on with the conversation: results of the calls, else another task."""
    for n in range(steps):
        if agent.messages and agent.messages[-1].get("tool_calls"):
            agent.brings(make_result(len(agent.messages)))
            await agent.say()
        else:
            await agent.say(f"Task {n}: mend word7 of alpha{n}.")


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("policy", list_policies())
async def test_a_conversation_leaves_no_cycle(policy: str, stream: bool, tmp_path: Path) -> None:
    answers: list[Any] = [
        make_calls((f"call_{n}", "read"), path=f"/f{n % 5}.py") if n % 8 < 7 else f"Answer {n}." for n in range(STEPS)
    ]
    async with (
        run_upstream(ScriptedModel(*answers)) as upstream,
        run_proxy(upstream.port, policy=policy, db=f"{tmp_path}/a.sqlite3") as proxy,
    ):
        agent = Agent(proxy, stream=stream)
        await work(agent, 4)
        with find_cycles() as found:
            await work(agent, STEPS - 4)
            await proxy.rows("SELECT 1")  # what is put is written by now
        assert found == {}


async def test_hidden_rounds_leave_no_cycle() -> None:
    answers = [make_answer(None, make_proxy_call(n) if n % 2 else make_client_call(n)) for n in range(STEPS)]
    async with run_upstream(ScriptedModel(*answers, "Done.")) as upstream, run_proxy_with_tools(upstream.port) as proxy:
        agent = Agent(proxy)
        await work(agent, 2)
        with find_cycles() as found:
            await work(agent, STEPS // 2 - 2)
        assert found == {}


def make_agents(proxy: RunningProxy) -> dict[str, Any]:
    def run_tool(name: str, arguments: Any) -> str:
        return make_result(len(name) + len(str(arguments)))

    return {
        "messages": MessagesAgent(proxy, run_tool),
        "messages, stream": MessagesAgent(proxy, run_tool, stream=True),
        "responses": ResponsesAgent(proxy, run_tool),
        "responses, stream": ResponsesAgent(proxy, run_tool, stream=True),
        "gemini": GeminiAgent(proxy, run_tool),
        "gemini, stream": GeminiAgent(proxy, run_tool, stream="events"),
    }


@pytest.mark.parametrize(
    "form", ["messages", "messages, stream", "responses", "responses, stream", "gemini", "gemini, stream"]
)
async def test_a_conversation_of_another_wire_format_leaves_no_cycle(form: str) -> None:
    models: dict[str, Callable[[], Any]] = {
        "messages": make_messages_model,
        "responses": make_responses_model,
        "gemini": lambda: make_gemini_model("read", lambda n: {"path": f"{n}.py"}),
    }
    model = models[form.partition(",")[0]]()
    strategy = {"messages": "anthropic", "responses": "openai", "gemini": "gemini"}[form.partition(",")[0]]
    tree = {"main": {"base_url": "", "strategy": strategy}}
    async with run_upstream(model) as upstream:
        tree["main"]["base_url"] = f"http://127.0.0.1:{upstream.port}/v1"
        async with run_proxy(upstream.port, policy="thrifty", upstreams=tree) as proxy:
            agent = make_agents(proxy)[form]
            with find_cycles() as found:
                await agent.work("Mend it.")
            assert found == {}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_stream_that_breaks_off_leaves_no_cycle(path: str) -> None:
    async def break_off(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n')
        await connection.reset()

    asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello."}], "stream": True}
    async with run_upstream(break_off) as upstream, run_proxy(upstream.port) as proxy:
        await proxy.post(asked, path=path)
        with find_cycles() as found:
            for _ in range(3):
                assert b"upstream_broken" in (await proxy.post(asked, path=path)).body
            await proxy.rows("SELECT 1")
        assert found == {}
