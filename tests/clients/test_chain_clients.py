"""Clients that name the response before their request, in loops of 25 steps: with and without `responses.takeover`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from agents import Agent, RunConfig, Runner, function_tool
from agents.models.openai_responses import OpenAIResponsesModel

from tests.clients.loops import (
    FINAL,
    PROMPT,
    RESPONSES_TOOL,
    STEPS,
    Client,
    FileTool,
    Json,
    Run,
    drop_bound,
    find_refusals,
    make_responses_model,
)
from tests.proxy_server import run_proxy
from tests.raw_upstream import run_upstream
from tests.strict_responses import StrictResponses, Think

pytestmark = [pytest.mark.clients, pytest.mark.slow]


async def run_sdk(base: str, stream: bool) -> Run:
    """`responses.create` and `responses.stream` with `previous_response_id`; the transcript is the whole responses."""
    file_tool, found, new = FileTool(), list[Any](), list[Any]([{"role": "user", "content": PROMPT}])
    asked: Json = {"model": "gpt-6.2-sol", "tools": [RESPONSES_TOOL], "instructions": "You are a careful engineer."}
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="sk-any", max_retries=0) as client:
        while True:
            if stream:
                async with client.responses.stream(**asked, input=new) as events:
                    async for event in events:
                        assert event.type != "error"
                    answer: Any = await events.get_final_response()
            else:
                answer = await client.responses.create(**asked, input=new)
            found.append(answer.model_dump(exclude={"usage", "created_at", "completed_at"}))
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                return Run(answer.output_text, found, file_tool)
            asked["previous_response_id"] = answer.id
            new = [
                {"type": "function_call_output", "call_id": one.call_id,
                 "output": file_tool.read(**json.loads(one.arguments))}
                for one in calls
            ]  # fmt: skip


async def run_agents(base: str, stream: bool, **more: Any) -> Run:
    """openai-agents with `auto_previous_response_id`, its own way to name responses."""
    file_tool = FileTool()

    def read(path: str) -> str:
        """Read a file."""
        return file_tool.read(path)

    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="sk-any", max_retries=0) as client:
        agent = Agent[None](
            name="Engineer",
            instructions="You are a careful engineer.",
            model=OpenAIResponsesModel("gpt-6.2-sol", client),
            tools=[function_tool(read)],
        )
        options: Json = {"run_config": RunConfig(tracing_disabled=True), "max_turns": 100}
        options |= more or {"auto_previous_response_id": True}
        if stream:
            going = Runner.run_streamed(agent, PROMPT, **options)
            async for _ in going.stream_events():
                pass
            return Run(str(going.final_output), going.to_input_list(), file_tool)
        done = await Runner.run(agent, PROMPT, **options)
        return Run(str(done.final_output), done.to_input_list(), file_tool)


async def run_agents_conversation(base: str, stream: bool) -> Run:
    """openai-agents with a conversation object."""
    return await run_agents(base, stream, conversation_id="conv_1")


def make_model(*, thinks: bool) -> StrictResponses:
    model = make_responses_model()
    if not thinks:  # a model without reasoning refuses to be asked for it
        answers: list[Any] = model.answers
        model.answers = [[piece for piece in one if not isinstance(piece, Think)] for one in answers]
        model.encrypts = model.binds = False
    model.conversations["conv_1"] = []
    return model


async def compare(
    client: Client, policy: str, folder: Path, *, stream: bool, takeover: bool, thinks: bool = True
) -> tuple[Any, Any, Any]:
    """Run a client without the proxy and with it, and check that it has got the same. Return (the model of each run,
    the exchanges of the proxy)."""
    alone = make_model(thinks=thinks)
    async with run_upstream(alone) as upstream:
        direct = await client(f"http://127.0.0.1:{upstream.port}", stream)
    model = make_model(thinks=thinks)
    tree: Json = {"policy": policy, "db": str(folder / "a.sqlite3"), "responses": {"takeover": takeover}}
    async with run_upstream(model) as upstream, run_proxy(upstream.port, **tree) as proxy:
        managed = await client(f"http://127.0.0.1:{proxy.port}", stream)
        outcomes = await proxy.outcomes()
        assert await proxy.rows("SELECT count(*) FROM branches") == [(1,)], "one conversation is one branch"
        ((stored,),) = await proxy.rows("SELECT count(*) FROM messages")
    asked_once = [] if thinks or not takeover else [("R2", "Encrypted content is not supported with this model.")]
    assert (find_refusals(alone), find_refusals(model)) == ([], asked_once)
    assert managed.final == direct.final == FINAL
    assert managed.file_tool.read_paths == direct.file_tool.read_paths == [f"file{n % 3}.py" for n in range(STEPS)]
    assert drop_bound(managed.transcript) == drop_bound(direct.transcript)
    assert json.dumps(managed.transcript, default=str).count('"gAAAA') == 0, "nobody has asked for the tokens"
    assert stored == 1 + 2 * STEPS + 1, "every message once"
    return alone, model, outcomes


def count_tokens(model: StrictResponses) -> tuple[int, int]:
    """(tokens of all prompts, those of them that were not cached)."""
    return sum(one["input"] for one in model.usages), sum(one["input"] - one["cached"] for one in model.usages)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("client", [run_sdk, run_agents, run_agents_conversation])
async def test_a_chain_at_the_provider_continues_as_without_the_proxy(
    client: Client, stream: bool, tmp_path: Path
) -> None:
    alone, model, outcomes = await compare(client, "thrifty", tmp_path, stream=stream, takeover=False)
    assert drop_bound(model.received) == drop_bound(alone.received)
    assert {status for status, _, _ in outcomes} == {"complete"}
    names = [fallback for _, _, fallback in outcomes]
    assert names[1:] == ["chain"] * STEPS
    assert count_tokens(model) == count_tokens(alone)


@pytest.mark.parametrize(
    ("client", "thinks", "stream"),
    [
        (run_sdk, True, False),
        (run_sdk, True, True),
        (run_agents, True, False),
        (run_agents, True, True),
        (run_sdk, False, False),
    ],
)
async def test_a_chain_that_is_taken_over_is_shorter_and_looks_the_same(
    client: Client, thinks: bool, stream: bool, tmp_path: Path
) -> None:
    alone, model, outcomes = await compare(client, "thrifty", tmp_path, stream=stream, takeover=True, thinks=thinks)
    assert {(status, fallback) for status, _, fallback in outcomes} == {("complete", None)}
    later = [one for one in model.received if one["input"][-1].get("call_id")]
    assert len(later) == STEPS
    assert all(one["store"] is False and "previous_response_id" not in one for one in later)
    before, after = count_tokens(alone), count_tokens(model)
    name = getattr(client, "__name__", "")
    print(f"{name} | thinks={thinks} | stream={stream} | {before} | {after} | saved {1 - after[0] / before[0]:.0%}")
    assert after[0] < 0.85 * before[0], "something is saved"
    assert after[1] < 1.05 * before[1], "and little is paid for twice"


async def test_under_observe_nothing_is_taken_over(tmp_path: Path) -> None:
    alone, model, _ = await compare(run_sdk, "observe", tmp_path, stream=False, takeover=True)
    assert drop_bound(model.received) == drop_bound(alone.received)
