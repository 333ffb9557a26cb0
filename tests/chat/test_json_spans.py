from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.chat import json_spans
from proxy.chat.chain import canonicalize_arguments
from proxy.chat.json_spans import (
    MAX_CHARS,
    MAX_TOP_LEVEL_KEYS,
    MAX_VALUES,
    SCAN_BYTES,
    SizeLimits,
    count_marks,
    count_values,
    decode_embedded,
    decode_model_name,
    scan_model_name,
)
from proxy.context.analysis import identifiers
from proxy.dialects.completions.request import read_message, read_request
from proxy.errors import NotManaged

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)
SPACES = st.text(" \t\r\n", max_size=2)
SIMPLE_KEYS = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\'), max_size=8)

ENOUGH = 1 << 40

READERS: dict[str, Callable[[str], object]] = {
    "canonical": canonicalize_arguments,
    "written": identifiers.read_argument_texts,
}
DENSE = {
    "lists": "[" + "[]," * 4_000_000 + "[]]",
    "objects": "[" + "{}," * 300_000 + "{}]",
    "members": '{"a":[' + '"b",' * 250_000 + "1]}",
    "numbers": "[" + "1," * 500_000 + "1]",
    "just too many": "[" + "[]," * (MAX_VALUES // 2) + "[]]",
    "just not too many": "[" + "[]," * (MAX_VALUES // 2 - 2) + "[]]",
    "nested": "[" * 500_000,
    "in strings": '{"a":"' + "[,{" * 300_000 + '"}',
    "quotes": '{"a":"' + '\\"[' * 300_000 + '"}',
    "backslashes": '{"a":"' + "\\" * 900_000 + "," * 30_000 + '"}',
}


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
def test_ambiguous_json_gives_no_members(raw: bytes) -> None:
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
def test_only_an_array_has_elements(raw: bytes) -> None:
    assert json_spans.find_elements(raw) is None


def test_strings_are_read_and_lone_surrogates_are_none() -> None:
    assert json_spans.decode_string(b'"a\\u00e4\\ud83d\\ude00"') == "aä😀"
    assert json_spans.decode_string(b'"\\ud83d"') is None
    assert json_spans.decode_string(b"7") is None


def values(found: Any) -> int:
    """Members of objects and items of lists, and the containers that hold none."""
    if isinstance(found, dict):
        return sum(map(values, found.values())) + max(1, len(found))
    if isinstance(found, list):
        return sum(map(values, found)) + max(1, len(found))
    return 0


def some(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(8 if depth < 5 else 4)
    if kind < 4:
        return chance.choice([1, None, 'a"b', "\\", '\\"', "[1, 2]", '{"model": "x"}', "x" * chance.randrange(2000)])
    if kind < 6:
        return [some(chance, depth + 1) for _ in range(chance.randrange(6))]
    return {f'k"{n}\\': some(chance, depth + 1) for n in range(chance.randrange(6))}


@pytest.mark.parametrize("seed", range(20))
def test_values_are_counted_as_a_decoder_finds_them_whatever_texts_hold(seed: int) -> None:
    chance = random.Random(seed)
    found = [some(chance) for _ in range(200)]
    body = json.dumps(found).encode()
    assert count_values(body, ENOUGH) == values(found) <= count_marks(body)


@pytest.mark.parametrize("size", [0, 4000, 4095, 4096, 5000, 100_000])
@pytest.mark.parametrize("every", [1, 2, 30, 127, 128, 129, 5000])
def test_marks_are_counted_alike_whether_they_are_many_or_few(size: int, every: int) -> None:
    chance = random.Random(size + every)
    piece = bytes(chance.choice(b",{[") if n % every == 0 else chance.choice(b'ab]}"') for n in range(size))
    assert count_marks(piece) == sum(piece.count(mark) for mark in (b",", b"{", b"["))
    assert count_marks(b"," * size) == size


@pytest.mark.parametrize("shift", range(8))
@pytest.mark.parametrize("text", ["\\", '"', '\\"', 'a\\\\"b'])
def test_an_escape_may_stand_where_one_piece_ends(shift: int, text: str) -> None:
    body = json.dumps(["x" * (SCAN_BYTES - 8 + shift) + text * 9, [1, 2, 3], text * SCAN_BYTES, {"a": 1}]).encode()
    assert count_values(body, ENOUGH) == 4 + 3 + 1


def test_counting_values_stops_at_the_limit() -> None:
    body = b"[" + b"1," * (10 * SCAN_BYTES) + b"1]"
    assert 100 < count_values(body, 100) <= SCAN_BYTES


def test_a_body_is_counted_only_where_it_is_long_enough_to_have_too_many() -> None:
    limits = SizeLimits(values=1000)
    assert limits.check_body(b"[" + b"1," * 400 + b"1]") == 0
    text = json.dumps(["a, b, c " * 1000]).encode()
    assert limits.check_body(text) == 1, "a decoder would find one"
    with pytest.raises(NotManaged, match="1000 JSON values"):
        limits.check_body(b"[" + b"1," * 1000 + b"1]")


def test_values_of_a_known_prefix_are_not_counted_again() -> None:
    limits = SizeLimits(values=1000)
    begin, rest = b"[" + b"1," * 600, b"1," * 100 + b"1]"
    assert limits.check_body(begin + rest, len(begin), 601) == 701
    with pytest.raises(NotManaged):
        limits.check_body(begin + b"1," * 400 + rest, len(begin), 601)


@pytest.mark.parametrize(
    "body",
    [
        {"model": "right"},
        {"a": {"model": "wrong"}, "model": "right"},
        {"a": '"model": "wrong"', "b": '\\"model":"wrong"', "model": "right"},
        {"a": ["x" * (2 * SCAN_BYTES), {"model": "wrong"}], "model": "right"},
    ],
)
def test_the_model_is_the_one_of_the_outermost_level(body: dict[str, Any]) -> None:
    assert scan_model_name(json.dumps(body).encode()) == b'"right"'
    assert scan_model_name(json.dumps(body, indent=1).encode()) == b'"right"'


@pytest.mark.parametrize("body", [b"", b"[", b'{"model":1}', b'[{"model":"x"}]', b'{"a":"model"}', b'"model":"x"'])
def test_a_body_without_a_model_names_none(body: bytes) -> None:
    assert scan_model_name(body) is None


def test_a_request_over_a_limit_is_not_read() -> None:
    message = b'{"role":"user","content":[{"type":"text","text":"a"}]}'
    read: list[bytes] = []

    def reading(raw: bytes) -> Any:
        read.append(raw)
        return read_message(raw)

    with pytest.raises(NotManaged) as found:
        read_request(b'{"messages":[' + b",".join([message] * 3) + b"]}", reading, limits=SizeLimits(messages=2))
    assert (found.value.reason, read) == ("size", [])
    many = b",".join(b'"k%d":1' % n for n in range(MAX_TOP_LEVEL_KEYS))
    with pytest.raises(NotManaged) as found:
        read_request(b'{"messages":[' + message + b"]," + many + b"}", reading, limits=SizeLimits())
    assert (found.value.reason, read) == ("size", [])
    assert read_request(b'{"messages":[' + message + b"]," + many + b"}").messages[0].part_count == 1


@pytest.mark.timed
@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("reader", READERS)
def test_no_text_takes_a_tenth_of_a_second_to_decode(reader: str, name: str) -> None:
    text = DENSE[name]
    began = time.thread_time()
    READERS[reader](text)
    assert time.thread_time() - began < 0.1


def test_json_that_agents_embed_is_decoded() -> None:
    code = "def add(a, b):\n    return [a, b]\n" * 8_000
    written = msgspec.json.encode({"path": "a.py", "content": code}).decode()
    assert decode_embedded(written)["content"] == code
    assert decode_embedded("[1]", list[int]) == [1]
    assert identifiers.parse_arguments(written)["path"] == "a.py"
    assert decode_embedded('{"a":"' + "[,{" * 300_000 + '"}')["a"].count(",") == 300_000, "those in strings are none"
    long = '{"content":"' + "x" * 900_000 + '"}'
    assert len(decode_embedded(long)["content"]) == 900_000


@pytest.mark.parametrize("text", ['"' + "x" * MAX_CHARS + '"', "[" + "1," * MAX_VALUES + "1]", "{", "[" * 5000])
def test_embedded_json_over_its_limits_is_read_as_text(text: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        decode_embedded(text)
    assert canonicalize_arguments(text) == text
    assert identifiers.read_argument_texts(text) == text
    assert identifiers.parse_arguments(text) == {}


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b'{"model":"a"}', "a"),
        (b'{"model":null}', None),
        (b'{"model":1}', None),
        (b"[]", None),
        (b"", None),
        (b"[" * 100_000, None),
        (b'{"model":"\xff"}', None),
    ],
)
def test_the_model_of_anything_is_a_name_or_none(body: bytes, model: str | None) -> None:
    assert decode_model_name(body) == model
