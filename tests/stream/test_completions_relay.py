from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.notes.state_block import HEADINGS
from proxy.stream.answer_relay import RelayOptions
from proxy.stream.completions_relay import CompletionsRelay
from tests.stream.completions_streams import (
    BLOCK,
    DONE,
    make_answer_stream,
    make_call_delta,
    make_chunk,
    make_usage_chunk,
    read_text,
    relay_stream,
)

ODD = (
    b": hi\n\n"
    + b"".join(make_answer_stream("Hello w\u00f6rld\n\n" + BLOCK, calls=2))[: -len(DONE)]
    + b'event: x\ndata: {"y":1}\n\ndata: <garbage>\n\ndata: {"choices":[{"delta":{"content":"\xff"}}]}\n\n'
    + DONE
    + b": bye\n\n"
)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_without_options_every_byte_is_passed_on_at_every_cut(end: bytes) -> None:
    stream = ODD.replace(b"\n", end)
    whole = relay_stream(stream, withhold=False)[1]
    assert whole.terminal.startswith(b"data: [DONE]")
    assert whole.answer.text.startswith("Hello wörld\n\n### STATE")
    single, relay = relay_stream([stream[i : i + 1] for i in range(len(stream))], withhold=False)
    assert single == stream
    assert relay.terminal == whole.terminal
    for cut in range(len(stream) + 1):
        out, relay = relay_stream([stream[:cut], stream[cut:]], withhold=False)
        assert out == stream, cut
        assert relay.terminal == whole.terminal, cut
        assert relay.answer.build_message() == whole.answer.build_message(), cut
        assert relay.answer.is_done


@pytest.mark.parametrize("withhold", [True, False])
@pytest.mark.parametrize("drop", [True, False])
def test_a_stream_that_needs_no_change_is_unchanged(withhold: bool, drop: bool) -> None:
    parts = [
        b": keepalive\n\n",
        make_chunk({"role": "assistant", "content": "", "refusal": None}, x={"y": 1.50}),
        make_chunk({"content": "one line "}),
        make_chunk({"content": "goes on"}),
        make_chunk({"reasoning_content": "### STATE\n"}),
        make_chunk(make_call_delta(0, "### STATE\n", "f")),
        make_chunk({}, 0, "tool_calls"),
        DONE,
    ]
    assert relay_stream(parts, withhold=withhold, drop=drop)[0] == b"".join(parts)
    assert relay_stream(b"".join(parts), withhold=withhold, drop=drop)[0] == b"".join(parts)


def test_bytes_that_need_no_change_are_not_copied() -> None:
    for withhold in (True, False):
        relay = CompletionsRelay(RelayOptions(withheld=HEADINGS if withhold else (), drop_usage=withhold))
        data = make_chunk({"content": "a"}) + make_chunk({"content": "b"})
        assert relay.feed(data) is data


def test_the_end_is_kept_back_with_all_that_follows() -> None:
    for withhold in (True, False):
        relay = CompletionsRelay(RelayOptions(withheld=HEADINGS if withhold else (), drop_usage=False))
        assert relay.feed(make_chunk({"content": "a"}, 0, "stop") + b"data: [DO") == make_chunk(
            {"content": "a"}, 0, "stop"
        )
        assert relay.feed(b"NE]\n\n: x") == b""
        assert relay.feed(b"\n\n") == b""
        assert relay.end() == b""
        assert relay.terminal == DONE + b": x\n\n"
        assert relay.answer.is_done


def test_an_end_with_a_long_name_is_not_sent_twice() -> None:
    stream = b"event: " + b"x" * 80 + b"\n" + DONE
    for cut in range(len(stream)):
        assert relay_stream([stream[:cut], stream[cut:]], withhold=False)[0] == stream


def test_bytes_after_the_end_are_bounded() -> None:
    relay = CompletionsRelay(RelayOptions(limit=100))
    relay.feed(DONE)
    for _ in range(100):
        relay.feed(b"x" * 50)
    assert len(relay.terminal) == 100


def test_without_options_a_slow_drip_is_passed_byte_by_byte() -> None:
    relay = CompletionsRelay()
    data = make_chunk({"content": "a"})
    assert relay.feed(data[:6]) == b""
    assert relay.feed(data[6:7]) == data[:7]
    for at in range(7, len(data)):
        assert relay.feed(data[at : at + 1]) == data[at : at + 1]


def test_an_event_is_passed_on_as_soon_as_it_is_complete() -> None:
    relay = CompletionsRelay(RelayOptions(withheld=HEADINGS, drop_usage=True))
    data = make_chunk({"content": "a"})
    assert relay.feed(data[:-1]) == b""
    assert relay.feed(data[-1:]) == data


@pytest.mark.parametrize("withhold", [True, False])
def test_usage_that_nobody_asked_for_is_taken_out(withhold: bool) -> None:
    parts = make_answer_stream("Hello\nyou", 24, usage=None)
    out, relay = relay_stream(parts, withhold=withhold, drop=True)
    assert b"usage" not in out
    assert relay.answer.usage is not None
    assert relay.answer.usage.prompt == 9
    assert relay_stream(make_answer_stream("Hello you"), withhold=withhold, drop=True)[0] == b"".join(
        make_answer_stream("Hello you")
    ).replace(make_usage_chunk(), b"")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"choices":[{"delta":{}}],"usage":null}', b'{"choices":[{"delta":{}}]}'),
        (b'{"usage":null,"choices":[{"delta":{}}]}', b'{"choices":[{"delta":{}}]}'),
        (b'{"choices":[{"delta":{}}], "usage": null, "x": 1.0}', b'{"choices":[{"delta":{}}], "x": 1.0}'),
        (b'{"choices":[{"delta":{}}],"usage":\n\nnull}'.replace(b"\n", b" "), b'{"choices":[{"delta":{}}]}'),
        (
            b'{"choices":[{"delta":{"x":1,"usage":null}}],"usage": null}',
            b'{"choices":[{"delta":{"x":1,"usage":null}}]}',
        ),
        (b'{"choices":[{"delta":{"x":1,"usage":null}}]}', None),
        (
            b'{"choices":[{"delta":{"content":",\\"usage\\":null"}}],"usage":null}',
            b'{"choices":[{"delta":{"content":",\\"usage\\":null"}}]}',
        ),
        (b'{"choices":[],"usage":null,"prompt_filter_results":[]}', b'{"choices":[],"prompt_filter_results":[]}'),
        (b'{"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}', None),
        (b'{"choices":[],"usage":{"prompt_tokens":1}}', b""),
        (b'{"usage":{"prompt_tokens":1}}', b""),
        (b'{"a":1,"a":2,"usage":3,"usage":null}', b'{"a":2}'),
    ],
)
def test_only_usage_that_was_not_asked_for_is_removed(before: bytes, after: bytes | None) -> None:

    def wrap(data: bytes) -> bytes:
        return b"data: " + data + b"\n\n" if data else b""

    out, _ = relay_stream(wrap(before), withhold=False, drop=True)
    assert out == wrap(before if after is None else after)


def test_an_error_in_the_stream_is_passed_on_unchanged_after_the_text() -> None:
    error = b'data: {"error":{"message":"overloaded","usage":null},"usage":null}\n\n'
    out, relay = relay_stream([make_chunk({"content": "a\n"}), error], drop=True)
    assert out.endswith(error)
    assert read_text(out) == "a\n"
    assert relay.answer.error == "overloaded"
    assert relay.answer.is_truncated


@pytest.mark.parametrize("withhold", [True, False])
def test_a_stream_that_breaks_off_is_given_back_to_its_last_byte(withhold: bool) -> None:
    whole = make_chunk({"content": "Hi\n\n#"})
    rest = make_chunk({"content": "ü"})
    for cut in range(1, len(rest) - 1):
        out, relay = relay_stream([whole + rest[:cut]], withhold=withhold)
        assert out.endswith(rest[:cut])
        assert read_text(out[:-cut]) == "Hi\n\n#"
        assert relay.is_unfinished
        assert relay.answer.is_truncated
        assert relay.terminal == b""
    out, relay = relay_stream([whole], withhold=withhold)
    assert read_text(out) == "Hi\n\n#"
    assert not relay.is_unfinished


@pytest.mark.parametrize("withhold", [True, False])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_an_end_without_its_blank_line_is_an_end(withhold: bool, end: bytes) -> None:
    out, relay = relay_stream([make_chunk({"content": "a\n"}), b"data: [DONE]" + end], withhold=withhold)
    assert relay.terminal == b"data: [DONE]" + end
    assert relay.answer.is_done
    assert not relay.is_unfinished
    assert read_text(out) == "a\n"


@pytest.mark.parametrize("withhold", [True, False])
def test_a_line_of_9_mb_goes_through_and_is_not_captured(withhold: bool) -> None:
    stream = (
        make_chunk({"content": "a"})
        + make_chunk({"content": "x" * (9 << 20)})
        + make_chunk({"content": "b"}, 0, "stop")
        + DONE
    )
    out, relay = relay_stream([stream[at : at + 65536] for at in range(0, len(stream), 65536)], withhold=withhold)
    assert out == stream
    assert relay.answer.is_capped
    assert relay.answer.text == "a"  # and not "ab": what is captured has no hole


@pytest.mark.parametrize(
    "stream", [b"<html>\n\n<body>no</body>", b'{"id":"x","choices":[]}', b"\x00\xff" * 50, b"", b"\n\n\r\r"]
)
@pytest.mark.parametrize("withhold", [True, False])
def test_a_body_that_is_not_a_stream_is_passed_on(stream: bytes, withhold: bool) -> None:
    assert relay_stream([stream[:7], stream[7:]], withhold=withhold, drop=withhold)[0] == stream


@settings(max_examples=150)
@given(
    st.lists(
        st.sampled_from(
            [*make_answer_stream("a\n\nb", 3, 1), b"\n", b": c\n", b"data: ", b"\r", b"[DONE]", b"x", b'{"', DONE]
        ),
        max_size=20,
    ),
    st.integers(1, 300),
)
def test_without_options_the_relay_is_the_identity(parts: list[bytes], step: int) -> None:
    stream = b"".join(parts)
    assert relay_stream([stream[at : at + step] for at in range(0, len(stream), step)], withhold=False)[0] == stream


@pytest.mark.timed
@pytest.mark.parametrize("withhold", [True, False])
def test_relaying_a_long_stream_takes_linear_time(withhold: bool) -> None:
    start = time.thread_time()
    relay_stream(make_answer_stream("word and\n" * 6000 + "#" * 9000, 3), withhold=withhold, drop=withhold)
    assert time.thread_time() - start < 5
