"""A Messages stream goes on as it came, or without what is the proxy's, however the bytes are cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.completions.request import read_message
from proxy.dialects.messages.blocks import make_answer_blocks, make_assistant_message
from proxy.notes.state_block import HEADINGS
from proxy.stream.answer_relay import RelayOptions
from proxy.stream.messages_relay import MessagesRelay
from tests.stream.messages_rounds import (
    HIDDEN,
    call,
    make,
    own_call,
    read,
    run,
    shapes,
    stream,
    text,
    think,
)
from tests.stream.round_relays import read_canonical
from tests.strict_messages import Block

STATE = "### STATE\nGoal: ship it\nContext: a test\nResolved: nothing"
NOTED = f"Reading on.\n\n{STATE}"
HIDING: dict[str, Any] = {"hidden_tools": HIDDEN}


def _digest(blocks: list[Block]) -> bytes:
    return read_message(make_assistant_message([json.dumps(one).encode() for one in blocks]).chat).digest


def _answer_digest(relay: MessagesRelay) -> bytes:
    message = relay.answer.build_message()
    assert message is not None
    return read_message(message).digest


PLAIN = [think(), text("Reading, é."), call("a", path="x"), call("b")]


def test_without_edits_the_bytes_are_passed_on_and_the_end_is_held() -> None:
    data = stream(*PLAIN)
    relay = MessagesRelay()
    shown = relay.feed(data)
    assert shown + relay.terminal == data
    assert relay.terminal.startswith(b"event: message_delta")
    assert relay.answer.is_done
    assert relay.end() == b""
    assert not relay.is_unfinished
    message = make(*PLAIN)
    assert _answer_digest(relay) == _digest(message["content"])
    assert (relay.answer.text, [c.id for c in relay.answer.calls]) == ("Reading, é.", ["a", "b"])
    assert relay.answer.finish_reasons == {0: "tool_calls"}
    assert relay.answer.usage is not None
    assert relay.answer.usage.completion == message["usage"]["output_tokens"]


def test_a_piece_of_an_event_need_not_wait_and_the_end_never_leaves_early() -> None:
    data = stream(*PLAIN)
    relay, shown = MessagesRelay(), b""
    for at in range(len(data)):
        shown += relay.feed(data[at : at + 1])
        assert b"message_delta" not in shown
        if b"signature_delta" in data[: at + 1] and b"message_delta" not in data[: at + 60]:
            assert at + 1 - len(shown) < len("event: content_block_")
    assert shown + relay.terminal == data


@pytest.mark.parametrize(
    ("rounds", "options"),
    [
        ([PLAIN], {}),
        ([[think(), text(NOTED)]], {"withheld": HEADINGS}),
        ([[text(NOTED), call("a")]], {"withheld": HEADINGS}),
        (
            [[think(), text("Hm."), own_call("o")], [think(), text(NOTED), call("a")]],
            {"withheld": HEADINGS, **HIDING},
        ),
        ([[own_call("o"), call("a"), text("x")]], HIDING),
        (
            [[text("Hm."), own_call("o")], [text("So."), own_call("p"), own_call("q")], [text("Done.")]],
            {**HIDING, "hold_text": True},
        ),
    ],
)
def test_a_stream_cut_at_every_byte_gives_the_same_answer(rounds: list[list[Block]], options: dict[str, bool]) -> None:
    streams = [stream(*blocks) for blocks in rounds]
    whole, relay = run(streams, **options)
    wanted = (relay.answer.build_message(), relay.blocks, relay.build_round_message(), relay.answer.usage)
    for step in (1, 2, 7, 64):
        out, other = run(streams, step=step, **options)
        assert out == whole
        assert (other.answer.build_message(), other.blocks, other.build_round_message(), other.answer.usage) == wanted
    crlf, _ = run([one.replace(b"\n", b"\r\n") for one in streams], step=5, **options)
    assert read(crlf.replace(b"\r\n", b"\n")) == read(whole)


def test_the_state_block_is_withheld_from_the_client_and_from_later_rounds() -> None:
    out, relay = run([stream(think(), text(NOTED))], withheld=HEADINGS)
    assert b"STATE" not in out
    assert shapes(read(out)) == ["thinking", "Reading on."]
    assert relay.blocks == [STATE.removeprefix("### STATE\n")]
    assert relay.answer.text == "Reading on."
    assert _answer_digest(relay) == _digest(read(out)["content"])
    upstream = relay.build_round_message()
    assert upstream is not None
    assert json.loads(make_answer_blocks(upstream))[1]["text"] == "Reading on."


@pytest.mark.parametrize(
    ("blocks", "kept"),
    [
        ([think(), text(STATE), own_call("o")], ["thinking", "o"]),
        ([text(NOTED), think(), text(NOTED), own_call("o")], [NOTED, "thinking", "Reading on.", "o"]),
        ([think(), text(STATE)], ["thinking", STATE]),
    ],
    ids=["alone", "bound", "nothing else"],
)
def test_a_later_round_gets_state_back_only_where_thinking_is_bound_to_it(blocks: list[Block], kept: list[str]) -> None:
    _, relay = run([stream(*blocks)], withheld=HEADINGS, hidden_tools=HIDDEN)
    upstream = relay.build_round_message()
    assert upstream is not None
    assert shapes({"content": json.loads(make_answer_blocks(upstream))}) == kept


def test_a_block_that_is_nothing_but_state_leaves_whole() -> None:
    out, relay = run([stream(text(STATE), call("a"))], withheld=HEADINGS)
    assert shapes(read(out)) == ["a"]
    assert relay.blocks
    first, _ = run([stream(think(), text("Well.\n\n"), text(STATE), text("End."))], withheld=HEADINGS)
    assert shapes(read(first)) == ["thinking", "Well.\n\n", "End."]


def test_a_state_block_that_was_cut_off_is_withheld_by_the_same_rule_as_elsewhere() -> None:
    cut = "Reading on.\n\n### STATE\nGoal: sh"
    assert shapes(read(run([stream(text(cut))], withheld=HEADINGS)[0])) == [cut], "whole, it is no block"
    out, relay = run([stream(text(cut), stop_reason="max_tokens")], withheld=HEADINGS)
    assert shapes(read(out)) == ["Reading on."]
    assert relay.blocks
    assert relay.answer.finish_reasons == {0: "length"}


def test_text_that_only_looks_like_state_goes_to_the_client() -> None:
    for value in ("### STATE of the art is fine.", "```\n### STATE\nx\n```\nok", "a\n\n\n"):
        out, relay = run([stream(text(value))], withheld=HEADINGS)
        assert read(out)["content"] == [text(value)]
        assert relay.blocks == []


def test_a_start_that_bears_text_is_filtered_too() -> None:
    data = stream(text("x")).replace(b'"type": "text", "text": ""', b'"type": "text", "text": "Go. "')
    out, relay = run([data], withheld=HEADINGS)
    assert shapes(read(out)) == ["Go. x"] == [relay.answer.text]


def test_a_hidden_call_alone_lets_the_round_continue() -> None:
    relay = MessagesRelay(RelayOptions(**HIDING))
    shown = relay.feed(stream(think(), text("Hm."), own_call("o", q="x"))) + relay.end()
    assert relay.goes_on
    assert relay.terminal == b""
    assert [(one.id, one.name, json.loads(one.arguments)) for one in relay.hidden_calls] == [
        ("o", "recall", {"q": "x"})
    ]
    assert b"recall" not in shown
    assert read_canonical(relay.build_round_message())[2] == ["o"]
    upstream = relay.build_round_message() or b""
    assert json.loads(make_answer_blocks(upstream)) == make(think(), text("Hm."), own_call("o", q="x"))["content"]
    assert relay.answer.is_truncated


def test_the_rounds_are_one_message_with_the_first_ones_head_and_indexes_without_gaps() -> None:
    rounds = [
        stream(think("one"), text("Hm. "), own_call("o"), input_tokens=100, output_tokens=10),
        stream(think("two"), own_call("p"), own_call("q"), input_tokens=200, output_tokens=20),
        stream(think("three"), text("So."), call("a"), input_tokens=300, output_tokens=30, cache_read_input_tokens=7),
    ]
    out, relay = run(rounds, **HIDING)
    message = read(out)
    assert shapes(message) == ["thinking", "Hm. ", "thinking", "thinking", "So.", "a"]
    assert message["stop_reason"] == "tool_use"
    assert message["is_done"]
    assert (message["usage"]["input_tokens"], message["usage"]["output_tokens"]) == (300, 60)
    assert message["usage"]["cache_read_input_tokens"] == 7
    assert out.count(b"message_start") == 2, "the event's name and type, once"
    assert _answer_digest(relay) == _digest(message["content"])
    assert relay.answer.usage is not None
    assert (relay.answer.usage.completion, relay.answer.usage.prompt) == (60, 307)
    assert relay.round_usage is not None
    assert relay.round_usage.completion == 30
    assert relay.shown_calls == 1


def test_a_mixed_round_shows_the_clients_calls_and_hides_the_proxys() -> None:
    blocks = [think(), own_call("o"), call("a"), own_call("p"), call("b")]
    out, relay = run([stream(*blocks)], **HIDING)
    assert shapes(read(out)) == ["thinking", "a", "b"]
    assert read(out)["stop_reason"] == "tool_use"
    assert not relay.goes_on
    assert [one.id for one in relay.hidden_calls] == ["o", "p"]
    assert read_canonical(relay.build_round_message())[2] == ["o", "a", "p", "b"]
    assert relay.shown_calls == 2


def test_an_answer_that_must_end_ends_without_the_hidden_calls() -> None:
    out, relay = run([stream(text("Hm."), own_call("o"))], stop=True, **HIDING)
    message = read(out)
    assert (shapes(message), message["stop_reason"], message["is_done"]) == (["Hm."], "end_turn", True)
    assert relay.answer.finish_reasons == {0: "stop"}
    assert relay.terminal.startswith(b"event: message_delta")


@pytest.mark.parametrize("reason", ["max_tokens", "refusal", "pause_turn"])
def test_hidden_calls_of_an_answer_that_did_not_end_well_are_not_run(reason: str) -> None:
    out, relay = run([stream(text("Hm."), own_call("o"), stop_reason=reason)], **HIDING)
    assert (shapes(read(out)), read(out)["stop_reason"]) == (["Hm."], reason)
    assert not relay.goes_on
    assert relay.hidden_calls == []


def test_hidden_calls_beside_an_error_are_not_run_and_the_newest_end_counts() -> None:
    error = b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"Broken"}}\n\n'
    data = stream(text("Hm."), own_call("o"))
    at = data.index(b"event: message_delta")
    relay = run([data[:at] + error + data[at:]], **HIDING)[1]
    assert (relay.goes_on, relay.hidden_calls, relay.answer.error) == (False, [], "Broken")
    early = b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":null},"usage":{}}\n\n'
    out, relay = run([data[:at] + early + data[at:]], stop=True, **HIDING)
    assert out.count(b"event: message_delta") == 1
    assert read(out)["stop_reason"] == "end_turn"


def test_held_text_leaves_with_the_last_round_or_before_the_clients_call() -> None:
    held: dict[str, Any] = {**HIDING, "hold_text": True}
    first = stream(think(), text("Hm."), own_call("o"))
    relay = MessagesRelay(RelayOptions(**held))
    assert b"Hm." not in relay.feed(first) + relay.end()
    out, _ = run([first, stream(think("2"), text("Done."))], **held)
    assert shapes(read(out)) == ["thinking", "Hm.", "thinking", "Done."]
    out, relay = run([first, stream(think("2"), text("Then."), call("a"))], **held)
    assert shapes(read(out)) == ["thinking", "thinking", "Then.", "a"]
    assert relay.answer.text == "Then."
    out, _ = run([first], stop=True, **held)
    assert shapes(read(out)) == ["thinking", "Hm."]


def test_held_text_can_be_dropped() -> None:
    held: dict[str, Any] = {**HIDING, "hold_text": True}
    _, before = run([stream(text("Hm."), own_call("o"))], **held)
    relay = MessagesRelay(RelayOptions(**held), previous=before)
    relay.drop_held_text()
    relay.feed(stream(text("Done.")))
    assert relay.answer.text == "Done."


def test_a_stream_that_breaks_off_gives_what_came_and_no_end() -> None:
    data = stream(think(), text("Reading on and on."), own_call("o"), call("a", path="x"))
    for options in ({}, {"withheld": HEADINGS}, HIDING, {**HIDING, "hold_text": True}):
        for at in range(0, data.index(b"event: message_delta"), 11):
            out, relay = run([data[:at]], **options)
            assert relay.terminal == b""
            assert not relay.goes_on
            assert relay.hidden_calls == []
            assert relay.answer.is_truncated
            assert relay.is_unfinished == (not options and bool(out) and not out.endswith(b"\n\n"))
            if options.get("hidden_tools"):
                assert b"recall" not in out
            relay.answer.build_message()


def test_held_text_and_state_at_a_break_are_given_out_or_withheld() -> None:
    data = stream(text(NOTED))
    out, relay = run([data[: data.index(b"event: message_delta")]], withheld=HEADINGS)
    assert relay.answer.text == "Reading on."
    assert relay.blocks
    assert b"STATE" not in out


def test_an_error_is_passed_on_unchanged() -> None:
    error = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
    data = stream(text("Well."))
    for options in ({}, HIDING):
        out, relay = run([data[: data.index(b"event: content_block_stop")] + error], **options)
        assert out.endswith(error)
        assert relay.answer.error == "Overloaded"


def test_comments_pings_and_unknown_events_are_passed_on() -> None:
    extra = b': keepalive\n\nevent: ping\ndata: {"type": "ping"}\n\nevent: news\ndata: {"type": "news", "index": 9}\n\n'
    data = stream(text("Well."))
    at = data.index(b"event: content_block_delta")
    for options in ({}, {"withheld": HEADINGS}, HIDING):
        out, _ = run([data[:at] + extra + data[at:]], **options)
        assert extra in out
    stop = b"event: message_stop"
    late = data.replace(stop, b': wait\n\nevent: ping\ndata: {"type": "ping"}\n\nevent: x\ndata: {}\n\n' + stop)
    for options in ({}, HIDING):
        assert run([late], **options)[0] == late


def test_an_event_that_is_too_large_passes_only_where_nothing_changes() -> None:
    data = stream(text("x" * 3000).copy(), call("a"))
    big = data.replace(b"x" * 7, b"x" * 3000, 1)
    out, relay = run([big], step=100, limit=1000)
    assert out == big
    assert relay.answer.is_capped
    hidden = stream(own_call("o"), text("a"), call("b")).replace(b'"a"', b'"' + b"a" * 3000 + b'"', 1)
    out, relay = run([hidden], step=100, limit=1000, **HIDING)
    assert b"aaaa" not in out
    assert not relay.goes_on
    first = stream(own_call("o")).replace(b'"name": "recall"', b'"name": "recall", "x": "' + b"y" * 3000 + b'"', 1)
    out, relay = run([first], step=100, limit=1000, **HIDING)
    assert b"recall" not in out
    assert not relay.goes_on
    assert relay.answer.is_capped


def test_bytes_after_the_end_are_kept_for_the_end() -> None:
    data = stream(text("Well.")) + b": bye\n\n"
    relay = MessagesRelay()
    assert relay.feed(data) + relay.feed(b": more\n\n") + relay.terminal == data + b": more\n\n"


BLOCKS = st.lists(
    st.one_of(
        st.sampled_from([think(), text("Hm. "), text(NOTED), text(STATE), text("``` \n")]),
        st.sampled_from([call("a"), call("b", path="é"), own_call("o"), own_call("p", q=1)]),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda block: str(block.get("id") or id(block)),
)


@given(st.lists(BLOCKS, min_size=1, max_size=3), st.booleans(), st.booleans(), st.integers(1, 200))
def test_any_rounds_give_a_message_that_reads_and_is_recognised(
    rounds: list[list[Block]], withhold: bool, hold: bool, step: int
) -> None:
    relay, out = None, b""
    for blocks in rounds:
        relay = MessagesRelay(
            RelayOptions(withheld=HEADINGS if withhold else (), hold_text=hold, **HIDING), previous=relay
        )
        data = stream(*blocks)
        for at in range(0, len(data), step):
            out += relay.feed(data[at : at + step])
        out += relay.end()
        if not relay.goes_on:
            break
    assert relay is not None
    if relay.goes_on:
        out += relay.end_answer()
    message = read(out + relay.terminal)
    assert message["is_done"]
    assert b"recall" not in out
    assert not any(block["type"] == "text" and not block["text"] for block in message["content"])
    ids = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    assert message["stop_reason"] == ("tool_use" if ids else "end_turn")
    assert len(ids) == relay.shown_calls
    if message["content"]:
        assert _answer_digest(relay) == _digest(message["content"])
    if withhold:
        assert "Goal: ship it" not in relay.answer.text or relay.answer.text.count("STATE")
