"""Rounds that end otherwise than they should, and what servers do that is seldom."""

from __future__ import annotations

import itertools
import json

import pytest

from proxy.stream.answer_relay import RelayOptions
from proxy.stream.completions_body import read_round
from proxy.stream.completions_relay import CompletionsRelay
from proxy.stream.tool_call_filter import HiddenCall
from tests.stream.completions_rounds import (
    DONE,
    FORMS,
    LAST,
    OURS,
    Made,
    Script,
    body,
    call,
    chunk,
    chunks,
    events,
    expected,
    make_calls,
    pick_visible_fields,
    pieces,
    read,
    run,
    secrets,
)


@pytest.mark.parametrize("finish", ["length", "content_filter", "error"])
@pytest.mark.parametrize("mix", ["o", "to", "ot"])
def test_calls_of_an_answer_that_was_cut_short_are_not_run(mix: str, finish: str) -> None:
    one = Script(("Hm.", *make_calls(mix)), finish)
    out, relays = run([events(one)])
    assert not relays[0].goes_on
    assert relays[0].hidden_calls == []
    assert not [secret for secret in secrets([one]) if secret in out]
    assert chunks(out)[-2]["choices"][0]["finish_reason"] == finish
    assert relays[0].answer.finish_reasons == {0: finish}
    assert out.endswith(DONE)
    whole = read_round(body(one), OURS)
    assert (whole.goes_on, whole.hidden_calls) == (False, [])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mix", ["o", "ot", "to"])
def test_a_stream_that_breaks_off_never_continues_and_shows_nothing_of_the_proxy(mix: str, form: str) -> None:
    one = Script(("Hm.", *make_calls(mix)), form=form)
    stream = b"".join(events(one))
    first_end = stream.index(b'"finish_reason": "tool_calls"')
    ended = stream.index(b"\n", first_end) + 1
    for at in range(0, ended, 1 if form in ("openai", "one chunk") else 31):
        relay = CompletionsRelay(RelayOptions(hidden_tools=OURS))
        out = relay.feed(stream[:at]) + relay.end()
        assert not relay.goes_on, at
        assert relay.hidden_calls == []
        assert relay.answer.is_truncated
        assert relay.terminal == b""
        assert out == b"" or out.endswith(b"\n\n")
        assert not [secret for secret in secrets([one]) if secret in out], at


def test_an_answer_without_its_last_line_is_passed_on_all_the_same() -> None:
    for parts in (
        events(Script(tuple(make_calls("o"))), done=False),
        [*events(Script(tuple(make_calls("o"))))[:-3], DONE],
    ):
        out, relays = run([parts, events(LAST)])
        assert relays[0].goes_on
        assert pick_visible_fields(read(out))["text"] == LAST.text


def test_an_error_event_ends_the_hidden_round() -> None:
    error = b'data: {"error":{"message":"overloaded"}}\n\n'
    one = Script(("Hm.", *make_calls("o")))
    for at in range(1, len(events(one))):
        out, relays = run([[*events(one)[:at], error, *events(one)[at:]]])
        assert not relays[0].goes_on
        assert error in out
        assert relays[0].hidden_calls == []
        assert relays[0].answer.error == "overloaded"
        assert not [secret for secret in secrets([one]) if secret in out]


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("form", ["openai", "one chunk"])
def test_an_answer_can_be_ended_where_a_round_would_continue(drop: bool, form: str) -> None:
    rounds = [Script(("a", *make_calls("o")), form=form), Script(("b", *make_calls("oo")), id="chatcmpl-2", form=form)]
    out, relays = run([events(one) for one in rounds], drop=drop)
    assert relays[-1].goes_on
    out += relays[-1].end_answer() + relays[-1].terminal
    assert [relay.goes_on for relay in relays] == [True, False]
    want = {**expected(rounds, usage=not drop), "finish": "stop"}
    assert pick_visible_fields(read(out)) == want
    assert out.endswith(DONE)
    assert relays[-1].answer.is_done
    assert relays[-1].answer.finish_reasons == {0: "stop"}
    assert relays[-1].answer.usage is not None
    out, relays = run([[chunk(LAST, {"content": "a"}), chunk(LAST, call("recall")), DONE]])
    assert pick_visible_fields(read(out + relays[0].end_answer()))["finish"] == "stop"


def test_text_beside_a_call_of_a_proxy_tool_is_kept_and_its_finish_reason_is_not() -> None:
    one = Script(())
    parts = [
        chunk(one, {"role": "assistant", "content": "a", **call("recall")}, x=1.50),
        chunk(one, {"content": "b"}, "tool_calls", usage={"prompt_tokens": 1, "completion_tokens": 2}),
        DONE,
    ]
    out, relays = run([parts])
    assert relays[0].goes_on
    assert chunks(out) == [
        json.loads(chunk(one, {"role": "assistant", "content": "a"}, x=1.50)[6:]),
        json.loads(chunk(one, {"content": "b"})[6:]),
    ]
    assert relays[0].round_usage is not None


def test_usage_that_comes_with_every_chunk_is_counted_on() -> None:
    def round_of(script: Script, counts: list[int]) -> list[bytes]:
        said = [{"role": "assistant", "content": "x"}, {"content": "y"}]
        usages = [{"prompt_tokens": script.prompt, "completion_tokens": n, "total_tokens": n} for n in counts]
        parts = [chunk(script, delta, usage=usage) for delta, usage in zip(said, usages, strict=False)]
        last = call("recall") if script.finish == "tool_calls" else {}
        return [*parts, chunk(script, last, script.finish, usage=usages[-1]), DONE]

    out, relays = run([round_of(Script(()), [1, 2, 3]), round_of(LAST, [1, 2, 4])])
    assert [one["usage"]["completion_tokens"] for one in chunks(out)] == [1, 2, 4, 5, 7]
    assert relays[1].answer.usage is not None
    assert relays[1].answer.usage.completion == 7
    assert chunks(out)[-1]["usage"]["prompt_tokens"] == LAST.prompt


def test_a_second_choice_is_never_continued() -> None:
    one = Script(())
    second = chunk(one, {}, choices=[{"index": 1, "delta": {"content": "b", **call("recall")}, "finish_reason": None}])
    for parts in (
        [chunk(one, call("recall")), second, chunk(one, {}, "tool_calls"), DONE],
        [chunk(one, call("recall")), chunk(one, {}, "tool_calls"), second, DONE],
    ):
        out, relays = run([parts])
        assert not relays[0].goes_on
        assert relays[0].hidden_calls == []
        assert b"recall" not in out
        assert [c["finish_reason"] for one in chunks(out) for c in one["choices"] if c["finish_reason"]] == ["stop"]
        assert '"b"' in out.decode()


def test_calls_under_one_id_get_one_each() -> None:
    one = Script(tuple(Made("recall", f'{{"n":{n}}}', "recall") for n in range(3)))
    _, relays = run([events(one)])
    ids = [call.id for call in relays[0].hidden_calls]
    assert len(set(ids)) == 3
    assert ids[0] == "recall"
    assert all(known.isalnum() and len(known) == 9 for known in ids[1:])
    message = json.loads(relays[0].build_round_message() or b"")
    assert [call["id"] for call in message["tool_calls"]] == ids
    whole = read_round(body(one), OURS)
    assert len({call.id for call in whole.hidden_calls}) == 3
    assert [call["id"] for call in json.loads(whole.message or b"")["tool_calls"]] == [c.id for c in whole.hidden_calls]


def test_the_names_of_calls_that_come_again_whole_or_longer_are_one_name() -> None:
    for names in (["recall", "recall", "recall"], ["rec", "recall"], ["re", "call", ""], ["recall", ""]):
        parts = [
            chunk(Script(()), {"tool_calls": [{"index": 0, "id": "i", "function": {"name": name, "arguments": text}}]})
            for name, text in itertools.zip_longest(names, ["", "", "{", "}"], fillvalue="")
        ]
        out, relays = run([[*parts, chunk(Script(()), {}, "tool_calls"), DONE]])
        assert out == b""
        assert relays[0].hidden_calls == [HiddenCall("i", "recall", "{}")], names


def test_arguments_that_are_an_object_are_given_as_text() -> None:
    part = {"index": 0, "id": "i", "function": {"name": "recall", "arguments": {"id": 1}}}
    _, relays = run([[chunk(Script(()), {"tool_calls": [part]}, "stop"), DONE]])
    assert relays[0].hidden_calls == [HiddenCall("i", "recall", '{"id":1}')]


def test_held_bytes_and_distinguished_calls_are_bounded() -> None:
    one = Script(())
    endless = [chunk(one, {"tool_calls": [{"index": 0, "function": {"name": ""}}]})] * 3000
    out, relays = run([[*endless, chunk(one, {}, "tool_calls"), DONE]], limit=100_000)
    assert not relays[0].goes_on
    assert chunks(out)[-1]["choices"][0]["finish_reason"] == "stop"
    many = [chunk(one, call("recall", n)) for n in range(5000)]
    out, relays = run([[*many, chunk(one, {}, "tool_calls"), DONE]])
    assert not relays[0].goes_on
    assert b"recall" not in out
    huge = chunk(one, call("recall", arguments="x" * 70_000))
    for step in (1000, 10_000_000):
        out, relays = run([[*pieces(huge, step), chunk(one, {}, "tool_calls"), DONE]], limit=50_000)
        assert not relays[0].goes_on
        assert b"recall" not in out
        assert out.endswith(DONE)


def test_bytes_after_the_end_are_dropped_where_calls_are_hidden() -> None:
    one = Script(("a",), "stop")
    for parts in ([*events(one), chunk(one, call("recall"))], [b"".join([*events(one), chunk(one, call("recall"))])]):
        assert run([parts])[0] == b"".join(events(one))


def test_half_a_chunk_that_was_about_a_call_is_not_given_out() -> None:
    one = Script(())
    broken = chunk(one, call("recall"))[:-30] + b"\n\n"
    out, relays = run([[chunk(one, {"content": "a"}), chunk(one, call("recall")), broken, b"data: {x}\n\n", DONE]])
    assert chunks(out.replace(b"data: {x}\n\n", b""))[0]["choices"][0]["delta"] == {"content": "a"}
    assert b"recall" not in out
    assert b"data: {x}\n\n" in out
    assert not relays[0].goes_on
    assert relays[0].hidden_calls == []


def test_tokens_of_a_call_of_a_proxy_tool_are_not_in_logprobs() -> None:
    one = Script(())
    value = json.loads(chunk(one, {"content": "a", **call("recall")})[6:])
    value["choices"][0]["logprobs"] = {"content": [{"token": "recall"}]}
    out, _ = run([[b"data: " + json.dumps(value).encode() + b"\n\n", DONE]])
    assert b"recall" not in out
    assert chunks(out)[0]["choices"][0]["delta"] == {"content": "a"}


def test_the_first_4096_calls_are_distinguished_and_further_ones_dropped() -> None:
    """Each of them costs memory while the answer lasts, and an upstream may send them without an end."""
    many = [Made("bash", "{}", f"call_{at}") for at in range(4098)]
    out, relays = run([events(Script(("Hm.", *many), form="whole"))])
    deltas = [choice["delta"] for c in chunks(out) for choice in c["choices"]]
    assert [one["id"] for delta in deltas for one in delta.get("tool_calls", ())] == [one.id for one in many[:4096]]
    assert relays[0].shown_calls == 4096


def test_a_call_of_a_proxy_tool_after_thousands_of_others_is_neither_run_nor_shown() -> None:
    many = [Made("recall", "{}", f"call_{at}") for at in range(4097)]
    out, relays = run([events(Script(("Hm.", *many), form="whole"))])
    assert (relays[0].goes_on, relays[0].hidden_calls) == (False, [])
    assert b"recall" not in out
