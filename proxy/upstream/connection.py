"""One connection to an upstream, and the one request that is under way on it.

Straight on asyncio's transports: bytes are taken apart as the loop brings them, and whoever waits is woken once for
all that came. Closing never waits: a task that is cancelled a second time while it still closes after the first (which
cost httpx 0.28 its pool slots, and whoever came next a timeout) has no `await` in which that could strike. Nor do time
limits cancel anything: one timer a connection, set anew only when it rings too early, ends the wait with an error.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, Protocol, cast

from proxy.upstream.framing import HEAD_LIMIT, START, SWITCHING, Body, Endless, Malformed, Unsendable, read_head
from proxy.upstream.headers import Headers

HIGH_WATER: Final = 256 * 1024
"""Bytes received and not yet asked for, above which the socket is no longer read: back-pressure."""

JOINED: Final = 32 * 1024
"""Bytes up to which a body is written in one piece with its head; longer ones are not copied."""

REFUSED: Final = 400
"""An answer from this status on, while the body is still being sent, means that no more of it is wanted."""


class Lost(Exception):
    """The connection ended before the answer did."""


class Slow(Exception):
    """Too long without a byte, or too long in all."""


class Owner(Protocol):
    """Whom a connection belongs to."""

    def back(self, connection: Connection) -> None:
        """It can be used again."""

    def gone(self, connection: Connection) -> None:
        """It is closed; may be told more than once."""


class Connection(asyncio.Protocol):
    """A socket, once it is connected. One trip at a time."""

    def __init__(self, owner: Owner) -> None:
        self.closed = False
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._trip: Trip | None = None
        self._paused = False
        self._writable: asyncio.Future[None] | None = None
        """There while the socket takes no more."""
        self._timer: asyncio.TimerHandle | None = None
        self._rings = 0.0

    # What the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._trip is None:
            self.abort()  # nobody has asked: it would be taken for the beginning of somebody's answer
        else:
            self._trip.receive(data)

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def _end(self, error: Exception | None) -> None:
        if self._trip is not None:
            self._trip.cut(error)
        self._leave()

    # What is asked of it

    def begin(self, method: str, head: bytes, body: bytes | None, idle: float, deadline: float) -> Trip:
        """Send a request: all of it, or (`body` None) all that there is for now. idle in s, deadline in loop time."""
        assert self._transport is not None  # noqa: S101  # it is connected
        trip = self._trip = Trip(self, self._loop, method, idle, deadline)
        if body is None:
            self._transport.write(head)
        elif len(body) <= JOINED:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        self._arm(min(deadline, self._loop.time() + idle))
        return trip

    async def write(self, data: bytes) -> None:
        """Send more, and wait until the socket takes more again. What is written to a closed connection is nowhere."""
        if not self.closed and self._transport is not None:
            self._transport.write(data)  # not `writelines`: asyncio's own tells of no full socket from Python 3.12 on
            if self._writable is not None:
                await self._writable

    def hold(self) -> None:
        """Take nothing more from the kernel for now."""
        if not self._paused and not self.closed and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def go_on(self) -> None:
        if self._paused and not self.closed and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def finish(self, *, clean: bool) -> None:
        """The trip is over. clean: all that was said on either side has been heard."""
        self._trip = None
        if clean and not self.closed and self._transport is not None and not self._transport.get_write_buffer_size():
            self.go_on()
            self._owner.back(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Close at once. Nothing of use can be unsent: a request is only left alone when its answer is not wanted."""
        self._leave()
        if self._transport is not None:
            self._transport.abort()

    def _leave(self) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.resume_writing()
        self._owner.gone(self)

    async def encrypt(self, context: ssl.SSLContext, name: str) -> None:
        """From here on TLS, in what is a tunnel by now. Raises OSError; the connection is then to be aborted."""
        self._trip = None
        assert self._transport is not None  # noqa: S101  # it is connected
        inner = await self._loop.start_tls(self._transport, self, context, server_hostname=name)
        if inner is None:
            raise ConnectionError("the connection closed during the TLS handshake")
        self._transport = inner

    # Time

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            if self._rings <= when:
                return  # it will see then what there is still to wait for
            self._timer.cancel()
        self._rings = when
        self._timer = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._trip is not None:
            due = self._trip.check(self._loop.time())
            if due is not None:
                self._arm(due)


class Trip:
    """One request out and its answer back. After `head` the body is read once, as an iterator; `close` at the end.

    What has arrived before a loss is still given out, then the loss is told; but a limit of time ends it at once.
    """

    __slots__ = (
        "_body", "_connection", "_deadline", "_error", "_idle", "_loop", "_method", "_parts", "_seen",
        "_sending", "_since", "_size", "_skipped", "_waiter", "headers", "keeps", "status",
    )  # fmt: skip

    def __init__(
        self, connection: Connection, loop: asyncio.AbstractEventLoop, method: str, idle: float, deadline: float
    ) -> None:
        self.status = 0
        self.headers: Headers = []
        self._connection: Connection | None = connection
        self._loop = loop
        self._method = method
        self._idle = idle
        self._deadline = deadline
        self._since = 0.0
        """When the wait for what comes next began. A client that reads slowly is not silence of the upstream."""
        self._waiter: asyncio.Future[None] | None = None
        self._seen: bytearray | None = None
        """What has come of a head that is not whole yet."""
        self._skipped = 0
        """Bytes of informational heads."""
        self._body: Body | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self.keeps = True
        """Whether the connection may be used again, as far as is known by now."""
        self._sending = False
        self._error: Exception | None = None

    # What the connection tells

    def receive(self, data: bytes) -> None:
        body = self._body
        try:
            if body is None:
                body, data = self._begin(data)
                if body is None:
                    return
            elif body.done:
                self.keeps = False  # it said more than its answer; that would be taken for the next one's
                return
            if data and body.feed(data, self._parts):
                self.keeps = False
        except Malformed as error:
            self._fail(error)
            return
        self._size += len(data)
        if self._size > HIGH_WATER and not body.done and self._connection is not None:
            self._connection.hold()
        self._wake()

    def _begin(self, data: bytes) -> tuple[Body | None, bytes]:
        """The final head, past all informational ones: (its body, bytes after it). (None, b"") where more is needed."""
        start = 0
        if self._seen is not None:
            start = max(0, len(self._seen) - 3)
            self._seen += data
            if self._seen.find(b"\r\n\r\n", start) < 0 and self._skipped + len(self._seen) <= HEAD_LIMIT:
                return None, b""
            data, self._seen = bytes(self._seen), None
        at = 0
        while (end := data.find(b"\r\n\r\n", start)) >= 0 and self._skipped + end <= HEAD_LIMIT:
            head = read_head(data[at : end + 2], self._method)
            at = start = end + 4
            if head.status >= 200 or head.status == SWITCHING:
                self.status, self.headers, self._body, self.keeps = head
                if self._sending and self.status >= REFUSED and self._connection is not None:
                    self._connection.resume_writing()
                return self._body, data[at:]
        self._skipped += at
        data = data[at:]
        if self._skipped + len(data) > HEAD_LIMIT:
            raise Malformed("its head is too long")
        if not data.startswith(START[: len(data)]):
            raise Malformed("it begins with no status line")
        self._seen = bytearray(data)
        return None, b""

    def cut(self, error: Exception | None) -> None:
        """The connection is gone; with no error it was closed in order."""
        body = self._body
        self.keeps = False
        if body is None or not body.done:
            if error is None and isinstance(body, Endless):
                body.done = True
            elif self._error is None:
                self._error = Lost(str(error) or type(error).__name__ if error is not None else "it was closed")
        self._wake()

    def check(self, now: float) -> float | None:
        """When to look again, in loop time; None for never, since it is over or has been too long."""
        if now >= self._deadline:
            self._parts.clear()
            self._fail(Slow("the answer took longer than timeouts.total_s"))
            return None
        if self._waiter is None:
            return min(self._deadline, now + self._idle)
        if now >= self._since + self._idle:
            self._parts.clear()
            self._fail(Slow(f"no byte for {self._idle:g} s"))
            return None
        return min(self._deadline, self._since + self._idle)

    def _fail(self, error: Exception) -> None:
        self._error = error
        if self._connection is not None:
            self._connection.abort()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # What whoever asks does

    async def upload(self, body: AsyncIterator[bytes], length: int | None) -> None:
        """Send a body as it comes, in chunks where its length is not known.

        Stops where the upstream refuses it or closes; what it said is told by `head`. Raises Slow, Unsendable, and what
        `body` raises.
        """
        self._sending = True
        sent = 0
        until = min(self._deadline, self._loop.time() + self._idle)
        silence = asyncio.timeout_at(until)
        try:
            async with silence:
                async for part in body:
                    connection = self._connection
                    if connection is None or connection.closed or self.status >= REFUSED:
                        break
                    sent += len(part)
                    if length is None:
                        if part:
                            await connection.write(b"%x\r\n%b\r\n" % (len(part), part))
                    elif sent > length:
                        raise Unsendable("its body is longer than its Content-Length")
                    else:
                        await connection.write(part)
                    silence.reschedule(min(self._deadline, self._loop.time() + self._idle))
                else:
                    await self._sent(sent, length)
        except TimeoutError as error:
            if silence.expired():
                raise Slow(f"no byte for {self._idle:g} s") from error
            raise
        if self._sending and isinstance(body, AsyncGenerator):
            await body.aclose()

    async def _sent(self, sent: int, length: int | None) -> None:
        if length is not None and sent < length:
            raise Unsendable("its body is shorter than its Content-Length")
        if length is None and self._connection is not None:
            await self._connection.write(b"0\r\n\r\n")
        self._sending = False

    async def head(self) -> None:
        """Until status and headers are there. Raises Lost, Slow and Malformed."""
        while self._body is None:
            if self._error is not None:
                raise self._error
            await self._wait()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """All that has come since. Raises Lost, Slow and Malformed."""
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
        if self._connection is not None:
            self._connection.go_on()
        return data

    async def _wait(self) -> None:
        self._since = self._loop.time()
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def aclose(self) -> None:
        """As `close`; for whoever closes many kinds of things."""
        self.close()

    def close(self) -> None:
        """Give the connection back, or close it where there is still something to be heard or sent on it."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        over = self._body is not None and self._body.done
        if not over and self._error is None:
            self._error = Lost("it was closed here")
        connection.finish(clean=over and self.keeps and not self._sending)
