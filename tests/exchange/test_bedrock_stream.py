"""Claude on Bedrock through the proxy: frames in, frames out, on real sockets."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from proxy.exchange import client_stream
from tests.clients.clouds import FRAMES, BedrockModel, write_chunk, write_frame
from tests.proxy_server import RawAnswer, make_key, run_proxy
from tests.raw_upstream import HEAD, Connection, RawRequest, Script, run_upstream

# Any, where the package is not installed as well: then the tests are skipped with this reason.
eventstream: Any = pytest.importorskip("botocore.eventstream", reason="botocore is not installed")

Json = dict[str, Any]
MODEL = "us.anthropic.claude-opus-5-5-v1:0"
ARN = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/ab12"
STREAM_PATH = f"/model/{MODEL}/invoke-with-response-stream"
BODY: Json = {
    "anthropic_version": "bedrock-2023-05-31", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello."}]
}  # fmt: skip
TOOL: Json = {"name": "read", "description": "Read.", "input_schema": {"type": "object", "properties": {}}}
WITH_TOOL: Json = {**BODY, "tools": [TOOL]}
EVENTS: list[Json] = [
    {"type": "message_start", "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [], "stop_reason": None,
        "usage": {"input_tokens": 9, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Well."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
     "usage": {"output_tokens": 4}},
    {"type": "message_stop", "amazon-bedrock-invocationMetrics": {"inputTokenCount": 9, "outputTokenCount": 4}},
]  # fmt: skip
WHOLE = b"".join(map(write_chunk, EVENTS))
THROTTLED = write_frame(
    b'{"message":"Too many tokens"}', message_type="exception", exception_type="throttlingException",
    content_type="application/json",
)  # fmt: skip


def answer_with(frames: bytes, *, ends: bool = True) -> Script:
    async def script(_: RawRequest, connection: Connection) -> None:
        await connection.send(FRAMES)
        await connection.chunk(frames)
        if ends:
            await connection.chunk(b"")
        else:
            await connection.reset()

    return script


def read_frames(body: bytes) -> list[tuple[Json, bytes]]:
    buffer = eventstream.EventStreamBuffer()
    buffer.add_data(body)
    return [(dict(event.headers), event.payload) for event in buffer]


def get_type(answer: RawAnswer) -> str:
    return dict(answer.headers)[b"content-type"].decode()


@pytest.mark.parametrize("policy", ["observe", "thrifty", "rolling"])
async def test_an_answer_that_nothing_changes_has_the_frames_that_came(policy: str) -> None:
    async with run_upstream(answer_with(WHOLE)) as upstream, run_proxy(upstream.port, policy=policy) as proxy:
        answer = await proxy.post(BODY, path=STREAM_PATH)
        assert (answer.status, answer.body, answer.whole) == (200, WHOLE, True)
        assert get_type(answer) == "application/vnd.amazon.eventstream"
        assert await proxy.outcome() == ("complete", 200, None)
        [(model, prompt, completion)] = await proxy.rows(
            "SELECT model, prompt_tokens, completion_tokens FROM exchanges"
        )
    assert upstream.requests[0].line == f"POST {STREAM_PATH} HTTP/1.1".encode()
    assert (model, prompt, completion) == (MODEL, 9, 4)


async def test_an_answer_in_one_body_is_that_of_messages() -> None:
    message = {**EVENTS[0]["message"], "content": [{"type": "text", "text": "Well."}], "stop_reason": "end_turn"}

    async def script(_: RawRequest, connection: Connection) -> None:
        body = json.dumps(message).encode()
        await connection.send(HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body))

    async with run_upstream(script) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        answer = await proxy.post(BODY, path=f"/model/{MODEL}/invoke")
        assert json.loads(answer.body) == message
        assert await proxy.outcome() == ("complete", 200, None)


async def test_an_exception_in_a_stream_reaches_the_client_as_it_came() -> None:
    begun = b"".join(map(write_chunk, EVENTS[:3])) + THROTTLED
    async with run_upstream(answer_with(begun)) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        answer = await proxy.post(BODY, path=STREAM_PATH)
        assert answer.body == begun
        status, _, _ = await proxy.outcome()
        [(note,)] = await proxy.rows("SELECT note FROM exchanges")
    assert status == "partial"
    assert "Too many tokens" in note


@pytest.mark.parametrize("cut", [WHOLE[:-200], write_chunk(EVENTS[0]) + b"\0" * 40])
async def test_a_stream_that_breaks_ends_with_an_exception_that_clients_can_read(cut: bytes) -> None:
    script = answer_with(cut, ends=False)
    async with run_upstream(script) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        answer = await proxy.post(BODY, path=STREAM_PATH)
        assert (await proxy.outcome())[0] == "partial"
    headers, payload = read_frames(answer.body)[-1]
    assert headers[":exception-type"] == "modelStreamErrorException"
    assert "upstream 'default'" in json.loads(payload)["message"]
    assert not answer.whole


REFUSED: Json = {"message": "The provided model identifier is invalid."}


async def test_an_error_before_the_stream_is_passed_on() -> None:
    async def script(_: RawRequest, connection: Connection) -> None:
        body = json.dumps(REFUSED).encode()
        head = b"HTTP/1.1 400 Bad\r\ncontent-type: application/json\r\nx-amzn-errortype: ValidationException\r\n"
        await connection.send(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))

    async with run_upstream(script) as upstream, run_proxy(upstream.port, policy="thrifty") as proxy:
        answer = await proxy.post(BODY, path=STREAM_PATH)
    assert (answer.status, json.loads(answer.body)) == (400, REFUSED)
    assert (b"x-amzn-errortype", b"ValidationException") in answer.headers


async def test_other_models_and_other_methods_pass_as_they_are() -> None:
    """A model of OpenAI has a body like that of chat completions, and Converse a form of its own."""
    other = {"messages": [{"role": "user", "content": "Hello."}], "max_completion_tokens": 100}
    async with run_upstream(answer_with(WHOLE)) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        for path, reason in (
            ("/model/openai.gpt-oss-120b-1:0/invoke-with-response-stream", b"shape"),
            (f"/model/{ARN.replace('/', '%2F')}/invoke-with-response-stream", b"shape"),
            (f"/model/{MODEL}/converse-stream", None),
        ):
            answer = await proxy.post(other, path=path)
            assert answer.body == WHOLE
            assert dict(answer.headers).get(b"x-context-fallback") == reason
            assert (b"x-context-unmanaged" in dict(answer.headers)) == (reason is None)
        off = await proxy.post(BODY, b"x-context-off: 1", path=STREAM_PATH)
        assert off.body == WHOLE
        assert await proxy.rows("SELECT count(*) FROM exchanges") == [(0,)]
    assert all(json.loads(one.body) in (other, BODY) for one in upstream.requests)


async def test_a_profile_is_asked_for_as_the_client_wrote_it_also_with_the_operators_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BEDROCK_KEY", "ABSK-operator")
    path = f"/model/{ARN.replace('/', '%2F').replace(':', '%3A')}/invoke-with-response-stream"
    async with run_upstream(answer_with(WHOLE)) as upstream:
        named = {"base_url": f"http://127.0.0.1:{upstream.port}", "api_key_env": "BEDROCK_KEY", "strategy": "anthropic"}
        async with run_proxy("", policy="thrifty", upstreams={"bedrock": named}, keys=[make_key("mine")]) as proxy:
            answer = await proxy.post(BODY, path=path, key="mine")
            assert (answer.status, answer.body) == (200, WHOLE)
            assert await proxy.rows("SELECT model FROM exchanges") == [(ARN,)]
    [request] = upstream.requests
    assert request.line == f"POST {path} HTTP/1.1".encode()
    assert request.all(b"authorization") == [b"Bearer ABSK-operator"]
    assert not request.all(b"x-api-key")


async def test_a_base_url_may_have_the_path_of_another_form() -> None:
    async with run_upstream(answer_with(WHOLE)) as upstream:
        for base in ("", "/v1", "/openai/v1"):
            async with run_proxy(f"http://127.0.0.1:{upstream.port}{base}", policy="thrifty") as proxy:
                assert (await proxy.post(BODY, path=STREAM_PATH)).body == WHOLE
    assert {one.line for one in upstream.requests} == {f"POST {STREAM_PATH} HTTP/1.1".encode()}


async def test_commands_in_the_conversation_are_answered_in_frames() -> None:
    body = {**BODY, "messages": [{"role": "user", "content": "/context show"}]}
    async with (
        run_upstream(answer_with(WHOLE)) as upstream,
        run_proxy(upstream.port, policy="thrifty", commands={"in_band": True}) as proxy,
    ):
        streamed = await proxy.post(body, path=STREAM_PATH)
        whole = await proxy.post(body, path=f"/model/{MODEL}/invoke")
    assert not upstream.requests
    assert get_type(streamed) == "application/vnd.amazon.eventstream"
    assert [headers[":event-type"] for headers, _ in read_frames(streamed.body)][-1] == "chunk"
    assert json.loads(whole.body)["content"][0]["text"].startswith("[context-proxy]")


RECALL: Json = {"type": "tool_use", "id": "toolu_1", "name": "recall", "input": {"id": "a-1"}}


async def test_a_hidden_round_shows_no_frame_to_the_client() -> None:
    model = BedrockModel([{"type": "text", "text": "Let me see. "}, RECALL], [{"type": "text", "text": "It is so."}])
    async with (
        run_upstream(model) as upstream,
        run_proxy(upstream.port, policy="rolling", tools={"offer": "first_request"}) as proxy,
    ):
        answer = await proxy.post(WITH_TOOL, path=STREAM_PATH, key="ABSK-any")
        assert await proxy.outcome() == ("complete", 200, None)
    assert model.refusals == []
    assert len(model.bodies) == 2
    events = [json.loads(base64.b64decode(json.loads(payload)["bytes"])) for _, payload in read_frames(answer.body)]
    assert b"recall" not in answer.body
    assert not any(event.get("content_block", {}).get("type") == "tool_use" for event in events)
    assert [event["type"] for event in events].count("message_start") == 1
    assert events[-1]["type"] == "message_stop"
    text = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
    assert text == "Let me see. It is so."


async def test_a_silent_stream_is_kept_alive_by_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames have no comments, and a client that waits for a hidden round would hear nothing."""
    monkeypatch.setattr(client_stream, "KEEPALIVE_S", 0.05)

    async def script(_: RawRequest, connection: Connection) -> None:
        await connection.send(FRAMES)
        await connection.chunk(write_chunk(EVENTS[0]))
        await asyncio.sleep(0.3)
        await connection.chunk(b"".join(map(write_chunk, EVENTS[1:])))
        await connection.chunk(b"")

    async with (
        run_upstream(script) as upstream,
        run_proxy(upstream.port, policy="rolling", tools={"offer": "first_request"}) as proxy,
    ):
        answer = await proxy.post(WITH_TOOL, path=STREAM_PATH)
    events = [json.loads(base64.b64decode(json.loads(payload)["bytes"])) for _, payload in read_frames(answer.body)]
    assert {"type": "ping"} in events
    assert [event for event in events if event["type"] != "ping"] == EVENTS
