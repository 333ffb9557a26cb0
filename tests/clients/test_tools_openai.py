"""openai-python in front of a model that calls the proxy's tools between the client's own."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai.lib.streaming.chat import AsyncChatCompletionStream, ChatCompletionStream
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.clients.weather import (
    ASKED,
    FIRST,
    LAST,
    SCHEMA,
    SESSION,
    SYSTEM,
    THANKS,
    Forecaster,
    assert_unseen,
    offering_all,
    weather,
)
from tests.proxy_server import RunningProxy, join_chunks
from tests.raw_upstream import run_upstream

pytestmark = pytest.mark.clients

Json = dict[str, Any]
Heard = list[str]
"""All that the client was given, as JSON."""


def client(proxy: RunningProxy) -> openai.OpenAI:
    return openai.OpenAI(base_url=proxy.url, api_key="sk-any", max_retries=0, default_headers=SESSION)


def later(proxy: RunningProxy) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=proxy.url, api_key="sk-any", max_retries=0, default_headers=SESSION)


def request(messages: list[Json]) -> Any:
    return {"model": "m", "messages": messages, "tools": [SCHEMA]}


def of_whole(found: ChatCompletion, heard: Heard) -> Json:
    heard.append(found.model_dump_json())
    assert found.choices[0].finish_reason == ("tool_calls" if found.choices[0].message.tool_calls else "stop")
    return found.choices[0].message.model_dump(exclude_none=True)


def of_chunks(chunks: list[ChatCompletionChunk], heard: Heard) -> Json:
    heard += [chunk.model_dump_json() for chunk in chunks]
    assert len({chunk.id for chunk in chunks}) == 1
    return join_chunks(chunk.model_dump(exclude_none=True) for chunk in chunks)


def whole(proxy: RunningProxy, messages: list[Json], heard: Heard) -> Json:
    with client(proxy) as made:
        return of_whole(made.chat.completions.create(**request(messages)), heard)


def streamed(proxy: RunningProxy, messages: list[Json], heard: Heard) -> Json:
    with client(proxy) as made:
        return of_chunks(list(made.chat.completions.create(**request(messages), stream=True)), heard)


def stream_with_helper(proxy: RunningProxy, messages: list[Json], heard: Heard) -> Json:
    stream: ChatCompletionStream[None]
    with client(proxy) as made, made.chat.completions.stream(**request(messages)) as stream:
        heard += [event.model_dump_json(warnings=False) for event in stream]
        return of_whole(stream.get_final_completion(), heard)


async def whole_later(proxy: RunningProxy, messages: list[Json], heard: Heard) -> Json:
    async with later(proxy) as made:
        return of_whole(await made.chat.completions.create(**request(messages)), heard)


async def streamed_later(proxy: RunningProxy, messages: list[Json], heard: Heard) -> Json:
    async with later(proxy) as made:
        stream = await made.chat.completions.create(**request(messages), stream=True)
        return of_chunks([chunk async for chunk in stream], heard)


async def helped_later(proxy: RunningProxy, messages: list[Json], heard: Heard) -> Json:
    stream: AsyncChatCompletionStream[None]
    async with later(proxy) as made, made.chat.completions.stream(**request(messages)) as stream:
        heard += [event.model_dump_json(warnings=False) async for event in stream]
        return of_whole(await stream.get_final_completion(), heard)


async def work(ask: Callable[..., Any], proxy: RunningProxy, heard: Heard) -> list[Json]:
    """Both turns, the calls in between answered; the client's history."""
    messages: list[Json] = [{"role": "system", "content": SYSTEM}]
    for text in (ASKED, THANKS):
        messages.append({"role": "user", "content": text})
        while messages[-1]["role"] != "assistant":
            if inspect.iscoroutinefunction(ask):
                messages.append(await ask(proxy, messages, heard))
            else:
                messages.append(await asyncio.to_thread(ask, proxy, messages, heard))
            for call in messages[-1].get("tool_calls") or ():
                assert call["function"]["name"] == "get_weather"
                content = weather(**json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    return messages


@pytest.mark.parametrize("ask", [whole, streamed, stream_with_helper, whole_later, streamed_later, helped_later])
async def test_the_clients_tools_are_called_and_the_proxys_are_not_seen(ask: Callable[..., Any]) -> None:
    model, heard = Forecaster(), list[str]()
    async with run_upstream(model) as upstream, offering_all(upstream.port) as proxy:
        messages = await work(ask, proxy, heard)
        assert await proxy.rows("SELECT count(*) FROM memos") == [(1,)]
        assert {status for status, _, _ in await proxy.outcomes()} == {"complete"}
    model.assert_told()
    assert_unseen(*heard, json.dumps(messages))
    said = [m.get("content") for m in messages if m["role"] == "assistant" and m.get("content")]
    assert said == [FIRST[0], FIRST[1], "".join(LAST)]
    cities = [m["content"] for m in messages if m["role"] == "tool"]
    assert cities == [weather(city) for city in ("Oslo", "Rome", "Bergen")]
