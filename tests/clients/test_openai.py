from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.proxy_server import RunningProxy, run_proxy, run_proxy_in_thread
from tests.raw_upstream import STREAM, Connection, RawRequest, run_upstream
from tests.scripted_model import ScriptedModel, make_calls, make_chunk, send_reply

pytestmark = pytest.mark.clients

POLICIES = ["thrifty", "rolling", "passthrough"]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Oslo?"}]


@pytest.fixture(params=POLICIES)
def proxy(request: pytest.FixtureRequest) -> Iterator[RunningProxy]:
    """The proxy in front of the demo model."""
    with run_proxy_in_thread("demo", policy=request.param) as made:
        yield made


@pytest.fixture
def client(proxy: RunningProxy) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=proxy.url, api_key="sk-any", max_retries=0) as made:
        yield made


@pytest.fixture
async def later(proxy: RunningProxy) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=proxy.url, api_key="sk-any", max_retries=0) as made:
        yield made


def test_a_question_is_answered(client: openai.OpenAI) -> None:
    found = client.chat.completions.with_raw_response.create(
        model="demo", messages=[{"role": "user", "content": "Hello"}]
    )
    answer = found.parse()
    assert answer.choices[0].message.content
    assert "### STATE" not in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert found.headers["x-context-session"]
    assert found.headers["x-request-id"]


def test_a_stream_is_answered_and_has_usage_only_where_asked_for(client: openai.OpenAI) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
    plain = list(client.chat.completions.create(model="demo", messages=messages, stream=True))
    assert all(chunk.choices for chunk in plain), "a client that did not ask for usage gets no chunk without choices"
    assert all(chunk.usage is None for chunk in plain)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in plain)
    assert text
    assert "STATE" not in text
    counted = list(
        client.chat.completions.create(
            model="demo", messages=messages, stream=True, stream_options={"include_usage": True}
        )
    )
    assert counted[-1].choices == []
    assert counted[-1].usage is not None


def test_tools_are_called_and_their_results_come_back(client: openai.OpenAI) -> None:
    messages = list(ASKED)
    first = client.chat.completions.create(model="demo", messages=messages, tools=[WEATHER])  # type: ignore[list-item]
    message = first.choices[0].message
    assert message.tool_calls is not None
    call = message.tool_calls[0]
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    messages.append(message.model_dump(exclude_none=True))  # type: ignore[arg-type]  # as the SDK's own examples do
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "Rain, 7 degrees"})
    last = client.chat.completions.create(model="demo", messages=messages, tools=[WEATHER])  # type: ignore[list-item]
    assert "Rain, 7 degrees" in (last.choices[0].message.content or "")


def test_the_stream_helper_joins_calls_and_text(client: openai.OpenAI) -> None:
    messages = list(ASKED)
    with client.chat.completions.stream(model="demo", messages=messages, tools=[WEATHER]) as stream:  # type: ignore[list-item]
        kinds = {event.type for event in stream}
        message = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.done" in kinds
    assert message.tool_calls
    call = message.tool_calls[0]
    assert call.type == "function"
    messages.append(message.to_dict())  # type: ignore[arg-type]
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "Rain"})
    with client.chat.completions.stream(model="demo", messages=messages, tools=[WEATHER]) as stream:  # type: ignore[list-item]
        assert "content.done" in {event.type for event in stream}
        assert "Rain" in (stream.get_final_completion().choices[0].message.content or "")


def test_several_choices_and_a_format_are_passed_on(client: openai.OpenAI) -> None:
    several = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Hi"}], n=2)
    assert [choice.index for choice in several.choices] == [0, 1]
    formed = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Hi"}], response_format={"type": "json_object"}
    )
    assert isinstance(json.loads(formed.choices[0].message.content or ""), dict)


def test_the_sdk_lists_models_and_gets_404_for_an_unknown_one(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


async def test_the_async_client_works_too(later: openai.AsyncOpenAI) -> None:
    found = await later.chat.completions.create(model="demo", messages=ASKED, tools=[WEATHER])  # type: ignore[list-item]
    assert found.choices[0].message.tool_calls
    stream = await later.chat.completions.create(model="demo", messages=ASKED, stream=True)
    text = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(text)
    async with later.chat.completions.stream(model="demo", messages=ASKED, tools=[WEATHER]) as helper:  # type: ignore[list-item]
        final = await helper.get_final_completion()
    assert final.choices[0].message.tool_calls


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_whole_conversation_is_one_session(policy: str) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": "Be brief."}]
    async with run_proxy("demo", policy=policy) as proxy, sdk(proxy) as client:
        for n in range(6):
            messages.append({"role": "user", "content": f"Remark {n}: fine."})
            if n % 2:
                async with client.chat.completions.stream(model="demo", messages=messages) as stream:
                    answer = (await stream.get_final_completion()).choices[0].message.content
            else:
                found = await client.chat.completions.create(model="demo", messages=messages)
                answer = found.choices[0].message.content
            messages.append({"role": "assistant", "content": answer or ""})
        assert await proxy.rows("SELECT kind FROM branches") == [("main",)]
        assert await proxy.rows("SELECT count(*) FROM messages") == [(12,)]


def sdk(proxy: RunningProxy, retries: int = 2) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=proxy.url, api_key="sk-any", max_retries=retries)


async def complete_chat(proxy: RunningProxy, **more: Any) -> Any:
    async with sdk(proxy) as client:
        return await client.chat.completions.create(model="m", messages=ASKED, **more)


async def test_errors_are_raised_as_what_they_are() -> None:
    body = json.dumps({"error": {"message": "Slow down", "type": "requests", "param": None, "code": "rate"}}).encode()

    async def busy(_: RawRequest, connection: Connection) -> None:
        await send_reply(connection, b"429 Later", body, b"content-type: application/json", b"x-should-retry: false")

    async with (
        run_upstream(busy) as upstream,
        run_proxy(upstream.port, policy="thrifty", limits={"body_mb": 1}) as proxy,
    ):
        with pytest.raises(openai.RateLimitError, match="Slow down"):
            await complete_chat(proxy)
        assert len(upstream.requests) == 1
        with pytest.raises(openai.APIStatusError) as refused:
            await complete_chat(proxy, user="a" * 2_000_000)
        assert refused.value.status_code == 413
        assert len(upstream.requests) == 1, "what would fail again is not tried again"


async def test_a_stream_that_breaks_raises_a_clean_error() -> None:
    async def breaks(_: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(make_chunk({"role": "assistant", "content": "I was"}))
        await connection.reset()

    came: list[str | None] = []

    async def read(client: openai.AsyncOpenAI) -> None:
        async for piece in await client.chat.completions.create(model="m", messages=ASKED, stream=True):
            came.append(piece.choices[0].delta.content)  # noqa: PERF401 -- what came before the error counts

    async with (
        run_upstream(breaks) as upstream,
        run_proxy(upstream.port, policy="thrifty") as proxy,
        sdk(proxy) as client,
    ):
        with pytest.raises(openai.APIError, match="broke off") as broken:
            await read(client)
        assert broken.value.code == "upstream_broken"
        assert len(upstream.requests) == 1
    assert came == ["I was"]


async def test_a_lost_attempt_is_tried_again_and_is_the_same_branch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "openai")
    model = ScriptedModel(make_calls(("call_abcdef01", "get_weather"), city="Oslo"))
    tries = 0

    async def once(request: RawRequest, connection: Connection) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            await send_reply(connection, b"503 Busy", b"{}", b"content-type: application/json", b"retry-after-ms: 5")
        else:
            await model(request, connection)

    async with run_upstream(once) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        found = await complete_chat(proxy, extra_headers={"x-context-session": "s"})
        assert found.choices[0].message.tool_calls
        assert await proxy.rows("SELECT kind FROM branches") == [("main",)]
        assert [row[0] for row in await proxy.outcomes()] == ["rejected", "complete"]


async def test_a_session_can_be_named_by_the_base_url_alone() -> None:
    async with run_upstream(ScriptedModel("Well.")) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        url = f"http://127.0.0.1:{proxy.port}/s/alpha/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="sk-any") as client:
            raw = await client.chat.completions.with_raw_response.create(model="m", messages=ASKED)
            assert raw.headers["x-context-session"] == "alpha"
