from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.stream.sse import MAX_LINES, MAX_VALUES, SseEvent, SseParser, replace_data

STREAM = (
    ': hello\n\ndata: {"a": 1}\n\ndata:{"b": "ü €"}\n\nevent: ping\ndata: x\ndata:\ndata:  y\nid: 7\n\n\n\n'
    "retry: 5\n\ndata\n\n: c\ndata: [DONE]\n\n"
).encode()
DATA = [b'{"a": 1}', '{"b": "ü €"}'.encode(), b"x\n\n y", b"", b"[DONE]"]


def run(*pieces: bytes, limit: int = 8 << 20) -> list[SseEvent]:
    parser = SseParser(limit)
    return [event for piece in pieces for event in parser.feed(piece)] + parser.flush()


def data(events: list[SseEvent]) -> list[bytes]:
    return [event.data for event in events if event.data is not None]


def raws(events: list[SseEvent]) -> bytes:
    return b"".join(event.raw for event in events)


ENDS = {"LF": b"\n", "CRLF": b"\r\n", "CR": b"\r"}


LINES = st.sampled_from([name + rest for name in (b"event", b"data", b"id") for rest in (b": 1", b":1", b":  1", b"")])


@given(st.lists(LINES, min_size=1, max_size=4))
def test_an_event_of_a_usual_form_reads_as_any_other(lines: list[bytes]) -> None:
    """A comment in front of the lines is not of the usual form, and changes neither name nor data."""
    raw = b"\n".join(lines) + b"\n\n"
    usual, other = SseParser().feed(raw), SseParser().feed(b"id: 9\n" + raw)
    kept = [one for one in usual if one.name is not None or one.data is not None]
    assert [(one.name, one.data) for one in kept] == [
        (one.name, one.data) for one in other if one.name is not None or one.data is not None
    ]
    assert b"".join(one.raw for one in usual) == raw


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "BOM"])
def test_a_stream_reads_alike_whole_byte_by_byte_and_cut_anywhere(end: bytes, mark: bytes) -> None:
    stream = mark + STREAM.replace(b"\n", end)
    assert data(run(stream)) == DATA
    single = run(*(stream[i : i + 1] for i in range(len(stream))))
    assert data(single) == DATA
    assert raws(single) == stream
    for cut in range(len(stream) + 1):
        events = run(stream[:cut], stream[cut:])
        assert data(events) == DATA, cut
        assert raws(events) == stream, cut


def test_an_event_is_given_as_soon_as_its_blank_line_is_there() -> None:
    for end in (b"\n", b"\r\n", b"\r"):
        parser = SseParser()
        assert parser.feed(b"data: 1" + end) == []
        assert data(parser.feed(end)) == [b"1"]
        assert data(parser.feed(b"data: 2" + end + end)) == [b"2"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_a_line_end_is_not_torn(end: bytes) -> None:
    stream = (b"data: 1" + end * 2) * 3
    for cut in range(len(stream)):
        assert [event.raw for event in run(stream[:cut], stream[cut:])] == [b"data: 1" + end * 2] * 3


@pytest.mark.parametrize("many", [b"\n", b"\r\n", b"\r", b":\n", b": late\n"], ids=repr)
def test_very_many_blank_lines_or_comments_are_few_events(many: bytes) -> None:
    stream = b"data: 1\n\n" + many * 5_000 + b"data: 2\n\n"
    for pieces in ((stream,), (stream[:5_001], stream[5_001:]), [stream[n : n + 1] for n in range(len(stream))]):
        events = run(*pieces)
        assert (data(events), raws(events)) == ([b"1", b"2"], stream)
        assert len(events) <= 6 or len(pieces) > 2


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_an_event_of_very_many_lines_is_passed_on_unread(end: bytes) -> None:
    for lines, read in ((MAX_LINES - 2, True), (MAX_LINES + 1, False)):
        for rest in (end, b""):  # an event that ends, and one that breaks off
            parser, stream = SseParser(), (b"data:" + end) * lines + rest
            events = parser.feed(stream) + parser.flush()
            assert raws(events) == stream
            assert (bool(data(events)), parser.overflowed) == (read, not read)


def test_an_event_that_breaks_off_has_a_bound_of_values_too() -> None:
    parser = SseParser()
    stream = b"data: [" + b"[]," * MAX_VALUES + b"1]\n"
    assert parser.feed(stream) == []
    assert parser.flush() == [SseEvent(stream)]
    assert parser.overflowed


def test_a_byte_order_mark_is_not_part_of_the_first_line() -> None:
    stream = b"\xef\xbb\xbfdata: 1\n\ndata: 2\n\n"
    assert data(run(stream)) == data(run(stream[:2], stream[2:])) == [b"1", b"2"]


def test_a_comment_goes_as_soon_as_its_line_is_there() -> None:
    parser = SseParser()
    assert parser.feed(b": keep") == []
    assert raws(parser.feed(b"alive\n")) == b": keepalive\n"
    assert raws(parser.feed(b"\n")) == b"\n"
    assert data(parser.feed(b"data: 1\n\n")) == [b"1"]


def test_a_comment_and_its_blank_line_are_one_event_where_they_come_together() -> None:
    assert SseParser().feed(b": ping\n\n") == [SseEvent(b": ping\n\n")]


def test_a_comment_before_a_return_does_not_swallow_the_data_after_it() -> None:
    parser = SseParser()
    events = parser.feed(b": c\rdata: x\r\n") + parser.feed(b"\r\n")
    assert data(events) == [b"x"]


def test_the_name_of_an_event_is_read() -> None:
    (event,) = run(b"event: error\ndata: {}\n\n")
    assert (event.name, event.data) == (b"error", b"{}")


@pytest.mark.parametrize(
    ("rest", "found"),
    [
        (b"data: {}\n", [b"{}"]),
        (b"data: {}\r", [b"{}"]),
        (b"data: {}\r\n\r", [b"{}"]),
        (b"data: {}", []),
        (b"data: [DONE]", [b"[DONE]"]),
        (b"data:[DONE]", [b"[DONE]"]),
        (b"data: [DON", []),
        (b"da", []),
        (b": c", []),
        (b"", []),
        ('data: {"content":"ü'.encode()[:-1], []),
    ],
)
def test_an_unfinished_event_is_returned_with_the_data_of_its_whole_lines(rest: bytes, found: list[bytes]) -> None:
    events = run(b"data: 1\n\n" + rest)
    assert data(events) == [b"1", *found]
    assert raws(events) == b"data: 1\n\n" + rest


@given(
    st.lists(
        st.sampled_from([b"data: x", b"data", b":", b"\n", b"\r", b"\r\n", b"event: e", b"\xff", b"{", b"\n\n"]),
        max_size=30,
    ),
    st.lists(st.integers(0, 200), max_size=6),
    st.sampled_from([1 << 20, 5]),
)
@example([b":", b"\r", b"\n", b"\n"], [1, 2, 3], 5)
def test_every_byte_fed_comes_out_once_and_in_order(pieces: list[bytes], cuts: list[int], limit: int) -> None:
    stream = b"".join(pieces)
    edges = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    events = run(*(stream[a:b] for a, b in pairwise(edges)), limit=limit)
    assert raws(events) == stream
    if limit > len(stream) + 1:
        assert data(events) == data(run(stream))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_events_are_passed_on_unchanged(garbage: bytes) -> None:
    assert raws(run(garbage)) == garbage


@pytest.mark.parametrize("step", [1 << 30, 1 << 16, 1_000_003])
def test_a_line_of_9_mb_is_passed_on_in_pieces_without_data(step: int) -> None:
    long = b"data: " + b"x" * (9 << 20) + b"\n\n"
    stream = b"data: 1\n\n" + long + b"data: 2\n\n"
    parser = SseParser()
    events = []
    for at in range(0, len(stream), step):
        events += parser.feed(stream[at : at + step])
        assert len(parser.pending) <= 8 << 20
    assert parser.overflowed
    assert raws(events) == stream
    assert data(events) == [b"1", b"2"]


def test_an_event_with_too_many_values_is_passed_on_without_data() -> None:
    few, many = (b'data: {"a":[%b0]}\n\n' % (b"0," * count) for count in (MAX_VALUES - 2, MAX_VALUES))
    text = b'data: {"a":"%b"}\n\n' % (b"," * MAX_VALUES * 2)
    assert [one.data is None for one in run(few, text)] == [False, False]
    parser = SseParser()
    events = parser.feed(many + b"data: 2\n\n")
    assert parser.overflowed
    assert raws(events) == many + b"data: 2\n\n"
    assert data(events) == [b"2"]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_end_of_a_large_event_is_found_at_every_cut(end: bytes) -> None:
    stream = b"data: " + b"x" * 20 + end + end + b"data: 2" + end + end
    for cut in range(len(stream)):
        events = run(stream[:cut], stream[cut:], limit=12)
        assert data(events) == [b"2"], cut
        assert raws(events) == stream
    assert data(run(*(stream[i : i + 1] for i in range(len(stream))), limit=12)) == [b"2"]


@pytest.mark.timed
@pytest.mark.parametrize(
    "line", [b"data: x\n\n", b"data: x\r\n\r\n", b"data: x\r\r", b"\n", b"\r", b":\n", b"data:a\n", b"x" * 50]
)
@pytest.mark.parametrize("step", [1 << 30, 7])
def test_parsing_events_takes_linear_time(line: bytes, step: int) -> None:
    stream = line * (700_000 // len(line))
    parser = SseParser()
    start = time.thread_time()
    for at in range(0, len(stream), step):
        parser.feed(stream[at : at + step])
    assert time.thread_time() - start < 5


@pytest.mark.parametrize(
    ("raw", "changed"),
    [
        (b"data: old\n\n", b"data: new\n\n"),
        (b"data:old\r\n\r\n", b"data:new\r\n\r\n"),
        (b"data: old\r\r", b"data: new\r\r"),
        (b": old\nevent: e\ndata: old\nid: old\n\n", b": old\nevent: e\ndata: new\nid: old\n\n"),
        (b"data: o\ndata: ld\n\n", b"data: new\n\n"),
        (b"data: old\n", b"data: new\n"),
        (b"\xef\xbb\xbfdata: old\n\n", b"\xef\xbb\xbfdata: new\n\n"),
    ],
)
def test_only_the_data_of_an_event_is_replaced(raw: bytes, changed: bytes) -> None:
    (event,) = run(raw)
    assert replace_data(event, b"new") == changed


def test_data_of_several_lines_is_written_as_several() -> None:
    (event,) = run(b"data: {\ndata: }\n\n")
    assert replace_data(event, b'{\n"a":1}') == b'data: {\ndata: "a":1}\n\n'


def test_an_event_of_mixed_line_ends_stays_one_event_with_other_data() -> None:
    (event,) = run(b'data: {\rdata: "a": 1}\n\n')
    made = replace_data(event, b'{\n"a": 2}')
    assert data(run(made + b"data: next\n\n")) == [b'{\n"a": 2}', b"next"]


@pytest.mark.parametrize("step", [1, 2, 100])
def test_a_stream_that_continues_after_another_has_no_byte_order_mark(step: int) -> None:
    raw = b"\xef\xbb\xbfdata: a\n\ndata: b\n\n"
    parser = SseParser(drops_mark=True)
    events = [event for at in range(0, len(raw), step) for event in parser.feed(raw[at : at + step])]
    assert b"".join(event.raw for event in events) == raw[3:]
    parser = SseParser(drops_mark=True)
    assert parser.feed(b"\xef\xbb\xbfdata: a\n") == []
    assert parser.flush() == [SseEvent(b"data: a\n", b"a")]
