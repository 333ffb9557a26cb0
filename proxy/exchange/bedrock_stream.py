"""Claude on Bedrock: Messages in AWS's frames, and requests that only their path tells apart from those of other
models."""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from proxy.dialects.cloud_paths import BEDROCK_PATH, BEDROCK_STREAM
from proxy.exchange.client_stream import KEEPALIVE_COMMENT
from proxy.exchange.fallback import FallbackReason
from proxy.exchange.services import Headers, Incoming, ResponseWriter
from proxy.stream.aws_event_stream import MEDIA_TYPE, EventFrames, FrameDecoder, FrameEncoder, write_chunk
from proxy.upstream.client import Reply, is_event_stream
from proxy.upstream.headers import remove_headers

_VERSION: Final = re.compile(rb'"anthropic_version"\s*:')
"""A member that Bedrock demands of Claude's requests, and that no other model's has."""

_PING: Final = write_chunk(b'{"type":"ping"}')
"""Messages' own event for a silent stream: frames have no comments."""


def read_request(incoming: Incoming, path: str) -> Incoming:
    """Return a request to Bedrock with the frames of its answer, if it is a stream. A body of another model passes
    unmanaged: the path may name a profile, which does not tell its model. path: decoded."""
    found = BEDROCK_PATH.fullmatch(path)
    if found is None:
        return incoming
    if _VERSION.search(incoming.body) is None:
        return replace(incoming, unmanaged_reason=FallbackReason.SHAPE)
    return replace(incoming, frames=EventFrames()) if found["method"] == BEDROCK_STREAM else incoming


def read_reply(reply: Reply, frames: EventFrames) -> Reply:
    """Return a reply whose frames are read as server-sent events. Others stay as they are."""
    if reply.is_readable and reply.content_type.startswith(MEDIA_TYPE):
        reply.read_as_events(FrameDecoder(frames))
    return reply


class FrameWriter(ResponseWriter):
    """The way back to a client that reads frames: server-sent events go out in them, everything else as it is."""

    __slots__ = ("_encoder", "_is_framed", "_out")

    def __init__(self, out: ResponseWriter, frames: EventFrames) -> None:
        self._out = out
        self._encoder = FrameEncoder(frames)
        self._is_framed = False

    async def start(self, status: int, headers: Headers) -> None:
        self._is_framed = is_event_stream(status, headers)
        if self._is_framed:
            headers = [*remove_headers(headers, b"content-type"), (b"content-type", MEDIA_TYPE.encode())]
        await self._out.start(status, headers)

    async def write(self, data: bytes) -> None:
        if not self._is_framed:
            await self._out.write(data)
        elif data == KEEPALIVE_COMMENT:
            await self._out.write(_PING)
        elif frames := self._encoder.feed(data):
            await self._out.write(frames)

    async def end(self, data: bytes = b"") -> None:
        if self._is_framed:
            data = self._encoder.feed(data) + self._encoder.flush()
        await self._out.end(data)

    async def abort(self) -> None:
        await self._out.abort()

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        await self._out.respond(status, headers, body)
