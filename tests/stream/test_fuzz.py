"""Streams that nobody would send, put together from pieces of real ones: nothing raises, nothing is lost or shown."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.notes.state_block import HEADINGS
from proxy.stream.answer_relay import RelayOptions
from proxy.stream.completions_relay import CompletionsRelay
from proxy.stream.sse import SseParser
from tests.stream.completions_rounds import DONE, FORMS, OURS, Script, events, make_calls, pieces

SAID = ("Hé\n", "\n### STATE\nGoal\n\n# T\n", ("reasoning_content", "hm"))
STREAMS = [
    b"".join(events(Script((*SAID, *make_calls(mix)), finish, form)))
    for form in FORMS
    for mix in ("", "o", "to", "otot")
    for finish in ("tool_calls", "length")
]
PIECES: list[bytes] = [
    *sorted({one + b"\n\n" for stream in STREAMS[::7] for one in stream.split(b"\n\n")}),
    b"\n", b"\r", b"\r\n\r\n", b": c\n\n", b"data:", b"data: ", b"event: x\n", b"\xef\xbb\xbf", b"\xff", b"[DONE]",
    DONE,
    b'data: {"choices":[null,{"index":1}]}\n\n', b'data: {"choices":{}}\n\n', b"data: []\n\n", b"data: 1\n\n",
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":{}},"finish_reason":7}]}\n\n',
    b'data: {"choices":[{"index":-1,"delta":{"tool_calls":[null,1,{}]}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":1e300,"id":3,"function":[]}],"a":1,"a":2}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d","tool_calls":[{"function":{"name":"recall"}}]}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"rec"}}]}}],"usage":7}\n\n',
    b'data: {"choices":[],"usage":{"completion_tokens":-1,"completion_tokens_details":[]}}\n\n',
    b'data: {"error":{}}\n\n', b'data: {"error":"x"}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"x":' + b"[" * 2000 + b"]" * 2000 + b"}}]}\n\n",
]  # fmt: skip


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Pieces of streams, or a real one with some bytes changed."""
    if draw(st.booleans()):
        return b"".join(draw(st.lists(st.sampled_from(PIECES) | st.binary(max_size=9), max_size=25)))
    stream = bytearray(draw(st.sampled_from(STREAMS)))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(stream)))
        stream[at : at + draw(st.integers(0, 40))] = draw(
            st.binary(max_size=6) | st.sampled_from([b'"', b"}", b"{", b",", b"null", b'"name":"recall"', b"\\"])
        )
    return bytes(stream)


def cut_anyhow(stream: bytes, seed: int) -> list[bytes]:
    dice = random.Random(seed)
    found = []
    while stream:
        size = dice.choice((1, 2, 7, 60, 300, 5000))
        found.append(stream[:size])
        stream = stream[size:]
    return found


def names_in(data: bytes) -> set[str]:
    """The names of the calls that a client can read in a stream, where they came in one piece.

    Fragments under one index and one id are one call. Names in pieces are left to test_hidden.py: cut at random, a
    piece may come behind arguments, and so behind the point where a name has to be known.
    """
    names: dict[tuple[Any, Any, int], list[str]] = {}
    ids: dict[tuple[Any, Any], list[str]] = {}
    for event in SseParser().feed(data + b"\n\n"):
        try:
            value: Any = json.loads(event.data or b"null")
        except (ValueError, RecursionError):
            continue
        for choice in (value.get("choices") if isinstance(value, dict) else None) or ():
            delta = choice.get("delta") if isinstance(choice, dict) else None
            parts = delta.get("tool_calls") if isinstance(delta, dict) else None
            for part in parts if isinstance(parts, list) else ():
                inner = part.get("function") if isinstance(part, dict) else None
                if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
                    continue
                known = ids.setdefault((choice.get("index"), str(part.get("index"))), [])
                if part.get("id") and part["id"] not in known[-1:]:
                    known.append(part["id"])
                key = (choice.get("index"), str(part.get("index")), len(known))
                names.setdefault(key, []).append(inner["name"])
    return {one[0] for one in names.values() if len({piece for piece in one if piece}) == 1}


def data_of(stream: bytes) -> list[bytes]:
    parser = SseParser()
    return [event.data for event in parser.feed(stream) + parser.flush() if event.data is not None]


def the_parser_accounts_for_every_byte(stream: bytes, seed: int) -> None:
    whole = SseParser()
    expected = whole.feed(stream) + whole.flush()
    assert b"".join(event.raw for event in expected) == stream
    parser = SseParser()
    found = [event for part in cut_anyhow(stream, seed) for event in parser.feed(part)] + parser.flush()
    assert b"".join(event.raw for event in found) == stream
    assert [event.data for event in found if event.data is not None] == [
        event.data for event in expected if event.data is not None
    ]
    small = SseParser(50)
    bounded = [event for part in pieces(stream, 40) for event in small.feed(part)]
    assert len(small.pending) <= 90
    assert b"".join(event.raw for event in bounded + small.flush()) == stream


def the_relay_shows_what_it_may(stream: bytes, seed: int, *, withhold: bool, drop: bool) -> None:
    def relayed(parts: list[bytes], hidden: frozenset[str]) -> tuple[bytes, list[CompletionsRelay]]:
        out = b""
        relays: list[CompletionsRelay] = []
        for _ in range(2):
            after = relays[-1] if relays else None
            relay = CompletionsRelay(
                RelayOptions(withheld=HEADINGS if withhold else (), drop_usage=drop, hidden_tools=hidden),
                previous=after,
            )
            out += b"".join([relay.feed(part) for part in parts]) + relay.end() + relay.terminal
            relays.append(relay)
            if not relay.goes_on:
                return out, relays
        return out + relays[-1].end_answer() + relays[-1].terminal, relays

    parts = cut_anyhow(stream, seed)
    plain, _ = relayed(parts, frozenset())
    if not withhold and not drop:
        assert plain == stream
    out, relays = relayed(parts, OURS)
    assert not names_in(out) & OURS
    again, others = relayed([stream], OURS)
    assert data_of(again) == data_of(out)  # a blank line or a comment may go with the event that it stands before
    for relay, other in zip(relays, others, strict=True):
        assert relay.build_round_message() == other.build_round_message()
        assert relay.hidden_calls == other.hidden_calls
        ids = [call.id for call in relay.hidden_calls]
        assert len(set(ids)) == len(ids)
        assert all(ids)
        assert not relay.goes_on or relay.hidden_calls


@settings(max_examples=300)
@given(streams(), st.integers(0, 9999))
def test_the_parser_accounts_for_every_byte(stream: bytes, seed: int) -> None:
    the_parser_accounts_for_every_byte(stream, seed)


@settings(max_examples=300)
@given(streams(), st.integers(0, 9999), st.booleans(), st.booleans())
def test_the_relay_withholds_state_and_keeps_all_other_bytes(
    stream: bytes, seed: int, withhold: bool, drop: bool
) -> None:
    the_relay_shows_what_it_may(stream, seed, withhold=withhold, drop=drop)


@pytest.mark.long
@settings(max_examples=1_000_000)
@given(streams(), st.integers(0, 9999))
def test_the_parser_accounts_for_every_byte_a_million_times(stream: bytes, seed: int) -> None:
    the_parser_accounts_for_every_byte(stream, seed)


@pytest.mark.long
@settings(max_examples=300_000)
@given(streams(), st.integers(0, 9999), st.booleans(), st.booleans())
def test_the_relay_withholds_state_and_keeps_all_other_bytes_in_many_streams(
    stream: bytes, seed: int, withhold: bool, drop: bool
) -> None:
    the_relay_shows_what_it_may(stream, seed, withhold=withhold, drop=drop)
