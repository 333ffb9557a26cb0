"""LangChain's ChatOpenAI with tools bound to it, in the loop that its documentation has for agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient
from pydantic import SecretStr

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
from tests.raw_upstream import run_upstream

pytestmark = pytest.mark.clients

Model = Runnable[Any, BaseMessage]


async def ask_whole(model: Model, history: list[BaseMessage], heard: list[str]) -> BaseMessage:
    found = await model.ainvoke(history)
    heard.append(found.model_dump_json(warnings=False))
    return found


async def ask_streaming(model: Model, history: list[BaseMessage], heard: list[str]) -> BaseMessage:
    joined: Any = None
    async for chunk in model.astream(history):
        heard.append(chunk.model_dump_json(warnings=False))
        assert isinstance(chunk, AIMessageChunk)
        joined = chunk if joined is None else joined + chunk
    assert isinstance(joined, AIMessageChunk)
    return joined


@pytest.mark.parametrize("ask", [ask_whole, ask_streaming])
async def test_the_clients_tools_are_called_and_the_proxys_are_not_seen(
    ask: Callable[[Model, list[BaseMessage], list[str]], Awaitable[BaseMessage]],
) -> None:
    asked: list[str] = []

    @tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return weather(city)

    model, heard = Forecaster(), list[str]()
    history: list[BaseMessage] = [SystemMessage(SYSTEM)]
    with DefaultHttpxClient() as plain:
        async with (
            run_upstream(model) as upstream,
            offering_all(upstream.port) as proxy,
            DefaultAsyncHttpxClient() as client,
        ):
            chat: Any = ChatOpenAI(
                model="m", base_url=proxy.url, api_key=SecretStr("sk-any"), default_headers=SESSION, max_retries=0,
                http_client=plain, http_async_client=client, stream_usage=True,
            )  # fmt: skip
            bound = chat.bind_tools([get_weather])
            for text in (ASKED, THANKS):
                history.append(HumanMessage(text))
                while not isinstance(history[-1], AIMessage) or history[-1].tool_calls:
                    answer = await ask(bound, history, heard)
                    assert isinstance(answer, AIMessage)
                    assert not answer.invalid_tool_calls
                    history.append(answer)
                    history += [await get_weather.ainvoke(call) for call in answer.tool_calls]
            assert {status for status, _, _ in await proxy.outcomes()} == {"complete"}
    model.assert_told()
    assert asked == CITIES, "each call is made once"
    assert_unseen(*heard, *(message.model_dump_json(warnings=False) for message in history))
    texts = [message.text for message in history if isinstance(message, AIMessage) and message.text]
    assert texts == [*FIRST, "".join(LAST)]
