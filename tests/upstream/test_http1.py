from __future__ import annotations

import random
import string
import time

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.upstream.http1 import (
    CHUNK_LINE_LIMIT,
    MAX_HEADER_LINES,
    TRAILER_LIMIT,
    ChunkedBody,
    CloseDelimitedBody,
    FixedLengthBody,
    MalformedResponse,
    UnsendableRequest,
    parse_response_head,
    write_request_head,
)

TOKENS = st.text(string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~", min_size=1, max_size=10).map(str.encode)
VALUES = st.binary(max_size=20).map(lambda raw: raw.translate(None, b"\x00\n\r\x0b\x0c").strip())


def read(lines: str, method: str = "POST") -> object:
    return parse_response_head(b"HTTP/1.1 200 OK\r\n" + lines.encode("latin-1"), method)


# What is sent


@given(st.lists(st.tuples(TOKENS, VALUES), max_size=8), st.sampled_from(["GET", "POST", "M-SEARCH"]))
def test_a_head_is_read_by_others_as_it_was_written(headers: list[tuple[bytes, bytes]], method: str) -> None:
    headers = [(b"host", b"a"), *(h for h in headers if h[0].lower() not in _STRICT)]
    there = h11.Connection(h11.SERVER)
    there.receive_data(write_request_head(method, b"/v1/x?a=%20", headers))
    event = there.next_event()
    assert isinstance(event, h11.Request)
    assert (event.method, event.target) == (method.encode(), b"/v1/x?a=%20")
    assert event.headers.raw_items() == headers


_STRICT = {b"host", b"content-length", b"transfer-encoding", b"expect", b"connection"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"bad name", b"x"), (b"", b"x"), (b"a:b", b"x"), (b"a\r\nb", b"x"), (b"\xe4", b"x"), (b"a\x00", b"x"),
        (b"a", b"x\r\nb: y"), (b"a", b"x\n"), (b"a", b"\rx"), (b"a", b"x\x00y"), (b"a", b"x\x0by"), (b"a", b"x\x0cy"),
    ],
)  # fmt: skip
def test_a_header_that_would_be_two_or_none_is_not_sent(name: bytes, value: bytes) -> None:
    with pytest.raises(UnsendableRequest):
        write_request_head("GET", b"/", [(b"host", b"a"), (name, value), (b"x", b"y")])


@pytest.mark.parametrize("where", [b"", b"/a b", b"/\r\nx: y", b"/\xe4", b"/\x00", b"/\t"])
def test_a_path_that_a_line_cannot_hold_is_not_sent(where: bytes) -> None:
    with pytest.raises(UnsendableRequest):
        write_request_head("GET", where, [])


@pytest.mark.parametrize("method", ["", "GE T", "GET\r\n", "GÄT", "GET?", "a:b"])
def test_a_method_that_is_none_is_not_sent(method: str) -> None:
    with pytest.raises(UnsendableRequest):
        write_request_head(method, b"/", [])


# Heads that come


def test_a_head_comes_in_its_order_with_its_doubles_and_without_the_space_around_values() -> None:
    head = parse_response_head(
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a \r\nX:\t y z\t\r\nset-cookie:b\r\nEmpty:\r\nX: \xe4\r\n", "GET"
    )
    assert head.status == 200
    assert head.headers == [
        (b"set-cookie", b"a"), (b"x", b"y z"), (b"set-cookie", b"b"), (b"empty", b""), (b"x", b"\xe4"),
    ]  # fmt: skip


@pytest.mark.parametrize("control", [b"\x01", b"\x08", b"\x1b[31m", b"\x7f"])
def test_a_header_with_a_control_character_is_left_out(control: bytes) -> None:
    # uvicorn raises for such a header: the client got no answer at all.
    head = parse_response_head(b"HTTP/1.1 200 O%bK\r\na: 1\r\nb: x%by\r\nc:\t2\r\n" % (control, control), "GET")
    assert head.headers == [(b"a", b"1"), (b"c", b"2")]


def test_a_head_of_very_many_lines_is_refused() -> None:
    head = b"HTTP/1.1 200 OK\r\n" + b"a:\r\n" * MAX_HEADER_LINES
    assert len(parse_response_head(head, "GET").headers) == MAX_HEADER_LINES
    with pytest.raises(MalformedResponse, match="1001 lines"):
        parse_response_head(head + b"a:\r\n", "GET")


@pytest.mark.parametrize("line", [b"HTTP/1.1 200", b"HTTP/1.1 200 ", b"HTTP/1.0 200 OK", b"HTTP/1.1 200 \xe4 \x01"])
def test_unusual_but_valid_status_lines_are_read(line: bytes) -> None:
    assert parse_response_head(line + b"\r\n", "GET").status == 200


@pytest.mark.parametrize(
    "line",
    [
        b"HTTP/2 200 OK", b"HTTP/1.2 200 OK", b"HTTP/11 200 OK", b"HTTP/1.1  200 OK", b"HTTP/1.1 20 OK",
        b"HTTP/1.1 000 OK", b"HTTP/1.1 2000 OK", b"HTTP/1.1 +20 OK", b"HTTP/1.1 \xb2\xb3\xb9 OK", b"HTTP/1.1\t200 OK",
        b"http/1.1 200 OK",
        b" HTTP/1.1 200 OK", b"\r\nHTTP/1.1 200 OK", b"HTTP/1.1 200 O\nK", b"HTTP/1.1 200 O\rK", b"HTTP/1.1 200 O\x00K",
        b"HTTP/1.1 200\rOK", b"ICY 200 OK", b"220 smtp ready", b"HTTP/1.1 200OK", b"",
    ],
)  # fmt: skip
def test_status_lines_that_are_invalid_are_rejected(line: bytes) -> None:
    with pytest.raises(MalformedResponse):
        parse_response_head(line + b"\r\n", "GET")


@pytest.mark.parametrize(
    "lines",
    [
        "no colon\r\n", ": no name\r\n", "a : space before\r\n", " a: folded\r\n", "a: b\r\n folded\r\n",
        "a: b\r\n\tfolded\r\n", "a: b\nc: d\r\n", "a: b\rc: d\r\n", "a: b\r\nc\x00: d\r\n", "a: b\x00\r\n",
        "a: b\x0b\r\n",
        "a: b\x0c\r\n", "a\tb: c\r\n", "ä: b\r\n", "a: b\r\r\n", "\na: b\r\n", "a: b\n",
        "a\r\n: b\r\n", "a:\r\n\r\nb: c\r\n",
    ],
)  # fmt: skip
def test_lines_that_are_not_headers_are_rejected(lines: str) -> None:
    with pytest.raises(MalformedResponse):
        read(lines)


@pytest.mark.parametrize(
    "lines",
    [
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "transfer-encoding: chunked\r\ncontent-length: 3\r\n",
        "content-length: 3\r\ncontent-length: 4\r\n", "content-length: 3\r\ncontent-length: 03\r\n",
        "content-length: 3, 3\r\n", "content-length: 3, 4\r\n", "content-length: +3\r\n", "content-length: -3\r\n",
        "content-length: 0x3\r\n", "content-length: 3_0\r\n", "content-length: 3 0\r\n", "content-length:\r\n",
        "content-length: \xb3\r\n", "content-length: 18446744073709551616\r\n", "content-length: 3.0\r\n",
        "transfer-encoding: gzip\r\n", "transfer-encoding: gzip, chunked\r\n", "transfer-encoding: chunked, gzip\r\n",
        "transfer-encoding: xchunked\r\n", "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n", "transfer-encoding:\r\n",
        'transfer-encoding: "chunked"\r\n', "transfer-encoding: \x01chunked\r\n", "transfer-encoding: identity\r\n",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["POST", "HEAD"])
def test_an_end_that_two_readers_would_see_in_two_places_is_refused(lines: str, method: str) -> None:
    with pytest.raises(MalformedResponse):
        read(lines, method)


@pytest.mark.parametrize(
    ("start", "lines", "method", "body", "keeps"),
    [
        ("1.1 200", "content-length: 3\r\n", "GET", FixedLengthBody, True),
        ("1.1 200", "content-length: 3\r\ncontent-length: 3\r\n", "GET", FixedLengthBody, True),
        ("1.1 200", "content-length: 0\r\n", "GET", FixedLengthBody, True),
        ("1.1 200", "Transfer-Encoding: Chunked\r\n", "GET", ChunkedBody, True),
        ("1.1 200", "", "GET", CloseDelimitedBody, False),
        ("1.1 200", "connection: close\r\ncontent-length: 3\r\n", "GET", FixedLengthBody, False),
        ("1.1 200", "connection: x\r\nconnection: a, CLOSE ,b\r\ncontent-length: 3\r\n", "GET", FixedLengthBody, False),
        ("1.1 200", "connection: closed\r\ncontent-length: 3\r\n", "GET", FixedLengthBody, True),
        ("1.0 200", "connection: keep-alive\r\ncontent-length: 3\r\n", "GET", FixedLengthBody, False),
        ("1.0 200", "transfer-encoding: chunked\r\n", "GET", ChunkedBody, False),
        ("1.1 101", "upgrade: websocket\r\nconnection: upgrade\r\n", "GET", FixedLengthBody, False),
        ("1.1 204", "", "GET", FixedLengthBody, True),
        ("1.1 204", "content-length: 3\r\n", "GET", FixedLengthBody, True),
        ("1.1 304", "content-length: 3\r\n", "GET", FixedLengthBody, True),
        ("1.1 200", "content-length: 3\r\n", "HEAD", FixedLengthBody, True),
        ("1.1 200", "transfer-encoding: chunked\r\n", "HEAD", FixedLengthBody, True),
        ("1.1 200", "", "HEAD", FixedLengthBody, True),
        ("1.0 200", "", "CONNECT", FixedLengthBody, True),
        ("1.1 407", "content-length: 3\r\n", "CONNECT", FixedLengthBody, True),
        ("1.1 407", "", "CONNECT", CloseDelimitedBody, False),
    ],
)  # fmt: skip
def test_the_framing_of_an_answer_is_chosen_by_its_head(
    start: str, lines: str, method: str, body: type, keeps: bool
) -> None:
    head = parse_response_head(f"HTTP/{start} X\r\n{lines}".encode(), method)
    assert type(head.body) is body
    assert head.keeps_alive is keeps
    silent = method == "HEAD" or start[-3:] in ("101", "204", "304") or "length: 0" in lines
    assert head.body.done is (silent or (method == "CONNECT" and start.endswith("200")))
    assert sum(name == b"content-length" for name, _ in head.headers) <= 1


@pytest.mark.timed
def test_a_head_of_spaces_takes_no_time_that_grows_with_its_square() -> None:
    started = time.process_time()
    for lines in ("a:" + " " * 100_000 + "\x00\r\n", "a" * 100_000 + "\r\n", "a: b\r\n" * 15_000 + "x\r\n"):
        with pytest.raises(MalformedResponse):
            read(lines)
    assert time.process_time() - started < 0.5


# Bodies that come


def chunked(data: bytes) -> tuple[bytes, bytes]:
    """(body, bytes after it), which must have come to its end."""
    body = ChunkedBody()
    parts: list[bytes] = []
    rest = body.feed(data, parts)
    assert body.done
    return b"".join(parts), rest


def in_steps(body: ChunkedBody, data: bytes, step: int) -> None:
    for at in range(0, len(data), step):
        body.feed(data[at : at + step], [])


CODED = b"5\r\nhello\r\nA;name=value\r\n0123456789\r\n00001 \t\r\nx\r\n0;last\r\nX-Sum: 1\r\nX-Two: 2\r\n\r\n"


def test_a_chunked_body_with_extensions_and_trailers() -> None:
    assert chunked(CODED + b"HTTP/1.1") == (b"hello0123456789x", b"HTTP/1.1")
    assert chunked(b"0\r\n\r\n") == (b"", b"")


def test_a_chunked_body_is_the_same_wherever_it_is_cut() -> None:
    for first in range(len(CODED) + 1):
        for second in range(first, len(CODED) + 1):
            body, parts = ChunkedBody(), list[bytes]()
            for piece in (CODED[:first], CODED[first:second], CODED[second:]):
                assert not body.done or not piece
                if piece:
                    assert body.feed(piece, parts) == b""
            assert body.done
            assert b"".join(parts) == b"hello0123456789x"


def test_a_part_of_a_chunk_is_given_out_at_once() -> None:
    body, parts = ChunkedBody(), list[bytes]()
    body.feed(b"ff\r\nabc", parts)
    assert parts == [b"abc"]


@pytest.mark.parametrize(
    "data",
    [
        b"zz\r\n", b"z", b"-1\r\n", b"+5\r\nhello\r\n", b"0x5\r\nhello\r\n", b"5_0\r\n", b" 5\r\nhello\r\n", b"\r\n",
        b"\n",
        b"5\nhello\r\n", b"5\rhello", b"5 5\r\n", b"5;a\nb\r\n", b"5;a\x00b\r\n", b"10000000000000000\r\n", b";a\r\n",
        b"5\r\nhelloXX", b"5\r\nhelloX", b"5\r\nhello\rX", b"5\r\nhello\n", b"5\r\nhello\n0\r\n\r\n",
        b"0\r\nno trailer\r\n\r\n", b"0\r\na: b\nc: d\r\n\r\n", b"0\r\n a: b\r\n\r\n",
    ],
)  # fmt: skip
def test_chunks_that_are_malformed_are_rejected(data: bytes) -> None:
    for step in (len(data), 1):
        with pytest.raises(MalformedResponse):
            in_steps(ChunkedBody(), data, step)


def test_lines_and_trailers_of_chunks_have_limits() -> None:
    for data in (b"5;" + b"x" * CHUNK_LINE_LIMIT, b"0\r\n" + b"a: b\r\n" * TRAILER_LIMIT + b"\r\n"):
        for step in (len(data), 1000):
            with pytest.raises(MalformedResponse):
                in_steps(ChunkedBody(), data, step)


def test_a_sized_body_ends_where_it_says() -> None:
    for cut in range(1, 6):
        body, parts = FixedLengthBody(5), list[bytes]()
        assert body.feed(b"hello"[:cut], parts) == b""
        assert body.done is (cut == 5)
        assert body.feed(b"hello"[cut:] + b"more", parts) == b"more"
        assert b"".join(parts) == b"hello"
        assert body.done


def test_answers_made_at_random_are_read_as_h11_reads_them_or_refused() -> None:
    """Heads that h11 refuses are refused here; all others are read alike."""
    chance = random.Random(5)
    bits = [
        b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 200 OK\r\n", b"content-length: 5\r\n", b"content-length: 3\r\n",
        b"transfer-encoding: chunked\r\n", b"connection: close\r\n", b"\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"hello",
        b"x: y\r\n", b"x: y", b"\n", b"\r", b" ", b"\t", b"0", b"5;e\r\n", b"\x00", b":", b"a", b"\x0b",
    ]  # fmt: skip
    read_alike = 0
    for _ in range(20_000):
        data = chance.choice(bits[:2]) + b"".join(chance.choices(bits[2:6], k=chance.randint(0, 2))) + b"\r\n"
        data += b"".join(chance.choices(bits[6:], k=chance.randint(0, 5)))
        if chance.random() < 0.3:
            at = chance.randrange(len(data))
            data = data[:at] + chance.choice(bits[10:]) + data[at + chance.randint(0, 1) :]
        ours, theirs = as_read_here(data), as_h11_reads(data)
        if ours is not None:
            assert theirs is not None, data
            assert ours[0] == theirs[0], data
            read_alike += 1
    assert read_alike > 5000


def as_read_here(data: bytes) -> tuple[bytes, bool] | None:
    end = data.find(b"\r\n\r\n")
    parts: list[bytes] = []
    try:
        head = parse_response_head(data[: end + 2], "GET")
        rest = data[end + 4 :]
        if rest:
            head.body.feed(rest, parts)
    except MalformedResponse:
        return None
    return b"".join(parts), head.body.done


def as_h11_reads(data: bytes) -> tuple[bytes, bool] | None:
    there = h11.Connection(h11.CLIENT)
    there.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
    there.send(h11.EndOfMessage())
    there.receive_data(data)
    out, done = b"", False
    try:
        while (event := there.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.Data):
                out += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                done = True
                break
    except h11.RemoteProtocolError:
        return None
    return out, done
