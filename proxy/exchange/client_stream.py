"""The stream that the client gets: a stream of upstream, relayed as it comes, and kept alive while it is silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from proxy.errors import ClientGone, UpstreamBroken, UpstreamError, UpstreamTimeout
from proxy.exchange.services import TURN_BYTES, Headers, ResponseWriter
from proxy.stream.answer_relay import AnswerRelay
from proxy.upstream.client import Reply

KEEPALIVE_S = 10.0
"""Seconds of silence after which a stream gets a comment: some clients give up on a silent connection."""
KEEPALIVE_COMMENT = b": keepalive\n\n"
REST_S = 0.1
"""Seconds at most in which the rest of a stream is read after its answer: the client's end waits for it."""


async def relay_to_client(reply: Reply, relay: AnswerRelay, out: ResponseWriter) -> UpstreamError | None:
    """Relay one stream to the client, up to its end. Return the error that broke it, or None.

    A fault after the end of the answer breaks nothing: the client has nothing more to get.
    """
    broken: UpstreamError | None = None
    try:
        try:
            async for data in reply.iter_bytes():
                if len(data) > TURN_BYTES:
                    await _relay_in_turns(data, relay, out)
                elif visible := relay.feed(data):
                    await out.write(visible)
                if relay.has_ended:
                    await _read_rest(reply, relay)
                    break
        except (UpstreamBroken, UpstreamTimeout) as problem:
            broken = problem.with_traceback(None)  # it has this frame, whose variable would hold the error
        rest = relay.end()
        if rest:
            await out.write(rest)
    finally:
        await reply.close()
    return None if relay.terminal and relay.answer.is_done else broken


async def _relay_in_turns(data: bytes, relay: AnswerRelay, out: ResponseWriter) -> None:
    """Relay many bytes received at once. Other requests get their turn between."""
    for at in range(0, len(data), TURN_BYTES):
        if visible := relay.feed(data[at : at + TURN_BYTES]):
            await out.write(visible)
        await asyncio.sleep(0)


async def _read_rest(reply: Reply, relay: AnswerRelay) -> None:
    """Read what follows the end of an answer, for `REST_S` at most. Mostly this is the end of the body, after which the
    connection can be used again."""
    with suppress(TimeoutError, UpstreamBroken, UpstreamTimeout):
        async with asyncio.timeout(REST_S):
            async for data in reply.iter_bytes():
                relay.feed(data)


class _KeepaliveWriter(ResponseWriter):
    """The way back to a client: one write at a time, and the time of the last one is kept."""

    def __init__(self, out: ResponseWriter, keepalive: bytes) -> None:
        self._out = out
        self._keepalive = keepalive
        self._lock = asyncio.Lock()
        self._clock = asyncio.get_running_loop().time
        self.last_write_at = self._clock()

    async def start(self, status: int, headers: Headers) -> None:
        await self._out.start(status, headers)

    async def write(self, data: bytes) -> None:
        async with self._lock:
            await self._out.write(data)
        self.last_write_at = self._clock()

    async def end(self, data: bytes = b"") -> None:
        async with self._lock:
            await self._out.end(data)

    async def abort(self) -> None:
        await self._out.abort()

    async def send_keepalives(self) -> None:
        """Send a comment or a blank line between two events when nothing has gone out for KEEPALIVE_S."""
        while True:
            silent = self._clock() - self.last_write_at
            if silent >= KEEPALIVE_S:
                await self.write(self._keepalive)
                silent = 0.0
            await asyncio.sleep(KEEPALIVE_S - silent)


@asynccontextmanager
async def keep_alive(out: ResponseWriter, *, has_comments: bool) -> AsyncIterator[ResponseWriter]:
    """Wrap the client's stream: while it is silent, comments are sent, or blank lines in their place."""
    writer = _KeepaliveWriter(out, KEEPALIVE_COMMENT if has_comments else b"\n")
    task = asyncio.create_task(writer.send_keepalives())
    try:
        yield writer
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, ClientGone):
            await task
