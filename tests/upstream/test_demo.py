from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from proxy.metrics import Metrics
from proxy.settings.load import Settings
from proxy.stream.aws_event_stream import FrameParser
from proxy.stream.completions_relay import CompletionsRelay
from proxy.upstream.client import UpstreamClient
from proxy.upstream.demo import CACHE_BLOCK_BYTES, MAX_CACHE_BLOCKS, DemoResponse, DemoTransport
from proxy.web.asgi import Receive, Scope, Send
from proxy.web.error_responses import answer_errors
from proxy.web.passthrough import serve_passthrough
from tests.raw_upstream import serve_app

USER = {"role": "user", "content": "Look at src/main.py"}
READ: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}


def ask(demo: DemoTransport, **request: Any) -> tuple[int, bytes]:
    answer = demo.answer_request("POST", "/v1/chat/completions", json.dumps({"messages": [USER], **request}).encode())
    return answer.status, b"".join(answer.body.parts)


def complete(demo: DemoTransport, **request: Any) -> Any:
    status, body = ask(demo, **request)
    assert status == 200, body
    return json.loads(body)


def chunks(body: bytes) -> list[Any]:
    events = body.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    return [json.loads(event.removeprefix(b"data: ")) for event in events[:-2]]


def test_the_same_request_gives_the_same_bytes() -> None:
    for stream in (False, True):
        assert ask(DemoTransport(), stream=stream, tools=[READ]) == ask(DemoTransport(), stream=stream, tools=[READ])


@pytest.mark.parametrize("tools", [None, [READ]])
def test_a_stream_adds_up_to_the_answer_that_is_not_streamed(tools: list[Any] | None) -> None:
    message = complete(DemoTransport(), tools=tools)["choices"][0]["message"]
    _, body = ask(DemoTransport(), tools=tools, stream=True)
    relay = CompletionsRelay()
    relay.feed(body)
    relay.end()
    streamed = json.loads(relay.answer.build_message() or b"{}")
    assert streamed.get("content") == message["content"]
    told = [(call["function"]["name"], call["function"]["arguments"]) for call in streamed.get("tool_calls", [])]
    assert told == [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])]
    assert not relay.answer.is_truncated


def test_usage_comes_in_a_stream_only_where_it_is_asked_for_and_then_as_the_last_chunk() -> None:
    without = chunks(ask(DemoTransport(), stream=True)[1])
    assert not any("usage" in chunk for chunk in without)
    asked = chunks(ask(DemoTransport(), stream=True, stream_options={"include_usage": True})[1])
    assert all(chunk["usage"] is None for chunk in asked[:-1])
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"]["total_tokens"] > 0
    assert len({chunk["id"] for chunk in asked}) == 1


def test_a_prompt_that_begins_like_an_earlier_one_is_cached_up_to_where_it_differs() -> None:
    demo = DemoTransport()
    history = [{"role": "user", "content": f"message {n} " * 20} for n in range(20)]
    first = complete(demo, messages=history)["usage"]
    again = complete(demo, messages=[*history, USER])["usage"]
    changed = complete(demo, messages=[*history[:10], USER, *history[10:]])["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["prompt_tokens_details"]["cached_tokens"] > 0.95 * first["prompt_tokens"]
    assert changed["prompt_tokens_details"]["cached_tokens"] == pytest.approx(first["prompt_tokens"] / 2, rel=0.1)
    assert complete(DemoTransport(), messages=history)["usage"] == first, "another demo has seen nothing"


def test_the_demos_memory_is_bounded() -> None:
    demo = DemoTransport()
    for number in range(3):
        complete(
            demo, messages=[{"role": "user", "content": str(number) * (CACHE_BLOCK_BYTES * MAX_CACHE_BLOCKS // 2)}]
        )
    assert len(demo._seen) == MAX_CACHE_BLOCKS


def test_n_and_limits_and_stops_are_honoured() -> None:
    assert [choice["index"] for choice in complete(DemoTransport(), n=3)["choices"]] == [0, 1, 2]
    assert {c["choices"][0]["index"] for c in chunks(ask(DemoTransport(), n=2, stream=True)[1])} == {0, 1}
    [short] = complete(DemoTransport(), max_tokens=3)["choices"]
    assert (short["finish_reason"], short["message"]["content"]) == ("length", "You said: ")
    [stopped] = complete(DemoTransport(), stop=["demo"])["choices"]
    assert stopped["finish_reason"] == "stop"
    assert "demo" not in stopped["message"]["content"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/v1/embeddings", b"{}", 404, "unknown_url"),
        ("GET", "/v1/chat/completions", b"", 405, "method_not_allowed"),
        ("GET", "/v1/models/gpt-5", b"", 404, "model_not_found"),
        ("POST", "/v1/chat/completions", b"{", 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b"\xff", 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b"[" * 100_000, 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b"[]", 400, "invalid_value"),
        ("POST", "/v1/chat/completions", b'{"messages":[]}', 400, "invalid_value"),
        ("POST", "/v1/chat/completions", b'{"messages":["x"]}', 400, "invalid_value"),
    ],
)
def test_the_demo_refuses_unsupported_requests_in_openais_shape(
    method: str, path: str, body: bytes, status: int, code: str
) -> None:
    answer = DemoTransport().answer_request(method, path, body)
    error = json.loads(b"".join(answer.body.parts))["error"]
    assert (answer.status, error["code"]) == (status, code)
    assert set(error) == {"message", "type", "param", "code"}


def test_the_paths_of_clouds_are_answered_as_the_plain_ones() -> None:
    body = json.dumps({"messages": [USER]}).encode()
    demo = DemoTransport()
    plain = demo.answer_request("POST", "/v1/chat/completions", body)
    azure = demo.answer_request("POST", "/openai/deployments/d/chat/completions?api-version=1", body)
    assert [one["choices"] for one in (read(plain), read(azure))] == [read(plain)["choices"]] * 2
    vertex = "/v1/projects/p/locations/l/publishers/anthropic/models/claude-opus-5-5:rawPredict"
    answer = demo.answer_request("POST", vertex, json.dumps({"max_tokens": 100, "messages": [USER]}).encode())
    assert (answer.status, read(answer)["type"]) == (200, "message")
    asked = json.dumps({"anthropic_version": "v", "max_tokens": 100, "messages": [USER]}).encode()
    answer = demo.answer_request("POST", "/model/any.claude/invoke", asked)
    assert (answer.status, read(answer)["type"]) == (200, "message")
    stream = demo.answer_request("POST", "/model/any.claude/invoke-with-response-stream", asked)
    assert stream.headers == [(b"content-type", b"application/vnd.amazon.eventstream")]
    frames = FrameParser().feed(b"".join(stream.body.parts))
    assert {frame.headers[":event-type"] for frame in frames} == {"chunk"}


def read(answer: DemoResponse) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(b"".join(answer.body.parts))
    return value


def test_an_unknown_path_is_told_which_ones_there_are() -> None:
    told = b"".join(DemoTransport().answer_request("POST", "/v1/embeddings", b"{}").body.parts).decode()
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages", ":generateContent", "/v1/models"):
        assert path in told


def test_the_demo_model_is_listed_with_and_without_v1() -> None:
    for path in ("/v1/models", "/models"):
        [model] = json.loads(b"".join(DemoTransport().answer_request("GET", path, b"").body.parts))["data"]
        assert model["id"] == "demo"
    assert DemoTransport().answer_request("GET", "/v1/models/demo", b"").status == 200


async def test_a_stream_is_given_out_in_its_parts() -> None:
    body = json.dumps({"messages": [USER], "stream": True}).encode()
    parts = [part async for part in DemoTransport().answer_request("POST", "/v1/chat/completions", body).body]
    assert len(parts) > 2
    assert b"".join(parts) == ask(DemoTransport(), stream=True)[1]


@given(
    st.text(max_size=20),
    st.sampled_from(["n", "stop", "max_tokens", "stream_options", "model"]),
    st.integers() | st.text(max_size=3) | st.none(),
)
def test_odd_parameters_and_characters_cause_no_server_error(text: str, name: str, value: object) -> None:
    for stream in (False, True):
        status, _ = ask(
            DemoTransport(), messages=[{"role": "user", "content": text + "\ud800"}], stream=stream, **{name: value}
        )
        assert status == 200


async def test_the_openai_sdk_holds_a_conversation_with_tools_streaming_and_not() -> None:
    metrics = Metrics()
    client = UpstreamClient(Settings(), metrics)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await serve_passthrough(scope, receive, send, client, metrics, path=scope["path"])

    async with (
        serve_app(answer_errors(app, metrics)) as port,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as sdk,
    ):
        assert [model.id async for model in sdk.models.list()] == ["demo"]
        for stream in (False, True):
            messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Read the file src/main.py"}]
            said = []
            for _ in range(2):
                if stream:
                    async with sdk.chat.completions.stream(model="demo", messages=messages, tools=[READ]) as events:
                        message: Any = (await events.get_final_completion()).choices[0].message
                else:
                    done = await sdk.chat.completions.create(model="demo", messages=messages, tools=[READ])
                    message = done.choices[0].message
                said.append(message)
                if message.tool_calls:
                    [call] = message.tool_calls
                    messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": "print('hello')"})
            assert said[0].tool_calls[0].function.arguments == '{"path": "src/main.py"}'
            assert "print('hello')" in said[1].content
        with pytest.raises(openai.NotFoundError):
            await sdk.embeddings.create(model="demo", input="x")
    await asyncio.sleep(0)
