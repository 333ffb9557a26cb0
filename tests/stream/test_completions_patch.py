from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.completions.stream import read_chunk, set_json
from proxy.stream import completions_patch as patch
from proxy.stream.completions_patch import (
    ChoicePatch,
    add_spent_usage,
    patch_choices,
    set_only_choice,
    set_response_head,
    sum_spent_usage,
)

RAW = (
    b'{ "x": 1.50, "choices" : [{"index":0,"delta":{"role":"assistant","content":"a\\u00e9","tool_calls":'
    b'[ {"index":0,"y":1.0} , {"index": 1, "z":2.50,"function":{"name":"f,]","arguments":"\\"}"}} ], "q":null},'
    b'"logprobs":null,"finish_reason":"stop"}, {"index":1,"delta":{"content":"b"},"finish_reason":null}],"usage":null}'
)


@pytest.mark.parametrize("raw", [b'{"id": "1", "x": 1.50}', b'{"id":"1","x":1.50,"model":"m"}', b'{"x":1}'])
def test_a_head_is_put_in_without_another_byte(raw: bytes) -> None:
    assert set_response_head(raw, {"id": b'"2"', "created": b"5"}) == raw.replace(b'"1"', b'"2"')


def test_a_head_is_read_and_put_into_what_cannot_be_cut() -> None:
    head = patch.read_response_head(b'{"id": "1","created":5 , "x":1,"model":"m","system_fingerprint":null}')
    assert head == {"id": b'"1"', "created": b"5", "model": b'"m"', "system_fingerprint": b"null"}
    assert patch.read_response_head(b'{"id":"1","id":"2"}') == {}
    assert json.loads(set_response_head(b'{"id":"1","id":"2","x":1.5}', {"id": b'"3"'})) == {"id": "3", "x": 1.5}
    assert set_response_head(b"[]", {"id": b'"3"'}) == b"[]"


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        (ChoicePatch(text="c"), b'"a\\u00e9"', b'"c"'),
        (ChoicePatch(kept_calls=[(0, None)]), b' {"index":0,"y":1.0} , {"index": 1, ', b'{"index":0,"y":1.0}'),
        (ChoicePatch(kept_calls=[]), b"tool_calls", b""),
        (ChoicePatch(removes_role=True), b'"role":"assistant",', b""),
        (ChoicePatch(finish_json=b"null"), b'"finish_reason":"stop"', b'"finish_reason":null'),
    ],
)
def test_only_the_changed_spans_change(change: ChoicePatch, before: bytes, after: bytes) -> None:
    out = patch_choices(RAW, "delta", {0: change})
    assert out.startswith(b'{ "x": 1.50, "choices" : [{"index":0,"delta":{')
    assert out.endswith(b', {"index":1,"delta":{"content":"b"},"finish_reason":null}],"usage":null}')
    assert before not in out
    assert after in out
    want = json.loads(RAW)["choices"][0]
    delta = want["delta"]
    if change.text is not None:
        delta["content"] = change.text
    if change.kept_calls == []:
        del delta["tool_calls"]
    elif change.kept_calls:
        del delta["tool_calls"][1]
    if change.removes_role:
        del delta["role"]
    want["finish_reason"] = None if change.finish_json else "stop"
    assert json.loads(out)["choices"][0] == want


def test_calls_that_stay_keep_their_bytes_and_get_their_index() -> None:
    out = patch_choices(RAW, "delta", {0: ChoicePatch(kept_calls=[(1, 0)])})
    assert b'[{"index": 0, "z":2.50,"function":{"name":"f,]","arguments":"\\"}"}}]' in out
    assert patch_choices(RAW, "delta", {}) is RAW


def test_several_choices_are_changed_each_in_its_place() -> None:
    out = patch_choices(RAW, "delta", {0: ChoicePatch(text="longer than before"), 1: ChoicePatch(text="")})
    assert [one["delta"]["content"] for one in json.loads(out)["choices"]] == ["longer than before", ""]


@pytest.mark.parametrize("odd", [b'"x":1,"x":2', b'"x":"\\ud83d"', b'"x":NaN'])
def test_a_chunk_that_cannot_be_cut_is_serialised_again(odd: bytes) -> None:
    raw = RAW.replace(b'"q":null', odd).replace(b'"logprobs":null', b'"logprobs":{"content":[]}')
    change = ChoicePatch("c", [(1, 0)], True, b'"x"')
    choice = json.loads(patch_choices(raw, "delta", {0: change}))["choices"][0]
    assert choice["delta"]["content"] == "c"
    assert [one["index"] for one in choice["delta"]["tool_calls"]] == [0]
    assert "role" not in choice["delta"]
    assert (choice["finish_reason"], choice["logprobs"]) == ("x", None)
    assert (
        "tool_calls"
        not in json.loads(patch_choices(raw, "delta", {0: ChoicePatch(kept_calls=[])}))["choices"][0]["delta"]
    )


def test_an_unreadable_chunk_is_dropped() -> None:
    raw = b'{"choices":[{"delta":{"tool_calls":[{}],"a":1,"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}]}"
    out = patch_choices(raw, "delta", {0: ChoicePatch(kept_calls=[])})
    assert read_chunk(out) is not None
    assert len(out) < 200


def test_replacing_the_choice_of_a_chunk_keeps_its_other_members() -> None:
    choice = {"index": 0, "delta": {}}
    for usage, drop, left in ((b"null", False, b',"usage":null'), (b"null", True, b""), (b'{"a":1}', False, b"")):
        raw = b'{"id":"1", "choices":[],"usage":%s}' % usage
        assert (
            set_only_choice(raw, choice, drop_usage=drop) == b'{"id":"1", "choices":[{"index":0,"delta":{}}]%s}' % left
        )
    out = set_only_choice(b'{"a":1,"a":2}', choice, drop_usage=False)
    assert json.loads(out) == {"object": "chat.completion.chunk", "choices": [choice]}


def test_usage_is_put_in_and_taken_out() -> None:
    assert set_json(b'{"usage": {"a":1}, "x":1.50}', "usage", {"a": 2}) == b'{"usage": {"a":2}, "x":1.50}'
    assert json.loads(set_json(b'{"a":1,"a":2,"usage":3}', "usage", {"a": 2})) == {"a": 2, "usage": {"a": 2}}
    assert patch.remove_usage(b'{"x":1.50,"usage": {"a":1}}') == b'{"x":1.50}'
    assert patch.remove_null_usage(b'{"x":{"usage":1},"usage":null}') == b'{"x":{"usage":1}}'


COUNTS = st.integers(0, 10**6)
USAGES = st.fixed_dictionaries(
    {"prompt_tokens": COUNTS, "completion_tokens": COUNTS},
    optional={
        "total_tokens": COUNTS,
        "prompt_tokens_details": st.just({"cached_tokens": 5}),
        "completion_tokens_details": st.fixed_dictionaries({}, optional={"reasoning_tokens": COUNTS, "x": COUNTS}),
        "cost": st.floats(0, 1),
    },
)


@given(st.lists(USAGES, min_size=1, max_size=5))
def test_completions_are_summed_and_the_prompt_is_the_last_one(usages: list[dict[str, Any]]) -> None:
    spent: dict[str, Any] = {}
    for one in usages[:-1]:
        spent = sum_spent_usage(one, spent)
    last = usages[-1]
    found = add_spent_usage(last, spent)
    completion = sum(one["completion_tokens"] for one in usages)
    assert found["completion_tokens"] == completion
    for name in ("prompt_tokens", "prompt_tokens_details", "cost"):
        assert found.get(name) == last.get(name)
    if "total_tokens" in last:
        assert found["total_tokens"] == last["total_tokens"] + completion - last["completion_tokens"]
    for name in ("reasoning_tokens", "x"):
        total = sum(one.get("completion_tokens_details", {}).get(name, 0) for one in usages)
        assert found.get("completion_tokens_details", {}).get(name, 0) == total


@pytest.mark.parametrize("odd", [None, [], "x", {"completion_tokens": "x", "completion_tokens_details": 5}])
def test_usage_in_other_forms_is_left_alone(odd: Any) -> None:
    spent = sum_spent_usage({"completion_tokens": 3}, {})
    assert add_spent_usage(odd, {}) == odd
    assert sum_spent_usage(odd, spent)["completion_tokens"] == 3
    assert add_spent_usage(odd, spent) == odd
