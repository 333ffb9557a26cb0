"""Of `proxy.stream.completions_rewriter`, cases that the tests of relays and of hidden rounds do not show."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.notes.state_block import HEADINGS
from proxy.stream.answer_relay import RelayOptions
from proxy.stream.completions_answer import AssembledAnswer
from proxy.stream.completions_rewriter import CompletionsRewriter
from proxy.stream.sse import SseEvent


def edits_for(
    *hidden: str, before: CompletionsRewriter | None = None, drop: bool = False, withhold: bool = False
) -> CompletionsRewriter:
    return CompletionsRewriter(
        before.answer if before else AssembledAnswer(),
        RelayOptions(
            withheld=HEADINGS if withhold else (), drop_usage=drop, limit=100_000, hidden_tools=frozenset(hidden)
        ),
        before,
    )


def event(value: Any) -> SseEvent:
    data = json.dumps(value).encode()
    return SseEvent(b"data: " + data + b"\n\n", data)


def make_event(delta: dict[str, Any], finish: str | None = None, **more: Any) -> SseEvent:
    return event({"id": "1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more})


def call(name: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "id": "i", "function": {"name": name, "arguments": "{}"}}]}


@pytest.mark.parametrize("hidden", [(), ("f",)])
def test_without_anything_to_remove_the_bytes_stay(hidden: tuple[str, ...]) -> None:
    edits = edits_for(*hidden)
    events = [
        make_event({"role": "assistant", "content": "a"}),
        make_event({"x": 1.5}, usage=None),
        make_event({"tool_calls": None}),
        make_event({"tool_calls": []}),
        make_event({"tool_calls": ["odd"]}),
        make_event({**call("g")}, "tool_calls", usage={"prompt_tokens": 1}),
        event({"choices": [], "prompt_filter_results": []}),
        event({"choices": None}),
        event({"choices": [], "usage": {"prompt_tokens": 1}}),
        event([1]),
    ]
    for one in events:
        out: list[bytes] = []
        assert edits.rewrite_event(one, out) is False
        assert out == [one.raw]
    out = []
    edits.end_round(out, complete=True)
    assert out == []
    assert not edits.goes_on
    assert edits.answer.text == "a"


def test_without_hidden_tools_no_second_record_is_kept() -> None:
    edits = edits_for()
    edits.rewrite_event(make_event({"content": "a"}, usage={"prompt_tokens": 3}), [])
    assert edits.round_answer is None
    assert edits.round_usage is edits.answer.usage
    assert edits.round_usage is not None
    assert edits.round_usage.prompt == 3


def test_the_next_round_has_the_head_of_the_first_and_no_second_role() -> None:
    first = edits_for("f")
    out: list[bytes] = []
    first.rewrite_event(make_event({"role": "assistant", "content": "a"}, created=5, model="m"), out)
    first.rewrite_event(make_event(call("f"), "tool_calls"), out)
    first.end_round(out, complete=True)
    assert first.goes_on
    assert len(out) == 1
    second = edits_for("f", before=first)
    out = []
    events = [
        event({"id": "2", "choices": [], "model": "n"}),
        event({"id": "2", "created": 6, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
        event({"id": "2", "created": 6, "x": 1.5, "choices": [{"index": 0, "delta": {"role": "a", "content": "b"}}]}),
        event({"id": "2", "choices": [{"index": 0, "delta": {"role": "assistant", "x": 1}, "finish_reason": "stop"}]}),
    ]
    for one in events:
        second.rewrite_event(one, out)
    assert [json.loads(one[6:]) for one in out] == [
        {"id": "1", "choices": [], "model": "m"},
        {"id": "1", "created": 5, "x": 1.5, "choices": [{"index": 0, "delta": {"content": "b"}}]},
        {"id": "1", "choices": [{"index": 0, "delta": {"x": 1}, "finish_reason": "stop"}]},
    ]
    assert second.answer.text == "ab"
    assert second.answer is first.answer


def test_a_role_that_never_came_comes_with_a_later_round() -> None:
    first = edits_for("f")
    first.rewrite_event(make_event(call("f"), "stop"), [])
    first.end_round([], complete=True)
    out: list[bytes] = []
    later = make_event({"role": "assistant", "content": "b"})
    edits_for("f", before=first).rewrite_event(later, out)
    assert out == [later.raw]


def test_calls_in_a_later_round_without_proxy_tools_are_the_clients() -> None:
    first = edits_for("f")
    first.rewrite_event(make_event(call("f"), "stop"), [])
    first.end_round([], complete=True)
    second = edits_for(before=first)
    out: list[bytes] = []
    second.rewrite_event(make_event(call("f"), "tool_calls"), out)
    second.end_round(out, complete=True)
    assert not second.goes_on
    assert b'"f"' in out[0]


@pytest.mark.parametrize("drop", [True, False])
def test_an_end_that_was_held_comes_where_a_call_of_the_client_follows_it(drop: bool) -> None:
    edits = edits_for("f", drop=drop)
    out: list[bytes] = []
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    edits.rewrite_event(make_event(call("f"), "tool_calls", usage=None), out)
    edits.rewrite_event(event({"id": "1", "choices": [], "usage": usage}), out)
    assert out == []
    later = {"tool_calls": [{"index": 1, "id": "j", "function": {"name": "g", "arguments": "{}"}}]}
    edits.rewrite_event(make_event(later), out)
    edits.end_round(out, complete=True)
    values = [json.loads(one[6:]) for one in out]
    assert [one["choices"][0]["finish_reason"] for one in values if one["choices"]] == [None, "tool_calls"]
    assert [one["usage"] for one in values if one.get("usage")] == ([] if drop else [usage])
    assert not edits.goes_on
    assert [one.name for one in edits.hidden_calls] == ["f"]
    assert edits.shown_calls == 1
    assert values[0]["choices"][0]["delta"]["tool_calls"][0]["index"] == 0
    assert edits.answer.usage is not None
    assert edits.answer.finish_reasons == {0: "tool_calls"}


def test_more_choices_than_can_be_asked_for_show_no_calls() -> None:
    edits = edits_for("f")
    out: list[bytes] = []
    for index in range(200):
        edits.rewrite_event(event({"choices": [{"index": index, "delta": call("f")}]}), out)
    assert b'"f"' not in b"".join(out)
