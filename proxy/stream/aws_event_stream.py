"""AWS event streams: the frames in which Bedrock streams Claude's events, read as server-sent events and written again.

Encoding: https://smithy.io/2.0/aws/amazon-eventstream.html. A frame has two lengths, their checksum, headers, a payload
and a checksum of all. Its payload is JSON, in which `bytes` holds one event of Messages in base64. An event that
nothing has changed goes on in the frame that it came in.
"""

from __future__ import annotations

import binascii
import struct
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from proxy.stream.sse import SseEvent, SseParser

MEDIA_TYPE: Final = "application/vnd.amazon.eventstream"
MAX_FRAME_BYTES: Final = 24 << 20
"""Largest frame that AWS's own clients read, in bytes."""
MAX_HELD_FRAMES: Final = 64
MAX_HELD_BYTES: Final = 4 << 20
"""Frames that are held until their events come out. Those of an end that waits for the store are a few."""
ERROR_TYPE: Final = "modelStreamErrorException"
"""The error for which AWS's clients advise another try."""

_OTHER_FRAME: Final = b'{"type":"aws_frame","crc32":"'
"""The beginning of the event that stands for a frame of another meaning."""
_PRELUDE: Final = struct.Struct("!III")
_CRC: Final = struct.Struct("!I")
_LENGTH: Final = struct.Struct("!H")
_STRING: Final = 7
_FIXED_SIZES: Final = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Bytes of a header's value by its type: two booleans, four integers, a time, a UUID."""
_SIZED_TYPES: Final = (6, _STRING)
"""Types whose value is preceded by its length: bytes and text."""


class BrokenFrame(ValueError):
    """Bytes that are no frame."""


class Frame(NamedTuple):
    """One frame of a stream."""

    raw: bytes
    headers: Mapping[str, str]
    """Those that are text; all that Bedrock sends are."""
    payload: bytes


class _Chunk(msgspec.Struct):
    bytes: str = ""


class _Failure(msgspec.Struct):
    message: str = ""


class _ErrorDetail(msgspec.Struct):
    type: str = ""
    message: str = ""


class _ErrorEvent(msgspec.Struct, tag_field="type", tag="error"):
    error: _ErrorDetail


_read_chunk = msgspec.json.Decoder(_Chunk).decode
_read_failure = msgspec.json.Decoder(_Failure).decode
_read_error = msgspec.json.Decoder(_ErrorEvent).decode


class FrameParser:
    """Cut a stream into frames. `feed` returns those that are complete."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending = bytearray()
        """The bytes of the frame that is not complete yet."""

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that these bytes complete. Raises BrokenFrame."""
        self.pending += data
        frames: list[Frame] = []
        at = 0
        while len(self.pending) - at >= _PRELUDE.size:
            size, headers_size, checksum = _PRELUDE.unpack_from(self.pending, at)
            if zlib.crc32(self.pending[at : at + 8]) != checksum:
                raise BrokenFrame("the checksum of a frame's lengths does not fit")
            if not _PRELUDE.size + headers_size + _CRC.size <= size <= MAX_FRAME_BYTES:
                raise BrokenFrame(f"a frame of {size} bytes with headers of {headers_size}")
            if len(self.pending) - at < size:
                break
            frames.append(_read_frame(bytes(self.pending[at : at + size]), headers_size))
            at += size
        del self.pending[:at]
        return frames


def _read_frame(raw: bytes, headers_size: int) -> Frame:
    end = len(raw) - _CRC.size
    if zlib.crc32(raw[:end]) != _CRC.unpack_from(raw, end)[0]:
        raise BrokenFrame("the checksum of a frame does not fit")
    begin = _PRELUDE.size + headers_size
    try:
        headers = _read_headers(raw[_PRELUDE.size : begin])
    except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
        raise BrokenFrame("a frame's headers cannot be read") from error
    return Frame(raw, headers, raw[begin:end])


def _read_headers(data: bytes) -> dict[str, str]:
    headers: dict[str, str] = {}
    at = 0
    while at < len(data):
        name_end = at + 1 + data[at]
        name, kind, at = data[at + 1 : name_end].decode(), data[name_end], name_end + 1
        if kind in _SIZED_TYPES:
            size = _LENGTH.unpack_from(data, at)[0]
            at += _LENGTH.size
        else:
            size = _FIXED_SIZES[kind]
        if at + size > len(data):
            raise IndexError(name)
        if kind == _STRING:
            headers[name] = data[at : at + size].decode()
        at += size
    return headers


def write_frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Return a frame with these headers as text."""
    pieces = []
    for name, value in headers.items():
        key, text = name.encode(), value.encode()
        pieces.append(b"%c%b%c%b%b" % (len(key), key, _STRING, _LENGTH.pack(len(text)), text))
    head = b"".join(pieces)
    lengths = struct.pack("!II", _PRELUDE.size + len(head) + len(payload) + _CRC.size, len(head))
    frame = b"".join((lengths, _CRC.pack(zlib.crc32(lengths)), head, payload))
    return frame + _CRC.pack(zlib.crc32(frame))


class EventFrames:
    """The frames of one answer. Each stream of upstream is read by a `FrameDecoder`, and one `FrameEncoder` writes the
    answer. A frame is held until the encoder has passed its event."""

    __slots__ = ("_held", "_size")

    def __init__(self) -> None:
        self._held: deque[tuple[bytes, bytes]] = deque()  # (an event's data, its frame), as they came
        self._size = 0

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, data: bytes, frame: bytes) -> None:
        """Hold the frame of an event with this data. The oldest frames are dropped over the limits."""
        self._held.append((data, frame))
        self._size += len(frame)
        while len(self._held) > MAX_HELD_FRAMES or self._size > MAX_HELD_BYTES:
            self._drop_oldest()

    def take(self, data: bytes) -> bytes | None:
        """Return the frame of an event with this data; None if there is none. Those before it are dropped: their events
        were left out of the answer."""
        place = next((n for n, (known, _) in enumerate(self._held) if known == data), None)
        if place is None:
            return None
        frame = self._held[place][1]
        for _ in range(place + 1):
            self._drop_oldest()
        return frame

    def _drop_oldest(self) -> None:
        _, frame = self._held.popleft()
        self._size -= len(frame)


class FrameDecoder:
    """Decode frames into server-sent events: of each chunk its event, of an exception an `error` event. It is a
    `proxy.upstream.decompress.Decoder`."""

    __slots__ = ("_frames", "_parser")

    def __init__(self, frames: EventFrames) -> None:
        self._frames = frames
        self._parser = FrameParser()

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield the events in these bytes. Raises BrokenFrame."""
        for frame in self._parser.feed(data):
            yield self._read(frame)

    def check_end(self) -> None:
        """Raises EOFError if the stream has ended in the middle of a frame."""
        if self._parser.pending:
            raise EOFError

    def _read(self, frame: Frame) -> bytes:
        name, data = _read_event(frame)
        if data is None:
            data = b'%b%d"}' % (_OTHER_FRAME, zlib.crc32(frame.raw))
        data = data.replace(b"\r", b" ")  # only between the tokens of JSON, where it is a blank
        self._frames.hold(data, frame.raw)
        return name + b"data: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"


def _read_event(frame: Frame) -> tuple[bytes, bytes | None]:
    """Return (the line that names the event, its data); no data for a frame of another meaning."""
    kind = frame.headers.get(":message-type", "event")
    try:
        if kind == "event" and frame.headers.get(":event-type") == "chunk":
            return b"", binascii.a2b_base64(_read_chunk(frame.payload).bytes)
        if kind == "exception":
            message, name = _read_failure(frame.payload or b"{}").message, frame.headers.get(":exception-type", "")
        elif kind == "error":
            message, name = frame.headers.get(":error-message", ""), frame.headers.get(":error-code", "")
        else:
            return b"", None
    except (msgspec.MsgspecError, binascii.Error, UnicodeDecodeError):
        return b"", None
    return b"event: error\n", msgspec.json.encode(_ErrorEvent(_ErrorDetail(name, message)))


class FrameEncoder:
    """Write server-sent events as frames. Comments have no frame."""

    __slots__ = ("_frames", "_parser")

    def __init__(self, frames: EventFrames) -> None:
        self._frames = frames
        self._parser = SseParser(MAX_FRAME_BYTES)

    def feed(self, data: bytes) -> bytes:
        """Return the frames of the events that these bytes complete."""
        return b"".join([self._write(event) for event in self._parser.feed(data)])

    def flush(self) -> bytes:
        """Return the frames of what is left at the end."""
        return b"".join([self._write(event) for event in self._parser.flush()])

    def _write(self, event: SseEvent) -> bytes:
        if event.data is None:
            return b""
        if (frame := self._frames.take(event.data)) is not None:
            return frame
        if event.data.startswith(_OTHER_FRAME):
            return b""
        return _write_error(event.data) if event.name == b"error" else write_chunk(event.data)


def write_chunk(data: bytes) -> bytes:
    """Return the frame of an event of Messages. data: its JSON."""
    headers = {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"}
    return write_frame(headers, b'{"bytes":"' + binascii.b2a_base64(data, newline=False) + b'"}')


def _write_error(data: bytes) -> bytes:
    try:
        error = _read_error(data).error
    except msgspec.MsgspecError:
        error = _ErrorDetail("", data.decode("utf-8", "replace"))
    kind = error.type if error.type.endswith("Exception") else ERROR_TYPE
    headers = {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}
    return write_frame(headers, msgspec.json.encode({"message": error.message}))
