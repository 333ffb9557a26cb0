"""The openai-agents SDK, which raises on a call of a tool that it does not know."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from agents import Agent, ModelSettings, RunConfig, Runner, function_tool
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel

from tests.clients.weather import (
    ASKED,
    CITIES,
    FIRST,
    LAST,
    SESSION,
    SYSTEM,
    THANKS,
    Forecaster,
    assert_unseen,
    offering_all,
    weather,
)
from tests.proxy_server import RunningProxy
from tests.raw_upstream import run_upstream

pytestmark = pytest.mark.clients

QUIET = RunConfig(tracing_disabled=True)


@asynccontextmanager
async def agent_on(proxy: RunningProxy, asked: list[str]) -> AsyncIterator[Agent[None]]:
    """An agent with one tool; asked: the cities that it was called for."""

    def get_weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return weather(city)

    async with openai.AsyncOpenAI(
        base_url=proxy.url, api_key="sk-any", max_retries=0, default_headers=SESSION
    ) as client:
        yield Agent(
            name="Forecaster",
            instructions=SYSTEM,
            model=OpenAIChatCompletionsModel("m", client),
            model_settings=ModelSettings(include_usage=True),
            tools=[function_tool(get_weather)],
        )


async def run(agent: Agent[None], history: list[Any], heard: list[str], *, stream: bool) -> tuple[str, list[Any]]:
    """(the final output, the history then) of one turn."""
    if not stream:
        done = await Runner.run(agent, history, run_config=QUIET)
        return str(done.final_output), done.to_input_list()
    going = Runner.run_streamed(agent, history, run_config=QUIET)
    heard += [repr(event) async for event in going.stream_events()]
    return str(going.final_output), going.to_input_list()


@pytest.mark.parametrize("stream", [False, True])
async def test_the_clients_tools_are_called_and_the_proxys_are_not_seen(stream: bool) -> None:
    model, asked, heard = Forecaster(), list[str](), list[str]()
    async with (
        run_upstream(model) as upstream,
        offering_all(upstream.port) as proxy,
        agent_on(proxy, asked) as agent,
    ):
        first, history = await run(agent, [{"role": "user", "content": ASKED}], heard, stream=stream)
        last, history = await run(agent, [*history, {"role": "user", "content": THANKS}], heard, stream=stream)
        assert {status for status, _, _ in await proxy.outcomes()} == {"complete"}
        assert await proxy.rows("SELECT kind FROM branches") == [("main",)]
    model.assert_told()
    assert (first, last) == (FIRST[1], "".join(LAST))
    assert sorted(asked) == sorted(CITIES), "each call is made once"
    assert_unseen(*heard, json.dumps(history))
