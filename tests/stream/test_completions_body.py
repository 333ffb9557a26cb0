"""Of `proxy.stream.completions_body` what test_hidden.py does not show, which compares it with streams."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.stream.completions_body import join_rounds, may_call, read_round

HIDDEN = frozenset({"recall"})
OURS = (
    b'{"id":"a","type":"function","function":{"name":"recall","arguments":"{\\"n\\": 1.50}"},"extra_content":{"s":1}}'
)
THEIRS = b'{"id":"b","type":"function","function":{"name":"read", "arguments":"{}"},"x":1.50}'


def body(calls: bytes, content: bytes = b"null", finish: bytes = b'"tool_calls"', more: bytes = b"") -> bytes:
    return (
        b'{"id":"1","created":5,"model":"m","choices":[{"index":0, "message":{"role":"assistant","content":%s%s'
        b',"y":1.50},"finish_reason":%s}],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3},"z":2.50}'
    ) % (content, b',"tool_calls":[' + calls + b"]" + more if calls else more, finish)


def test_an_answer_without_calls_of_proxy_tools_keeps_every_byte() -> None:
    for one in (
        body(b""),
        body(THEIRS),
        body(THEIRS + b"," + THEIRS),
        b"",
        b"[]",
        b"{}",
        b'{"choices":[1,{}]}',
        b"\xff",
    ):
        assert join_rounds([one], HIDDEN) == one
        assert not read_round(one, HIDDEN).goes_on


@pytest.mark.parametrize("calls", [OURS + b"," + THEIRS, THEIRS + b" , " + OURS, OURS + b"," + THEIRS + b"," + OURS])
def test_the_clients_calls_of_a_mixed_answer_keep_their_bytes(calls: bytes) -> None:
    found = read_round(body(calls), HIDDEN)
    assert join_rounds([body(calls)], HIDDEN) == body(THEIRS)
    assert (found.goes_on, found.shown_calls, len(found.hidden_calls)) == (False, 1, calls.count(OURS))
    if calls.count(OURS) == 1:
        assert found.message == body(calls).split(b'"message":')[1].split(b',"finish_reason"')[0]
    assert found.hidden_calls[0].arguments == '{"n": 1.50}'


def test_a_call_of_a_proxy_tool_is_never_overlooked_however_its_name_is_written() -> None:
    for name in (b"recall", b"r\\u0065call", b"\\u0072\\u0065\\u0063\\u0061\\u006c\\u006c"):
        called = body(OURS.replace(b"recall", name))
        assert read_round(called, HIDDEN).goes_on
        assert may_call(called, HIDDEN)
    assert not may_call(body(THEIRS), HIDDEN)


def test_indexes_that_a_server_gives_are_renumbered() -> None:
    calls = b",".join(b'{"index":%d,' % n + one[1:] for n, one in enumerate((OURS, THEIRS, OURS, THEIRS)))
    message = json.loads(join_rounds([body(calls)], HIDDEN))["choices"][0]["message"]
    assert [one["index"] for one in message["tool_calls"]] == [0, 1]


@pytest.mark.parametrize("finish", [b'"tool_calls"', b'"stop"', b"null"])
def test_a_round_with_only_calls_of_proxy_tools_continues(finish: bytes) -> None:
    found = read_round(body(OURS, finish=finish), HIDDEN)
    assert found.goes_on
    assert found.usage is not None
    assert found.usage.completion == 2
    alone = json.loads(join_rounds([body(OURS, finish=finish)], HIDDEN))["choices"][0]
    assert alone["finish_reason"] == ("stop" if finish != b"null" else None)
    assert "tool_calls" not in alone["message"]


@pytest.mark.parametrize("finish", [b'"length"', b'"content_filter"', b'"error"'])
def test_calls_of_an_answer_that_was_cut_short_are_not_run(finish: bytes) -> None:
    found = read_round(body(OURS, finish=finish), HIDDEN)
    assert (found.goes_on, found.hidden_calls) == (False, [])
    assert json.loads(join_rounds([body(OURS, finish=finish)], HIDDEN))["choices"][0]["finish_reason"] == json.loads(
        finish
    )


def test_an_answer_with_several_choices_neither_continues_nor_shows_calls_of_proxy_tools() -> None:
    value = json.loads(body(OURS))
    value["choices"].append({**value["choices"][0], "index": 1})
    raw = json.dumps(value).encode()
    assert not read_round(raw, HIDDEN).goes_on
    assert read_round(raw, HIDDEN).hidden_calls == []
    assert b"recall" not in join_rounds([raw], HIDDEN)


def test_text_of_earlier_rounds_comes_first_and_no_other_byte_changes() -> None:
    more = b',"reasoning_content":"r%d","annotations":[{"n":%d}]'
    first, second = (
        body(OURS, b'"a"', more=more % (1, 1)),
        body(OURS, b"null", more=more % (2, 2)).replace(b'"1"', b'"2"'),
    )
    last = body(THEIRS, b'"\\u00e9"', more=b',"reasoning_content":"r3"').replace(b'"1"', b'"3"').replace(b"5", b"6")
    joined = join_rounds([first, second, last], HIDDEN)
    message = json.loads(joined)["choices"][0]["message"]
    assert message["content"] == "aé"
    assert message["reasoning_content"] == "r1r2r3"
    assert message["annotations"] == [{"n": 1}, {"n": 2}]
    assert THEIRS.replace(b"5", b"6") in joined
    assert joined.startswith(b'{"id":"1","created":5,"model":"m","choices":[{"index":0, "message":{"role":"assistant"')
    assert joined.endswith(b'"usage":{"prompt_tokens":1,"completion_tokens":6,"total_tokens":7},"z":2.60}')


@pytest.mark.parametrize(
    ("contents", "joined"),
    [
        (("a", "b"), "ab"),
        ((None, "b"), "b"),
        (("a", None), "a"),
        ((None, None), None),
        (("", ""), ""),
        (("a", [{"type": "text", "text": "b"}]), [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        (([{"type": "text", "text": "a"}], ""), [{"type": "text", "text": "a"}]),
    ],
)
def test_contents_of_two_hidden_rounds_are_joined(contents: tuple[Any, Any], joined: Any) -> None:
    first, second = (json.dumps(one).encode() for one in contents)
    found = json.loads(join_rounds([body(OURS, first), body(b"", second)], HIDDEN))
    assert found["choices"][0]["message"]["content"] == joined


def test_a_body_that_cannot_be_cut_is_rewritten() -> None:
    odd = body(OURS.replace(b'"s":1', b'"s":"\\ud83d"') + b"," + THEIRS, b'"a"', more=b',"q":1,"q":2')
    found = json.loads(join_rounds([odd], HIDDEN))["choices"][0]["message"]
    assert [one["function"]["name"] for one in found["tool_calls"]] == ["read"]
    joined = json.loads(join_rounds([odd, odd], HIDDEN))
    assert joined["choices"][0]["message"]["content"] == "aa"
    assert joined["usage"]["completion_tokens"] == 4
    nameless = odd.replace(b'"id":"a",', b"")
    assert read_round(nameless, HIDDEN).hidden_calls[0].id in (read_round(nameless, HIDDEN).message or b"").decode()


def test_calls_without_an_id_get_one_that_stays_the_same() -> None:
    raw = body(OURS.replace(b'"id":"a",', b"") + b"," + OURS.replace(b'"id":"a"', b'"id":"b"') + b"," + THEIRS)
    found = read_round(raw, HIDDEN)
    ids = [one["id"] for one in json.loads(found.message or b"")["tool_calls"]]
    assert ids[:2] == [one.id for one in found.hidden_calls]
    assert len(set(ids)) == 3
    assert ids[2] == "b"
    assert read_round(raw, HIDDEN) == found
