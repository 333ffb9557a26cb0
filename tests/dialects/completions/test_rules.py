"""Reasoning that gateways carry in chat completions, and the prompt that it is bound to."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from proxy.dialects.base import Binding, find_broken
from proxy.dialects.completions.rules import (
    read_tokens,
    sign_calls,
    strip_bound,
    trace_answer,
    trace_prompt,
)

Json = dict[str, Any]


def think(token: str, text: str = "Hm.") -> Json:
    return {"type": "thinking", "thinking": text, "signature": token}


def call(n: int) -> Json:
    return {"id": f"call_{n}", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}


BODY: Json = {
    "model": "claude",
    "messages": [
        {"role": "system", "content": "Be careful."},
        {"role": "user", "content": "Find it."},
        {"role": "assistant", "content": None, "thinking_blocks": [think("s1")], "tool_calls": [call(1)]},
        {"role": "tool", "tool_call_id": "call_1", "content": "one"},
        {
            "role": "assistant",
            "content": "So.",
            "reasoning_details": [{"type": "reasoning.text", "text": "x", "signature": "s2"}],
            "tool_calls": [call(2)],
        },
        {"role": "tool", "tool_call_id": "call_2", "content": "two"},
        {"role": "assistant", "content": "There.", "thinking_blocks": [{"type": "redacted_thinking", "data": "s3"}]},
        {"role": "user", "content": "Thank you."},
    ],
    "tools": [{"type": "function", "function": {"name": "read"}}],
}


def dump(body: Json) -> bytes:
    return json.dumps(body).encode()


def bind(body: Json) -> dict[str, Binding]:
    return trace_prompt(dump(body)).bindings


def broken(change: Any) -> list[str]:
    body = copy.deepcopy(BODY)
    change(body)
    return find_broken(bind(body), bind(BODY))


def test_each_token_has_the_one_before_it() -> None:
    found = bind(BODY)
    assert [(token, one.after) for token, one in found.items()] == [("s1", ""), ("s2", "s1"), ("s3", "s2")]


def set_content(n: int, content: Any) -> Any:
    def change(body: Json) -> None:
        body["messages"][n]["content"] = content

    return change


@pytest.mark.parametrize(
    ("change", "tokens"),
    [
        (set_content(0, "Be quick."), ["s1", "s2", "s3"]),
        (set_content(1, "Find another."), ["s1", "s2", "s3"]),
        (set_content(3, "[shortened]"), ["s2", "s3"]),
        (set_content(4, "Thus."), ["s3"]),
        (set_content(7, "Go on."), []),
        (set_content(1, [{"type": "text", "text": "Find it.", "cache_control": {"type": "ephemeral"}}]), []),
        (lambda body: body["messages"].insert(7, {"role": "system", "content": "Late."}), ["s1", "s2", "s3"]),
        (lambda body: body["tools"].append({"type": "function", "function": {"name": "recall"}}), ["s1", "s2", "s3"]),
        (lambda body: body["messages"][2]["tool_calls"][0]["function"].update(arguments='{"path":"a"}'), []),
        (lambda body: body["messages"][2]["tool_calls"][0]["function"].update(arguments='{"path":"b"}'), ["s2", "s3"]),
        (lambda body: body["messages"][2].update(reasoning_content="Hm."), []),
        (lambda body: body["messages"][4].pop("reasoning_details"), ["s3"]),
        (lambda body: body["messages"][2].pop("thinking_blocks"), []),
        (lambda body: body.update(temperature=1, tool_choice="none"), []),
    ],
)
def test_reasoning_breaks_exactly_if_the_prompt_before_it_changes(change: Any, tokens: list[str]) -> None:
    assert broken(change) == tokens


def test_the_bindings_of_an_answer_are_those_of_the_next_request() -> None:
    body, last = {**BODY, "messages": BODY["messages"][:6]}, BODY["messages"][6]
    prompt = trace_prompt(dump(body))
    assert prompt.bindings | trace_answer(prompt, dump(last)) == bind(BODY)
    assert prompt.bindings == {token: bind(BODY)[token] for token in ("s1", "s2")}


def test_reasoning_is_taken_out_and_all_else_keeps_its_bytes() -> None:
    raw = dump(BODY)
    made = strip_bound(raw, ["s1", "s3"])
    rest = copy.deepcopy(BODY)
    del rest["messages"][2]["thinking_blocks"], rest["messages"][6]["thinking_blocks"]
    assert made == dump(rest)
    assert strip_bound(raw, ["unknown"]) is raw
    assert strip_bound(b'{"model":"m"}', ["s1"]) == b'{"model":"m"}'


def test_of_several_blocks_the_others_stay() -> None:
    body = {"messages": [{"role": "assistant", "content": "a", "thinking_blocks": [think("s1"), think("s2")]}]}
    made = json.loads(strip_bound(dump(body), ["s1"]))
    assert made["messages"][0]["thinking_blocks"] == [think("s2")]
    pieces = [{"type": "thinking", "thinking": "a", "signature": None}, think("s1", "")]
    body = {"messages": [{"role": "assistant", "content": "a", "thinking_blocks": pieces}]}
    assert "thinking_blocks" not in json.loads(strip_bound(dump(body), ["s1"]))["messages"][0]


def test_an_open_loop_keeps_the_thinking_that_it_must_begin_with() -> None:
    body = {**BODY, "messages": BODY["messages"][:6]}
    raw = dump({**body, "thinking": {"type": "enabled", "budget_tokens": 1024}})
    with pytest.raises(ValueError, match="thinking is expected"):
        strip_bound(raw, ["s2"])
    assert b"s1" not in strip_bound(raw, ["s1"])
    assert b"s2" not in strip_bound(dump({**body, "thinking": {"type": "adaptive"}}), ["s2"])


def test_what_is_not_a_message_has_no_tokens() -> None:
    assert read_tokens({"thinking_blocks": "x", "reasoning_details": [None, {"signature": 1}, {"data": ""}]}) == []
    assert trace_prompt(b'{"messages":[1,{"role":"user","content":[1]}],"tools":null}').bindings == {}
    with pytest.raises(ValueError, match="told apart"):
        trace_prompt(b"[]")


SIGNED = {"google": {"thought_signature": "SIG"}}


def _called(name: str, **more: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": "{}"}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": name, "function": function, **more}]}


def test_a_gemini_call_without_its_signature_gets_the_one_for_unsigned_calls() -> None:
    old, open_ = _called("old"), _called("open")
    messages = [{"role": "user", "content": "a"}, old, {"role": "user", "content": "b"}, open_]
    messages += [_called("signed", extra_content=SIGNED)]
    raw = json.dumps({"model": "gemini-3-pro", "messages": messages}).encode()
    open_["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": "skip_thought_signature_validator"}}
    assert json.loads(sign_calls(raw)) == {"model": "gemini-3-pro", "messages": messages}, "since the newest prompt"
    assert sign_calls(sign_calls(raw)) == sign_calls(raw)
    plain = json.dumps({"model": "gpt-5", "messages": messages[:2]}).encode()
    assert sign_calls(plain) is plain
