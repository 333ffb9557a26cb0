"""Reasoning that an upstream refuses, because it is bound to another prompt: no conversation ends of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxy.exchange import plan_request
from tests.dialect_agents import LISTING, MessagesAgent, ResponsesAgent, read_listing
from tests.proxy_server import Agent, RawAnswer, RunningProxy, run_proxy
from tests.raw_upstream import Connection, RawRequest, run_upstream
from tests.scripted_model import ScriptedModel, make_calls, send_reply
from tests.strict_messages import StrictMessages, read_step
from tests.strict_responses import Ask, Say, StrictResponses, Think

Json = dict[str, Any]
STEPS = 6
THINKING: Json = {"thinking": {"type": "adaptive"}}
DONE: list[Json] = [{"type": "text", "text": "Done."}]


def make_answers(count: int) -> list[Any]:
    """Steps of work with an answer behind each six of them."""
    made: list[Any] = []
    for n in range(count):
        made.append(read_step(n, "a.py"))
        if n % STEPS == STEPS - 1:
            made.append([{"type": "thinking", "thinking": "So."}, {"type": "text", "text": "Done."}])
    return made


def count_tokens(body: Json) -> int:
    return json.dumps(body["messages"]).count('"signature"')


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fallback_to_the_clients_bytes_loses_reasoning_but_not_the_conversation(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = StrictMessages(*make_answers(4 * STEPS))

    def fail(*_: Any) -> Any:
        raise RuntimeError("a stage that fails")

    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = MessagesAgent(proxy, read_listing, stream=stream, more=THINKING)
        assert await agent.work("Find the fault.") == "Done."
        assert len(model.received[-1].body) < 0.9 * len(json.dumps(agent.messages))
        agent.messages.append({"role": "user", "content": "Go on."})
        with monkeypatch.context() as patched:  # the client's own bytes go out, behind which no reasoning was made
            patched.setattr(plan_request, "rewrite", fail)
            await agent.ask()
        assert agent.heard[-1].header("x-context-fallback") == "bound"
        left = count_tokens(model.bodies[-1])
        assert 0 < left < len(model.bodies) - 1, "reasoning in front of the first edit stays"
        bring_results(agent)
        await agent.ask()  # the plan is in force again: the reasoning of one answer goes
        assert count_tokens(model.bodies[-1]) == left
        assert agent.heard[-1].header("x-context-fallback") == "bound"
        assert proxy.count("fallbacks_total", reason="bound") == 2
        for _ in range(3):
            bring_results(agent)
            await agent.ask()
            assert agent.heard[-1].header("x-context-fallback") is None
        assert proxy.count("fallbacks_total", reason="bound") == 2
        assert count_tokens(model.bodies[-1]) == left + 3
        lost = proxy.count("dropped_reasoning_total", reason="left_out", prompt="changed")
        assert lost == len(model.bodies) - 1 - count_tokens(model.bodies[-1])
    assert model.refusals == []
    assert model.dropped == []


def bring_results(agent: MessagesAgent) -> None:
    calls = [one for one in agent.answers[-1]["content"] if one["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": one["id"], "content": LISTING} for one in calls]
    agent.messages.append({"role": "user", "content": results})


async def test_a_refusal_caused_by_the_clients_own_change_reaches_the_client() -> None:
    model = StrictMessages(*make_answers(STEPS))
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="passthrough") as proxy:
        agent = MessagesAgent(proxy, read_listing, more=THINKING)
        await agent.work("Find the fault.")
        agent.messages[0] = {"role": "user", "content": "Find another."}
        agent.messages.append({"role": "user", "content": "Go on."})
        body = {"model": "claude-opus-5-5", "max_tokens": 9, "messages": agent.messages, **THINKING}
        found = await proxy.post(body, b"x-api-key: k", b"anthropic-version: 2023-06-01", path="/v1/messages")
    assert found.status == 400
    assert len(model.refusals) == 1


async def test_refused_reasoning_is_left_out_after_a_restart_too(tmp_path: Path) -> None:
    model = StrictMessages(*make_answers(4 * STEPS))
    path = str(tmp_path / "a.sqlite3")
    async with run_upstream(model) as upstream:
        async with run_proxy(upstream.port, policy="thrifty", db=str(tmp_path / "lost.sqlite3")) as proxy:
            agent = MessagesAgent(proxy, read_listing, more=THINKING)
            await agent.work("Find the fault.")
        # Another store: the edits are lost, and the client's own bytes are refused.
        tree: Json = {"policy": "thrifty", "db": path, "tools": {"offer": "first_request"}}
        async with run_proxy(upstream.port, **tree) as proxy:
            agent.proxy = proxy
            agent.messages.append({"role": "user", "content": "Go on."})
            await agent.ask()
            assert agent.heard[-1].header("x-context-fallback") == "bound"
            assert len(model.refusals) == 1
        for _ in range(3):
            async with run_proxy(upstream.port, **tree) as proxy:
                agent.proxy = proxy
                bring_results(agent)
                await agent.ask()
                assert agent.heard[-1].header("x-context-fallback") is None
                rows = await proxy.rows("SELECT stage, action FROM edits WHERE action = 'strip'")
                assert set(rows) == {("bound", "strip")}
    assert len(model.refusals) == 1
    assert model.dropped == []
    assert count_tokens(model.bodies[-1]) == 3, "new reasoning stays"


@pytest.mark.parametrize(("policy", "told"), [("rolling", "thrifty, append_only"), ("thrifty", None)])
async def test_a_literal_policy_is_not_run_on_bound_reasoning_and_the_client_is_told(
    policy: str, told: str | None
) -> None:
    model = StrictMessages(*make_answers(STEPS))
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy=policy) as proxy:
        agent = MessagesAgent(proxy, read_listing, more=THINKING)
        await agent.work("Find the fault.")
        assert {one.header("x-context-policy-used") for one in agent.heard} == {told}
    assert model.refusals == []


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_that_is_dropped_in_silence_is_counted_and_priced(stream: bool) -> None:
    steps: list[list[Any]] = [[Think(f"file {n}"), Ask("read", {"path": "a.py"})] for n in range(3)]
    model = StrictResponses(*steps, [Think("So"), Say("Done.")])
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = ResponsesAgent(proxy, read_listing, stream=stream)
        await agent.work("Find the fault.")
        assert proxy.count("dropped_reasoning_dollars_total") == 0
        agent.items[0]["content"][0]["text"] = "Find another."  # the client's own change
        await agent.work("Go on.")
        count = len(model.dropped)
        assert count == 4
        told = {
            prompt: proxy.count("dropped_reasoning_total", reason="prefix_mismatch", prompt=prompt)
            for prompt in ("client", "changed")
        }
        assert sum(told.values()) == count
        assert proxy.count("dropped_reasoning_dollars_total") > 0
        rows = await proxy.rows("SELECT note FROM exchanges ORDER BY started_at DESC LIMIT 1")
        assert f"left out {count} pieces of reasoning (prefix_mismatch)" in rows[0][0]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_tools_stay_where_rounds_are_limited_since_reasoning_is_bound_to_them(stream: bool) -> None:
    def ask(n: int) -> list[Json]:
        call = {"type": "tool_use", "id": f"toolu_own_{n}", "name": "recall", "input": {"id": f"m_{n}"}}
        return [{"type": "thinking", "thinking": f"I look it up: {n}."}, call]

    model = StrictMessages(*make_answers(STEPS), ask(1), ask(2), [{"type": "thinking", "thinking": "So."}, *DONE])
    tree: Json = {"policy": "thrifty", "tools": {"offer": "first_request", "rounds": 1}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        agent = MessagesAgent(proxy, read_listing, stream=stream, more=THINKING)
        await agent.work("Find the fault.")
        assert await agent.work("Mend it.") == "Done."
        await agent.work("Test it.")
        assert {one.header("x-context-fallback") for one in agent.heard} == {None}
        assert await proxy.rows("SELECT count(*) FROM bindings") == [(len(model.bodies),)]
    assert model.refusals == []
    assert {len(body["tools"]) for body in model.bodies} == {2}


async def test_a_round_that_fails_leaves_a_conversation_that_continues() -> None:
    """The client's own bytes go out in its place, without the reasoning that is bound to our tools."""

    async def fail(request: RawRequest, connection: Connection) -> None:
        await send_reply(connection, b"500 Oops", b"{}", b"content-type: application/json")

    own = {"type": "tool_use", "id": "toolu_own", "name": "recall", "input": {"id": "m_1"}}
    steps = make_answers(STEPS)
    model = StrictMessages(
        *steps[:3], [{"type": "thinking", "thinking": "Hm."}, own], fail, *make_answers(4 * STEPS)[3:]
    )
    tree: Json = {"policy": "thrifty", "tools": {"offer": "first_request"}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        agent = MessagesAgent(proxy, read_listing, more=THINKING)
        await agent.work("Find the fault.")
        assert "rounds" in [one.header("x-context-fallback") for one in agent.heard]
        left = count_tokens(model.bodies[-1])
        await agent.work("Go on.")
        assert count_tokens(model.bodies[-1]) > left
    assert model.refusals == []


def think_in_plain_text(count: int) -> ScriptedModel:
    """A model that shows its reasoning without a token, in front of so many calls."""
    steps = [{**make_calls((f"look:{n}", "look"), n=n), "reasoning_content": f"Step {n}."} for n in range(count)]
    return ScriptedModel(*steps, "Done.")


async def work_in_plain_text(agent: Agent, count: int, read: Callable[[int], str]) -> RawAnswer:
    """A loop of so many calls. The agent sends the reasoning back, as these models want it."""
    found = await agent.say("Find the fault.")
    for n in range(count):
        agent.messages[-1] = {**found.message, "reasoning_content": f"Step {n}."}
        agent.brings(read(n))
        found = await agent.say()
    return found


PLAIN: Json = {
    "thinking": {"type": "enabled"},
    "tools": [{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {}}}],
}


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_without_a_token_binds_no_prompt(stream: bool) -> None:
    """DeepSeek, Kimi and GLM are asked to think in the words that a gateway takes for Claude, and bind nothing."""
    model = think_in_plain_text(12)
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        agent = Agent(proxy, stream=stream, more=PLAIN)
        found = await work_in_plain_text(agent, 12, lambda _: LISTING)
        assert found.header("x-context-policy-used") is None
        assert {row[2] for row in await proxy.outcomes()} == {None}
    assert len(json.dumps(model.last["messages"])) < 0.6 * len(json.dumps(agent.messages[:-1]))
    sent = [one for one in model.last["messages"] if one.get("tool_calls")]
    assert [one["reasoning_content"] for one in sent] == [f"Step {n}." for n in range(12)]


async def test_tools_may_still_be_offered_while_no_answer_is_bound() -> None:
    model = think_in_plain_text(40)
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = Agent(proxy, more=PLAIN)
        await work_in_plain_text(agent, 40, lambda n: "\n".join(f"{n * i} of part {i * i + n}" for i in range(200)))
        assert (await proxy.rows("SELECT max(edits) FROM exchanges"))[0][0] > 0
    assert [len(chat["tools"]) for chat in (model.chats[0], model.last)] == [1, 2]


async def test_a_model_that_shows_no_reasoning_keeps_its_tools_and_is_edited() -> None:
    """It may think, so its prompt counts as bound from its first answer on. What a new result repeats goes, however
    much of the prompt stands in front of the tools that do not come."""
    model = StrictResponses(*[[Ask("bash", {"command": f"cat file{n % 3}.py"})] for n in range(8)], [Say("Done.")])
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        agent = ResponsesAgent(proxy, read_listing, more={"instructions": "Rule. " * 20_000})
        await agent.work("Find the fault.")
        assert (await proxy.rows("SELECT max(edits) FROM exchanges"))[0][0] > 0
    assert {len(body["tools"]) for body in model.received} == {1}


async def test_an_empty_signature_binds_no_prompt() -> None:
    """vLLM, Ollama and others that speak Messages have nothing to sign with."""
    received: list[bytes] = []

    async def answer(request: RawRequest, connection: Connection) -> None:
        received.append(request.body)
        n = len(received)
        thought = {"type": "thinking", "thinking": f"Step {n}.", "signature": ""}
        call = {"type": "tool_use", "id": f"toolu_{n:04}", "name": "read", "input": {"path": "a.py"}}
        is_last = n == 2 * STEPS
        body = {
            "id": f"msg_{n}", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None,
            "content": [thought, *(DONE if is_last else [call])], "stop_reason": "end_turn" if is_last else "tool_use",
            "usage": {"input_tokens": 9, "output_tokens": 3},
        }  # fmt: skip
        await send_reply(connection, b"200 OK", json.dumps(body).encode(), b"content-type: application/json")

    async with run_upstream(answer) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        agent = MessagesAgent(proxy, read_listing, more=THINKING)
        assert await agent.work("Find the fault.") == "Done."
        assert agent.heard[-1].header("x-context-policy-used") is None
        assert {row[2] for row in await proxy.outcomes()} == {None}
    assert len(received[-1]) < 0.6 * len(json.dumps(agent.messages))


def make_codex_model() -> StrictResponses:
    """A model that reads a file with each of its steps, and thinks before."""
    steps: list[list[Any]] = [[Think(f"file {n}"), Ask("read", {"path": "a.py"})] for n in range(STEPS)]
    return StrictResponses(*steps, [Think("So."), Say("Done.")])


async def work_in_first_thread(proxy: RunningProxy, model: StrictResponses) -> ResponsesAgent:
    """The agent of Codex's thread t1 after its task, which leaves edits in its prompt."""
    agent = ResponsesAgent(proxy, read_listing, lines=(b"session-id: t1", b"thread-id: t1"))
    await agent.work("Find the fault.")
    assert len(model.raw[-1]) < 0.9 * len(json.dumps(agent.items)), "the prompt has edits"
    return agent


async def test_a_sub_agent_that_goes_on_from_the_prompt_of_another_keeps_its_reasoning_and_its_cache() -> None:
    """Codex has such sub-agents. Each has a thread of its own, in the session of the first one."""
    model = make_codex_model()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = await work_in_first_thread(proxy, model)
        lines = (b"session-id: t1", b"thread-id: t2", b"x-codex-parent-thread-id: t1")
        spawned = ResponsesAgent(proxy, read_listing, lines=lines, items=list(agent.items))
        assert await spawned.work("Look at part 2.") == "Done."
    assert model.dropped == []
    assert model.received[-1]["input"][: len(agent.items) - 2] == model.received[-2]["input"]
    assert [one.session for one in spawned.heard] == ["t1"]


async def test_a_fork_of_codex_and_a_fork_of_it_keep_their_reasoning_and_their_cache() -> None:
    """`codex exec fork` sends the history of another thread under a name of its own."""
    model = make_codex_model()
    async with run_upstream(model) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        agent = await work_in_first_thread(proxy, model)
        session = agent.heard[-1].session
        for thread in (b"t2", b"t3"):
            lines = (b"session-id: " + thread, b"thread-id: " + thread)
            agent = ResponsesAgent(proxy, read_listing, lines=lines, items=list(agent.items))
            assert await agent.work("Another way, from here.") == "Done."
            sent = model.received[-2]["input"]
            assert model.received[-1]["input"][: len(sent)] == sent
            assert [one.session for one in agent.heard] == [session]
    assert model.dropped == []
