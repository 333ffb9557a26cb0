"""The relay of a Gemini stream: bytes that go on, parts that do not, and rounds that become one answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.dialects.completions.request import read_message
from proxy.dialects.gemini.contents import make_answer_parts, make_assistant_message
from proxy.notes.state_block import HEADINGS
from proxy.stream.answer_relay import RelayOptions
from proxy.stream.gemini_relay import GeminiRelay
from tests.stream.gemini_rounds import (
    HIDDEN,
    Json,
    call,
    chunks,
    own_call,
    read,
    run,
    shapes,
    stream,
    text,
    think,
    to_events,
)
from tests.stream.round_relays import read_canonical

HIDING: dict[str, Any] = {"hidden_tools": HIDDEN}
STATE = "### STATE\nGoal: ship it\nContext: all\nNext: go"
NOTED = f"Reading on.\n\n{STATE}"
PLAIN = [
    think(),
    text("Let me "),
    text("look.", thoughtSignature="c2ln"),
    call("a", thoughtSignature="c2lh"),
    call("b"),
]


def digest(parts: list[Json]) -> bytes:
    return read_message(make_assistant_message([json.dumps(part).encode() for part in parts]).chat).digest


def answer_digest(relay: GeminiRelay) -> bytes:
    message = relay.answer.build_message()
    assert message is not None
    return read_message(message).digest


def test_without_edits_the_bytes_are_passed_on_and_the_end_is_held() -> None:
    data = stream(*PLAIN)
    relay = GeminiRelay()
    out = b"".join(relay.feed(data[at : at + 1]) for at in range(len(data))) + relay.end()
    assert out + relay.terminal == data
    assert b"finishReason" not in out
    assert json.loads(relay.terminal[6:])["candidates"][0]["finishReason"] == "STOP"
    answer = relay.answer
    assert (answer.text, answer.id, answer.model, answer.finish_reasons) == (
        "Let me look.", "r1", "gemini-1", {0: "tool_calls"},
    )  # fmt: skip
    assert [one.id for one in answer.calls] == ["a", "b"]
    assert answer_digest(relay) == digest(PLAIN)
    assert answer.usage is not None
    assert (answer.usage.prompt, answer.usage.cached, answer.usage.completion, answer.usage.reasoning) == (
        100, 50, 13, 3,
    )  # fmt: skip
    assert not answer.is_truncated


def test_a_model_that_gives_its_reason_in_each_chunk_has_ended_with_the_last_one() -> None:
    responses = chunks(text("One "), text("two."))
    for one in responses:
        one["candidates"][0]["finishReason"] = "STOP"
    data = to_events([*responses, {"usageMetadata": {"promptTokenCount": 7}}])
    out, relay = run([data])
    assert out == data
    assert relay.terminal.count(b"data: ") == 2
    edited, relay = run([data], **HIDING)
    assert read(edited)["reasons"] == ["STOP"]
    assert shapes(read(edited)) == ["One two."]
    assert read(edited)["usage"] == {"promptTokenCount": 7}


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("rounds", "options"),
    [
        ([PLAIN], {}),
        ([[think(), text(NOTED)]], {"withheld": HEADINGS}),
        ([[text(NOTED), call("a")]], {"withheld": HEADINGS}),
        ([[text(NOTED[:20]), text(NOTED[20:]), call("a")]], {"withheld": HEADINGS}),
        (
            [[think(), text("Hm."), own_call("o")], [think(), text(NOTED), call("a")]],
            {"withheld": HEADINGS, **HIDING},
        ),
        ([[own_call("o", thoughtSignature="x"), call("a"), text("x")]], HIDING),
        ([[own_call("-"), call("-a"), own_call("-b")]], HIDING),
        (
            [[text("Hm."), own_call("o")], [text("So."), own_call("p"), own_call("q")], [text("Done.")]],
            {**HIDING, "hold_text": True},
        ),
    ],
)
def test_a_stream_cut_at_every_byte_gives_the_same_answer(
    rounds: list[list[Json]], options: dict[str, Any], together: bool
) -> None:
    streams = [stream(*parts, number=n, together=together) for n, parts in enumerate(rounds, 1)]
    whole, relay = run(streams, **options)
    read(whole)
    wanted = (relay.answer.build_message(), relay.blocks, relay.build_round_message(), relay.answer.usage)
    for step in (1, 2, 7, 64):
        out, other = run(streams, step=step, **options)
        assert out == whole
        assert (other.answer.build_message(), other.blocks, other.build_round_message(), other.answer.usage) == wanted
    lines, _ = run([one.replace(b"\r\n", b"\n") for one in streams], step=5, **options)
    assert read(lines) == read(whole)


def test_the_state_block_is_withheld_from_the_client_and_from_later_rounds() -> None:
    out, relay = run([stream(think(), text(NOTED[:16]), text(NOTED[16:], thoughtSignature="x"))], withheld=HEADINGS)
    assert b"STATE" not in out
    assert shapes(read(out)) == ["Let me see.", "Reading on."]
    assert read(out)["parts"][-1] == {"text": "", "thoughtSignature": "x"}
    assert relay.blocks == [STATE.removeprefix("### STATE\n")]
    assert answer_digest(relay) == digest(read(out)["parts"])
    upstream = relay.build_round_message()
    assert upstream is not None
    said = [json.loads(part) for part in make_answer_parts(upstream, is_signed=True)]
    assert "".join(part.get("text", "") for part in said[1:]) == "Reading on."
    assert said[-1]["thoughtSignature"] == "x"


def test_a_round_of_nothing_but_thoughts_and_state_is_sent_back_unchanged() -> None:
    _, relay = run([stream(think(), text(STATE))], withheld=HEADINGS)
    assert STATE in json.loads(relay.build_round_message() or b"")["content"]
    _, relay = run([stream(text(STATE), own_call("o"))], withheld=HEADINGS, **HIDING)
    assert read_canonical(relay.build_round_message())[1] is None


def test_an_answer_of_nothing_but_state_ends_with_an_empty_text() -> None:
    out, relay = run([stream(text(STATE))], withheld=HEADINGS)
    assert read(out)["parts"] == [{"text": ""}]
    assert read(out)["reasons"] == ["STOP"]
    assert relay.blocks
    assert read_canonical(relay.answer.build_message()) == ("assistant", "", [])


def test_a_state_block_that_was_cut_off_is_withheld_by_the_same_rule_as_elsewhere() -> None:
    cut = "Reading on.\n\n### STATE\nGoal: sh"
    assert shapes(read(run([stream(text(cut))], withheld=HEADINGS)[0])) == [cut], "whole, it is no block"
    out, relay = run([stream(text(cut), reason="MAX_TOKENS")], withheld=HEADINGS)
    assert shapes(read(out)) == ["Reading on."]
    assert relay.blocks
    assert relay.answer.finish_reasons == {0: "length"}


def test_text_that_only_looks_like_state_goes_to_the_client() -> None:
    for value in ("### STATE of the art is fine.", "```\n### STATE\nx\n```\nok", "a\n\n\n"):
        out, relay = run([stream(text(value[:3]), text(value[3:]))], withheld=HEADINGS)
        assert shapes(read(out)) == [value]
        assert relay.blocks == []


@pytest.mark.parametrize("together", [True, False])
def test_a_hidden_call_alone_lets_the_round_continue(together: bool) -> None:
    first = stream(text("Hm."), own_call("-", thoughtSignature="s1"), together=together)
    relay = GeminiRelay(RelayOptions(**HIDING))
    out = relay.feed(first) + relay.end()
    assert relay.goes_on
    assert relay.terminal == b""
    assert shapes(read(out)) == ["Hm."]
    assert read(out)["reasons"] == []
    assert [(one.name, json.loads(one.arguments)) for one in relay.hidden_calls] == [("recall", {"of": "-"})]
    role, said, ids = read_canonical(relay.build_round_message())
    assert (role, said, ids) == ("assistant", "Hm.", [relay.hidden_calls[0].id])
    assert b"s1" in (relay.build_round_message() or b"")


def test_the_rounds_are_one_answer_with_the_first_ones_ids_and_usage_that_adds_up() -> None:
    rounds = [stream(text("Hm."), own_call("o")), stream(think(), text("So."), call("a"), number=2)]
    out, relay = run(rounds, **HIDING)
    found = read(out)
    assert shapes(found) == ["Hm.", "Let me see.", "So.", "a"]
    assert set(found["ids"]) == {("r1", "gemini-1")}
    assert found["usage"] == {
        "promptTokenCount": 200,
        "cachedContentTokenCount": 50,
        "candidatesTokenCount": 20,
        "thoughtsTokenCount": 6,
        "totalTokenCount": 226,
    }
    assert relay.answer.usage is not None
    assert (relay.answer.usage.prompt, relay.answer.usage.completion) == (200, 26)
    assert relay.round_usage is not None
    assert relay.round_usage.completion == 13
    assert answer_digest(relay) == digest(found["parts"])


def test_a_mixed_round_shows_the_clients_calls_and_hides_the_proxys() -> None:
    out, relay = run([stream(own_call("o"), call("a"), own_call("p"), together=True)], **HIDING)
    assert shapes(read(out)) == ["a"]
    assert not relay.goes_on
    assert [one.id for one in relay.hidden_calls] == ["o", "p"]
    assert read_canonical(relay.build_round_message())[2] == ["o", "a", "p"]


def test_an_answer_that_must_end_ends_without_the_hidden_calls() -> None:
    for together in (True, False):
        out, relay = run([stream(text("Hm."), own_call("o"), together=together)], stop=True, **HIDING)
        assert shapes(read(out)) == ["Hm."]
        assert read(out)["reasons"] == ["STOP"]
        assert relay.answer.is_done
        assert answer_digest(relay) == digest([text("Hm.")])


@pytest.mark.parametrize("reason", ["MAX_TOKENS", "SAFETY", "MALFORMED_FUNCTION_CALL", ""])
def test_hidden_calls_of_an_answer_that_did_not_end_well_are_not_run(reason: str) -> None:
    out, relay = run([stream(text("x"), own_call("o"), reason=reason)], **HIDING)
    assert b"recall" not in out
    assert relay.hidden_calls == []
    assert not relay.goes_on
    assert relay.answer.is_truncated is not bool(reason)


def test_held_text_leaves_with_the_last_round_or_before_the_clients_call() -> None:
    rounds = [stream(think("T"), text("Hm."), own_call("o")), stream(text("So."), number=2)]
    out, _ = run(rounds, hold_text=True, **HIDING)
    assert shapes(read(out)) == ["T", "Hm.So."]
    rounds[1] = stream(text("So."), call("a"), number=2)
    out, relay = run(rounds, hold_text=True, **HIDING)
    assert shapes(read(out)) == ["T", "So.", "a"]
    assert relay.answer.text == "So."
    relay = GeminiRelay(RelayOptions(hold_text=True, **HIDING))
    assert b"Hm." not in relay.feed(rounds[0]) + relay.end()
    after = GeminiRelay(RelayOptions(hold_text=True, **HIDING), previous=relay)
    after.drop_held_text()
    out = after.feed(stream(text("Other."), number=2)) + after.end() + after.terminal
    assert shapes(read(out)) == ["Other."]


def test_a_stream_that_breaks_off_gives_what_came_and_no_end() -> None:
    data = stream(text("One."), text(" Two.\n\n### STA"), text("TE\nGoal: x"))
    for options in ({}, {"withheld": HEADINGS}, HIDING):
        out, relay = run([data[: len(data) - 180]], **options)
        assert relay.terminal == b""
        assert relay.answer.is_truncated
        assert relay.answer.text.startswith("One.")
        assert relay.is_unfinished is not bool(options)
        assert b"One." in out


def test_a_last_event_without_its_blank_line_counts() -> None:
    data = stream(text("One."), text(" Two."))
    for cut in (1, 2, 3, 4):
        for options in ({}, HIDING):
            out, relay = run([data[:-cut]], **options)
            assert not relay.answer.is_truncated
            assert shapes(read(out)) == ["One. Two."]


def test_an_error_is_passed_on_unchanged() -> None:
    data = to_events([*chunks(text("x"), text("y"))[:1], {"error": {"code": 503, "message": "busy"}}])
    for options in ({}, {"withheld": HEADINGS, **HIDING}):
        out, relay = run([data], **options)
        assert b"busy" in out
        assert relay.answer.error == "busy"
        assert relay.answer.is_truncated


def test_a_prompt_that_is_blocked_is_an_answer() -> None:
    data = to_events([{"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}}])
    for options in ({}, HIDING):
        out, relay = run([data], **options)
        assert out == data
        assert relay.answer.finish_reasons == {0: "content_filter"}
        assert not relay.answer.is_truncated


def test_an_event_that_is_too_large_passes_only_where_nothing_changes() -> None:
    data = stream(text("x" * 5000), own_call("o"))
    out, relay = run([data], limit=1000, step=99)
    assert out == data
    assert relay.answer.is_capped
    out, relay = run([stream(own_call("o"), text("x" * 5000))], limit=1000, step=99, **HIDING)
    assert b"recall" not in out
    assert not relay.goes_on
    whole = stream(text("y" * 5000))
    out, relay = run([whole], limit=1000, step=99)
    assert out == whole
    assert not relay.answer.is_truncated


def test_unknown_events_are_passed_on() -> None:
    data = b"data: not json\r\n\r\n" + stream(text("x"), {"executableCode": {"code": "1"}}, {"unknown": 1})
    for withheld in ((), HEADINGS):
        out, relay = run([data], withheld=withheld)
        assert out == data
        assert relay.answer.unparsed == 1


PARTS = st.lists(
    st.one_of(
        st.sampled_from(
            [think(), text("Hm. "), text(NOTED), text(STATE), text("``` \n"), {"inlineData": {"data": "Q"}}]
        ),
        st.sampled_from([call("a"), call("-b"), own_call("o"), own_call("-p", thoughtSignature="x")]),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda part: str(part.get("functionCall") or id(part)),
)


@settings(max_examples=60)
@given(st.lists(PARTS, min_size=1, max_size=3), st.booleans(), st.booleans(), st.booleans(), st.integers(1, 200))
def test_any_rounds_give_an_answer_that_reads_and_is_recognised(
    rounds: list[list[Json]], withhold: bool, hold: bool, together: bool, step: int
) -> None:
    relay, out = None, b""
    for n, parts in enumerate(rounds, 1):
        relay = GeminiRelay(
            RelayOptions(withheld=HEADINGS if withhold else (), hold_text=hold, **HIDING), previous=relay
        )
        data = stream(*parts, number=n, together=together)
        for at in range(0, len(data), step):
            out += relay.feed(data[at : at + step])
        out += relay.end()
        if not relay.goes_on:
            break
    assert relay is not None
    if relay.goes_on:
        out += relay.end_answer()
    found = read(out + relay.terminal)
    assert relay.answer.is_done
    assert b"recall" not in out + relay.terminal
    assert found["reasons"] == ["STOP"]
    assert sum("functionCall" in part for part in found["parts"]) == relay.shown_calls
    assert answer_digest(relay) == digest(found["parts"])
    assert len(set(found["ids"])) == 1
    if withhold:
        assert "Goal: ship it" not in relay.answer.text or relay.answer.text.count("STATE")


@pytest.mark.parametrize("comment", [b": keep-alive\r\n\r\n", b": keep-alive\n\n", b"retry: 5\n\n"])
def test_a_comment_after_a_hidden_call_does_not_end_the_answer(comment: bytes) -> None:
    first, last = (b"data: " + json.dumps(one).encode() + b"\r\n\r\n" for one in chunks(own_call("a"), text("")))
    relay = GeminiRelay(RelayOptions(hidden_tools=HIDDEN))
    out = relay.feed(first + comment) + relay.feed(last + comment) + relay.end()
    assert relay.goes_on
    assert [one.id for one in relay.hidden_calls] == ["a"]
    assert out.count(comment.strip()) == 2


def test_a_comment_after_the_end_leaves_the_end_held() -> None:
    relay = GeminiRelay()
    out = relay.feed(stream(text("Hello.")) + b": bye\n\n") + relay.end()
    assert b"finishReason" not in out
    assert b"finishReason" in relay.terminal
