"""HTTP/1.1 as bytes, without I/O: a request's head out of its parts, an answer's parts out of its bytes.

Strict where two readers could disagree on where an answer ends (RFC 9112, 6.3): a Content-Length beside a
Transfer-Encoding, lengths that differ, codings other than `chunked`, bare line feeds and folded lines are refused. Who
is asked is a server that somebody configured, but what it says is made of what models and other people say.

Written here and not by llhttp (httptools): it tells neither where in its data an answer ended, nor can it be told that
an answer to HEAD has no body. It would save 3 us of a head and a third of one of a chunk.
"""

from __future__ import annotations

import re
import string
from typing import Final, NamedTuple, Protocol

import httpx2

from proxy.upstream.headers import Headers

HEAD_LIMIT: Final = 100 << 10
"""Bytes of an answer's head, the informational ones before it included."""
TRAILER_LIMIT: Final = 16 << 10
SIZE_LIMIT: Final = 4 << 10
"""Bytes of the line that begins a chunk."""

START: Final = b"HTTP/1."
"""What an answer begins with."""

SWITCHING: Final = 101
"""The one informational answer after which no other comes."""

_TOKEN: Final = ("!#$%&'*+-.^_`|~" + string.digits + string.ascii_letters).encode()
_VISIBLE: Final = bytes(range(0x21, 0x7F))
_NOT_IN_VALUES: Final = b"\x00\n\r\x0b\x0c"
_IN_VALUES: Final = bytes(byte for byte in range(256) if byte not in _NOT_IN_VALUES)

_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\x00\n\r\x0b\x0c]*+)?\r\n")
# Possessive, since with plain stars a line of spaces takes time with the square of its length.
_FIELD: Final = re.compile(rb"(?m)^([%b]++):[ \t]*+([^\x00\n\r\x0b\x0c]*+)\r$" % re.escape(_TOKEN))
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*+(?:;[^\x00\n\r]*+)?\r\n")
_SIZE_BEGUN: Final = re.compile(rb"[0-9A-Fa-f]{1,16}[ \t]*+(?:;[^\x00\n\r]*+)?\r?")

_FRAMING: Final = frozenset({b"connection", b"content-length", b"transfer-encoding"})
_CONTENT_LENGTH: Final = re.compile(rb"[0-9]{1,19}")
_EMPTY: Final = frozenset({204, 304})


class Malformed(httpx2.RemoteProtocolError):
    """What came is not HTTP, or could be read in two ways."""


class Unsendable(httpx2.LocalProtocolError):
    """A request that cannot be written: what one of its parts holds would end a line, or its body is another length."""


class Body(Protocol):
    """Takes the bytes of an answer apart. done: all of it has come."""

    done: bool

    def feed(self, data: bytes, parts: list[bytes]) -> bytes:
        """Add what is body to `parts`; returns the bytes that come after its end. Raises Malformed."""
        ...


class Head(NamedTuple):
    """The beginning of an answer. headers: names in lower case, in their order. keeps: the connection goes on after."""

    status: int
    headers: Headers
    body: Body
    keeps: bool


def write_head(method: str, where: bytes, headers: Headers) -> bytes:
    """A request's head, with the empty line. Raises Unsendable."""
    names = [name for name, _ in headers]
    verb = method.encode("ascii", "replace").replace(b"?", b" ")
    if b"".join(names).translate(None, _TOKEN) or not all(names):
        raise Unsendable("a header's name is none")
    if b"".join([value for _, value in headers]).translate(None, _IN_VALUES):
        raise Unsendable("a header's value has a line end or a NUL in it")
    if verb.translate(None, _TOKEN) or not verb or where.translate(None, _VISIBLE) or not where:
        raise Unsendable("the method or the path has characters that a request line cannot hold")
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (verb, where, b"".join(lines))


def read_head(block: bytes, method: str) -> Head:
    """`block`: up to the empty line and without it, so that each line has its end. Raises Malformed."""
    line = _STATUS.match(block)
    if line is None:
        raise Malformed("it begins with no status line")
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
                    raise Malformed(f"Transfer-Encoding {value[:40]!r} is not understood")
                chunked = True
            elif length is None:
                length = value
            elif length == value:
                continue  # once is enough; what differs is refused
            else:
                raise Malformed("it has two lengths")
        headers.append((name, value))
    if length is not None and not _CONTENT_LENGTH.fullmatch(length):
        raise Malformed(f"Content-Length {length[:40]!r} is no length")
    if chunked and length is not None:
        raise Malformed("it has a Content-Length and a Transfer-Encoding")
    if method == "CONNECT" and 200 <= status < 300:
        return Head(status, headers, Sized(0), True)  # a tunnel, whatever its version of HTTP
    body = _body(method, status, chunked, length)
    return Head(status, headers, body, not (closes or status == SWITCHING or isinstance(body, Endless)))


def _body(method: str, status: int, chunked: bool, length: bytes | None) -> Body:
    """How the answer's end is known: RFC 9112, 6.3, in its order."""
    if method == "HEAD" or status < 200 or status in _EMPTY:
        return Sized(0)
    if chunked:
        return Chunked()
    return Endless() if length is None else Sized(int(length))


def _fields(block: bytes, at: int) -> list[tuple[bytes, bytes]]:
    """Header lines. Each line of the rest of the block is one, or nothing of it is believed."""
    found: list[tuple[bytes, bytes]] = _FIELD.findall(block, at)
    if len(found) != block.count(b"\n", at):
        raise Malformed("a line of its head is no header")
    return found


class Sized:
    """A body of so many bytes."""

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


class Endless:
    """A body that ends with its connection."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False

    def feed(self, data: bytes, parts: list[bytes]) -> bytes:
        parts.append(data)
        return b""


class Chunked:
    """A body in chunks. What has come of a chunk is given out before the rest of it; trailers are read and dropped."""

    __slots__ = ("_begun", "_last", "_left", "_rest", "done")

    def __init__(self) -> None:
        self.done = False
        self._left = 0
        """Bytes of the chunk still to come."""
        self._begun = False
        """Whether a chunk's line end is still to come."""
        self._last = False
        self._rest = b""
        """The beginning of something that cannot be read before more of it is there."""

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
                    raise Malformed("a chunk is longer than it said")
                at += 2
                self._begun = False
            elif self._last:
                return self._trailers(data[at:])
            else:
                line = _SIZE.match(data, at)
                if line is None:
                    self._rest = data[at:]
                    if len(self._rest) > SIZE_LIMIT or not _SIZE_BEGUN.fullmatch(self._rest):
                        raise Malformed("a chunk does not begin with its size")
                    return b""
                at, size = line.end(), int(line[1], 16)
                stop = at + size
                if size and data.startswith(b"\r\n", stop):  # all of it is here, as nearly always
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
            raise Malformed("its trailers are too long")
        if end < 0:
            self._rest = data
            return b""
        _fields(data[: end + 2], 0)
        self.done = True
        return data[end + 4 :]
