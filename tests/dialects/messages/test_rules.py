"""Each rule sees its breach and nothing else, and a binding changes exactly with what the provider compares."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given

from proxy.dialects.base import find_broken
from proxy.dialects.messages.blocks import make_assistant_message
from proxy.dialects.messages.request import read_messages_request
from proxy.dialects.messages.rules import (
    fill_empty_answers,
    find_added_violations,
    find_violations,
    strip_bound,
    trace_answer,
    trace_prompt,
)
from tests.dialects.messages.drawn import bodies
from tests.strict_messages import StrictMessages, find_mismatches, refuse

MARK = {"type": "ephemeral"}


def _thinking(token: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": "hm", "signature": token}


def _call(name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "read", "input": {"p": name}}


def _result(name: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": "out"}


def _body() -> dict[str, Any]:
    return {
        "model": "claude-opus-5-5",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "You.", "cache_control": MARK}],
        "tools": [{"name": "read", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": "Do."},
            {"role": "assistant", "content": [_thinking("s1"), _call("a"), _call("b")]},
            {"role": "user", "content": [_result("a"), _result("b"), {"type": "text", "text": "Mind."}]},
            {"role": "assistant", "content": [_thinking("s2"), {"type": "text", "text": "So."}, _call("c")]},
            {"role": "user", "content": [_result("c")]},
        ],
    }


def _judge(body: Any) -> list[str]:
    return find_violations(json.dumps(body).encode())


def test_a_call_needs_the_code_that_made_it() -> None:
    code = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {}}
    called = {**_call("b"), "caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}}
    whole, cut = _body(), _body()
    for body, first in ((whole, [code]), (cut, [])):
        _m(body, 1)[:] = [*first, _call("a"), called]
    assert _judge(whole) == []
    assert _judge(cut) == ["M9 messages.1: a tool_use without its call srvtoolu_1"]


def test_the_result_of_the_providers_own_call_may_stand_in_a_later_answer() -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    whole = _body()
    whole["messages"][1:1] = [{"role": "assistant", "content": [search]}, {"role": "assistant", "content": [found]}]
    assert _judge(whole) == []
    del whole["messages"][1]
    assert _judge(whole) == ["M9 messages.1: a web_search_tool_result without its call srvtoolu_1"]


Change = Callable[[dict[str, Any]], Any]


def _m(body: dict[str, Any], n: int) -> Any:
    return body["messages"][n]["content"]


BREACHES: list[tuple[str, Change]] = [
    ("M2", lambda b: b.pop("max_tokens")),
    ("M4", lambda b: b.update(messages=[])),
    ("M4", lambda b: b["messages"].insert(0, {"role": "assistant", "content": "Hi."})),
    ("M4", lambda b: b["messages"].append({"role": "tool", "content": "x"})),
    ("M5", lambda b: b["messages"].append({"role": "assistant", "content": "{"})),
    ("M6", lambda b: b["messages"].insert(0, {"role": "system", "content": "x"})),
    ("M6", lambda b: b["messages"].extend([{"role": "system", "content": "x"}, {"role": "user", "content": "y"}])),
    ("M6", lambda b: b["messages"].extend([{"role": "system", "content": "x"}] * 2)),
    ("M7", lambda b: b["messages"].append({"role": "user", "content": ""})),
    ("M7", lambda b: b["messages"].append({"role": "user", "content": []})),
    ("M7", lambda b: _m(b, 2)[2].update(text=" \n")),
    ("M7", lambda b: _m(b, 2)[0].update(content=[{"type": "text", "text": ""}])),
    ("M8", lambda b: _m(b, 2).pop(1)),
    ("M8", lambda b: _m(b, 2).insert(0, {"type": "text", "text": "First."})),
    ("M8", lambda b: b["messages"][4].update(content="Stop.")),
    ("M9", lambda b: _m(b, 2).insert(0, _result("z"))),
    ("M9", lambda b: _m(b, 3).insert(0, {"type": "web_search_tool_result", "tool_use_id": "s", "content": []})),
    ("M10", lambda b: _m(b, 2).insert(0, _result("a"))),
    ("M10", lambda b: (_m(b, 3)[2].update(id="a"), _m(b, 4)[0].update(tool_use_id="a"))),
    ("M10", lambda b: (_m(b, 3)[2].update(id="c!"), _m(b, 4)[0].update(tool_use_id="c!"))),
    ("M10", lambda b: _m(b, 3)[2].update(input="x")),
    ("M11", lambda b: _m(b, 1)[0].pop("signature")),
    ("M11", lambda b: _m(b, 1)[0].update(signature="")),
    ("M12", lambda b: _m(b, 3).append(_thinking("s3"))),
    ("M13", lambda b: (b.update(thinking={"type": "enabled"}), _m(b, 3).pop(0))),
    ("M14", lambda b: [one.update(cache_control=MARK) for one in (*_m(b, 2), *_m(b, 4))]),
    ("M14", lambda b: _m(b, 4)[0].update(cache_control={**MARK, "ttl": "1h"})),
    ("M14", lambda b: _m(b, 1)[0].update(cache_control=MARK)),
    ("M14", lambda b: _m(b, 2)[0].update(content=[{"type": "text", "text": "out", "cache_control": MARK}] * 5)),
    ("M15", lambda b: b["tools"].append({"name": "read", "input_schema": {}})),
    ("M15", lambda b: b.update(tool_choice={"type": "tool", "name": "gone"})),
]


@pytest.mark.parametrize(("rule", "change"), BREACHES)
def test_each_breach_is_named_by_its_rule(rule: str, change: Change) -> None:
    body = _body()
    assert _judge(body) == []
    change(body)
    assert {line.split()[0] for line in _judge(body)} == {rule}
    assert list(refuse(body)), "the strict upstream refuses it too"


def test_what_is_legal_is_not_named() -> None:
    legal: list[Change] = [
        lambda b: b["messages"].append({"role": "system", "content": "x"}),
        lambda b: b["messages"].insert(1, {"role": "system", "content": "x"}),
        lambda b: (b.update(thinking={"type": "adaptive"}), _m(b, 3).pop(0)),
        lambda b: b["messages"].append({"role": "user", "content": "Two in a row."}),
        lambda b: (b["system"][0].update(cache_control={**MARK, "ttl": "1h"}), _m(b, 4)[0].update(cache_control=MARK)),
    ]
    for change in legal:
        body = deepcopy(_body())
        change(body)
        assert _judge(body) == []
        assert list(refuse(body)) == []


@given(bodies())
def test_generated_valid_bodies_break_no_rule(body: bytes) -> None:
    assert find_violations(body) == []
    assert list(refuse(json.loads(body))) == []


def test_a_rule_that_the_client_breaks_itself_is_not_added() -> None:
    own = _body()
    own["messages"].append({"role": "assistant", "content": "{"})
    changed = deepcopy(own)
    del changed["messages"][1:3]
    client = json.dumps(own).encode()
    assert find_added_violations(json.dumps(changed).encode(), client) == []
    _m(changed, 2).pop()
    added = find_added_violations(json.dumps(changed).encode(), client)
    assert {line.split()[0] for line in added} == {"M7", "M8"}


# Bindings.


def _bind(body: Any) -> Any:
    return trace_prompt(json.dumps(body).encode()).bindings


def _breaks(change: Change) -> list[str]:
    """The tokens that a change breaks, by these rules and by the strict upstream, which agree."""
    body = _sign(_body())
    known = _bind(body)
    change(body)
    broken = find_broken(_bind(body), known)
    assert [token for _, token, _ in find_mismatches(body)] == broken
    return [f"s{list(known).index(token) + 1}" for token in broken]


def _sign(body: dict[str, Any]) -> dict[str, Any]:
    """The body with the tokens that the strict upstream gives."""
    strict = StrictMessages()
    for n, message in enumerate(body["messages"]):
        if message["role"] == "assistant":
            message["content"] = strict.make_message({**body, "messages": body["messages"][:n]}, message["content"])[
                "content"
            ]
    return body


def test_what_the_provider_leaves_out_breaks_nothing() -> None:
    unchanged: list[Change] = [
        lambda b: b.update(model="x", max_tokens=1, tool_choice={"type": "none"}, metadata={}),
        lambda b: b["system"][0].pop("cache_control"),
        lambda b: b.update(system="You."),
        lambda b: b["messages"][0].update(content=[{"text": "Do.", "type": "text", "cache_control": MARK}]),
        lambda b: _m(b, 2)[0].update(content=[{"type": "text", "text": "out", "cache_control": MARK}]),
        lambda b: b["tools"].append({"name": "late", "input_schema": {}, "defer_loading": True}),
        lambda b: b["messages"].append({"role": "user", "content": "More."}),
        lambda b: _m(b, 3).pop(0),
        lambda b: _m(b, 4)[0].update(content="edited, behind all thinking"),
    ]
    for change in unchanged:
        assert _breaks(change) == []


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        (lambda b: b.update(system="I."), ["s1", "s2"]),
        (lambda b: b["tools"].append({"name": "new", "input_schema": {}}), ["s1", "s2"]),
        (lambda b: b["tools"][0].update(description="d"), ["s1", "s2"]),
        (lambda b: b["messages"][0].update(content="Do!"), ["s1", "s2"]),
        (lambda b: _m(b, 2)[1].update(content="short"), ["s2"]),
        (lambda b: _m(b, 2)[1].update(is_error=False), ["s2"]),
        (lambda b: _m(b, 2).append({"type": "text", "text": "x"}), ["s2"]),
        (lambda b: _m(b, 2).reverse(), ["s2"]),
        (lambda b: _m(b, 1)[1]["input"].update(p="y"), ["s2"]),
        (lambda b: b["messages"].insert(1, {"role": "user", "content": "x"}), ["s1", "s2"]),
        (lambda b: _m(b, 3).insert(0, {"type": "text", "text": "x"}), ["s2"]),
    ],
)
def test_what_the_provider_compares_breaks_what_follows_it(change: Change, broken: list[str]) -> None:
    assert _breaks(change) == broken


def test_thinking_leaves_from_the_front_but_not_from_the_middle() -> None:
    body = _body()
    body["messages"] += [{"role": "assistant", "content": [_thinking("s3"), {"type": "text", "text": "x"}]}]
    known = _bind(_sign(body))
    front = _m(body, 1).pop(0)
    assert find_broken(_bind(body), known) == []
    assert list(find_mismatches(body)) == []
    body["messages"][1]["content"].insert(0, front)
    _m(body, 3).pop(0)
    assert find_broken(_bind(body), known) == [list(known)[2]]
    assert [token for _, token, _ in find_mismatches(body)] == [list(known)[2]]


def test_an_answers_tokens_are_bound_to_the_body_it_answers() -> None:
    body = _body()
    answer = [_thinking("s3"), {"type": "text", "text": "a"}, {"type": "redacted_thinking", "data": "s4"}]
    prompt = trace_prompt(json.dumps(body).encode())
    message = make_assistant_message([json.dumps(block).encode() for block in answer]).chat
    made = prompt.bindings | trace_answer(prompt, message)
    assert (list(made), made["s3"].after, made["s4"].after) == (["s1", "s2", "s3", "s4"], "s2", "s3")
    body["messages"] += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Next."}]
    assert _bind(body) == made


def test_bound_blocks_are_stripped_and_nothing_else_changes() -> None:
    body = _body()
    raw = json.dumps(body, indent=1).encode()
    made = json.loads(strip_bound(raw, ["s2"]))
    _m(body, 3).pop(0)
    assert made == body
    assert strip_bound(raw, ["unknown"]) is raw
    assert find_broken(trace_prompt(strip_bound(raw, ["s2"])).bindings, trace_prompt(raw).bindings) == []


def test_an_answer_of_thinking_alone_leaves_with_it() -> None:
    body = _body()
    body["messages"] += [{"role": "assistant", "content": [_thinking("s3")]}, {"role": "user", "content": "x"}]
    made = json.loads(strip_bound(json.dumps(body).encode(), ["s3"]))
    assert [m["role"] for m in made["messages"]] == ["user", "assistant", "user", "assistant", "user", "user"]


def test_an_open_tool_loop_keeps_its_thinking_where_the_provider_wants_it() -> None:
    body = {**_body(), "thinking": {"type": "enabled", "budget_tokens": 1024}}
    raw = json.dumps(body).encode()
    with pytest.raises(ValueError, match="M13"):
        strip_bound(raw, ["s2"])
    assert b"s1" not in strip_bound(raw, ["s1"])
    body["messages"].append({"role": "system", "content": "The user has switched to plan mode."})
    with pytest.raises(ValueError, match="M13"):
        strip_bound(json.dumps(body).encode(), ["s2"])


@pytest.mark.parametrize("content", ["[]", '""', "[ ]"])
def test_an_answer_that_was_withheld_whole_can_be_sent_again(content: str) -> None:
    body = '{"max_tokens":9,"messages":[{"role":"user","content":"A"},{ "role":"assistant","content":%s,"x":1},'
    body += '{"role":"user","content":""},{"role":"assistant","content":[]}]}'
    raw = (body % content).encode()
    assert read_messages_request(raw).is_cut
    filled = (body % '"[removed]"').encode()
    assert fill_empty_answers(raw) == filled
    assert fill_empty_answers(filled) == filled
    assert not read_messages_request(filled).is_cut
