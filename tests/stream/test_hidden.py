from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.stream.hidden import HiddenCall
from proxy.stream.relay import Relay
from proxy.stream.whole import join_rounds, read_round
from tests.stream.rounds import (
    DONE,
    FORMS,
    LEGIBLE,
    OURS,
    Made,
    Script,
    body,
    chunk,
    chunks,
    events,
    expected,
    indexes,
    pieces,
    read,
    run,
    secrets,
    seen,
)

MINE = ("recall", "query_db", "describe_db", "save_memo")
THEIRS = ("read", "bash", "re", "query_db2")
LAST = Script(("And so it is.",), "stop", id="chatcmpl-last", prompt=900, completion=11)


def made(names: str, form: str = "openai") -> list[Made]:
    """Calls for letters: `o` one of ours, `t` one of the client's."""
    found = []
    for at, letter in enumerate(names):
        name = (MINE if letter == "o" else THEIRS)[at % 4]
        who = "mine" if letter == "o" else "theirs"
        found.append(Made(name, json.dumps({who: f'{at} ü"\n{{}}'}), f"call_{who}_{at}", extra=at % 2 == 1))
    return found


MIXES = ["".join(one) for size in range(1, 5) for one in itertools.product("ot", repeat=size)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mix", MIXES)
def test_the_client_gets_its_own_calls_and_nothing_else(mix: str, form: str) -> None:
    first = Script(("Let me ", "see.\n", ("reasoning_content", "I think so"), *made(mix)), form=form)
    scripts = [first] if "t" in mix else [first, LAST]
    out, relays = run([events(one) for one in scripts])
    assert not [one for one in secrets(scripts) if one in out]
    assert relays[0].goes_on is ("t" not in mix)
    assert relays[0].shown_calls == mix.count("t")
    names = [one for one in first.calls if one.name in OURS]
    assert [(one.name, one.arguments) for one in relays[0].hidden_calls] == [(one.name, one.arguments) for one in names]
    assert out.count(DONE) == 1
    assert len([one for one in chunks(out) for c in one["choices"] if c["finish_reason"]]) == 1
    if form in LEGIBLE or (mix.count("t") <= 1 and form not in ("no index", "names again")):
        assert indexes(out) == list(range(mix.count("t")))
        assert seen(read(out)) == expected(scripts)
    if form in LEGIBLE:
        upstream = seen(read(b"".join(events(first))))
        left = [one for one in upstream["calls"] if one[1] not in OURS]
        assert left == expected(scripts)["calls"]
    back = json.loads(relays[0].message() or b"null")
    assert back["content"] == "Let me see.\n"
    assert back["reasoning_content"] == "I think so"
    known = [
        (one["function"]["name"], one["function"]["arguments"], one.get("extra_content")) for one in back["tool_calls"]
    ]
    if form != "names again" or "t" not in mix:
        whole = [one.whole() for one in first.calls]
        assert known == [
            (one["function"]["name"], one["function"]["arguments"], one.get("extra_content")) for one in whole
        ]
    ids = [one.get("id") for one in back["tool_calls"] if one["function"]["name"] in OURS]
    assert ids == [one.id for one in relays[0].hidden_calls]
    assert all(ids)
    if form != "no ids":
        assert ids == [one.id for one in names]


@pytest.mark.parametrize("mix", ["o", "ot", "to", "oto", "toot"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_how_the_bytes_are_cut_changes_nothing(mix: str, form: str, end: bytes) -> None:
    first = Script(("Hé.\n\n### STATE\nG\n\n## On", *made(mix)), form=form)
    stream = b"".join(events(first)).replace(b"\n", end)
    last = b"".join(events(LAST)).replace(b"\n", end)
    whole, relays = run([[stream], [last]], withhold=True, drop=form == "openai")
    single, _ = run([pieces(stream, 1), pieces(last, 1)], withhold=True, drop=form == "openai")
    assert single == whole
    assert relays[0].blocks == ["G"]
    step = 1 if (mix, form) in (("oto", "pieces"), ("ot", "openai"), ("to", "one chunk")) else 97
    for at in range(1, len(stream), step):
        out, others = run([[stream[:at], stream[at:]], [last]], withhold=True, drop=form == "openai")
        assert out == whole, at
        assert others[0].message() == relays[0].message()
        assert others[-1].answer.message() == relays[-1].answer.message()


@st.composite
def answers(draw: st.DrawFn) -> list[Script]:
    """Some rounds with calls of ours alone, and one that ends the answer."""
    texts = st.text(alphabet='ab ü😀\n#`{}"\\', max_size=12)
    form = draw(st.sampled_from(sorted(LEGIBLE)))
    found = []
    for n in range(draw(st.integers(1, 4))):
        said: list[Any] = []
        mix = draw(st.text(alphabet="o", min_size=1, max_size=4))
        for one in made(mix):
            said += [draw(texts), ("reasoning_content", draw(texts)), one]
        finish = draw(st.sampled_from(["tool_calls", "stop"]))
        found.append(Script(tuple(said), finish, form, 100 * n, n + 1, f"chatcmpl-{n}", draw(st.integers(1, 9))))
    said = [draw(texts), *made(draw(st.sampled_from(["", *[one for one in MIXES if "t" in one]])))]
    finish = "stop" if len(said) == 1 else "tool_calls"
    return [*found, Script(tuple(said), finish, form, 999, 5, "chatcmpl-x", draw(st.integers(1, 9)))]


@settings(max_examples=150, deadline=None)
@given(answers(), st.integers(1, 500), st.booleans())
def test_many_rounds_are_one_answer_streamed_or_not(scripts: list[Script], step: int, drop: bool) -> None:
    out, relays = run([pieces(b"".join(events(one)), step) for one in scripts], drop=drop)
    assert len(relays) == len(scripts)
    assert not [one for one in secrets(scripts) if one in out]
    found = seen(read(out))
    assert found == expected(scripts, usage=not drop)
    assert len({(one["id"], one["created"], one["model"]) for one in chunks(out)}) == 1
    assert len([one for one in chunks(out) for c in one["choices"] if c["delta"].get("role")]) == 1
    usage = relays[-1].answer.usage
    assert usage is not None
    assert (usage.prompt, usage.completion) == (999, sum(one.completion for one in scripts))
    assert [one.usage and one.usage.completion for one in relays] == [one.completion for one in scripts]
    bodies = [body(one) for one in scripts]
    joined = seen(json.loads(join_rounds(bodies, OURS)))
    assert joined == expected(scripts)
    for one, relay in zip(bodies, relays, strict=True):
        whole = read_round(one, OURS)
        assert whole.goes_on is relay.goes_on
        assert whole.shown_calls == relay.shown_calls
        assert [(c.name, c.arguments) for c in whole.hidden_calls] == [
            (c.name, c.arguments) for c in relay.hidden_calls
        ]
        assert _without_ids(whole.message) == _without_ids(relay.message())


def _without_ids(message: bytes | None) -> Any:
    value = json.loads(message or b"null")
    for one in value.get("tool_calls", []):
        one.pop("id", None)
    value["reasoning_content"] = value.get("reasoning_content") or ""
    return value


def test_of_calls_the_client_made_before_ours_every_byte_stays() -> None:
    first = Script(("Look.", *made("tto")))
    parts = events(first)
    out, _ = run([parts])
    at = next(n for n, one in enumerate(parts) if b"call_mine" in one)
    assert out.startswith(b"".join(parts[:at]))
    assert out.endswith(b"".join(parts[-3:]))
    calls = Script(("Look.", *made("tttt")))
    assert run([events(calls)])[0] == b"".join(events(calls))


def test_text_goes_on_at_once_and_a_call_as_soon_as_its_name_is_known() -> None:
    relay = Relay(withhold_state=False, drop_usage=False, hidden=OURS)
    one = Script(())

    def fed(delta: dict[str, Any]) -> bool:
        return relay.feed(chunk(one, delta)) == chunk(one, delta)

    def part(index: int, **function: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": index, "function": function}]}

    assert fed({"content": "a"})
    assert fed(part(0, name="re", arguments="")) is False
    assert fed({"content": "b"})
    assert fed({"reasoning": "c"})
    waited = chunk(one, part(0, name="re", arguments="")) + chunk(one, part(0, arguments="{"))
    assert relay.feed(chunk(one, part(0, arguments="{"))) == waited
    assert fed(part(0, arguments="}"))
    assert fed(part(1, name="web_search", arguments=""))
    assert relay.feed(chunk(one, part(2, name="recall", arguments=""))) == b""
    assert relay.feed(chunk(one, part(2, name="_all"))) != b""  # it was another tool with a longer name
    assert relay.shown_calls == 3


def test_a_name_in_pieces_that_may_be_ours_holds_back_what_follows() -> None:
    one = Script(())

    def part(index: int, **function: str) -> bytes:
        known = {"id": f"i{index}"} if function["arguments"] == "" and function["name"] != "all" else {}
        return chunk(one, {"tool_calls": [{"index": index, **known, "function": function}]})

    parts = [
        part(0, name="rec", arguments=""),
        part(1, name="bash", arguments=""),
        part(1, name="", arguments="1"),
        part(2, name="re", arguments=""),
        part(0, name="all", arguments=""),
        part(2, name="ad", arguments="2"),
        chunk(one, {}, "tool_calls"),
        DONE,
    ]
    out, relays = run([parts])
    calls = seen(read(out))["calls"]
    assert calls == [("i1", "bash", "1", None), ("i2", "read", "2", None)]
    assert relays[0].hidden_calls == [HiddenCall("i0", "recall", "")]


@pytest.mark.parametrize("finish", ["length", "content_filter", "error"])
@pytest.mark.parametrize("mix", ["o", "to", "ot"])
def test_calls_of_an_answer_that_was_cut_short_are_not_run(mix: str, finish: str) -> None:
    one = Script(("Hm.", *made(mix)), finish)
    out, relays = run([events(one)])
    assert not relays[0].goes_on
    assert relays[0].hidden_calls == []
    assert not [secret for secret in secrets([one]) if secret in out]
    assert chunks(out)[-2]["choices"][0]["finish_reason"] == finish
    assert relays[0].answer.finish == {0: finish}
    assert out.endswith(DONE)
    whole = read_round(body(one), OURS)
    assert (whole.goes_on, whole.hidden_calls) == (False, [])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mix", ["o", "ot", "to"])
def test_a_stream_that_breaks_off_never_goes_on_and_shows_nothing_of_ours(mix: str, form: str) -> None:
    one = Script(("Hm.", *made(mix)), form=form)
    stream = b"".join(events(one))
    first_end = stream.index(b'"finish_reason": "tool_calls"')
    ended = stream.index(b"\n", first_end) + 1
    for at in range(0, ended, 1 if form in ("openai", "one chunk") else 31):
        relay = Relay(withhold_state=False, drop_usage=False, hidden=OURS)
        out = relay.feed(stream[:at]) + relay.end()
        assert not relay.goes_on, at
        assert relay.hidden_calls == []
        assert relay.answer.truncated
        assert relay.terminal == b""
        assert out == b"" or out.endswith(b"\n\n")
        assert not [secret for secret in secrets([one]) if secret in out], at


def test_an_answer_without_its_last_line_goes_on_all_the_same() -> None:
    for parts in (events(Script(tuple(made("o"))), done=False), [*events(Script(tuple(made("o"))))[:-3], DONE]):
        out, relays = run([parts, events(LAST)])
        assert relays[0].goes_on
        assert seen(read(out))["text"] == LAST.text


def test_an_error_in_the_stream_ends_it() -> None:
    error = b'data: {"error":{"message":"overloaded"}}\n\n'
    one = Script(("Hm.", *made("o")))
    for at in range(1, len(events(one))):
        out, relays = run([[*events(one)[:at], error, *events(one)[at:]]])
        assert not relays[0].goes_on
        assert error in out
        assert relays[0].hidden_calls == []
        assert relays[0].answer.error == "overloaded"
        assert not [secret for secret in secrets([one]) if secret in out]


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("form", ["openai", "one chunk"])
def test_an_answer_can_be_ended_where_a_round_would_go_on(drop: bool, form: str) -> None:
    rounds = [Script(("a", *made("o")), form=form), Script(("b", *made("oo")), id="chatcmpl-2", form=form)]
    out, relays = run([events(one) for one in rounds], drop=drop)
    assert relays[-1].goes_on
    out += relays[-1].stop() + relays[-1].terminal
    assert [relay.goes_on for relay in relays] == [True, False]
    want = {**expected(rounds, usage=not drop), "finish": "stop"}
    assert seen(read(out)) == want
    assert out.endswith(DONE)
    assert relays[-1].answer.done
    assert relays[-1].answer.finish == {0: "stop"}
    assert relays[-1].answer.usage is not None
    out, relays = run([[chunk(LAST, {"content": "a"}), chunk(LAST, _call("recall")), DONE]])
    assert seen(read(out + relays[0].stop()))["finish"] == "stop"


def test_text_beside_a_call_of_ours_is_kept_and_its_finish_reason_is_not() -> None:
    one = Script(())
    parts = [
        chunk(one, {"role": "assistant", "content": "a", **_call("recall")}, x=1.50),
        chunk(one, {"content": "b"}, "tool_calls", usage={"prompt_tokens": 1, "completion_tokens": 2}),
        DONE,
    ]
    out, relays = run([parts])
    assert relays[0].goes_on
    assert chunks(out) == [
        json.loads(chunk(one, {"role": "assistant", "content": "a"}, x=1.50)[6:]),
        json.loads(chunk(one, {"content": "b"})[6:]),
    ]
    assert relays[0].usage is not None


def _call(name: str, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "id": f"i{index}", "function": {"name": name, "arguments": "{}"}, **more}]}


def test_usage_that_comes_with_every_chunk_is_counted_on() -> None:
    def round_of(script: Script, counts: list[int]) -> list[bytes]:
        said = [{"role": "assistant", "content": "x"}, {"content": "y"}]
        usages = [{"prompt_tokens": script.prompt, "completion_tokens": n, "total_tokens": n} for n in counts]
        parts = [chunk(script, delta, usage=usage) for delta, usage in zip(said, usages, strict=False)]
        last = _call("recall") if script.finish == "tool_calls" else {}
        return [*parts, chunk(script, last, script.finish, usage=usages[-1]), DONE]

    out, relays = run([round_of(Script(()), [1, 2, 3]), round_of(LAST, [1, 2, 4])])
    assert [one["usage"]["completion_tokens"] for one in chunks(out)] == [1, 2, 4, 5, 7]
    assert relays[1].answer.usage is not None
    assert relays[1].answer.usage.completion == 7
    assert chunks(out)[-1]["usage"]["prompt_tokens"] == LAST.prompt


def test_a_second_choice_is_never_gone_on_with() -> None:
    one = Script(())
    second = chunk(one, {}, choices=[{"index": 1, "delta": {"content": "b", **_call("recall")}, "finish_reason": None}])
    for parts in (
        [chunk(one, _call("recall")), second, chunk(one, {}, "tool_calls"), DONE],
        [chunk(one, _call("recall")), chunk(one, {}, "tool_calls"), second, DONE],
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
    message = json.loads(relays[0].message() or b"")
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


def test_what_is_held_and_told_apart_is_bounded() -> None:
    one = Script(())
    endless = [chunk(one, {"tool_calls": [{"index": 0, "function": {"name": ""}}]})] * 3000
    out, relays = run([[*endless, chunk(one, {}, "tool_calls"), DONE]], limit=100_000)
    assert not relays[0].goes_on
    assert chunks(out)[-1]["choices"][0]["finish_reason"] == "stop"
    many = [chunk(one, _call("recall", n)) for n in range(5000)]
    out, relays = run([[*many, chunk(one, {}, "tool_calls"), DONE]])
    assert not relays[0].goes_on
    assert b"recall" not in out
    huge = chunk(one, _call("recall", arguments="x" * 70_000))
    for step in (1000, 10_000_000):
        out, relays = run([[*pieces(huge, step), chunk(one, {}, "tool_calls"), DONE]], limit=50_000)
        assert not relays[0].goes_on
        assert b"recall" not in out
        assert out.endswith(DONE)


def test_half_a_chunk_that_was_about_a_call_is_not_given_out() -> None:
    one = Script(())
    broken = chunk(one, _call("recall"))[:-30] + b"\n\n"
    out, relays = run([[chunk(one, {"content": "a"}), chunk(one, _call("recall")), broken, b"data: {x}\n\n", DONE]])
    assert chunks(out.replace(b"data: {x}\n\n", b""))[0]["choices"][0]["delta"] == {"content": "a"}
    assert b"recall" not in out
    assert b"data: {x}\n\n" in out
    assert not relays[0].goes_on
    assert relays[0].hidden_calls == []


def test_tokens_of_a_call_of_ours_do_not_stand_in_logprobs() -> None:
    one = Script(())
    value = json.loads(chunk(one, {"content": "a", **_call("recall")})[6:])
    value["choices"][0]["logprobs"] = {"content": [{"token": "recall"}]}
    out, _ = run([[b"data: " + json.dumps(value).encode() + b"\n\n", DONE]])
    assert b"recall" not in out
    assert chunks(out)[0]["choices"][0]["delta"] == {"content": "a"}
