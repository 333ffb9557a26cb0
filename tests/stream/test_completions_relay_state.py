"""Withholding in `proxy.stream.completions_relay`; everything else of it is in test_completions_relay.py."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.chat.message import Call
from proxy.notes import state_block
from proxy.notes.state_block import HEADINGS
from proxy.stream.answer_relay import RelayOptions
from proxy.stream.completions_relay import CompletionsRelay
from tests.stream.completions_streams import (
    BLOCK,
    DONE,
    HEAD,
    USAGE,
    cut_pieces,
    list_choices,
    make_answer_stream,
    make_call_delta,
    make_chunk,
    read_events,
    read_text,
    relay_stream,
)

G = "Goal: x\nContext: y"


def finishes(data: bytes, index: int = 0) -> list[str]:
    return [c["finish_reason"] for c in list_choices(data, index) if c["finish_reason"]]


@pytest.mark.parametrize("size", [1, 3, 24, 10_000])
@pytest.mark.parametrize(
    "text", ["", "Hi.", "Hi.\n", "# A\n\n- b\n```\n### STATE\n```", "a\n\n\n", "tabs\t\r\n", "ü😀"]
)
def test_an_agent_sees_the_answer_without_its_state(text: str, size: int) -> None:
    parts = make_answer_stream((text + "\n\n" + BLOCK).strip(), size)
    out, relay = relay_stream(parts)
    assert read_text(out) == text
    assert finishes(out) == ["stop"]
    assert relay.blocks == [BLOCK.removeprefix("### STATE\n")]
    assert relay.answer.text == text
    assert out.endswith(parts[-3] + parts[-2] + parts[-1])
    assert b"Goal" not in out
    assert relay_stream(b"".join(parts))[0] == out


SAMPLE = make_answer_stream("Hé\n\n### STATE\nGoal: a\n\n## On\nmore\n\n### State\nGoal: b\nContext: c", 5, calls=2)


@pytest.mark.slow
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("drop", [True, False])
def test_withholding_does_not_depend_on_how_the_bytes_are_cut(end: bytes, drop: bool) -> None:
    stream = b"".join(SAMPLE).replace(b"\n", end)
    expected, relay = relay_stream(stream, drop=drop)
    assert read_text(expected) == "Hé\n\n### STATE\nGoal: a\n\n## On\nmore"
    assert relay.blocks == ["Goal: b\nContext: c"]
    for cut in range(len(stream) + 1):
        out, other = relay_stream([stream[:cut], stream[cut:]], drop=drop)
        assert out == expected, cut
        assert other.answer.build_message() == relay.answer.build_message()
    assert relay_stream([stream[i : i + 1] for i in range(len(stream))], drop=drop)[0] == expected


def test_tool_calls_are_passed_on_untouched_and_after_the_text() -> None:
    out, relay = relay_stream(make_answer_stream("Look:\n\n", 4, calls=2))
    texts = [n for n, c in enumerate(list_choices(out)) if c["delta"].get("content")]
    calls = [n for n, c in enumerate(list_choices(out)) if c["delta"].get("tool_calls")]
    assert max(texts) < min(calls)
    assert calls == list(range(calls[0], calls[0] + 6))
    assert read_text(out) == "Look:\n\n"
    assert relay.answer.calls == (Call("call_0", "tool0", '{"a":1}'), Call("call_1", "tool1", '{"a":1}'))
    assert make_chunk(make_call_delta(0, "", "tool0")) + make_chunk(make_call_delta(0, '{"a":')) in out


def test_text_after_calls_is_passed_on_as_text() -> None:
    parts = [
        make_chunk({"content": "a\n\n### STATE"}),
        make_chunk(make_call_delta(0, "{}", "f")),
        make_chunk({"content": "MENT"}),
        make_chunk({}, 0, "stop"),
        DONE,
    ]
    out, relay = relay_stream(parts)
    assert read_text(out) == "a\n\n### STATEMENT"
    assert relay.blocks == []


def test_a_chunk_with_text_and_calls_keeps_its_calls() -> None:
    both = {"content": "a\n", **make_call_delta(0, "{}", "f")}
    out, _ = relay_stream([make_chunk(both), make_chunk({}, 0, "tool_calls"), DONE])
    assert out == make_chunk(both) + make_chunk({}, 0, "tool_calls") + DONE
    state_and_call = {"content": f"\n### STATE\n{G}", **make_call_delta(0, "{}", "f")}
    out, relay = relay_stream(
        [make_chunk({"content": "a"}), make_chunk(state_and_call), make_chunk({}, 0, "tool_calls"), DONE]
    )
    assert list_choices(out)[1]["delta"] == {"content": "", **make_call_delta(0, "{}", "f")}
    assert relay.blocks == [G]


def test_text_in_the_finishing_chunk_is_changed_there() -> None:
    out, relay = relay_stream(
        [make_chunk({"content": "a\n"}), make_chunk({"content": f"\n### STATE\n{G}"}, 0, "stop"), DONE]
    )
    assert (read_text(out), finishes(out), relay.blocks) == ("a", ["stop"], [G])
    out, _ = relay_stream([make_chunk({"content": "a\n"}), make_chunk({"content": "\n"}, 0, "stop"), DONE])
    assert (read_text(out), finishes(out), len(list_choices(out))) == ("a\n\n", ["stop"], 2)


def test_a_chunk_that_is_left_without_text_is_sent_only_if_it_carries_anything_else() -> None:
    start = [make_chunk({"role": "assistant", "content": "a\n\n### STATE\n"})]
    for more, goes in (
        ({}, False),
        ({"role": "assistant"}, False),
        ({"refusal": None, "tool_calls": None}, False),
        ({"reasoning_content": "hm"}, True),
        ({"x": 1}, True),
    ):
        out, _ = relay_stream([*start, make_chunk({"content": G, **more}), make_chunk({}, 0, "stop"), DONE])
        assert [c["delta"] for c in list_choices(out)][1:-1] == ([{"content": "", **more}] if goes else [])
    out, _ = relay_stream(
        [
            make_chunk({"role": "assistant", "content": "### STATE"}),
            make_chunk({"content": "\n" + G}, usage=USAGE),
            make_chunk({}, 0, "stop"),
            DONE,
        ]
    )
    assert [c["delta"] for c in list_choices(out)] == [{"role": "assistant", "content": ""}, {"content": ""}, {}]


def test_held_text_comes_in_a_chunk_like_the_one_it_came_in() -> None:
    out, _ = relay_stream(
        [
            make_chunk({"content": "a\n"}, system_fingerprint="fp", usage=None),
            make_chunk({}, 0, "stop", usage=None),
            DONE,
        ]
    )
    late = read_events(out)[1]
    assert late == {
        **HEAD,
        "system_fingerprint": "fp",
        "usage": None,
        "choices": [{"index": 0, "delta": {"content": "\n"}, "finish_reason": None}],
    }
    out, _ = relay_stream([make_chunk({"content": "a\n"}, usage=USAGE), make_chunk({}, 0, "stop"), DONE])
    assert "usage" not in read_events(out)[1]


def test_choices_are_withheld_each_on_its_own() -> None:
    texts = {0: f"zero\n\n### STATE\n{G}0", 1: f"one\n### STATE\n{G}1\n# On", 2: "two\n"}
    parts = [
        make_chunk({"content": piece[n]}, index) for n in range(60) for index, piece in texts.items() if n < len(piece)
    ]
    parts += [make_chunk({}, index, "stop") for index in (2, 0, 1)]
    out, relay = relay_stream([*parts, DONE])
    for index, text in texts.items():
        assert read_text(out, index) == state_block.split_blocks(text)[0]
        assert finishes(out, index) == ["stop"]
    assert relay.blocks == [G + "0"]


def test_choices_in_one_chunk_are_changed_each_in_its_place() -> None:
    def both(first: str, second: str) -> bytes:
        deltas = [{"index": n, "delta": {"content": text}} for n, text in enumerate((first, second))]
        return b"data: " + json.dumps({**HEAD, "choices": deltas}).encode() + b"\n\n"

    out, _ = relay_stream([both("a", "b\n"), both("### no", f"### STATE\n{G}"), both("x", "y"), DONE])
    assert out.startswith(both("a", "b") + both("### no", "") + both("x", ""))


def test_a_last_event_without_its_blank_line_is_read_and_cleared_too() -> None:
    out, relay = relay_stream([make_chunk({"content": "a\n"}), make_chunk({"content": f"\n### STATE\n{G}"})[:-1]])
    assert relay.blocks == [G]
    assert b"STATE" not in out
    assert relay.is_unfinished
    assert read_text(out + b"\n") == "a"
    out, relay = relay_stream(
        [make_chunk({"content": "a\n"}), make_chunk({}, 1), make_chunk({"content": "b\n"}, 1)[:-1]]
    )
    assert (read_text(out + b"\n"), read_text(out + b"\n", 1)) == ("a\n", "b\n")


def test_a_chunk_with_odd_bytes_is_changed_all_the_same() -> None:
    block = b"a\\n\\n### STATE\\nGoal: x\\nContext: y"
    for odd in (
        b'{"choices":[{"delta":{"content":"%b","x":"\\ud83d"}}]}' % block,
        b'{"choices":[{"delta":{"content":"%b","content":"%b"}}]}' % (block, block),
        b'{"choices":[{"delta":{"x":{"content":"no"},"content":"%b"}}]}' % block,
        b'{"choices":[{"delta":{"content" : "%b"}}]}' % block.replace(b"a", b'a\\\\\\"', 1),
    ):
        out, relay = relay_stream([b"data: " + odd + b"\n\n", DONE])
        assert read_text(out) in ("a", 'a\\"')
        assert relay.blocks == [G]


def test_lone_surrogates_are_passed_on_unchanged() -> None:
    parts = [
        b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % half
        for half in (b"\\ud83d", b"\\ude00\\n", b"### STATE\\nGoal: x\\nContext: \\ud83d")
    ]
    out, relay = relay_stream([*parts, DONE])
    assert out.startswith(parts[0])
    assert read_text(out).encode("utf-16", "surrogatepass").decode("utf-16") == "😀"
    assert relay.blocks == ["Goal: x\nContext: \ufffd"]
    assert relay.answer.text == "😀"


def test_a_relay_that_has_ended_gives_no_more_text() -> None:
    relay = CompletionsRelay(RelayOptions(withheld=HEADINGS, drop_usage=False))
    relay.feed(make_chunk({"content": "a\n"}))
    assert read_text(relay.end()) == "\n"
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
    stream = b"".join(make_answer_stream(text, size, calls, usage=None))
    out, relay = relay_stream([stream[at : at + step] for at in range(0, len(stream), step)], drop=drop)
    visible, blocks = state_block.split_blocks(text)
    seen = read_text(out)
    assert seen == visible
    assert relay.answer.text == visible
    assert relay.blocks == [block.body for block in blocks]
    assert len(finishes(out)) == 1
    assert len([c for c in list_choices(out) if c["delta"].get("tool_calls")]) == 3 * calls
    assert (b"usage" in out) is not drop
    assert read_events(out)[-1] == b"[DONE]"


def test_a_finish_reason_without_letters_is_none() -> None:
    parts = [make_chunk({"content": piece}, 0, "") for piece in cut_pieces(f"a\n\n### STATE\n{G}", 2)]
    out, relay = relay_stream([*parts, make_chunk({}, 0, "stop"), DONE])
    assert (read_text(out), relay.blocks, finishes(out)) == ("a", [G], ["stop"])


def test_only_as_many_choices_are_remembered_as_can_be_asked_for() -> None:
    parts = [make_chunk({"content": "a\n"}, index, "stop") for index in range(1000)]
    out, relay = relay_stream([*parts, DONE])
    assert out == b"".join(parts) + DONE
    assert relay.answer.is_capped
    assert len(relay.answer.finish_reasons) == len(relay._rewriter.block_filters) == 128
