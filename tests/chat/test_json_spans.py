from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.chat import json_spans

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)
SPACES = st.text(" \t\r\n", max_size=2)
SIMPLE_KEYS = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\'), max_size=8)


@st.composite
def written(draw: st.DrawFn) -> tuple[list[tuple[str, bytes]], bytes]:
    """Members (key, the bytes of the value) and an object that holds them, with white space wherever it may stand."""
    table = draw(st.dictionaries(SIMPLE_KEYS, VALUES, max_size=5))
    members = [(k, json.dumps(v, ensure_ascii=draw(st.booleans())).encode()) for k, v in table.items()]
    gap = [draw(SPACES).encode() for _ in range(2 + 4 * len(members))]
    pieces = []
    for n, (k, v) in enumerate(members):
        before, after, colon, end = gap[4 * n : 4 * n + 4]
        pieces.append(before + b'"' + k.encode() + b'"' + after + b":" + colon + v + end)
    return members, gap[-1] + b"{" + (b",".join(pieces) or gap[-2]) + b"}" + gap[-2]


@given(written())
def test_spans_cut_out_exactly_the_bytes_of_each_value(made: tuple[list[tuple[str, bytes]], bytes]) -> None:
    members, raw = made
    found = json_spans.find_members(raw)
    assert found is not None
    assert [(m.key, raw[m.start : m.end]) for m in found] == members
    assert all(raw[m.key_start : m.key_start + 1] == b'"' for m in found)


@given(written(), SIMPLE_KEYS, VALUES)
def test_with_member_changes_one_value_and_no_other_byte(
    made: tuple[list[tuple[str, bytes]], bytes], key: str, value: Any
) -> None:
    members, raw = made
    new = json.dumps(value).encode()
    for name in [*dict(members), key]:
        changed = json_spans.set_member(raw, name, new)
        assert json.loads(changed) == {**json.loads(raw), name: json.loads(new)}
        one = json_spans.find_member(raw, name)
        if one is not None:
            assert changed == raw[: one.start] + new + raw[one.end :]
        else:
            assert changed.startswith(raw[: raw.rindex(b"}")])
            assert changed.endswith(raw[raw.rindex(b"}") :])


@given(written())
def test_without_member_takes_out_one_key_and_leaves_the_others_bytes(
    made: tuple[list[tuple[str, bytes]], bytes],
) -> None:
    members, raw = made
    for name in dict(members):
        left = json_spans.remove_member(raw, name)
        found = json_spans.find_members(left)
        assert found is not None
        assert [(m.key, left[m.start : m.end]) for m in found] == [(k, v) for k, v in members if k != name]
    assert json_spans.remove_member(raw, "a key that is not there, for sure") == raw


@given(st.lists(VALUES, max_size=5), SPACES)
def test_elements_of_an_array_are_cut_out_exactly(values: list[Any], space: str) -> None:
    gap = space.encode()
    pieces = [json.dumps(v, ensure_ascii=False).encode() for v in values]
    raw = gap + b"[" + gap + (gap + b"," + gap).join(pieces) + gap + b"]" + gap
    spans = json_spans.find_elements(raw)
    assert spans is not None
    assert [raw[a:b] for a, b in spans] == pieces


@given(st.binary(max_size=30) | VALUES.map(lambda v: json.dumps(v).encode()))
def test_any_bytes_give_spans_that_agree_with_json_or_none(raw: bytes) -> None:
    found = json_spans.find_members(raw)
    if found is not None:
        assert {m.key: json.loads(raw[m.start : m.end]) for m in found} == json.loads(raw)
    spans = json_spans.find_elements(raw)
    if spans is not None:
        assert [json.loads(raw[a:b]) for a, b in spans] == json.loads(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":1,"a":2}',
        b'{"a":1,"a":1}',
        b'{"a":1,"b":2,"a":1}',
        b'{"\\u0061":1}',
        b'{"a":1,"\\u0061":1}',
        b'{"a\\n":1}',
        b"",
        b"   ",
        b"[]",
        b"null",
        b"7",
        b'"text"',
        b'{"a":1',
        b'{"a":1}}',
        b'{"a":1} x',
        b'{"a":1,}',
        b'{"a" 1}',
        b"{a:1}",
        b'{"a":NaN}',
        b'\xef\xbb\xbf{"a":1}',
        b'{"\xff":1}',
        b'{"\\ud800":1}',
    ],
)
def test_what_cannot_be_told_apart_for_certain_gives_none(raw: bytes) -> None:
    assert json_spans.find_members(raw) is None
    with pytest.raises(ValueError, match="cannot be told apart"):
        json_spans.set_member(raw, "a", b"2")
    with pytest.raises(ValueError, match="cannot be told apart"):
        json_spans.remove_member(raw, "a")


def test_duplicate_keys_deeper_down_do_not_matter() -> None:
    raw = b'{"a":{"x":1,"x":2},"b":3}'
    assert json_spans.read_value(raw, "a") == b'{"x":1,"x":2}'
    assert json_spans.read_value(raw, "b") == b"3"
    assert json_spans.read_value(raw, "c") is None


def test_braces_commas_and_quotes_inside_strings_do_not_confuse_the_walk() -> None:
    raw = rb'{ "a" : "},{\"b\":\\" , "b" : ["]", {"c": "}"}] }'
    found = json_spans.find_members(raw)
    assert found is not None
    assert [raw[m.start : m.end] for m in found] == [rb'"},{\"b\":\\"', rb'["]", {"c": "}"}]']


def test_deep_nesting_is_none_and_no_crash() -> None:
    for depth in (1_000, 5_000, 200_000):
        for deep in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth, b"[" * depth):
            json_spans.find_members(b'{"a":' + deep + b"}")
            json_spans.find_elements(b"[" + deep + b"]")
    assert json_spans.find_members(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}") is None


@pytest.mark.parametrize("raw", [b"{}", b"null", b"[1", b"[1,]", b"[,1]", b"[1 2]", b"[NaN]", b""])
def test_what_is_no_array_has_no_elements(raw: bytes) -> None:
    assert json_spans.find_elements(raw) is None


def test_strings_are_read_and_lone_surrogates_are_none() -> None:
    assert json_spans.decode_string(b'"a\\u00e4\\ud83d\\ude00"') == "aä😀"
    assert json_spans.decode_string(b'"\\ud83d"') is None
    assert json_spans.decode_string(b"7") is None
