"""openai-agents and pydantic-ai in loops of 25 steps, as they come: Responses, and Messages."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import openai
import pytest
from agents import Agent, ModelSettings, RunConfig, Runner, function_tool
from agents.models.openai_responses import OpenAIResponsesModel

from tests.clients.loops import (
    POLICIES,
    PROMPT,
    FileTool,
    Run,
    check_client,
    make_messages_model,
    make_responses_model,
)

# Any, where a package is not installed as well: then the tests are skipped with these reasons.
anthropic: Any = pytest.importorskip("anthropic", reason="the anthropic SDK is not installed")
pydantic_ai: Any = pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed")

pytestmark = [pytest.mark.clients, pytest.mark.slow]

SYSTEM = "You are a careful engineer."


async def run_agents(base: str, stream: bool) -> Run:
    """openai-agents with its default, Responses, and a history of its own."""
    file_tool = FileTool()

    def read(path: str) -> str:
        """Read a file."""
        return file_tool.read(path)

    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="sk-any", max_retries=0) as client:
        agent = Agent[None](
            name="Engineer",
            instructions=SYSTEM,
            model=OpenAIResponsesModel("gpt-6.2-sol", client),
            model_settings=ModelSettings(store=False, response_include=["reasoning.encrypted_content"]),
            tools=[function_tool(read)],
        )
        quiet = RunConfig(tracing_disabled=True)
        if stream:
            going = Runner.run_streamed(agent, PROMPT, run_config=quiet, max_turns=100)
            async for _ in going.stream_events():
                pass
            return Run(str(going.final_output), going.to_input_list(), file_tool)
        done = await Runner.run(agent, PROMPT, run_config=quiet, max_turns=100)
        return Run(str(done.final_output), done.to_input_list(), file_tool)


async def run_pydantic(model: Any, stream: bool, settings: dict[str, Any]) -> Run:
    """An agent of pydantic-ai on a model of either dialect."""
    file_tool = FileTool()

    def read(path: str) -> str:
        """Read a file."""
        return file_tool.read(path)

    agent = pydantic_ai.Agent(model, system_prompt=SYSTEM, model_settings=settings, tools=[read])
    limits = pydantic_ai.UsageLimits(request_limit=100)
    done = await agent.run(PROMPT, usage_limits=limits, event_stream_handler=_read_events if stream else None)
    parts = [
        {"kind": part.part_kind, "content": part.args if part.part_kind == "tool-call" else part.content}
        for message in done.all_messages()
        for part in message.parts
    ]
    return Run(done.output, json.loads(json.dumps(parts, default=str)), file_tool)


async def _read_events(_context: Any, events: Any) -> None:
    """Read the events of an answer. With a handler, the agent streams each answer."""
    async for _ in events:
        pass


async def run_pydantic_responses(base: str, stream: bool) -> Run:
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="sk-any", max_retries=0) as client:
        provider = import_module("pydantic_ai.providers.openai").OpenAIProvider(openai_client=client)
        model = import_module("pydantic_ai.models.openai").OpenAIResponsesModel("gpt-5.5", provider=provider)
        return await run_pydantic(model, stream, {"openai_store": False})


async def run_pydantic_messages(base: str, stream: bool) -> Run:
    async with anthropic.AsyncAnthropic(base_url=base, api_key="sk-any", max_retries=0) as client:
        provider = import_module("pydantic_ai.providers.anthropic").AnthropicProvider(anthropic_client=client)
        model = import_module("pydantic_ai.models.anthropic").AnthropicModel("claude-opus-5-5", provider=provider)
        return await run_pydantic(model, stream, {"anthropic_thinking": {"type": "adaptive"}, "max_tokens": 4096})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("run", [run_agents, run_pydantic_responses])
async def test_a_framework_works_on_responses_as_without_the_proxy(run: Any, stream: bool, tmp_path: Path) -> None:
    await check_client(run, make_responses_model, POLICIES, tmp_path, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
async def test_pydantic_ai_works_on_messages_as_without_the_proxy(stream: bool, tmp_path: Path) -> None:
    await check_client(run_pydantic_messages, make_messages_model, POLICIES, tmp_path, stream=stream)
