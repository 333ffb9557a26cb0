"""The end of a streamed answer: what an upstream does behind it, its own errors, and streams under odd media types."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Awaitable, Callable

import pytest

from proxy.exchange.services import TURN_BYTES
from tests.loop_turns import count_bytes_read
from tests.proxy_server import run_proxy
from tests.raw_upstream import STREAM, Connection, RawRequest, run_upstream
from tests.scripted_model import send_reply

Rest = Callable[[Connection], Awaitable[None]]

RECALLS = {"index": 0, "id": "r", "type": "function", "function": {"name": "recall", "arguments": '{"id": "x"}'}}
CHOICE = {"index": 0, "delta": {"role": "assistant", "tool_calls": [RECALLS]}, "finish_reason": "tool_calls"}
CALLING = f"data: {json.dumps({'id': 'c', 'object': 'chat.completion.chunk', 'choices': [CHOICE]})}\n\n".encode()
CHUNKS = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":"Well."}}]}\n\n',
    b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
)
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"CUDA out of memory","type":"server_error","code":500}}\n\n'
TOOLS = [{"type": "function", "function": {"name": "theirs", "parameters": {"type": "object"}}}]
ASKED = {"model": "m", "messages": [{"role": "user", "content": "Hello."}], "stream": True}


async def waits(connection: Connection) -> None:
    await connection.left()


async def resets(connection: Connection) -> None:
    await connection.reset()


async def breaks_the_framing(connection: Connection) -> None:
    await connection.send(b"zz\r\n")


async def pings(connection: Connection) -> None:
    for _ in range(400):
        await connection.chunk(b": ping\n\n")


@pytest.mark.parametrize("rest", [waits, resets, breaks_the_framing, pings])
async def test_an_answer_has_ended_with_its_last_event_whatever_the_upstream_does_then(rest: Rest) -> None:
    async def script(request: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        for chunk in (*CHUNKS, DONE):
            await connection.chunk(chunk)
        await rest(connection)

    async with run_upstream(script) as upstream, run_proxy(upstream.port) as proxy:
        found = await proxy.post(ASKED)
        assert found.body.replace(b": ping\n\n", b"").startswith(b"".join(CHUNKS) + DONE)
        assert b"error" not in found.body
        assert await proxy.outcome() == ("complete", 200, None)
        assert await upstream.none_open()


EVENTS = {
    "/v1/chat/completions": b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n',
    "/v1/messages": b'event: ping\ndata: {"type":"ping"}\n\n',
    "/v1/responses": b'data: {"type":"response.output_text.delta","delta":"a"}\n\n',
    "/v1beta/models/g:streamGenerateContent?alt=sse": b'data: {"candidates":[{"finishReason":null}]}\n\n',
}


@pytest.mark.parametrize("path", EVENTS)
@pytest.mark.parametrize("media_type", [b"text/event-stream", b"text/plain"])
async def test_other_requests_run_while_a_stream_that_came_at_once_is_read(path: str, media_type: bytes) -> None:
    stream = EVENTS[path] * (1_000_000 // len(EVENTS[path]))

    async def script(request: RawRequest, connection: Connection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\nconnection: close\r\n\r\n" % media_type, stream)
        connection.writer.close()

    asked = {"contents": [{"parts": [{"text": "a"}]}]} if "v1beta" in path else ASKED | {"input": "a", "max_tokens": 9}
    async with run_upstream(script) as upstream, run_proxy(upstream.port) as proxy, count_bytes_read() as read:
        found = await proxy.post(asked, path=path)
    assert found.body.startswith(stream)
    assert sum(read.values()) == len(stream)
    assert max(read.values()) <= 2 * TURN_BYTES


async def test_a_break_before_the_last_event_is_reported() -> None:
    async def script(request: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        for chunk in CHUNKS:
            await connection.chunk(chunk)
        await connection.reset()

    async with run_upstream(script) as upstream, run_proxy(upstream.port) as proxy:
        found = await proxy.post(ASKED)
        assert b"upstream_broken" in found.body
        assert (await proxy.outcome())[0] == "partial"


@pytest.mark.parametrize("events", [(CHUNKS[0], ERROR, DONE), (ERROR, DONE), (CHUNKS[0], ERROR)])
async def test_an_error_of_the_provider_reaches_the_client_alone_and_the_record_has_it(
    events: tuple[bytes, ...],
) -> None:
    async def script(request: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        for event in events:
            await connection.chunk(event)
        await connection.send(b"0\r\n\r\n")

    async with run_upstream(script) as upstream, run_proxy(upstream.port) as proxy:
        found = await proxy.post(ASKED)
        assert found.body == b"".join(events)
        assert (await proxy.outcome())[:2] == ("partial", 200)
        [(note,)] = await proxy.rows("SELECT note FROM exchanges")
        assert note == "upstream error: CUDA out of memory"


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\ncontent-type: Text/Event-Stream; charset=UTF-8\r\n",
        b"HTTP/1.1 201 Created\r\ncontent-type: text/event-stream\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n",
        b"HTTP/1.1 200 OK\r\n",
    ],
)
@pytest.mark.parametrize("hides", [False, True])
async def test_a_stream_is_read_as_one_whatever_its_head_says(head: bytes, hides: bool) -> None:
    async def script(request: RawRequest, connection: Connection) -> None:
        await connection.send(head + b"transfer-encoding: chunked\r\n\r\n")
        is_first = hides and len(upstream.requests) == 1
        for chunk in (CALLING, DONE) if is_first else (*CHUNKS, DONE):
            await connection.chunk(chunk)
        await connection.send(b"0\r\n\r\n")

    async with run_upstream(script) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        found = await proxy.post({**ASKED, "tools": TOOLS} if hides else ASKED)
        assert b"recall" not in found.body
        assert b"Well." in found.body
        assert found.body.endswith(DONE)
        assert (await proxy.outcome())[0] == "complete"
        assert len(upstream.requests) == (2 if hides else 1)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_calls_of_proxy_tools_stay_hidden_in_a_stream_that_is_compressed_unasked(coding: str) -> None:
    async def script(request: RawRequest, connection: Connection) -> None:
        made = zlib.compressobj(wbits=31 if coding == "gzip" else 15)
        await connection.send(STREAM[:-2], b"content-encoding: %b\r\n\r\n" % coding.encode())
        for chunk in (CALLING, DONE) if len(upstream.requests) == 1 else (*CHUNKS, DONE):
            await connection.chunk(made.compress(chunk) + made.flush(zlib.Z_SYNC_FLUSH))
        await connection.chunk(made.flush())
        await connection.send(b"0\r\n\r\n")

    async with run_upstream(script) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        found = await proxy.post({**ASKED, "tools": TOOLS}, b"accept-encoding: gzip")
        assert found.header("content-encoding") is None
        assert found.body.endswith(CHUNKS[1] + DONE)
        assert b"recall" not in found.body
        assert len(upstream.requests) == 2
        assert (await proxy.outcome())[0] == "complete"


@pytest.mark.parametrize("cut", [40, -12])
async def test_a_compressed_stream_that_breaks_off_is_reported(cut: int) -> None:
    async def script(request: RawRequest, connection: Connection) -> None:
        packed = gzip.compress(b"".join(CHUNKS))
        await connection.send(STREAM[:-2], b"content-encoding: gzip\r\n\r\n")
        await connection.chunk(packed[:cut])
        await connection.send(b"0\r\n\r\n")

    async with run_upstream(script) as upstream, run_proxy(upstream.port) as proxy:
        found = await proxy.post(ASKED)
        assert b"upstream_broken" in found.body
        assert (await proxy.outcome())[0] == "partial"


async def test_a_coding_that_is_not_known_is_passed_on_unchanged_and_is_noted() -> None:
    async def script(request: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM[:-2], b"content-encoding: x-own\r\n\r\n")
        await connection.chunk(b"\x80packed")
        await connection.send(b"0\r\n\r\n")

    async with run_upstream(script) as upstream, run_proxy(upstream.port) as proxy:
        found = await proxy.post(ASKED)
        assert (found.body, found.header("content-encoding"), found.whole) == (b"\x80packed", "x-own", True)
        assert (await proxy.outcome())[:2] == ("partial", 200)
        assert await proxy.rows("SELECT note FROM exchanges") == [("compressed with x-own",)]
        assert proxy.count("upstream_errors_total", kind="encoding") == 1


@pytest.mark.parametrize("head", [b"204 No Content", b"307 Moved"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_has_no_body_to_come_is_complete(head: bytes, stream: bool) -> None:
    async def script(request: RawRequest, connection: Connection) -> None:
        end = b"\r\n" if head.startswith(b"204") else b"location: /v2\r\ncontent-length: 0\r\n\r\n"
        await connection.send(b"HTTP/1.1 %b\r\n" % head, end)

    async with run_upstream(script) as upstream, run_proxy(upstream.port) as proxy:
        found = await proxy.post({**ASKED, "stream": stream})
        assert (found.status, found.body) == (int(head[:3]), b"")
        assert await proxy.outcome() == ("complete", int(head[:3]), None)
        assert await proxy.rows("SELECT note FROM exchanges") == [(f"http {int(head[:3])}",)]


FORMATS: dict[str, tuple[dict[str, object], bytes]] = {
    "/v1/chat/completions": ({**ASKED, "tools": TOOLS}, CHUNKS[0]),
    "/v1/responses": (
        {
            "model": "m",
            "stream": True,
            "input": "Hello.",
            "store": False,
            "tools": [{"type": "function", "name": "theirs", "parameters": {"type": "object"}}],
        },
        b'data: {"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"Well."}\n\n',
    ),
    "/v1/messages": (
        {**ASKED, "max_tokens": 99, "tools": [{"name": "theirs", "input_schema": {"type": "object"}}]},
        b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":"Well."}}\n\n',
    ),
    "/v1beta/models/g:streamGenerateContent?alt=sse": (
        {
            "contents": [{"role": "user", "parts": [{"text": "Hello."}]}],
            "tools": [{"functionDeclarations": [{"name": "theirs"}]}],
        },
        b'data: {"candidates":[{"content":{"role":"model","parts":[{"text":"Well."}]}}]}\n\n',
    ),
}


@pytest.mark.parametrize("path", FORMATS)
@pytest.mark.parametrize(
    ("rest", "passes"),
    [
        (b'{"error":{"message":"out of memory"}}\n', True),
        (b"<html>502 Bad Gateway</html>", True),
        (b'data: {"error":{"message":"out of mem', False),
        (b"retr", False),
    ],
)
async def test_text_after_the_events_is_passed_on_with_tools_too_and_half_an_event_is_not(
    path: str, rest: bytes, passes: bool
) -> None:
    asked, event = FORMATS[path]

    async def script(request: RawRequest, connection: Connection) -> None:
        await connection.send(STREAM)
        await connection.chunk(event)
        await connection.chunk(rest)
        await connection.send(b"0\r\n\r\n")

    async with run_upstream(script) as upstream, run_proxy(upstream.port, policy="rolling") as proxy:
        found = await proxy.post(json.dumps(asked).encode(), path=path)
        assert b"recall" in upstream.requests[0].body
        assert (rest in found.body) == passes
        assert (rest + b"\n\n" in found.body) == passes, "the proxy's own event does not join it"
        assert b"before it was complete" in found.body
        assert (await proxy.outcome())[0] == "partial"


async def test_a_broken_stream_with_a_length_ends_with_an_error_for_the_client() -> None:
    """The error had no room in the length that the upstream had announced."""

    async def script(_: RawRequest, connection: Connection) -> None:
        await send_reply(connection, b"200 OK", CHUNKS[0], b"content-type: text/event-stream")

    async with run_upstream(script) as upstream, run_proxy(upstream.port) as proxy:
        wanted = ASKED | {"stream_options": {"include_usage": True}}
        found = await proxy.post(wanted)
        assert proxy.count("internal_errors_total") == 0
    assert found.status == 200
    assert not found.whole
    assert found.events[0] == CHUNKS[0][6:-2]
    assert b"upstream_broken" in found.events[1]
