"""HTTP/1.1 to an upstream: one request on an aiohttp connection, and its answer as it arrives.

aiohttp's own reader is not used. It drops received bytes when the connection breaks before they are read. It loses an
answer with stray bytes after it. It accepts answers that two readers could read in two ways. It also mistakes a client
that reads slowly for an upstream that is silent.

The functions and the parsers do no I/O; `ResponseStream` does. The reader is strict if two readers could disagree on
the end of an answer (RFC 9112, 6.3). It refuses a Content-Length with a Transfer-Encoding, lengths that differ, codings
other than `chunked`, bare line feeds and folded lines. The upstream is a server that somebody configured, but its
answers contain text of models and other people.

llhttp (httptools) is not used. It does not report the position in its data at which an answer ended. It also cannot be
told that an answer to HEAD has no body. It would save 3 us per head and a third of a microsecond per chunk.
"""

from __future__ import annotations

import asyncio
import math
import re
import string
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import httpx2

from proxy.upstream.headers import Headers, find_header

if TYPE_CHECKING:
    from aiohttp.connector import Connection

HEAD_LIMIT: Final = 100 << 10
"""Bytes of an answer's head, including the informational heads before it."""
MAX_HEADER_LINES: Final = 1000
"""Header lines of a head or of trailers; servers send some twenty. 25,000 in one head held all requests for 0.2 s."""
MAX_INFORMATIONAL: Final = 100
"""Informational heads before the answer's own."""
TRAILER_LIMIT: Final = 16 << 10
CHUNK_LINE_LIMIT: Final = 4 << 10
"""Bytes of the line that begins a chunk."""

RESPONSE_START: Final = b"HTTP/1."
"""The first bytes of an answer."""

SWITCHING_PROTOCOLS: Final = 101
"""The only informational status after which no other answer comes."""

_TOKEN: Final = ("!#$%&'*+-.^_`|~" + string.digits + string.ascii_letters).encode()
_VISIBLE: Final = bytes(range(0x21, 0x7F))
_NOT_IN_VALUES: Final = b"\x00\n\r\x0b\x0c"
_IN_VALUES: Final = bytes(byte for byte in range(256) if byte not in _NOT_IN_VALUES)
_PRINTABLE: Final = bytes(byte for byte in range(256) if (byte >= 0x20 and byte != 0x7F) or byte in b"\t\r\n")

_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\x00\n\r\x0b\x0c]*+)?\r\n")
# Possessive, because with plain stars the time for a line of spaces grows with the square of its length.
_FIELD: Final = re.compile(rb"(?m)^([%b]++):[ \t]*+([^\x00\n\r\x0b\x0c]*+)\r$" % re.escape(_TOKEN))
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*+(?:;[^\x00\n\r]*+)?\r\n")
_SIZE_PREFIX: Final = re.compile(rb"[0-9A-Fa-f]{1,16}[ \t]*+(?:;[^\x00\n\r]*+)?\r?")

_FRAMING: Final = frozenset({b"connection", b"content-length", b"transfer-encoding"})
_CONTENT_LENGTH: Final = re.compile(rb"[0-9]{1,19}")
_BODILESS_STATUSES: Final = frozenset({204, 304})

HIGH_WATER: Final = 256 * 1024
"""Bytes received and not yet read, above which the socket is no longer read: back-pressure."""

JOINED_BODY_BYTES: Final = 32 * 1024
"""Bytes up to which a body is written in one piece with its head; longer bodies are not copied."""

REFUSED_STATUS: Final = 400
"""An answer with at least this status before the body is sent: no more of the body is wanted."""

FINAL_STATUSES: Final = range(200, 600)
"""Statuses of an answer that can be passed on."""


class MalformedResponse(httpx2.RemoteProtocolError):
    """The answer is not HTTP, or could be read in two ways."""


class UnsendableRequest(httpx2.LocalProtocolError):
    """A request that cannot be written: one of its parts would end a line, or its body has another length."""


class BodyParser(Protocol):
    """Parser of an answer's body. done: all of it has come."""

    done: bool

    def feed(self, data: bytes, parts: list[bytes]) -> bytes:
        """Add the bytes of the body to `parts`; return the bytes after its end. Raises MalformedResponse."""
        ...


class ResponseHead(NamedTuple):
    """The head of an answer."""

    status: int
    headers: Headers
    """Names in lower case, in their order."""
    body: BodyParser
    keeps_alive: bool
    """True if the connection stays open afterwards."""


def write_request_head(method: str, request_target: bytes, headers: Headers) -> bytes:
    """Return a request's head, with the empty line. Raises UnsendableRequest."""
    names = [name for name, _ in headers]
    verb = method.encode("ascii", "replace").replace(b"?", b" ")
    if b"".join(names).translate(None, _TOKEN) or not all(names):
        raise UnsendableRequest("a header's name is invalid")
    if b"".join([value for _, value in headers]).translate(None, _IN_VALUES):
        raise UnsendableRequest("a header's value has a line end or a NUL in it")
    if verb.translate(None, _TOKEN) or not verb or request_target.translate(None, _VISIBLE) or not request_target:
        raise UnsendableRequest("the method or the path has characters that a request line cannot hold")
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (verb, request_target, b"".join(lines))


def parse_response_head(block: bytes, method: str) -> ResponseHead:
    """Parse a head: `block` is the bytes before the empty line. Raises MalformedResponse."""
    line = _STATUS.match(block)
    if line is None:
        raise MalformedResponse("it begins with no status line")
    header_lines = _parse_header_lines(block, line.end())
    status = int(line[2])
    closes = line[1] == b"0"
    length: bytes | None = None
    chunked = False
    headers: Headers = []
    for given, padded in header_lines:
        name, value = given.lower(), padded.rstrip()
        if name in _FRAMING:
            if name == b"connection":
                closes = closes or b"close" in [option.strip() for option in value.lower().split(b",")]
            elif name == b"transfer-encoding":
                if chunked or value.lower() != b"chunked":
                    raise MalformedResponse(f"Transfer-Encoding {value[:40]!r} is not understood")
                chunked = True
            elif length is None:
                length = value
            elif length == value:
                continue  # a repeated length is dropped; a different one is refused
            else:
                raise MalformedResponse("it has two lengths")
        headers.append((name, value))
    if block.translate(None, _PRINTABLE):  # no server passes a control character on, and clients refuse it
        headers = [(name, value) for name, value in headers if not value.translate(None, _PRINTABLE)]
    if length is not None and not _CONTENT_LENGTH.fullmatch(length):
        raise MalformedResponse(f"Content-Length {length[:40]!r} is no length")
    if chunked and length is not None:
        raise MalformedResponse("it has a Content-Length and a Transfer-Encoding")
    if method == "CONNECT" and 200 <= status < 300:
        return ResponseHead(status, headers, FixedLengthBody(0), keeps_alive=True)  # a tunnel, in any version of HTTP
    body = _make_body_parser(method, status, chunked, length)
    return ResponseHead(
        status, headers, body, not (closes or status == SWITCHING_PROTOCOLS or isinstance(body, CloseDelimitedBody))
    )


def _make_body_parser(method: str, status: int, chunked: bool, length: bytes | None) -> BodyParser:
    """Return the parser for the answer's body, by the rules of RFC 9112, 6.3, in their order."""
    if method == "HEAD" or status < 200 or status in _BODILESS_STATUSES:
        return FixedLengthBody(0)
    if chunked:
        return ChunkedBody()
    return CloseDelimitedBody() if length is None else FixedLengthBody(int(length))


def _parse_header_lines(block: bytes, at: int) -> list[tuple[bytes, bytes]]:
    """Return the header lines. Raises MalformedResponse if any line of the rest of the block is not a header."""
    lines = block.count(b"\n", at)
    if lines > MAX_HEADER_LINES:
        raise MalformedResponse(f"its head has {lines} lines, {MAX_HEADER_LINES} are read")
    header_lines: list[tuple[bytes, bytes]] = _FIELD.findall(block, at)
    if len(header_lines) != lines:
        raise MalformedResponse("a line of its head is no header")
    return header_lines


class FixedLengthBody:
    """A body of known length in bytes."""

    __slots__ = ("_left", "done")

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = not length

    def feed(self, data: bytes, parts: list[bytes]) -> bytes:
        remaining = self._left - len(data)
        if remaining > 0:
            self._left = remaining
            parts.append(data)
            return b""
        self.done = True
        part, unread = (data, b"") if remaining == 0 else (data[: self._left], data[self._left :])
        self._left = 0
        if part:
            parts.append(part)
        return unread


class CloseDelimitedBody:
    """A body that ends with its connection."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False

    def feed(self, data: bytes, parts: list[bytes]) -> bytes:
        parts.append(data)
        return b""


class ChunkedBody:
    """A body in chunks, given out as they come in; trailers are read and dropped."""

    __slots__ = ("_left", "_line_end_due", "_rest", "_trailers_due", "done")

    def __init__(self) -> None:
        self.done = False
        self._left = 0
        """Bytes of the chunk still to come."""
        self._line_end_due = False
        """True while the line end after a chunk is still to come."""
        self._trailers_due = False
        """True once the last chunk has come: trailers and an empty line follow."""
        self._rest = b""
        """Bytes that cannot be parsed before more bytes arrive."""

    def feed(self, data: bytes, parts: list[bytes]) -> bytes:
        if self._rest:
            data, self._rest = self._rest + data, b""
        at, end = 0, len(data)
        while at < end:
            if self._left:
                part = data[at : at + self._left]
                parts.append(part)
                at += len(part)
                self._left -= len(part)
            elif self._line_end_due:
                if not data.startswith(b"\r\n", at):
                    if data[at:] == b"\r":
                        self._rest = b"\r"
                        return b""
                    raise MalformedResponse("a chunk is longer than it said")
                at += 2
                self._line_end_due = False
            elif self._trailers_due:
                return self._read_trailers(data[at:])
            else:
                line = _SIZE.match(data, at)
                if line is None:
                    self._rest = data[at:]
                    if len(self._rest) > CHUNK_LINE_LIMIT or not _SIZE_PREFIX.fullmatch(self._rest):
                        raise MalformedResponse("a chunk does not begin with its size")
                    return b""
                at, size = line.end(), int(line[1], 16)
                stop = at + size
                if size and data.startswith(b"\r\n", stop):  # the whole chunk is here, as nearly always
                    parts.append(data[at:stop])
                    at = stop + 2
                else:
                    self._left = size
                    self._line_end_due = size > 0
                    self._trailers_due = not size
        return b""

    def _read_trailers(self, data: bytes) -> bytes:
        if data.startswith(b"\r\n"):
            self.done = True
            return data[2:]
        end = data.find(b"\r\n\r\n")
        if (len(data) if end < 0 else end) > TRAILER_LIMIT:
            raise MalformedResponse("its trailers are too long")
        if end < 0:
            self._rest = data
            return b""
        _parse_header_lines(data[: end + 2], 0)
        self.done = True
        return data[end + 4 :]


class ReleaseConnection(Protocol):
    """Callback that takes a connection back. clean: everything sent on either side has been received."""

    def __call__(self, answer: ResponseStream, connection: Connection, *, clean: bool) -> None: ...


class ResponseStream(httpx2.AsyncByteStream):
    """An answer, from before its request is sent. `wait_for_head` is awaited first, then the body is read once, as an
    iterator. `close` is called at the end.

    Closing never waits. A task may be cancelled a second time while it still closes after the first time, which cost
    httpx 0.28 its pool slots. Closing here has no `await` that such a second cancel could hit. Time limits also cancel
    nothing while an answer is read: the transport's timer ends the wait with an error.

    Bytes that arrived before a connection loss are still given out before the error is raised. A time limit ends the
    answer at once. idle: seconds of silence that are allowed. deadline: loop time at which the whole answer must have
    come. Whoever makes it calls `check_time_limits` when the earlier of both has passed. Raises
    `httpx2.TransportError`.
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
        self._release = release
        self._waiting_since = 0.0
        """Loop time at which the current wait began. A client that reads slowly is not silence of the upstream."""
        self._waiter: asyncio.Future[None] | None = None
        self._head_start: bytearray | None = None
        """The beginning of a head that is not complete yet."""
        self._informational_bytes = 0
        """Bytes of informational heads."""
        self._informational_heads = 0
        self._body: BodyParser | None = None
        self._parts: list[bytes] = []
        self._unread_bytes = 0
        self._paused = False
        self._is_reusable = True
        """False once something has come or failed after which the connection must not be used again."""
        self._upload_timeout: asyncio.Timeout | None = None
        """The limit of silence while a body is sent in pieces; None otherwise, and once no more of it is wanted."""
        self._sending = False
        """True while the request's body is not sent to its end."""
        self._error: httpx2.TransportError | None = None
        self._has_failed = False
        """True once the answer was ended here for an error."""

    # Called by the connection

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Read received data. The result is for aiohttp: no error, no bytes left."""
        body = self._body
        try:
            if body is None:
                body, data = self._read_head(data)
                if body is None:
                    return False, b""
            elif body.done:
                self._is_reusable = False  # bytes after the answer would be taken for the beginning of the next one
                return False, b""
            if data and body.feed(data, self._parts):
                self._is_reusable = False
        except MalformedResponse as error:
            self._fail(error)
            return False, b""
        self._unread_bytes += len(data)
        if self._unread_bytes > HIGH_WATER and not body.done:
            self._pause_reading()
        self._wake_reader()
        return False, b""

    def feed_eof(self) -> None:
        """Schedule the end: the connection is lost, and aiohttp sets the reason as soon as this method has returned."""
        self._loop.call_soon(self._handle_close)

    def _read_head(self, data: bytes) -> tuple[BodyParser | None, bytes]:
        """Read the final head, past all informational ones. Return (its body, bytes after it), or (None, b"") if more
        is needed. Raises MalformedResponse."""
        start = 0
        if self._head_start is not None:
            start = max(0, len(self._head_start) - 3)
            self._head_start += data
            fits = self._informational_bytes + len(self._head_start) <= HEAD_LIMIT
            if fits and self._head_start.find(b"\r\n\r\n", start) < 0:
                return None, b""
            data, self._head_start = bytes(self._head_start), None
        at = 0
        while (end := data.find(b"\r\n\r\n", start)) >= 0 and self._informational_bytes + end <= HEAD_LIMIT:
            head = parse_response_head(data[at : end + 2], self._method)
            at = start = end + 4
            if head.status >= 200 or head.status == SWITCHING_PROTOCOLS:
                if head.status not in FINAL_STATUSES:
                    raise MalformedResponse(f"status {head.status} cannot be passed on")
                self.status, self.headers, self._body, self._is_reusable = head
                if self.status >= REFUSED_STATUS:
                    self._stop_sending()
                return self._body, data[at:]
            self._informational_heads += 1
            if self._informational_heads > MAX_INFORMATIONAL:
                raise MalformedResponse("too many informational heads stand before it")
        self._informational_bytes += at
        data = data[at:]
        if self._informational_bytes + len(data) > HEAD_LIMIT:
            raise MalformedResponse("its head is too long")
        if not data.startswith(RESPONSE_START[: len(data)]):
            raise MalformedResponse("it begins with no status line")
        self._head_start = bytearray(data)
        return None, b""

    def _handle_close(self) -> None:
        """Record how the answer ended: whole if the close is its end, else with an error."""
        body = self._body
        self._is_reusable = False
        if body is None or not body.done:
            import aiohttp  # noqa: PLC0415  # loaded by the connection: see transport.py

            error = self._protocol.exception()
            in_order = isinstance(error, aiohttp.ServerDisconnectedError)
            if isinstance(body, CloseDelimitedBody) and in_order:
                body.done = True
            elif self._error is None:
                self._error = httpx2.ReadError("it was closed" if in_order else str(error) or type(error).__name__)
        self._stop_sending()
        self._wake_reader()

    def check_time_limits(self, now: float) -> float:
        """End the answer if a time limit has passed. Return the loop time of the next check: it is not moved with every
        part. The result is infinite for an answer that has ended."""
        if self._connection is None or self._has_failed:
            return math.inf
        silent_until = (now if self._waiter is None else self._waiting_since) + self._idle
        if now < (until := min(self._deadline, silent_until)):
            return until
        self._parts.clear()
        late = now >= self._deadline
        reason = "the answer took longer than timeouts.total_s" if late else f"no byte for {self._idle:g} s"
        self._fail(httpx2.ReadTimeout(reason))
        return math.inf

    def _fail(self, error: httpx2.TransportError) -> None:
        self._error = error
        self._has_failed = True
        self._is_reusable = False
        self._protocol.abort()
        self._stop_sending()
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _wants_body(self) -> bool:
        """True if the upstream has neither refused the body that is being sent nor closed."""
        return self._upload_timeout is not None

    def _stop_sending(self) -> None:
        """End a wait of `_send_parts`, by letting its time limit pass now."""
        if self._upload_timeout is not None:
            self._upload_timeout.reschedule(self._loop.time())
            self._upload_timeout = None

    def _pause_reading(self) -> None:
        if not self._paused and self._protocol.transport is not None:
            self._paused = True
            self._protocol.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._paused and self._protocol.transport is not None:
            self._paused = False
            self._protocol.transport.resume_reading()

    # Called by the transport

    async def send(self, head: bytes, request: httpx2.Request) -> None:
        """Send the request. A body that comes in pieces is sent until the upstream refuses it or closes; then
        `wait_for_head` reports the answer or the error. Raises UnsendableRequest too, and any error of the body."""
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
        """Send a body as it comes, in chunks if its length is not known. Raises UnsendableRequest if the length differs
        from Content-Length, and httpx2.WriteTimeout."""
        self._sending = True
        sent = 0
        silence = self._upload_timeout = asyncio.timeout_at(self._compute_idle_deadline())
        try:
            async with silence:
                async for part in body:
                    if not part:
                        continue
                    sent += len(part)
                    if length is not None and sent > length:
                        raise UnsendableRequest("its body is longer than its Content-Length")
                    if not self._wants_body() or not await self._write_part(part, chunked=length is None):
                        return
                    silence.reschedule(self._compute_idle_deadline())
        except TimeoutError as error:
            if not self._wants_body():
                return
            if silence.expired():
                raise httpx2.WriteTimeout(f"no byte for {self._idle:g} s") from error
            raise
        finally:
            self._upload_timeout = None
            await body.aclose()
        if length is not None and sent < length:
            raise UnsendableRequest("its body is shorter than its Content-Length")
        self._sending = length is None and not await self._write_part(b"", chunked=True)

    async def _write_part(self, part: bytes, *, chunked: bool) -> bool:
        """Send a part, the last one empty, and wait until the socket takes more. False if it is closed."""
        transport = self._protocol.transport
        if transport is None:
            return False
        transport.write(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
        from aiohttp.http import StreamWriter  # noqa: PLC0415  # loaded by the connection: see transport.py

        try:
            await StreamWriter(self._protocol, self._loop).drain()
        except ConnectionError:
            return False
        return True

    def _compute_idle_deadline(self) -> float:
        """Return the loop time at which silence that begins now has lasted too long."""
        return min(self._deadline, self._loop.time() + self._idle)

    async def wait_for_head(self) -> None:
        """Wait until status and headers have arrived."""
        while self._body is None:
            if self._error is not None:
                raise self._error
            await self._wait_for_data()

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
            await self._wait_for_data()
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._unread_bytes = 0
        self._resume_reading()
        return data

    async def _wait_for_data(self) -> None:
        self._waiting_since = self._loop.time()
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def aclose(self) -> None:
        """Call `close`."""
        self.close()

    def close(self) -> None:
        """Give the connection back. It is closed if bytes are still to be received or sent on it."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        received = self._body is not None and self._body.done
        if self._error is not None:
            # The error that was raised refers to the frames that it went through, and these to this answer.
            self._error = type(self._error)(*self._error.args)
        elif not received:
            self._error = httpx2.ReadError("it was closed here")
        self._stop_sending()
        self._wake_reader()
        transport = self._protocol.transport
        sent = transport is not None and not self._sending and not transport.get_write_buffer_size()
        self._protocol.set_parser(None, None)
        self._release(self, connection, clean=received and sent and self._is_reusable)
