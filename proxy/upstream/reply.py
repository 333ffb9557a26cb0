"""An answer as it comes: the bytes, how long is waited for them, and how each kind of end is told.

Time is limited from here and not by the engine: a timeout per read never ends an answer that drips. One timer an
answer watches both the silence and the whole, and ends the read in progress without cancelling any task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Protocol

import httpcore2

from proxy.errors import AnswerTooLong, UpstreamBroken, UpstreamTimeout
from proxy.metrics import Metrics
from proxy.upstream.headers import Headers, first, returning
from proxy.upstream.network import Stream
from proxy.upstream.target import Target

log = logging.getLogger(__name__)


class Source(Protocol):
    """A body as it comes, and its end."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None: ...


class Reply:
    """An answer whose head has come. The body is read once, by `chunks` or `read`; `close` at the end, always."""

    __slots__ = (
        "_clock", "_closed", "_held", "_metrics", "_on_close", "_parts", "_source", "_target",
        "content_type", "encoding", "headers", "status",
    )  # fmt: skip

    def __init__(
        self,
        target: Target,
        metrics: Metrics,
        status: int,
        came: Headers,
        source: Source,
        clock: Clock,
        closed: Callable[[], None],
    ) -> None:
        self.status = status
        self.headers: Headers = returning(came, target.key)
        """For the client: hop-by-hop ones removed, Content-Length still that of the body as it comes."""
        self.content_type = first(self.headers, b"content-type")
        self.encoding = first(self.headers, b"content-encoding").lower().replace("identity", "")
        """How the bytes are compressed ("gzip", "gzip, br"), "" where they can be read as they are."""
        self._target = target
        self._on_close = closed
        self._metrics = metrics
        self._source = source
        self._clock = clock
        self._held: list[bytes] = []
        self._parts = self._pull()
        self._closed = False

    def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they come. Raises UpstreamBroken and UpstreamTimeout after what came before."""
        return self._again() if self._held else self._parts

    async def read(self, limit: int) -> bytes:
        """The whole body. Over `limit` bytes: AnswerTooLong, but nothing is lost, `chunks` gives it from the start."""
        parts: list[bytes] = []
        size = 0
        async for part in self.chunks():
            parts.append(part)
            size += len(part)
            if size > limit:
                self._held = parts
                raise AnswerTooLong(f"the answer of upstream {self._target.name!r} is over {limit} bytes")
        return b"".join(parts)

    async def close(self) -> None:
        """Give the connection back, or close it where the body has not been read to its end. Never raises or waits."""
        if self._closed:
            return
        self._closed = True
        self._on_close()
        self._clock.stop()
        try:
            await self._source.aclose()
        except Exception:  # the answer is over either way, and an error now would hide the one that ended it
            self._metrics.swallowed_total.labels(where="upstream_close").inc()
            log.warning("closing the connection to upstream %s failed", self._target.name, exc_info=True)

    async def _again(self) -> AsyncGenerator[bytes]:
        while self._held:
            yield self._held.pop(0)
        async for part in self._parts:
            yield part

    async def _pull(self) -> AsyncGenerator[bytes]:
        """The parts, with httpcore2's errors made ours; closes at the end, whatever the end is."""
        name = self._target.name
        clock = self._clock
        try:
            async with aclosing(_generator(self._source)) as source:
                async for part in source:
                    clock.pause()
                    if part:
                        yield part
                    clock.resume()
            if _leftover(self._source):
                clock.abandon()
        except httpcore2.TimeoutException as error:
            self._metrics.upstream_errors_total.labels(name, "timeout").inc()
            raise UpstreamTimeout(f"upstream {name!r} was too slow: {error}") from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            self._metrics.upstream_errors_total.labels(name, "broken").inc()
            raise UpstreamBroken(f"the answer of upstream {name!r} broke off: {error}") from error
        finally:
            await self.close()


class Clock:
    """Ends a read that waits too long: `idle` seconds without a byte, or past `deadline` (loop time) whatever comes.

    One timer that arms itself again, rather than one for each read; a client that reads slowly is not silence of
    the upstream, so the time between two reads (`pause` to `resume`) does not count as idle.
    """

    __slots__ = ("_deadline", "_idle", "_last", "_loop", "_stream", "_timer", "_waiting")

    def __init__(self, idle: float, deadline: float, stream: Stream | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle = idle
        self._deadline = deadline
        self._stream = stream
        self._last = self._loop.time()
        self._waiting = True
        self._timer: asyncio.TimerHandle | None = None
        if stream is not None:
            self._timer = self._loop.call_at(min(deadline, self._last + idle), self._ring)

    def pause(self) -> None:
        self._waiting = False

    def resume(self) -> None:
        self._waiting = True
        self._last = self._loop.time()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def abandon(self) -> None:
        """Never use this connection again."""
        if self._stream is not None:
            self._stream.abort()

    def _ring(self) -> None:
        now = self._loop.time()
        if self._stream is None:
            return
        if now >= self._deadline:
            self._stream.fail(httpcore2.ReadTimeout("the answer took longer than timeouts.total_s"))
        elif self._waiting and now >= self._last + self._idle:
            self._stream.fail(httpcore2.ReadTimeout(f"no byte for {self._idle:g} s"))
        else:
            since = self._last if self._waiting else now
            self._timer = self._loop.call_at(min(self._deadline, since + self._idle), self._ring)


def _generator(source: Source) -> AsyncGenerator[bytes]:
    parts = source.__aiter__()
    assert isinstance(parts, AsyncGenerator)  # noqa: S101  # both kinds of source are generators inside
    return parts


def _leftover(source: object) -> bool:
    """Whether bytes came after the end of the answer, as with a Content-Length that is too small.

    httpcore2 would take them for the beginning of the next answer on this connection, somebody else's. It does not
    show them, so this looks inside it; a test notices when its inside changes.
    """
    connection = getattr(getattr(source, "_stream", None), "_connection", None)
    state = getattr(connection, "_h11_state", None)
    return state is not None and bool(state.trailing_data[0])
