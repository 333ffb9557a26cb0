"""A change replaces its own bytes and no others, and arrays stay arrays whatever leaves or comes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import spans

RAW = b'{ "a" : [ 1 ,\n  "x\\u0041",  {"b":1.50} ] , "c":""}'


def test_members_and_elements_are_found_with_offsets_of_the_whole_text() -> None:
    members = spans.read_members(RAW)
    assert RAW[slice(*members["c"])] == b'""'
    elements = spans.read_elements(RAW, members["a"])
    assert [RAW[slice(*one)] for one in elements] == [b"1", b'"x\\u0041"', b'{"b":1.50}']
    inner = spans.read_members(RAW, elements[2])
    assert RAW[slice(*inner["b"])] == b"1.50"


@pytest.mark.parametrize("raw", [b'{"a":1,"a":2}', b"[1]", b"{", b'{"\\u0061":1}'])
def test_members_that_cannot_be_distinguished_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="members"):
        spans.read_members(raw)
    with pytest.raises(ValueError, match="list"):
        spans.read_elements(b'{"a":1}')


def test_replacements_change_no_bytes_outside_their_spans() -> None:
    assert spans.apply_replacements(b"abcdef", [(4, 5, b"X"), (1, 3, b""), (6, 6, b"!")]) == b"adXf!"
    with pytest.raises(ValueError, match="overlap"):
        spans.apply_replacements(b"abcdef", [(0, 3, b""), (2, 4, b"")])


@given(st.text("ab", max_size=9), st.text("ab", max_size=9), st.text("ab", max_size=9))
def test_a_text_is_found_again_without_a_search_of_what_is_known(known: str, old: str, new: str) -> None:
    for text in (b"a", b"ab", b"aba"):
        before, body = (known + old).encode(), (known + new).encode()
        assert spans.find_again(body, text, len(known), before.find(text)) == body.find(text)


def test_strings_are_escaped_as_clients_do() -> None:
    assert spans.encode_text('a"b\\c\n\x01é/') == '"a\\"b\\\\c\\n\\u0001é/"'.encode()
    assert spans.encode_visible(" \n") == b'"[removed]"'
    assert spans.encode_visible(" x") == b'" x"'


def test_appending_works_on_empty_and_full_values() -> None:
    for raw, wanted in ((b"[ ]", b"[9 ]"), (b"[1 ]", b"[1,9 ]")):
        assert spans.apply_replacements(raw, [spans.append_element(raw, (0, len(raw)), b"9")]) == wanted
    with pytest.raises(ValueError, match="none"):
        spans.append_element(b'{"a":1}', (0, 7), b"9")
    for raw, wanted in ((b"{ }", b'{"k":9 }'), (b'{"a":1 }', b'{"a":1,"k":9 }')):
        assert spans.apply_replacements(raw, [spans.append_member(raw, (0, len(raw)), "k", b"9")]) == wanted


@given(st.lists(st.integers(0, 99), max_size=6), st.data())
def test_an_array_is_written_from_any_choice_of_its_elements(values: list[int], data: Any) -> None:
    raw = b"xx" + json.dumps(values, indent=1).encode() + b"yy"
    span = (2, len(raw) - 2)
    elements = spans.read_elements(raw, span)
    kept = [n for n in range(len(values)) if data.draw(st.booleans())]
    items: list[tuple[int | None, bytes]] = [(n, raw[slice(*elements[n])]) for n in kept]
    for place in sorted(data.draw(st.lists(st.integers(0, len(kept)), max_size=2)), reverse=True):
        items.insert(place, (None, b'"new"'))
    made = spans.rewrite_array(raw, span, elements, items)
    assert json.loads(made) == [json.loads(one) for _, one in items]
    if len(items) == len(values) == len(kept):
        assert made == raw[slice(*span)]


def test_neighbours_keep_the_bytes_between_them() -> None:
    raw = b"[ 1 ,  2 ,3\n]"
    elements = spans.read_elements(raw)
    made = spans.rewrite_array(raw, (0, len(raw)), elements, [(0, b"1"), (1, b"22"), (None, b"0")])
    assert made == b"[ 1 ,  22,0\n]"
