"""HTTP/1.1 as bytes, without I/O: a request's head out of its parts, an answer's parts out of its bytes.

The reader is strict if two readers could disagree on the end of an answer (RFC 9112, 6.3). It refuses a Content-Length
with a Transfer-Encoding, lengths that differ, codings other than `chunked`, bare line feeds and folded lines. The
upstream is a server that somebody configured, but its answers contain text of models and other people.

llhttp (httptools) is not used. It does not report the position in its data at which an answer ended. It also cannot be
told that an answer to HEAD has no body. It would save 3 us per head and a third of a microsecond per chunk.
"""

from __future__ import annotations

import re
import string
from typing import Final, NamedTuple, Protocol

import httpx2

from proxy.upstream.headers import Headers

HEAD_LIMIT: Final = 100 << 10
"""Bytes of an answer's head, including the informational heads before it."""
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

_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\x00\n\r\x0b\x0c]*+)?\r\n")
# Possessive, because with plain stars the time for a line of spaces grows with the square of its length.
_FIELD: Final = re.compile(rb"(?m)^([%b]++):[ \t]*+([^\x00\n\r\x0b\x0c]*+)\r$" % re.escape(_TOKEN))
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*+(?:;[^\x00\n\r]*+)?\r\n")
_SIZE_BEGUN: Final = re.compile(rb"[0-9A-Fa-f]{1,16}[ \t]*+(?:;[^\x00\n\r]*+)?\r?")

_FRAMING: Final = frozenset({b"connection", b"content-length", b"transfer-encoding"})
_CONTENT_LENGTH: Final = re.compile(rb"[0-9]{1,19}")
_EMPTY: Final = frozenset({204, 304})


class MalformedResponse(httpx2.RemoteProtocolError):
    """The answer is not HTTP, or could be read in two ways."""


class UnsendableRequest(httpx2.LocalProtocolError):
    """A request that cannot be written: one of its parts would end a line, or its body has another length."""


class BodyParser(Protocol):
    """Parser of an answer's body. done: all of it has come."""

    done: bool

    def feed(self, data: bytes, parts: list[bytes]) -> bytes:
        """Add the bytes of the body to `parts`; return the bytes after its end. Raises Malformed."""
        ...


class ResponseHead(NamedTuple):
    """The head of an answer. headers: names in lower case, in their order. keeps_alive: the connection stays open
    afterwards."""

    status: int
    headers: Headers
    body: BodyParser
    keeps_alive: bool


def write_request_head(method: str, request_target: bytes, headers: Headers) -> bytes:
    """Return a request's head, with the empty line. Raises Unsendable."""
    names = [name for name, _ in headers]
    verb = method.encode("ascii", "replace").replace(b"?", b" ")
    if b"".join(names).translate(None, _TOKEN) or not all(names):
        raise UnsendableRequest("a header's name is none")
    if b"".join([value for _, value in headers]).translate(None, _IN_VALUES):
        raise UnsendableRequest("a header's value has a line end or a NUL in it")
    if verb.translate(None, _TOKEN) or not verb or request_target.translate(None, _VISIBLE) or not request_target:
        raise UnsendableRequest("the method or the path has characters that a request line cannot hold")
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (verb, request_target, b"".join(lines))


def parse_response_head(block: bytes, method: str) -> ResponseHead:
    """Parse a head. `block`: the bytes before the empty line, so that each line has its end. Raises Malformed."""
    line = _STATUS.match(block)
    if line is None:
        raise MalformedResponse("it begins with no status line")
    found = _fields(block, line.end())
    status = int(line[2])
    closes = line[1] == b"0"
    length: bytes | None = None
    chunked = False
    headers: Headers = []
    for given, padded in found:
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
    if length is not None and not _CONTENT_LENGTH.fullmatch(length):
        raise MalformedResponse(f"Content-Length {length[:40]!r} is no length")
    if chunked and length is not None:
        raise MalformedResponse("it has a Content-Length and a Transfer-Encoding")
    if method == "CONNECT" and 200 <= status < 300:
        return ResponseHead(status, headers, FixedLengthBody(0), True)  # a tunnel, in any version of HTTP
    body = _body(method, status, chunked, length)
    return ResponseHead(
        status, headers, body, not (closes or status == SWITCHING_PROTOCOLS or isinstance(body, CloseDelimitedBody))
    )


def _body(method: str, status: int, chunked: bool, length: bytes | None) -> BodyParser:
    """Return the parser for the answer's body, by the rules of RFC 9112, 6.3, in their order."""
    if method == "HEAD" or status < 200 or status in _EMPTY:
        return FixedLengthBody(0)
    if chunked:
        return ChunkedBody()
    return CloseDelimitedBody() if length is None else FixedLengthBody(int(length))


def _fields(block: bytes, at: int) -> list[tuple[bytes, bytes]]:
    """Return the header lines. Raises Malformed if any line of the rest of the block is not a header."""
    found: list[tuple[bytes, bytes]] = _FIELD.findall(block, at)
    if len(found) != block.count(b"\n", at):
        raise MalformedResponse("a line of its head is no header")
    return found


class FixedLengthBody:
    """A body of known length in bytes."""

    __slots__ = ("_left", "done")

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = not length

    def feed(self, data: bytes, parts: list[bytes]) -> bytes:
        left = self._left - len(data)
        if left > 0:
            self._left = left
            parts.append(data)
            return b""
        self.done = True
        part, rest = (data, b"") if left == 0 else (data[: self._left], data[self._left :])
        self._left = 0
        if part:
            parts.append(part)
        return rest


class CloseDelimitedBody:
    """A body that ends with its connection."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False

    def feed(self, data: bytes, parts: list[bytes]) -> bytes:
        parts.append(data)
        return b""


class ChunkedBody:
    """A body in chunks. The received part of a chunk is given out before the rest of it; trailers are read and
    dropped."""

    __slots__ = ("_begun", "_last", "_left", "_rest", "done")

    def __init__(self) -> None:
        self.done = False
        self._left = 0
        """Bytes of the chunk still to come."""
        self._begun = False
        """True while a chunk's line end is still to come."""
        self._last = False
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
            elif self._begun:
                if not data.startswith(b"\r\n", at):
                    if data[at:] == b"\r":
                        self._rest = b"\r"
                        return b""
                    raise MalformedResponse("a chunk is longer than it said")
                at += 2
                self._begun = False
            elif self._last:
                return self._trailers(data[at:])
            else:
                line = _SIZE.match(data, at)
                if line is None:
                    self._rest = data[at:]
                    if len(self._rest) > CHUNK_LINE_LIMIT or not _SIZE_BEGUN.fullmatch(self._rest):
                        raise MalformedResponse("a chunk does not begin with its size")
                    return b""
                at, size = line.end(), int(line[1], 16)
                stop = at + size
                if size and data.startswith(b"\r\n", stop):  # the whole chunk is here, as nearly always
                    parts.append(data[at:stop])
                    at = stop + 2
                else:
                    self._left = size
                    self._begun = size > 0
                    self._last = not size
        return b""

    def _trailers(self, data: bytes) -> bytes:
        if data.startswith(b"\r\n"):
            self.done = True
            return data[2:]
        end = data.find(b"\r\n\r\n")
        if (len(data) if end < 0 else end) > TRAILER_LIMIT:
            raise MalformedResponse("its trailers are too long")
        if end < 0:
            self._rest = data
            return b""
        _fields(data[: end + 2], 0)
        self.done = True
        return data[end + 4 :]
