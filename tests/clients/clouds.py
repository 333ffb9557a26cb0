"""Strict upstreams at the addresses of clouds: Claude on Vertex AI and Bedrock, Gemini on Vertex AI, Azure."""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.raw_upstream import STREAM, Connection, RawRequest
from tests.scripted_model import send_reply
from tests.strict_gemini import StrictGemini
from tests.strict_messages import StrictMessages
from tests.strict_responses import StrictResponses

VERTEX_LINE = re.compile(
    rb"POST (?:/v1)?/projects/team/locations/us-east5/publishers/anthropic/models/(claude-opus-5-5|count-tokens):"
    rb"(rawPredict|streamRawPredict)(?:\?beta=true)? HTTP/1.1"
)
VERTEX_GEMINI_LINE = re.compile(
    rb"POST /v1beta1/projects/team/locations/us-east5/publishers/google/models/(\S+ HTTP/1.1)"
)
AZURE_LINE = b"POST /openai/responses?api-version=2025-04-01-preview HTTP/1.1"


class VertexModel(StrictMessages):
    """Claude on Vertex AI: the path names the model, the body has a version of its own and no model."""

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        found = VERTEX_LINE.fullmatch(request.line)
        assert found, request.line
        body = json.loads(request.body)
        is_count = found[1] == b"count-tokens"
        assert body.pop("anthropic_version")
        assert ("model" in body) == is_count
        assert is_count or (found[2] == b"streamRawPredict") == body.get("stream", False)
        line = b"POST /v1/messages%b HTTP/1.1" % (b"/count_tokens" if is_count else b"")
        named = json.dumps({"model": found[1].decode(), **body}).encode()
        headers = [(b"x-api-key", b"k"), (b"anthropic-version", b"2023-06-01"), *request.headers]
        await super().__call__(replace(request, line=line, headers=headers, body=named), connection)


class VertexGemini(StrictGemini):
    """Gemini on Vertex AI: the path has project and place, and a token takes the place of the key."""

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        found = VERTEX_GEMINI_LINE.fullmatch(request.line)
        assert found, request.line
        assert request.all(b"authorization") == [b"Bearer ya29.token"]
        headers = [(b"x-goog-api-key", b"k"), *request.headers]
        await super().__call__(replace(request, line=b"POST /v1beta/models/" + found[1], headers=headers), connection)


class AzureModel(StrictResponses):
    """Responses on Azure: an address of its own, with the version in the query and the key in its own header."""

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        assert request.line == AZURE_LINE, request.line
        assert request.all(b"api-key") == [b"azure-key"]
        headers = [(b"authorization", b"Bearer sk-any"), *request.headers]
        await super().__call__(replace(request, line=b"POST /v1/responses HTTP/1.1", headers=headers), connection)


BEDROCK_LINE = re.compile(rb"POST /model/([^/?]+)/(invoke|invoke-with-response-stream) HTTP/1.1")
PROFILES_LINE = b"GET /inference-profiles?type=SYSTEM_DEFINED HTTP/1.1"
FRAMES = STREAM.replace(b"text/event-stream", b"application/vnd.amazon.eventstream")


def write_frame(payload: bytes, **headers: str) -> bytes:
    """A frame of an AWS event stream. headers: by their names without the colon, `_` for `-`."""
    texts = [(b":" + name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    head = b"".join(bytes([len(name)]) + name + struct.pack("!BH", 7, len(value)) + value for name, value in texts)
    prelude = struct.pack("!II", len(head) + len(payload) + 16, len(head))
    frame = prelude + struct.pack("!I", binascii.crc32(prelude)) + head + payload
    return frame + struct.pack("!I", binascii.crc32(frame))


def write_chunk(event: dict[str, Any]) -> bytes:
    """The frame of one event of Messages, padded as Bedrock pads it."""
    data = base64.b64encode(json.dumps(event).encode()).decode()
    payload = json.dumps({"bytes": data, "p": "abcdefghijklm"}, separators=(",", ":")).encode()
    return write_frame(payload, event_type="chunk", content_type="application/json", message_type="event")


class _FramedConnection(Connection):
    """A connection whose events go out in frames. They come one in a chunk."""

    async def send(self, *parts: bytes) -> None:
        await super().send(*[FRAMES if part == STREAM else part for part in parts])

    async def chunk(self, data: bytes) -> None:
        frame = write_chunk(json.loads(data.partition(b"data: ")[2])) if data else b""
        await super().send(b"%x\r\n%b\r\n" % (len(frame), frame))


async def answer_probe(body: dict[str, Any], connection: Connection) -> bool:
    """Answer a request by which Claude Code asks if a model is there; False if it is another one."""
    if body["max_tokens"] != 1:
        return False
    message = StrictMessages().make_message({"model": "any", "messages": []}, ".")
    reply = json.dumps({**message, "stop_reason": "max_tokens"}).encode()
    await send_reply(connection, b"200 OK", reply, b"content-type: application/json")
    return True


class MantleModel(StrictMessages):
    """Claude at Bedrock's address for Anthropic's own form."""

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        if not await answer_probe(json.loads(request.body), connection):
            await super().__call__(request, connection)


class BedrockModel(StrictMessages):
    """Claude on Bedrock: the path names the model and tells if a stream is wanted, the answer comes in frames.

    models: those that were asked for, as they were encoded.
    """

    def __init__(self, *answers: Any) -> None:
        super().__init__(*answers)
        self.models: list[bytes] = []

    async def __call__(self, request: RawRequest, connection: Connection) -> None:
        if request.line == PROFILES_LINE:  # another host of AWS has the list: Claude Code takes it for empty
            await send_reply(connection, b"404 Not Found", b"{}", b"content-type: application/json")
            return
        found = BEDROCK_LINE.fullmatch(request.line)
        assert found, request.line
        assert request.all(b"authorization") == [b"Bearer ABSK-any"]
        self.models.append(found[1])
        body = json.loads(request.body)
        if await answer_probe(body, connection):
            return
        assert body.pop("anthropic_version")
        assert not {"model", "stream"} & set(body)
        betas = ",".join(body.pop("anthropic_beta", ())).encode()
        named = {"model": "claude-opus-5-5", "stream": found[2] != b"invoke", **body}
        headers = [(b"anthropic-version", b"2023-06-01"), (b"anthropic-beta", betas), *request.headers]
        framed = _FramedConnection(connection.reader, connection.writer)
        line, sent = b"POST /v1/messages HTTP/1.1", json.dumps(named).encode()
        await super().__call__(replace(request, line=line, headers=headers, body=sent), framed)


def on(cloud: type[Any], make_model: Callable[[], Any]) -> Callable[[], Any]:
    """Return a maker of the same model with the addresses of a cloud."""
    return lambda: cloud(*make_model().answers)
