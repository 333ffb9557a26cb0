"""The SDKs of both vendors in loops of 25 steps, on upstreams that refuse what the vendors refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

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

# Any, where the package is not installed as well: then the tests are skipped with this reason.
anthropic: Any = pytest.importorskip("anthropic", reason="the anthropic SDK is not installed")

pytestmark = [pytest.mark.clients, pytest.mark.slow]

MESSAGES_TOOL: Json = {
    "name": "read", "description": "Read a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}  # fmt: skip


async def run_responses(base: str, stream: bool) -> Run:
    """The loop of `work_on_responses`."""
    return await work_on_responses(
        openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="sk-any", max_retries=0), stream=stream
    )


async def work_on_responses(client: openai.AsyncOpenAI, *, stream: bool) -> Run:
    """`responses.create` and `responses.stream`, each item sent back as the SDK gives it."""
    file_tool, items = FileTool(), list[Any]([{"role": "user", "content": PROMPT}])
    asked: Json = {
        "model": "gpt-6.2-sol", "input": items, "tools": [RESPONSES_TOOL], "store": False,
        "instructions": "You are a careful engineer.", "include": ["reasoning.encrypted_content"],
    }  # fmt: skip
    async with client:
        while True:
            if stream:
                async with client.responses.stream(**asked) as events:
                    async for event in events:
                        assert event.type != "error"
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


async def run_raw_responses(base: str, stream: bool) -> Run:
    """`responses.create(stream=True)` without the helper; the last event has the whole response."""
    if not stream:
        return await run_responses(base, stream)
    file_tool, items = FileTool(), list[Any]([{"role": "user", "content": PROMPT}])
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="sk-any", max_retries=0) as client:
        while True:
            answer: Any = None
            text = ""
            asked: Json = {
                "model": "gpt-6.2-sol", "input": items, "tools": [RESPONSES_TOOL], "store": False, "stream": True,
                "include": ["reasoning.encrypted_content"],
            }  # fmt: skip
            events: Any = await client.responses.create(**asked)
            async for event in events:
                if event.type == "response.completed":
                    answer = event.response
                elif event.type == "response.output_text.delta":
                    text += event.delta
            assert text == answer.output_text, "all copies of the text agree"
            items += [item.model_dump(exclude_none=True) for item in answer.output]
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                return Run(answer.output_text, items, file_tool)
            for one in calls:
                found = file_tool.read(**json.loads(one.arguments))
                items.append({"type": "function_call_output", "call_id": one.call_id, "output": found})


async def run_messages(base: str, stream: bool) -> Run:
    """The loop of `work_on_messages`."""
    return await work_on_messages(
        anthropic.AsyncAnthropic(base_url=base, api_key="sk-any", max_retries=0), stream=stream
    )


async def work_on_messages(client: Any, *, stream: bool, counts: bool = False) -> Run:
    """`messages.create` and `messages.stream`, with thinking and a moving mark of the cache. counts: each prompt is
    counted too."""
    file_tool, messages = FileTool(), list[Any]([{"role": "user", "content": PROMPT}])
    asked: Json = {
        "model": "claude-opus-5-5", "max_tokens": 4096, "messages": messages, "tools": [MESSAGES_TOOL],
        "thinking": {"type": "adaptive"}, "system": [{"type": "text", "text": "You are a careful engineer."}],
        "cache_control": {"type": "ephemeral"},
    }  # fmt: skip
    async with client:
        while True:
            if stream:
                async with client.messages.stream(**asked) as events:
                    text = "".join([piece async for piece in events.text_stream])
                    answer = await events.get_final_message()
                assert text == "".join(one.text for one in answer.content if one.type == "text")
            else:
                answer = await client.messages.create(**asked)
            messages.append({"role": "assistant", "content": [one.to_dict() for one in answer.content]})
            calls = [one for one in answer.content if one.type == "tool_use"]
            if not calls:
                return Run("".join(one.text for one in answer.content if one.type == "text"), messages, file_tool)
            results = [
                {"type": "tool_result", "tool_use_id": one.id, "content": file_tool.read(**one.input)} for one in calls
            ]
            messages.append({"role": "user", "content": results})
            if counts:
                counted = {name: value for name, value in asked.items() if name not in ("max_tokens", "cache_control")}
                assert (await client.messages.count_tokens(**counted)).input_tokens > 0


async def run_tool_runner(base: str, stream: bool, **more: Any) -> Run:
    """The SDK's own loop, `beta.messages.tool_runner`. By itself it leaves the history to the provider (`thread`)."""
    file_tool, answers, text = FileTool(), list[Json](), ""

    async def read(path: str) -> str:
        """Read a file."""
        return file_tool.read(path)

    async with anthropic.AsyncAnthropic(base_url=base, api_key="sk-any", max_retries=0) as client:
        runner = client.beta.messages.tool_runner(
            model="claude-opus-5-5", max_tokens=4096, messages=[{"role": "user", "content": PROMPT}],
            tools=[anthropic.beta_async_tool(read)], thinking={"type": "adaptive"}, stream=stream,
            **more,
        )  # fmt: skip
        async for one in runner:
            message = await one.get_final_message() if stream else one
            answers.append(message.to_dict())
            text = "".join(block.text for block in message.content if block.type == "text")
    return Run(text, answers, file_tool)


async def run_whole_tool_runner(base: str, stream: bool) -> Run:
    """The same loop, in which each request has the whole history."""
    return await run_tool_runner(base, stream, thread=False)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("run", [run_responses, run_raw_responses])
async def test_the_openai_sdk_works_on_responses_as_without_the_proxy(run: Any, stream: bool, tmp_path: Path) -> None:
    await check_client(run, make_responses_model, POLICIES, tmp_path, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("run", [run_messages, run_whole_tool_runner])
async def test_the_anthropic_sdk_works_as_without_the_proxy(run: Any, stream: bool, tmp_path: Path) -> None:
    await check_client(run, make_messages_model, POLICIES, tmp_path, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_runner_whose_history_the_provider_holds_is_passed_on(stream: bool, tmp_path: Path) -> None:
    await check_client(run_tool_runner, make_messages_model, "thrifty", tmp_path, stream=stream, is_managed=False)
