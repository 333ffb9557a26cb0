"""Frames against botocore, which AWS's own clients read them with, and cut in every way."""

from __future__ import annotations

import base64
import binascii
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.stream.aws_event_stream import (
    MAX_HELD_BYTES,
    MAX_HELD_FRAMES,
    BrokenFrame,
    EventFrames,
    FrameDecoder,
    FrameEncoder,
    FrameParser,
    write_frame,
)
from tests.clients.clouds import write_chunk
from tests.clients.clouds import write_frame as write_other_frame

# Any, where the package is not installed as well: then the tests are skipped with this reason.
eventstream: Any = pytest.importorskip("botocore.eventstream", reason="botocore is not installed")

EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {"usage": {"input_tokens": 3}}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "é 🙂 \n\r\u2028"}},
    {"type": "message_stop", "amazon-bedrock-invocationMetrics": {"inputTokenCount": 3}},
]
THROTTLED = write_other_frame(
    b'{"message":"Too many tokens","originalStatusCode":429}', message_type="exception",
    exception_type="throttlingException", content_type="application/json",
)  # fmt: skip


def read_with_botocore(data: bytes) -> list[tuple[dict[str, Any], bytes]]:
    buffer = eventstream.EventStreamBuffer()
    buffer.add_data(data)
    return [(dict(event.headers), event.payload) for event in buffer]


def decode(frames: EventFrames, data: bytes) -> bytes:
    decoder = FrameDecoder(frames)
    out = b"".join(decoder.decode(data))
    decoder.check_end()
    return out


def test_botocore_reads_what_is_written() -> None:
    frame = write_frame({":message-type": "event", "größe": "ü" * 300}, b"payload")
    assert read_with_botocore(frame) == [({":message-type": "event", "größe": "ü" * 300}, b"payload")]


def test_a_new_event_is_a_chunk_to_botocore() -> None:
    encoder = FrameEncoder(EventFrames())
    sse = b"event: ping\ndata: %b\n\n" % json.dumps(EVENTS[1]).encode()
    [(headers, payload)] = read_with_botocore(encoder.feed(sse))
    assert headers == {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"}
    assert json.loads(base64.b64decode(json.loads(payload)["bytes"])) == EVENTS[1]


@given(st.lists(st.integers(1, 200), min_size=1, max_size=8), st.lists(st.integers(1, 90), min_size=1, max_size=8))
def test_what_is_not_changed_goes_on_in_the_frames_that_came(cuts: list[int], others: list[int]) -> None:
    came = b"".join([*map(write_chunk, EVENTS), THROTTLED, write_other_frame(b"", message_type="event")])
    frames = EventFrames()
    decoder, encoder, out = FrameDecoder(frames), FrameEncoder(frames), b""
    for piece in cut(came, cuts):
        for sse in cut(b"".join(decoder.decode(piece)), others):
            out += encoder.feed(sse)
    decoder.check_end()
    assert out + encoder.flush() == came


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces: list[bytes] = []
    at = 0
    while at < len(data):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[at : at + size])
        at += size
    return pieces


def test_events_that_were_taken_out_and_put_in_are_frames_too() -> None:
    frames = EventFrames()
    sse = decode(frames, b"".join(map(write_chunk, EVENTS)))
    first, second, third = sse.split(b"\n\n")[:3]
    assert json.loads(first.removeprefix(b"data: ")) == EVENTS[0]
    encoder = FrameEncoder(frames)
    changed = second.replace(b"text_delta", b"other_delta")
    out = encoder.feed(first + b"\n\n" + changed + b"\n\n: keepalive\n\n" + third + b"\n\n")
    assert out.startswith(write_chunk(EVENTS[0]))
    assert out.endswith(write_chunk(EVENTS[2]))
    seen = [json.loads(base64.b64decode(json.loads(payload)["bytes"])) for _, payload in read_with_botocore(out)]
    assert [one["type"] for one in seen] == ["message_start", "content_block_delta", "message_stop"]
    assert seen[1]["delta"]["type"] == "other_delta"
    assert len(frames) == 0


def test_an_exception_is_an_error_event_and_an_error_event_an_exception() -> None:
    sse = decode(EventFrames(), THROTTLED)
    assert sse.startswith(b"event: error\ndata: ")
    error = {"type": "throttlingException", "message": "Too many tokens"}
    assert json.loads(sse.partition(b"data: ")[2]) == {"type": "error", "error": error}
    [(headers, payload)] = read_with_botocore(FrameEncoder(EventFrames()).feed(sse))
    assert (headers[":message-type"], headers[":exception-type"]) == ("exception", "throttlingException")
    assert json.loads(payload) == {"message": "Too many tokens"}
    ours = b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"broke off"}}\n\n'
    [(headers, payload)] = read_with_botocore(FrameEncoder(EventFrames()).feed(ours))
    assert headers[":exception-type"] == "modelStreamErrorException"
    assert json.loads(payload) == {"message": "broke off"}
    assert read_with_botocore(FrameEncoder(EventFrames()).feed(b"event: error\ndata: no json\n\n"))[0][1] == (
        b'{"message":"no json"}'
    )


def test_a_fault_without_a_type_is_an_error_event() -> None:
    frame = write_other_frame(b"", message_type="error", error_code="InternalError", error_message="It broke.")
    assert b'"type":"InternalError","message":"It broke."' in decode(EventFrames(), frame)


@pytest.mark.parametrize("payload", [b"", b"no json", b'{"bytes":"#"}', b'{"bytes":1}', b"[1]", b'{"bytes":"YWJ"}'])
def test_a_payload_that_cannot_be_read_passes_as_it_is(payload: bytes) -> None:
    frame = write_other_frame(payload, message_type="event", event_type="chunk")
    frames = EventFrames()
    sse = decode(frames, frame)
    assert FrameEncoder(frames).feed(sse) == frame


def test_headers_of_all_types_are_skipped_but_texts() -> None:
    values = [
        (0, b""), (1, b""), (2, b"\x01"), (3, b"\x00\x01"), (4, b"\0\0\0\x01"), (5, b"\0" * 8),
        (6, b"\x00\x02ab"), (7, b"\x00\x02ab"), (8, b"\0" * 8), (9, b"\0" * 16),
    ]  # fmt: skip
    head = b"".join(bytes([2]) + b"h%d" % kind + bytes([kind]) + value for kind, value in values)
    [frame] = FrameParser().feed(make_raw(head, b"x"))
    assert (frame.headers, frame.payload) == ({"h7": "ab"}, b"x")
    for broken in (b"\x02h1\x0b", b"\x05h", b"\x01h\x07\x00\x09a", b"\x01\xff\x00", b"\x01h\x04\0"):
        with pytest.raises(BrokenFrame):
            FrameParser().feed(make_raw(broken, b""))


def make_raw(head: bytes, payload: bytes) -> bytes:
    prelude = struct.pack("!II", len(head) + len(payload) + 16, len(head))
    frame = prelude + struct.pack("!I", binascii.crc32(prelude)) + head + payload
    return frame + struct.pack("!I", binascii.crc32(frame))


def test_damaged_frames_are_refused_wherever_the_damage_is() -> None:
    frame = write_chunk(EVENTS[0])
    for at in range(len(frame)):
        damaged = frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]
        with pytest.raises(BrokenFrame):
            FrameParser().feed(damaged)
    for size, headers in ((15, 0), (1 << 30, 0), (20, 100)):
        lengths = struct.pack("!II", size, headers)
        with pytest.raises(BrokenFrame):
            FrameParser().feed(lengths + struct.pack("!I", binascii.crc32(lengths)))


def test_a_stream_that_ends_in_a_frame_is_not_whole() -> None:
    decoder = FrameDecoder(EventFrames())
    assert list(decoder.decode(write_chunk(EVENTS[0])[:-1])) == []
    with pytest.raises(EOFError):
        decoder.check_end()


def test_few_frames_are_held_however_many_events_are_left_out() -> None:
    frames = EventFrames()
    decode(frames, write_chunk(EVENTS[1]) * 1000)
    assert len(frames) == MAX_HELD_FRAMES
    large = write_chunk({"type": "content_block_delta", "delta": {"text": "x" * (MAX_HELD_BYTES // 4)}})
    decode(frames, large * 10)
    assert len(frames) == 2, "in base64 each has a third of the limit"
