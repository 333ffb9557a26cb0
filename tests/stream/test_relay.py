from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.stream.relay import Relay
from proxy.stream.sse import SseParser

BLOCK = "### STATE\nGoal: go on\nContext: as before\nResolved: one more step\nTechnical Anchors: none"
HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


def chunk(delta: dict[str, Any], index: int = 0, finish: str | None = None, **more: Any) -> bytes:
    value = {**HEAD, **more, "choices": [{"index": index, "delta": delta, "finish_reason": finish}]}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def usage(**more: Any) -> bytes:
    return b"data: " + json.dumps({**HEAD, "choices": [], "usage": USAGE, **more}).encode() + b"\n\n"


def call(index: int, arguments: str, name: str = "") -> dict[str, Any]:
    part: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
    if name:
        part |= {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"tool_calls": [part]}


def pieces(text: str, size: int = 24) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def relayed(
    stream: list[bytes] | bytes, *, withhold: bool = True, drop: bool = False, limit: int = 8 << 20
) -> tuple[bytes, Relay]:
    relay = Relay(withhold_state=withhold, drop_usage=drop, limit=limit)
    parts = [stream] if isinstance(stream, bytes) else stream
    out = b"".join([relay.feed(part) for part in parts])
    return out + relay.end() + relay.terminal, relay


def events(data: bytes) -> list[Any]:
    found = [event.data for event in SseParser().feed(data) if event.data is not None]
    return [one if one == b"[DONE]" else json.loads(one) for one in found]


def choices(data: bytes, index: int = 0) -> list[dict[str, Any]]:
    return [
        c
        for event in events(data)
        if isinstance(event, dict)
        for c in event.get("choices", [])
        if c.get("index", 0) == index
    ]


def text_of(data: bytes, index: int = 0) -> str:
    return "".join(c["delta"].get("content") or "" for c in choices(data, index))


def answer_stream(text: str, size: int = 24, calls: int = 0, **more: Any) -> list[bytes]:
    parts = [chunk({"role": "assistant", "content": ""}, **more)]
    parts += [chunk({"content": piece}, **more) for piece in pieces(text, size)]
    for n in range(calls):
        parts += [chunk(call(n, "", f"tool{n}"), **more), chunk(call(n, '{"a":'), **more), chunk(call(n, "1}"), **more)]
    return [*parts, chunk({}, 0, "tool_calls" if calls else "stop", **more), usage(), DONE]


ODD = (
    b": hi\n\n"
    + b"".join(answer_stream("Hello w\u00f6rld\n\n" + BLOCK, calls=2))[: -len(DONE)]
    + b'event: x\ndata: {"y":1}\n\ndata: <garbage>\n\ndata: {"choices":[{"delta":{"content":"\xff"}}]}\n\n'
    + DONE
    + b": bye\n\n"
)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_without_options_every_byte_goes_on_at_every_cut(end: bytes) -> None:
    stream = ODD.replace(b"\n", end)
    whole = relayed(stream, withhold=False)[1]
    assert whole.terminal.startswith(b"data: [DONE]")
    assert whole.answer.text.startswith("Hello wörld\n\n### STATE")
    single, relay = relayed([stream[i : i + 1] for i in range(len(stream))], withhold=False)
    assert single == stream
    assert relay.terminal == whole.terminal
    for cut in range(len(stream) + 1):
        out, relay = relayed([stream[:cut], stream[cut:]], withhold=False)
        assert out == stream, cut
        assert relay.terminal == whole.terminal, cut
        assert relay.answer.build_message() == whole.answer.build_message(), cut
        assert relay.answer.is_done


@pytest.mark.parametrize("withhold", [True, False])
@pytest.mark.parametrize("drop", [True, False])
def test_what_needs_no_change_gets_none(withhold: bool, drop: bool) -> None:
    parts = [
        b": keepalive\n\n",
        chunk({"role": "assistant", "content": "", "refusal": None}, x={"y": 1.50}),
        chunk({"content": "one line "}),
        chunk({"content": "goes on"}),
        chunk({"reasoning_content": "### STATE\n"}),
        chunk(call(0, "### STATE\n", "f")),
        chunk({}, 0, "tool_calls"),
        DONE,
    ]
    assert relayed(parts, withhold=withhold, drop=drop)[0] == b"".join(parts)
    assert relayed(b"".join(parts), withhold=withhold, drop=drop)[0] == b"".join(parts)


def test_bytes_that_need_no_change_are_not_copied() -> None:
    for withhold in (True, False):
        relay = Relay(withhold_state=withhold, drop_usage=withhold)
        data = chunk({"content": "a"}) + chunk({"content": "b"})
        assert relay.feed(data) is data


def test_the_end_is_kept_back_with_all_that_follows() -> None:
    for withhold in (True, False):
        relay = Relay(withhold_state=withhold, drop_usage=False)
        assert relay.feed(chunk({"content": "a"}, 0, "stop") + b"data: [DO") == chunk({"content": "a"}, 0, "stop")
        assert relay.feed(b"NE]\n\n: x") == b""
        assert relay.feed(b"\n\n") == b""
        assert relay.end() == b""
        assert relay.terminal == DONE + b": x\n\n"
        assert relay.answer.is_done


def test_an_end_with_a_long_name_is_not_sent_twice() -> None:
    stream = b"event: " + b"x" * 80 + b"\n" + DONE
    for cut in range(len(stream)):
        assert relayed([stream[:cut], stream[cut:]], withhold=False)[0] == stream


def test_what_follows_the_end_is_bounded() -> None:
    relay = Relay(withhold_state=False, drop_usage=False, limit=100)
    relay.feed(DONE)
    for _ in range(100):
        relay.feed(b"x" * 50)
    assert len(relay.terminal) == 100


def test_without_options_a_slow_drip_is_passed_byte_by_byte() -> None:
    relay = Relay(withhold_state=False, drop_usage=False)
    data = chunk({"content": "a"})
    assert relay.feed(data[:6]) == b""
    assert relay.feed(data[6:7]) == data[:7]
    for at in range(7, len(data)):
        assert relay.feed(data[at : at + 1]) == data[at : at + 1]


def test_an_event_goes_on_as_soon_as_it_is_complete() -> None:
    relay = Relay(withhold_state=True, drop_usage=True)
    data = chunk({"content": "a"})
    assert relay.feed(data[:-1]) == b""
    assert relay.feed(data[-1:]) == data


@pytest.mark.parametrize("withhold", [True, False])
def test_usage_that_nobody_asked_for_is_taken_out(withhold: bool) -> None:
    parts = answer_stream("Hello\nyou", 24, usage=None)
    out, relay = relayed(parts, withhold=withhold, drop=True)
    assert b"usage" not in out
    assert relay.answer.usage is not None
    assert relay.answer.usage.prompt == 9
    assert relayed(answer_stream("Hello you"), withhold=withhold, drop=True)[0] == b"".join(
        answer_stream("Hello you")
    ).replace(usage(), b"")


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
def test_of_usage_exactly_the_unasked_goes(before: bytes, after: bytes | None) -> None:

    def wrap(data: bytes) -> bytes:
        return b"data: " + data + b"\n\n" if data else b""

    out, _ = relayed(wrap(before), withhold=False, drop=True)
    assert out == wrap(before if after is None else after)


def test_an_error_in_the_stream_goes_on_as_it_is_and_after_the_text() -> None:
    error = b'data: {"error":{"message":"overloaded","usage":null},"usage":null}\n\n'
    out, relay = relayed([chunk({"content": "a\n"}), error], drop=True)
    assert out.endswith(error)
    assert text_of(out) == "a\n"
    assert relay.answer.error == "overloaded"
    assert relay.answer.is_truncated


@pytest.mark.parametrize("withhold", [True, False])
def test_a_stream_that_breaks_off_is_given_back_to_its_last_byte(withhold: bool) -> None:
    whole = chunk({"content": "Hi\n\n#"})
    rest = chunk({"content": "ü"})
    for cut in range(1, len(rest) - 1):
        out, relay = relayed([whole + rest[:cut]], withhold=withhold)
        assert out.endswith(rest[:cut])
        assert text_of(out[:-cut]) == "Hi\n\n#"
        assert relay.is_unfinished
        assert relay.answer.is_truncated
        assert relay.terminal == b""
    out, relay = relayed([whole], withhold=withhold)
    assert text_of(out) == "Hi\n\n#"
    assert not relay.is_unfinished


@pytest.mark.parametrize("withhold", [True, False])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_an_end_without_its_blank_line_is_an_end(withhold: bool, end: bytes) -> None:
    out, relay = relayed([chunk({"content": "a\n"}), b"data: [DONE]" + end], withhold=withhold)
    assert relay.terminal == b"data: [DONE]" + end
    assert relay.answer.is_done
    assert not relay.is_unfinished
    assert text_of(out) == "a\n"


@pytest.mark.parametrize("withhold", [True, False])
def test_a_line_of_9_mb_goes_through_and_is_not_captured(withhold: bool) -> None:
    stream = chunk({"content": "a"}) + chunk({"content": "x" * (9 << 20)}) + chunk({"content": "b"}, 0, "stop") + DONE
    out, relay = relayed([stream[at : at + 65536] for at in range(0, len(stream), 65536)], withhold=withhold)
    assert out == stream
    assert relay.answer.is_capped
    assert relay.answer.text == "a"  # and not "ab": what is captured has no hole


@pytest.mark.parametrize(
    "stream", [b"<html>\n\n<body>no</body>", b'{"id":"x","choices":[]}', b"\x00\xff" * 50, b"", b"\n\n\r\r"]
)
@pytest.mark.parametrize("withhold", [True, False])
def test_what_is_no_stream_goes_through(stream: bytes, withhold: bool) -> None:
    assert relayed([stream[:7], stream[7:]], withhold=withhold, drop=withhold)[0] == stream


@settings(max_examples=150)
@given(
    st.lists(
        st.sampled_from(
            [*answer_stream("a\n\nb", 3, 1), b"\n", b": c\n", b"data: ", b"\r", b"[DONE]", b"x", b'{"', DONE]
        ),
        max_size=20,
    ),
    st.integers(1, 300),
)
def test_without_options_the_relay_is_the_identity(parts: list[bytes], step: int) -> None:
    stream = b"".join(parts)
    assert relayed([stream[at : at + step] for at in range(0, len(stream), step)], withhold=False)[0] == stream


@pytest.mark.timed
@pytest.mark.parametrize("withhold", [True, False])
def test_a_long_stream_is_linear(withhold: bool) -> None:
    start = time.thread_time()
    relayed(answer_stream("word and\n" * 6000 + "#" * 9000, 3), withhold=withhold, drop=withhold)
    assert time.thread_time() - start < 5
