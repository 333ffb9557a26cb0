"""Withholding in `proxy.stream.relay`; everything else of it is in test_relay.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.chat.message import Call
from proxy.notes import state_block
from proxy.stream.relay import Relay
from proxy.stream.sse import SseParser

G = "Goal: x\nContext: y"
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


def finishes(data: bytes, index: int = 0) -> list[str]:
    return [c["finish_reason"] for c in choices(data, index) if c["finish_reason"]]


def answer_stream(text: str, size: int = 24, calls: int = 0, **more: Any) -> list[bytes]:
    parts = [chunk({"role": "assistant", "content": ""}, **more)]
    parts += [chunk({"content": piece}, **more) for piece in pieces(text, size)]
    for n in range(calls):
        parts += [chunk(call(n, "", f"tool{n}"), **more), chunk(call(n, '{"a":'), **more), chunk(call(n, "1}"), **more)]
    return [*parts, chunk({}, 0, "tool_calls" if calls else "stop", **more), usage(), DONE]


@pytest.mark.parametrize("size", [1, 3, 24, 10_000])
@pytest.mark.parametrize(
    "text", ["", "Hi.", "Hi.\n", "# A\n\n- b\n```\n### STATE\n```", "a\n\n\n", "tabs\t\r\n", "ü😀"]
)
def test_an_agent_sees_the_answer_without_its_state(text: str, size: int) -> None:
    parts = answer_stream((text + "\n\n" + BLOCK).strip(), size)
    out, relay = relayed(parts)
    assert text_of(out) == text
    assert finishes(out) == ["stop"]
    assert relay.blocks == [BLOCK.removeprefix("### STATE\n")]
    assert relay.answer.text == text
    assert out.endswith(parts[-3] + parts[-2] + parts[-1])
    assert b"Goal" not in out
    assert relayed(b"".join(parts))[0] == out


SAMPLE = answer_stream("Hé\n\n### STATE\nGoal: a\n\n## On\nmore\n\n### State\nGoal: b\nContext: c", 5, calls=2)


@pytest.mark.slow
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("drop", [True, False])
def test_withholding_does_not_depend_on_how_the_bytes_are_cut(end: bytes, drop: bool) -> None:
    stream = b"".join(SAMPLE).replace(b"\n", end)
    expected, relay = relayed(stream, drop=drop)
    assert text_of(expected) == "Hé\n\n### STATE\nGoal: a\n\n## On\nmore"
    assert relay.blocks == ["Goal: b\nContext: c"]
    for cut in range(len(stream) + 1):
        out, other = relayed([stream[:cut], stream[cut:]], drop=drop)
        assert out == expected, cut
        assert other.answer.build_message() == relay.answer.build_message()
    assert relayed([stream[i : i + 1] for i in range(len(stream))], drop=drop)[0] == expected


def test_tool_calls_go_on_untouched_and_after_the_text() -> None:
    out, relay = relayed(answer_stream("Look:\n\n", 4, calls=2))
    texts = [n for n, c in enumerate(choices(out)) if c["delta"].get("content")]
    calls = [n for n, c in enumerate(choices(out)) if c["delta"].get("tool_calls")]
    assert max(texts) < min(calls)
    assert calls == list(range(calls[0], calls[0] + 6))
    assert text_of(out) == "Look:\n\n"
    assert relay.answer.calls == (Call("call_0", "tool0", '{"a":1}'), Call("call_1", "tool1", '{"a":1}'))
    assert chunk(call(0, "", "tool0")) + chunk(call(0, '{"a":')) in out


def test_text_after_calls_goes_on_as_text() -> None:
    parts = [
        chunk({"content": "a\n\n### STATE"}),
        chunk(call(0, "{}", "f")),
        chunk({"content": "MENT"}),
        chunk({}, 0, "stop"),
        DONE,
    ]
    out, relay = relayed(parts)
    assert text_of(out) == "a\n\n### STATEMENT"
    assert relay.blocks == []


def test_a_chunk_with_text_and_calls_keeps_its_calls() -> None:
    both = {"content": "a\n", **call(0, "{}", "f")}
    out, _ = relayed([chunk(both), chunk({}, 0, "tool_calls"), DONE])
    assert out == chunk(both) + chunk({}, 0, "tool_calls") + DONE
    state_and_call = {"content": f"\n### STATE\n{G}", **call(0, "{}", "f")}
    out, relay = relayed([chunk({"content": "a"}), chunk(state_and_call), chunk({}, 0, "tool_calls"), DONE])
    assert choices(out)[1]["delta"] == {"content": "", **call(0, "{}", "f")}
    assert relay.blocks == [G]


def test_text_in_the_finishing_chunk_is_changed_there() -> None:
    out, relay = relayed([chunk({"content": "a\n"}), chunk({"content": f"\n### STATE\n{G}"}, 0, "stop"), DONE])
    assert (text_of(out), finishes(out), relay.blocks) == ("a", ["stop"], [G])
    out, _ = relayed([chunk({"content": "a\n"}), chunk({"content": "\n"}, 0, "stop"), DONE])
    assert (text_of(out), finishes(out), len(choices(out))) == ("a\n\n", ["stop"], 2)


def test_a_chunk_that_is_left_without_text_goes_only_if_it_carries_anything_else() -> None:
    start = [chunk({"role": "assistant", "content": "a\n\n### STATE\n"})]
    for more, goes in (
        ({}, False),
        ({"role": "assistant"}, False),
        ({"refusal": None, "tool_calls": None}, False),
        ({"reasoning_content": "hm"}, True),
        ({"x": 1}, True),
    ):
        out, _ = relayed([*start, chunk({"content": G, **more}), chunk({}, 0, "stop"), DONE])
        assert [c["delta"] for c in choices(out)][1:-1] == ([{"content": "", **more}] if goes else [])
    out, _ = relayed(
        [
            chunk({"role": "assistant", "content": "### STATE"}),
            chunk({"content": "\n" + G}, usage=USAGE),
            chunk({}, 0, "stop"),
            DONE,
        ]
    )
    assert [c["delta"] for c in choices(out)] == [{"role": "assistant", "content": ""}, {"content": ""}, {}]


def test_held_text_comes_in_a_chunk_like_the_one_it_came_in() -> None:
    out, _ = relayed(
        [chunk({"content": "a\n"}, system_fingerprint="fp", usage=None), chunk({}, 0, "stop", usage=None), DONE]
    )
    late = events(out)[1]
    assert late == {
        **HEAD,
        "system_fingerprint": "fp",
        "usage": None,
        "choices": [{"index": 0, "delta": {"content": "\n"}, "finish_reason": None}],
    }
    out, _ = relayed([chunk({"content": "a\n"}, usage=USAGE), chunk({}, 0, "stop"), DONE])
    assert "usage" not in events(out)[1]


def test_choices_are_withheld_each_on_its_own() -> None:
    texts = {0: f"zero\n\n### STATE\n{G}0", 1: f"one\n### STATE\n{G}1\n# On", 2: "two\n"}
    parts = [chunk({"content": piece[n]}, index) for n in range(60) for index, piece in texts.items() if n < len(piece)]
    parts += [chunk({}, index, "stop") for index in (2, 0, 1)]
    out, relay = relayed([*parts, DONE])
    for index, text in texts.items():
        assert text_of(out, index) == state_block.split_blocks(text)[0]
        assert finishes(out, index) == ["stop"]
    assert relay.blocks == [G + "0"]


def test_choices_in_one_chunk_are_changed_each_in_its_place() -> None:
    def both(first: str, second: str) -> bytes:
        deltas = [{"index": n, "delta": {"content": text}} for n, text in enumerate((first, second))]
        return b"data: " + json.dumps({**HEAD, "choices": deltas}).encode() + b"\n\n"

    out, _ = relayed([both("a", "b\n"), both("### no", f"### STATE\n{G}"), both("x", "y"), DONE])
    assert out.startswith(both("a", "b") + both("### no", "") + both("x", ""))


def test_a_last_event_without_its_blank_line_is_read_and_cleared_too() -> None:
    out, relay = relayed([chunk({"content": "a\n"}), chunk({"content": f"\n### STATE\n{G}"})[:-1]])
    assert relay.blocks == [G]
    assert b"STATE" not in out
    assert relay.is_unfinished
    assert text_of(out + b"\n") == "a"
    out, relay = relayed([chunk({"content": "a\n"}), chunk({}, 1), chunk({"content": "b\n"}, 1)[:-1]])
    assert (text_of(out + b"\n"), text_of(out + b"\n", 1)) == ("a\n", "b\n")


def test_a_chunk_with_odd_bytes_is_changed_all_the_same() -> None:
    block = b"a\\n\\n### STATE\\nGoal: x\\nContext: y"
    for odd in (
        b'{"choices":[{"delta":{"content":"%b","x":"\\ud83d"}}]}' % block,
        b'{"choices":[{"delta":{"content":"%b","content":"%b"}}]}' % (block, block),
        b'{"choices":[{"delta":{"x":{"content":"no"},"content":"%b"}}]}' % block,
        b'{"choices":[{"delta":{"content" : "%b"}}]}' % block.replace(b"a", b'a\\\\\\"', 1),
    ):
        out, relay = relayed([b"data: " + odd + b"\n\n", DONE])
        assert text_of(out) in ("a", 'a\\"')
        assert relay.blocks == [G]


def test_half_characters_go_on_as_they_came() -> None:
    parts = [
        b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % half
        for half in (b"\\ud83d", b"\\ude00\\n", b"### STATE\\nGoal: x\\nContext: \\ud83d")
    ]
    out, relay = relayed([*parts, DONE])
    assert out.startswith(parts[0])
    assert text_of(out).encode("utf-16", "surrogatepass").decode("utf-16") == "😀"
    assert relay.blocks == ["Goal: x\nContext: \ufffd"]
    assert relay.answer.text == "😀"


def test_nothing_more_comes_after_the_end() -> None:
    relay = Relay(withhold_state=True, drop_usage=False)
    relay.feed(chunk({"content": "a\n"}))
    assert text_of(relay.end()) == "\n"
    assert relay.end() == b""


PIECES = [
    "### STATE",
    "\n",
    "\n\n",
    "```",
    "#",
    "## x",
    "- ",
    " ",
    "a",
    ":",
    "\r",
    "\nGoal: x",
    "\nContext: y",
    '"',
    "\\",
    "ü😀",
    "\n### STATE\n",
    "\n# T\n",
    "\n## State:\n### Goal\n### Context",
]


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from(PIECES), max_size=30).map("".join),
    st.integers(1, 9),
    st.integers(1, 400),
    st.booleans(),
    st.integers(0, 2),
)
def test_the_client_sees_exactly_what_split_leaves(text: str, size: int, step: int, drop: bool, calls: int) -> None:
    stream = b"".join(answer_stream(text, size, calls, usage=None))
    out, relay = relayed([stream[at : at + step] for at in range(0, len(stream), step)], drop=drop)
    visible, blocks = state_block.split_blocks(text)
    seen = text_of(out)
    assert seen == visible
    assert relay.answer.text == visible
    assert relay.blocks == [block.body for block in blocks]
    assert len(finishes(out)) == 1
    assert len([c for c in choices(out) if c["delta"].get("tool_calls")]) == 3 * calls
    assert (b"usage" in out) is not drop
    assert events(out)[-1] == b"[DONE]"


def test_a_finish_reason_without_letters_is_none() -> None:
    parts = [chunk({"content": piece}, 0, "") for piece in pieces(f"a\n\n### STATE\n{G}", 2)]
    out, relay = relayed([*parts, chunk({}, 0, "stop"), DONE])
    assert (text_of(out), relay.blocks, finishes(out)) == ("a", [G], ["stop"])


def test_of_endless_choices_no_more_than_can_be_asked_for_are_remembered() -> None:
    parts = [chunk({"content": "a\n"}, index, "stop") for index in range(1000)]
    out, relay = relayed([*parts, DONE])
    assert out == b"".join(parts) + DONE
    assert relay.answer.is_capped
    assert len(relay.answer.finish_reasons) == len(relay._edits.block_filters) == 128
