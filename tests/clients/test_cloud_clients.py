"""The SDKs' own clients of Vertex AI and Azure in loops of 25 steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.clients.clouds import AzureModel, VertexModel, on
from tests.clients.loops import (
    POLICIES,
    PROMPT,
    RESPONSES_TOOL,
    FileTool,
    Json,
    Run,
    check_client,
    make_messages_model,
    make_responses_model,
)
from tests.clients.test_dialect_sdks import MESSAGES_TOOL

# Any, where the package is not installed as well: then the tests are skipped with this reason.
anthropic: Any = pytest.importorskip("anthropic", reason="the anthropic SDK is not installed")

pytestmark = [pytest.mark.clients, pytest.mark.slow]


async def run_vertex(base: str, stream: bool) -> Run:
    """`AsyncAnthropicVertex` with thinking; it counts its prompt before the last step."""
    file_tool, messages = FileTool(), list[Any]([{"role": "user", "content": PROMPT}])
    asked: Json = {
        "model": "claude-opus-5-5", "messages": messages, "tools": [MESSAGES_TOOL],
        "thinking": {"type": "adaptive"}, "system": "You are a careful engineer.",
    }  # fmt: skip
    async with anthropic.AsyncAnthropicVertex(
        base_url=f"{base}/v1", access_token="ya29.token", project_id="team", region="us-east5", max_retries=0
    ) as client:
        while True:
            if stream:
                async with client.messages.stream(max_tokens=4096, **asked) as events:
                    answer = await events.get_final_message()
            else:
                answer = await client.messages.create(max_tokens=4096, **asked)
            messages.append({"role": "assistant", "content": [one.to_dict() for one in answer.content]})
            calls = [one for one in answer.content if one.type == "tool_use"]
            if not calls:
                return Run("".join(one.text for one in answer.content if one.type == "text"), messages, file_tool)
            results = [
                {"type": "tool_result", "tool_use_id": one.id, "content": file_tool.read(**one.input)} for one in calls
            ]
            messages.append({"role": "user", "content": results})
            assert (await client.messages.count_tokens(**asked)).input_tokens > 0


async def run_azure(base: str, stream: bool) -> Run:
    """`AsyncAzureOpenAI` with Responses."""
    file_tool, items = FileTool(), list[Any]([{"role": "user", "content": PROMPT}])
    asked: Json = {
        "model": "gpt-6.2-sol", "input": items, "tools": [RESPONSES_TOOL], "store": False,
        "instructions": "You are a careful engineer.", "include": ["reasoning.encrypted_content"],
    }  # fmt: skip
    async with openai.AsyncAzureOpenAI(
        azure_endpoint=base, api_key="azure-key", api_version="2025-04-01-preview", max_retries=0
    ) as client:
        while True:
            if stream:
                async with client.responses.stream(**asked) as events:
                    answer: Any = await events.get_final_response()
            else:
                answer = await client.responses.create(**asked)
            items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in answer.output]
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                return Run(answer.output_text, items, file_tool)
            for one in calls:
                found = file_tool.read(**json.loads(one.arguments))
                items.append({"type": "function_call_output", "call_id": one.call_id, "output": found})


@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_of_claude_on_vertex_works_as_without_the_proxy(stream: bool, tmp_path: Path) -> None:
    await check_client(run_vertex, on(VertexModel, make_messages_model), POLICIES, tmp_path, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_of_responses_on_azure_works_as_without_the_proxy(stream: bool, tmp_path: Path) -> None:
    await check_client(run_azure, on(AzureModel, make_responses_model), POLICIES, tmp_path, stream=stream)
