"""Any history with bound reasoning, and any edits: what a plan breaks is known, and without that nothing is broken."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.chat.json_spans import find_elements, find_member
from proxy.dialects.base import BindingTrace, find_broken
from proxy.dialects.completions import rules as completions_rules
from proxy.dialects.completions.request import read_request, replace_text, write_request
from proxy.dialects.messages import rules as messages_rules
from proxy.dialects.messages.request import read_messages_request
from proxy.dialects.responses import rules as responses_rules
from proxy.dialects.responses.request import read_wire_request
from proxy.errors import NotManaged
from proxy.exchange.dialect import is_bound
from proxy.exchange.prefix_bindings import find_run
from tests.dialects.messages.drawn import bodies as messages_bodies
from tests.dialects.responses.histories import bodies as responses_bodies

Json = dict[str, Any]
Edit = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Wire:
    """One wire format. member: the array of its messages or items."""

    member: str
    read: Callable[[bytes], bytes]
    """The canonical request."""
    trace: Callable[[bytes], BindingTrace]
    strip: Callable[[bytes, Collection[str]], bytes]
    judge: Callable[[bytes, bytes], list[str]]
    write: Callable[[bytes, dict[int, str]], bytes]
    """The body with other texts of some canonical messages."""


def _edit_wire(read: Callable[[bytes], Any]) -> Callable[[bytes, dict[int, str]], bytes]:
    def write(body: bytes, texts: dict[int, str]) -> bytes:
        wire = read(body)
        made = []
        for n, message in enumerate(read_request(wire.chat_body).messages):
            made.append((n, replace_text(message.raw, texts[n]) if n in texts else message.raw))
        return bytes(wire.write(made))

    return write


def _edit_chat(body: bytes, texts: dict[int, str]) -> bytes:
    request = read_request(body)
    raws = [replace_text(one.raw, texts[n]) if n in texts else one.raw for n, one in enumerate(request.messages)]
    return write_request(request, raws)


WIRES = {
    "messages": Wire(
        "messages",
        lambda body: read_messages_request(body).chat_body,
        messages_rules.trace_prompt,
        messages_rules.strip_bound,
        messages_rules.find_added_violations,
        _edit_wire(read_messages_request),
    ),
    "responses": Wire(
        "input",
        lambda body: read_wire_request(body).chat_body,
        responses_rules.trace_prompt,
        responses_rules.strip_bound,
        responses_rules.find_added_violations,
        _edit_wire(read_wire_request),
    ),
    "completions": Wire(
        "messages", bytes, completions_rules.trace_prompt, completions_rules.strip_bound, lambda *_: [], _edit_chat
    ),
}


@st.composite
def chat_bodies(draw: st.DrawFn) -> bytes:
    """Bodies of a client of LiteLLM or OpenRouter."""
    text = st.text(st.characters(codec="utf-8"), max_size=9).map(lambda one: "t" + one)
    messages: list[Json] = [{"role": "system", "content": draw(text)}, {"role": "user", "content": draw(text)}]
    for n in range(draw(st.integers(0, 5))):
        answer: Json = {"role": "assistant", "content": draw(st.one_of(st.none(), text))}
        blocks = [
            {"type": "thinking", "thinking": "x", "signature": f"s{n}{k}="} for k in range(draw(st.integers(0, 2)))
        ]
        if blocks:
            answer["thinking_blocks"] = blocks
        if draw(st.booleans()):
            answer["reasoning_details"] = [{"type": "reasoning.encrypted", "data": f"d{n}="}]
        calls = [
            {"id": f"c{n}{k}", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
            for k in range(draw(st.integers(0, 2)))
        ]
        if calls:
            answer["tool_calls"] = calls
        else:
            answer["content"] = answer["content"] or "So."
        messages.append(answer)
        messages += [{"role": "tool", "tool_call_id": one["id"], "content": draw(text)} for one in calls]
        if not calls or draw(st.booleans()):
            messages.append({"role": "user", "content": draw(text)})
    separators = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    return json.dumps({"model": "m", "messages": messages, "tools": []}, separators=separators).encode()


BODIES = {"messages": messages_bodies(), "responses": responses_bodies(), "completions": chat_bodies()}


def list_elements(body: bytes, member: str) -> list[bytes]:
    found = find_member(body, member)
    if found is None or body[found.start : found.start + 1] != b"[":
        return []
    raw = body[found.start : found.end]
    return [raw[start:end] for start, end in find_elements(raw) or ()]


@pytest.mark.parametrize("name", WIRES)
@settings(max_examples=40)
@given(data=st.data())
def test_what_edits_break_is_known_and_can_leave(name: str, data: st.DataObject) -> None:
    wire, body = WIRES[name], data.draw(BODIES[name])
    try:
        chat = wire.read(body)
    except NotManaged:
        return
    messages = read_request(chat).messages
    editable = [n for n, one in enumerate(messages) if one.role in ("user", "tool") and one.text and not one.is_system]
    chosen = data.draw(st.lists(st.sampled_from(editable), unique=True, max_size=4)) if editable else []
    texts = {n: f"short {n}" for n in chosen}
    try:
        sent = wire.write(body, texts)
    except ValueError:
        return  # the wire has no room for the change, and the plan is not used
    known = wire.trace(body).bindings
    tokens = wire.trace(sent).bindings
    broken = find_broken(tokens, known)
    assert list(tokens) == list(known), "no edit touches reasoning"
    bound = [n for n, one in enumerate(messages) if is_bound(one)]
    if all(n > max(bound, default=-1) for n in chosen):
        assert broken == [], "what was never sent may be edited"
    run = find_run(list(tokens), broken)
    assert set(broken) <= set(run)
    try:
        stripped = wire.strip(sent, frozenset(run))
    except ValueError:
        return  # the middle of a tool loop that has to begin with thinking
    assert find_broken(wire.trace(stripped).bindings, known) == []
    assert list(wire.trace(stripped).bindings) == [token for token in tokens if token not in run]
    assert wire.judge(stripped, body) == []
    before = list_elements(sent, wire.member)
    gone = [one for one in before if any(token.encode() in one for token in run)]
    kept = [one for one in before if one not in gone]
    left = iter(list_elements(stripped, wire.member))
    if not run:
        assert stripped is sent or stripped == sent
    elif name != "responses":  # items lose their ids with the reasoning that led to them
        assert all(one in left for one in kept), "all other messages keep their bytes and their order"
    untouched = list_elements(body, wire.member)
    assert sum(one not in before for one in untouched) <= len(chosen), "an edit changes its own message alone"
