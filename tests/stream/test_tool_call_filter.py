from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.stream.answer_relay import RelayOptions
from proxy.stream.completions_body import join_rounds, read_round
from proxy.stream.completions_relay import CompletionsRelay
from proxy.stream.tool_call_filter import HiddenCall
from tests.stream.completions_rounds import (
    DONE,
    FORMS,
    LAST,
    LEGIBLE,
    OURS,
    Script,
    body,
    call,
    chunk,
    chunks,
    events,
    expected,
    indexes,
    make_calls,
    pick_visible_fields,
    pieces,
    read,
    run,
    secrets,
)

MIXES = ["".join(one) for size in range(1, 5) for one in itertools.product("ot", repeat=size)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mix", MIXES)
def test_the_client_gets_its_own_calls_and_nothing_else(mix: str, form: str) -> None:
    first = Script(("Let me ", "see.\n", ("reasoning_content", "I think so"), *make_calls(mix)), form=form)
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
        assert pick_visible_fields(read(out)) == expected(scripts)
    if form in LEGIBLE:
        upstream = pick_visible_fields(read(b"".join(events(first))))
        left = [one for one in upstream["calls"] if one[1] not in OURS]
        assert left == expected(scripts)["calls"]
    back = json.loads(relays[0].build_round_message() or b"null")
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


@pytest.mark.slow
@pytest.mark.parametrize("mix", ["o", "ot", "to", "oto", "toot"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_the_result_is_the_same_however_the_bytes_are_cut(mix: str, form: str, end: bytes) -> None:
    first = Script(("Hé.\n\n## On\n\n### State\nGoal: x\nContext: y", *make_calls(mix)), form=form)
    stream = b"".join(events(first)).replace(b"\n", end)
    last = b"".join(events(LAST)).replace(b"\n", end)
    whole, relays = run([[stream], [last]], withhold=True, drop=form == "openai")
    single, _ = run([pieces(stream, 1), pieces(last, 1)], withhold=True, drop=form == "openai")
    assert single == whole
    assert relays[0].blocks == ["Goal: x\nContext: y"]
    cuts = {*range(1, len(stream), 97)}
    if (mix, form) in (("oto", "pieces"), ("ot", "openai"), ("to", "one chunk")):
        # Lines that end otherwise differ at their ends alone: all other bytes are those of the stream with LF.
        near = [at + k for at, byte in enumerate(stream) if byte in end for k in (-1, 0, 1, 2)]
        cuts.update(range(1, len(stream)) if end == b"\n" else near)
    for at in sorted(cuts & {*range(1, len(stream))}):
        out, others = run([[stream[:at], stream[at:]], [last]], withhold=True, drop=form == "openai")
        assert out == whole, at
        assert others[0].build_round_message() == relays[0].build_round_message()
        assert others[-1].answer.build_message() == relays[-1].answer.build_message()


@st.composite
def answers(draw: st.DrawFn) -> list[Script]:
    """Some rounds with calls of ours alone, and one that ends the answer."""
    texts = st.text(alphabet='ab ü😀\n#`{}"\\', max_size=12)
    form = draw(st.sampled_from(sorted(LEGIBLE)))
    found = []
    for n in range(draw(st.integers(1, 4))):
        said: list[Any] = []
        mix = draw(st.text(alphabet="o", min_size=1, max_size=4))
        for one in make_calls(mix):
            said += [draw(texts), ("reasoning_content", draw(texts)), one]
        finish = draw(st.sampled_from(["tool_calls", "stop"]))
        found.append(Script(tuple(said), finish, form, 100 * n, n + 1, f"chatcmpl-{n}", draw(st.integers(1, 9))))
    said = [draw(texts), *make_calls(draw(st.sampled_from(["", *[one for one in MIXES if "t" in one]])))]
    finish = "stop" if len(said) == 1 else "tool_calls"
    return [*found, Script(tuple(said), finish, form, 999, 5, "chatcmpl-x", draw(st.integers(1, 9)))]


@pytest.mark.slow
@settings(max_examples=150)
@given(answers(), st.integers(1, 500), st.booleans())
def test_many_rounds_are_one_answer_streamed_or_not(scripts: list[Script], step: int, drop: bool) -> None:
    out, relays = run([pieces(b"".join(events(one)), step) for one in scripts], drop=drop)
    assert len(relays) == len(scripts)
    assert not [one for one in secrets(scripts) if one in out]
    found = pick_visible_fields(read(out))
    assert found == expected(scripts, usage=not drop)
    assert len({(one["id"], one["created"], one["model"]) for one in chunks(out)}) == 1
    assert len([one for one in chunks(out) for c in one["choices"] if c["delta"].get("role")]) == 1
    usage = relays[-1].answer.usage
    assert usage is not None
    assert (usage.prompt, usage.completion) == (999, sum(one.completion for one in scripts))
    assert [one.round_usage and one.round_usage.completion for one in relays] == [one.completion for one in scripts]
    bodies = [body(one) for one in scripts]
    joined = pick_visible_fields(json.loads(join_rounds(bodies, OURS)))
    assert joined == expected(scripts)
    for one, relay in zip(bodies, relays, strict=True):
        whole = read_round(one, OURS)
        assert whole.goes_on is relay.goes_on
        assert whole.shown_calls == relay.shown_calls
        assert [(c.name, c.arguments) for c in whole.hidden_calls] == [
            (c.name, c.arguments) for c in relay.hidden_calls
        ]
        assert _without_ids(whole.message) == _without_ids(relay.build_round_message())


def _without_ids(message: bytes | None) -> Any:
    value = json.loads(message or b"null")
    for one in value.get("tool_calls", []):
        one.pop("id", None)
    value["reasoning_content"] = value.get("reasoning_content") or ""
    return value


def test_calls_of_the_client_before_a_hidden_call_keep_every_byte() -> None:
    first = Script(("Look.", *make_calls("tto")))
    parts = events(first)
    out, _ = run([parts])
    at = next(n for n, one in enumerate(parts) if b"call_mine" in one)
    assert out.startswith(b"".join(parts[:at]))
    assert out.endswith(b"".join(parts[-3:]))
    calls = Script(("Look.", *make_calls("tttt")))
    assert run([events(calls)])[0] == b"".join(events(calls))


def test_text_is_passed_on_at_once_and_a_call_as_soon_as_its_name_is_known() -> None:
    relay = CompletionsRelay(RelayOptions(hidden_tools=OURS))
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
    calls = pick_visible_fields(read(out))["calls"]
    assert calls == [("i1", "bash", "1", None), ("i2", "read", "2", None)]
    assert relays[0].hidden_calls == [HiddenCall("i0", "recall", "")]


def test_a_call_of_a_proxy_tool_without_arguments_holds_back_nothing_that_follows() -> None:
    relay = CompletionsRelay(RelayOptions(hidden_tools=OURS))
    one = Script(())
    nothing = {"index": 0, "id": "i", "function": {"name": "describe_db", "arguments": ""}}
    assert relay.feed(chunk(one, {"tool_calls": [nothing]})) == b""
    follows = call("bash", 1)
    out = relay.feed(chunk(one, follows))
    assert chunks(out)[0]["choices"][0]["delta"] == {"tool_calls": [{**follows["tool_calls"][0], "index": 0}]}
    relay.feed(chunk(one, {}, "tool_calls") + DONE)
    assert relay.hidden_calls == [HiddenCall("i", "describe_db", "")]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_blocks_are_withheld_in_every_round_and_upstream_gets_back_what_was_shown(size: int) -> None:
    rounds = [
        Script((f"See {n}\n\n### STATE\nGoal: x\nContext: {n}", *make_calls("oo")), size=size, id=f"c{n}")
        for n in range(3)
    ]
    last = Script(("Done.\n\n", ("reasoning_content", "x"), "### STATE\nGoal: x\nContext: 3"), "stop", size=size)
    out, relays = run([events(one) for one in [*rounds, last]], withhold=True, drop=True)
    assert pick_visible_fields(read(out))["text"] == relays[-1].answer.text == "See 0See 1See 2Done."
    assert [json.loads(one.build_round_message() or b"")["content"] for one in relays] == [
        "See 0",
        "See 1",
        "See 2",
        "Done.",
    ]
    assert relays[-1].blocks == [f"Goal: x\nContext: {n}" for n in range(4)]
    assert relays[0].blocks == ["Goal: x\nContext: 0"]
    late = Script(("So:\n\n", *make_calls("o")), size=size)
    _, relays = run([events(late), events(last)], withhold=True)
    assert json.loads(relays[0].build_round_message() or b"")["content"] == "So:\n\n"
