"""One request on an aiohttp connection, and its answer as it arrives.

aiohttp's own reader is not used. It drops received bytes when the connection breaks before they are read. It loses an
answer with stray bytes behind it. It accepts answers that two readers could read in two ways (framing.py). It also
mistakes a client that reads slowly for an upstream that is silent.

Closing never waits. A task may be cancelled a second time while it still closes after the first time, which cost httpx
0.28 its pool slots. Closing here has no `await` that such a second cancel could hit. Time limits also cancel nothing
while an answer is read: one timer ends the wait with an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, Protocol

import aiohttp
import httpx2
from aiohttp.connector import Connection
from aiohttp.http import StreamWriter

from proxy.upstream.framing import (
    HEAD_LIMIT,
    RESPONSE_START,
    SWITCHING_PROTOCOLS,
    BodyParser,
    CloseDelimitedBody,
    MalformedResponse,
    UnsendableRequest,
    parse_response_head,
)
from proxy.upstream.headers import Headers, find_header

HIGH_WATER: Final = 256 * 1024
"""Bytes received and not yet read, above which the socket is no longer read: back-pressure."""

JOINED_BODY_BYTES: Final = 32 * 1024
"""Bytes up to which a body is written in one piece with its head; longer bodies are not copied."""

REFUSED_STATUS: Final = 400
"""An answer with at least this status, sent while the body is still being sent, means that no more of the body is
wanted."""

FINAL_STATUSES: Final = range(200, 600)
"""Statuses of an answer that can be passed on."""


class ReleaseConnection(Protocol):
    """Callback that takes a connection back. clean: everything sent on either side has been received."""

    def __call__(self, answer: ResponseStream, connection: Connection, *, clean: bool) -> None: ...


class ResponseStream(httpx2.AsyncByteStream):
    """An answer, from before its request is sent. `head` is awaited first, then the body is read once, as an iterator.
    `close` is called at the end.

    Bytes that arrived before a connection loss are still given out before the error is raised. A time limit ends the
    answer at once. idle in s, deadline in loop time. Raises `httpx2.TransportError`.
    """

    def __init__(
        self, connection: Connection, method: str, idle: float, deadline: float, release: ReleaseConnection
    ) -> None:
        self.status = 0
        self.headers: Headers = []
        self._connection: Connection | None = connection
        assert connection.protocol is not None  # noqa: S101  # it is connected
        self._protocol = connection.protocol
        self._loop = asyncio.get_running_loop()
        self._method = method
        self._idle = idle
        self._deadline = deadline
        self._over = release
        self._timer = self._loop.call_at(min(deadline, self._loop.time() + idle), self._ring)
        self._since = 0.0
        """Loop time at which the current wait began. A client that reads slowly is not silence of the upstream."""
        self._waiter: asyncio.Future[None] | None = None
        self._seen: bytearray | None = None
        """The beginning of a head that is not complete yet."""
        self._skipped = 0
        """Bytes of informational heads."""
        self._body: BodyParser | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._paused = False
        self._keeps = True
        """True while the connection may be used again, as far as is known."""
        self._upload: asyncio.Timeout | None = None
        """The limit of silence while the body is sent."""
        self._sending = False
        self._error: httpx2.TransportError | None = None

    # Called by the connection

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Read received data. The result is for aiohttp: no error, no bytes left."""
        body = self._body
        try:
            if body is None:
                body, data = self._begin(data)
                if body is None:
                    return False, b""
            elif body.done:
                self._keeps = False  # more bytes than its answer; they would be taken for the next answer's
                return False, b""
            if data and body.feed(data, self._parts):
                self._keeps = False
        except MalformedResponse as error:
            self._fail(error)
            return False, b""
        self._size += len(data)
        if self._size > HIGH_WATER and not body.done:
            self._pause()
        self._wake()
        return False, b""

    def feed_eof(self) -> None:
        """Schedule the end: the connection is lost, and aiohttp sets the reason as soon as this method has returned."""
        self._loop.call_soon(self._cut)

    def _begin(self, data: bytes) -> tuple[BodyParser | None, bytes]:
        """Read the final head, past all informational ones. Return (its body, bytes after it), or (None, b"") if more
        is needed. Raises Malformed."""
        start = 0
        if self._seen is not None:
            start = max(0, len(self._seen) - 3)
            self._seen += data
            if self._seen.find(b"\r\n\r\n", start) < 0 and self._skipped + len(self._seen) <= HEAD_LIMIT:
                return None, b""
            data, self._seen = bytes(self._seen), None
        at = 0
        while (end := data.find(b"\r\n\r\n", start)) >= 0 and self._skipped + end <= HEAD_LIMIT:
            head = parse_response_head(data[at : end + 2], self._method)
            at = start = end + 4
            if head.status >= 200 or head.status == SWITCHING_PROTOCOLS:
                if head.status not in FINAL_STATUSES:
                    raise MalformedResponse(f"status {head.status} cannot be passed on")
                self.status, self.headers, self._body, self._keeps = head
                if self.status >= REFUSED_STATUS:
                    self._stop_sending()
                return self._body, data[at:]
        self._skipped += at
        data = data[at:]
        if self._skipped + len(data) > HEAD_LIMIT:
            raise MalformedResponse("its head is too long")
        if not data.startswith(RESPONSE_START[: len(data)]):
            raise MalformedResponse("it begins with no status line")
        self._seen = bytearray(data)
        return None, b""

    def _cut(self) -> None:
        body = self._body
        self._keeps = False
        if body is None or not body.done:
            error = self._protocol.exception()
            in_order = isinstance(error, aiohttp.ServerDisconnectedError)
            if isinstance(body, CloseDelimitedBody) and in_order:
                body.done = True
            elif self._error is None:
                self._error = httpx2.ReadError("it was closed" if in_order else str(error) or type(error).__name__)
        self._stop_sending()
        self._wake()

    def _ring(self) -> None:
        now = self._loop.time()
        silent_until = (now if self._waiter is None else self._since) + self._idle
        if now < min(self._deadline, silent_until):
            self._timer = self._loop.call_at(min(self._deadline, silent_until), self._ring)
            return
        self._parts.clear()
        late = now >= self._deadline
        told = "the answer took longer than timeouts.total_s" if late else f"no byte for {self._idle:g} s"
        self._fail(httpx2.ReadTimeout(told))

    def _fail(self, error: httpx2.TransportError) -> None:
        self._error = error
        self._timer.cancel()
        self._keeps = False
        self._protocol.abort()
        self._stop_sending()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _wanted(self) -> bool:
        """True if the upstream has neither refused the body that is being sent nor closed."""
        return self._upload is not None

    def _stop_sending(self) -> None:
        if self._upload is not None:
            self._upload.reschedule(self._loop.time())
            self._upload = None

    def _pause(self) -> None:
        if not self._paused and self._protocol.transport is not None:
            self._paused = True
            self._protocol.transport.pause_reading()

    def _go_on(self) -> None:
        if self._paused and self._protocol.transport is not None:
            self._paused = False
            self._protocol.transport.resume_reading()

    # Called by the transport

    async def send(self, head: bytes, request: httpx2.Request) -> None:
        """Send the request. A body that comes in pieces is sent until the upstream refuses it or closes; then `head`
        reports the answer or the error. Raises Unsendable too, and any error of the body."""
        transport = self._protocol.transport
        if transport is None:
            raise httpx2.ReadError("it was closed")
        self._protocol.set_parser(self, None)
        stream = request.stream
        if not isinstance(stream, httpx2.ByteStream):
            transport.write(head)
            assert isinstance(stream, httpx2.AsyncByteStream)  # noqa: S101  # of an asynchronous request
            length = find_header(request.headers.raw, b"content-length")
            await self._send_parts(stream, int(length) if length else None)
            return
        body = b"".join(stream)
        if len(body) <= JOINED_BODY_BYTES:
            transport.write(head + body)
        else:
            transport.writelines((head, body))

    async def _send_parts(self, body: httpx2.AsyncByteStream, length: int | None) -> None:
        """Send a body as it comes, in chunks if its length is not known. Raises Unsendable if the length differs from
        Content-Length, and httpx2.WriteTimeout."""
        self._sending = True
        sent = 0
        silence = self._upload = asyncio.timeout_at(self._silent_until())
        try:
            async with silence:
                async for part in body:
                    if not part:
                        continue
                    sent += len(part)
                    if length is not None and sent > length:
                        raise UnsendableRequest("its body is longer than its Content-Length")
                    if not self._wanted() or not await self._write(part, chunked=length is None):
                        return
                    silence.reschedule(self._silent_until())
        except TimeoutError as error:
            if not self._wanted():
                return
            if silence.expired():
                raise httpx2.WriteTimeout(f"no byte for {self._idle:g} s") from error
            raise
        finally:
            self._upload = None
            await body.aclose()
        if length is not None and sent < length:
            raise UnsendableRequest("its body is shorter than its Content-Length")
        self._sending = length is None and not await self._write(b"", chunked=True)

    async def _write(self, part: bytes, *, chunked: bool) -> bool:
        """Send a part, and wait until the socket takes more. An empty chunk is the last part. Return False if the
        socket is closed."""
        transport = self._protocol.transport
        if transport is None:
            return False
        transport.write(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
        try:
            await StreamWriter(self._protocol, self._loop).drain()
        except ConnectionError:
            return False
        return True

    def _silent_until(self) -> float:
        return min(self._deadline, self._loop.time() + self._idle)

    async def wait_for_head(self) -> None:
        """Wait until status and headers have arrived."""
        while self._body is None:
            if self._error is not None:
                raise self._error
            await self._wait()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """Return all bytes that have arrived since the last call."""
        parts = self._parts
        while not parts:
            if self._body is not None and self._body.done:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            await self._wait()
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._size = 0
        self._go_on()
        return data

    async def _wait(self) -> None:
        self._since = self._loop.time()
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def aclose(self) -> None:
        """Call `close`."""
        self.close()

    def close(self) -> None:
        """Return the connection. It is closed if bytes are still to be received or sent on it."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._timer.cancel()
        over = self._body is not None and self._body.done
        if not over and self._error is None:
            self._error = httpx2.ReadError("it was closed here")
        self._stop_sending()
        self._wake()
        transport = self._protocol.transport
        sent = transport is not None and not self._sending and not transport.get_write_buffer_size()
        self._protocol.set_parser(None, None)
        self._over(self, connection, clean=over and sent and self._keeps)
