"""An answer as it arrives: its bytes, and the error for each kind of broken end."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Final

import httpx2

from proxy.errors import AnswerTooLong, UpstreamBroken, UpstreamError, UpstreamTimeout
from proxy.metrics import Metrics
from proxy.upstream.headers import (
    MIN_SECRET_LENGTH,
    Headers,
    Redactor,
    build_response_headers,
    list_key_encodings,
    remove_headers,
)
from proxy.upstream.target import Target

log = logging.getLogger(__name__)


BODILESS_STATUSES: Final = (204, 304)
"""Statuses without a body. Their Content-Length is that of another answer, but the server takes it for a promise of
bytes. It is left out, as RFC 9110 (8.6) allows."""
SUCCESS_STATUSES: Final = range(200, 300)
"""Statuses of success. An answer with any other status, a redirect too, may repeat the sent request in its body."""
WITHHELD_BODY: Final = (
    b'{"error":{"message":"the upstream did not do what was asked; its answer is compressed, and unreadable",'
    b'"type":"upstream_error","param":null,"code":"upstream_error"}}'
)


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


class Reply:
    """An answer whose head has arrived. The body is read once, by `iter_bytes` or `read_body`; `close` is always called
    at the end."""

    __slots__ = (
        "_closed", "_held", "_metrics", "_parts", "_redactor", "_source", "_target",
        "content_type", "encoding", "headers", "status",
    )  # fmt: skip

    def __init__(
        self, target: Target, metrics: Metrics, status: int, received: Headers, source: httpx2.AsyncByteStream
    ) -> None:
        self.status = status
        self.headers: Headers = build_response_headers(received, target.key)
        """Headers for the client: without hop-by-hop ones. Content-Length is still that of the body as it comes."""
        if status in BODILESS_STATUSES:
            self.headers = remove_headers(self.headers, b"content-length")
        self.content_type = ""
        self.encoding = ""
        """The compression of the bytes ("gzip", "gzip, br"); "" if they are not compressed."""
        for name, value in reversed(self.headers):  # the first of each counts
            if name == b"content-type":
                self.content_type = value.decode("latin-1").strip()
            elif name == b"content-encoding":
                self.encoding = value.decode("latin-1").strip().lower().replace("identity", "")
        self._target = target
        self._metrics = metrics
        self._source = source
        self._parts = source.__aiter__()
        self._held: list[bytes] = []
        """Parts that were read and are to be given out again, the last part first."""
        self._closed = False
        self._redactor: Redactor | None = None
        if status not in SUCCESS_STATUSES and target.key is not None and len(target.key) >= MIN_SECRET_LENGTH:
            self._redactor = Redactor(list_key_encodings(target.key))
            if self.encoding and status not in BODILESS_STATUSES:
                self._withhold()

    def _withhold(self) -> None:
        """Replace a body that is compressed against the proxy's request: it cannot be searched for the key."""
        kept = remove_headers(self.headers, b"content-encoding", b"content-length", b"content-type")
        length = (b"content-length", b"%d" % len(WITHHELD_BODY))
        self.headers = [*kept, (b"content-type", b"application/json"), length]
        self.content_type, self.encoding = "application/json", ""
        self._parts = _once(WITHHELD_BODY)

    def iter_bytes(self) -> AsyncIterator[bytes]:
        """Return the body's bytes as they come. Raises UpstreamBroken and UpstreamTimeout after the bytes before the
        fault."""
        return self

    async def read_body(self, limit: int) -> bytes:
        """Return the whole body. Raises AnswerTooLong over `limit` bytes; then `iter_bytes` still gives the body from
        the start."""
        parts: list[bytes] = []
        size = 0
        async for part in self:
            parts.append(part)
            size += len(part)
            if size > limit:
                self._held = [*self._held, *reversed(parts)]
                raise AnswerTooLong(f"the answer of upstream {self._target.name!r} is over {limit} bytes")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def peek_body(self, limit: int) -> bytes:
        """Return the whole body, which `iter_bytes` and `read_body` give out again. Raises AnswerTooLong over `limit`
        bytes."""
        body = await self.read_body(limit)
        self._held = [body] if body else []
        return body

    async def close(self) -> None:
        """Return the connection, or close it if the body was not read to its end. Never raises an error, never
        waits."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._source.aclose()
        except Exception:  # the answer is over in both cases, and an error now would hide the first one
            self._metrics.internal_errors_total.labels(where="upstream_close").inc()
            log.warning("closing the connection to upstream %s failed", self._target.name, exc_info=True)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """Return the next bytes, never an empty piece. The reply is closed at its end, whatever the end is."""
        if self._held:
            return self._held.pop()
        try:
            part = await self._next()
        except httpx2.TransportError as error:
            told = self._convert_error(error)
            await self.close()
            raise told from error
        except BaseException:
            await self.close()
            raise
        return part

    async def _next(self) -> bytes:
        """Return the next bytes that may go on."""
        redactor = self._redactor
        while True:
            try:
                part = await self._parts.__anext__()
            except StopAsyncIteration:
                if redactor is None or not (rest := redactor.end()):
                    raise
                return rest
            if redactor is not None:
                part = redactor.feed(part)
            if part:
                return part

    def _convert_error(self, error: httpx2.TransportError) -> UpstreamError:
        """Return the proxy's error for an error of the connection, and count it once."""
        name = self._target.name
        slow = isinstance(error, httpx2.TimeoutException)
        if not self._closed:
            self._metrics.upstream_errors_total.labels(name, "timeout" if slow else "broken").inc()
        if slow:
            return UpstreamTimeout(f"upstream {name!r} was too slow: {error}")
        return UpstreamBroken(f"the answer of upstream {name!r} broke off: {error}")
