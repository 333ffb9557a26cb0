from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import BadRequest
from proxy.web.api.pages import cleaned, cursor, page, place, preview, shown, text_of


@given(
    st.integers(-(2**53), 2**53),
    # What a list can be sorted by: a name with a NUL or half a surrogate pair is never stored.
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=50),
    st.floats(-1e15, 1e15),
)
def test_a_cursor_brings_back_its_place(number: int, text: str, time: float) -> None:
    assert place(cursor([number, text, time]), int, str, float) == (number, text, time)


@pytest.mark.parametrize(
    "wrong", ["", "x", "é", "WyJ4Il0", cursor([]), cursor([1, 2]), cursor([1e300]), cursor([2**62]), cursor([-(2**62)])]
)
def test_a_cursor_that_is_none_or_another_lists_is_told(wrong: str) -> None:
    with pytest.raises(BadRequest):
        place(wrong, int)


def test_a_cursor_holds_no_nul() -> None:
    with pytest.raises(BadRequest):
        place(cursor(["a\0"]), str)


def test_no_cursor_is_no_place() -> None:
    assert place(None, int) is None


def test_pages_end_where_nothing_follows() -> None:
    first = page([1, 2, 3], 2, str, lambda row: [row])
    assert (first.items, place(first.next, int)) == (["1", "2"], (2,))
    assert page([3], 2, str, lambda row: [row]).next is None
    assert page([2, 3], 2, str, lambda row: [row]).next is None


@pytest.mark.parametrize("body", [b'{"a": "\\ud800"}', b'{"a": NaN}', b'{"a": 1e999}', b"\xff", b"[" * 100_000, b"{"])
def test_what_no_strict_reader_takes_is_shown_all_the_same(body: bytes) -> None:
    json.dumps(shown(body), allow_nan=False).encode()


def test_json_is_shown_as_it_is() -> None:
    assert shown(b'{"a": [1, null, "x"]}') == {"a": [1, None, "x"]}
    assert cleaned({"\ud800": [math.nan, "ok"]}) == {"?": ["nan", "ok"]}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "two\n words "}, "two words"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "image_url"}, "b"]}, "a"),
        ({"content": None, "tool_calls": [{"function": {"name": "ls"}}, {"custom": {}}, 3]}, "ls()"),
        ({"parts": []}, ""),
        ([], ""),
    ],
)
def test_a_line_says_what_a_message_says(message: object, text: str) -> None:
    assert text_of(json.dumps(message).encode()) == text


def test_a_preview_is_short() -> None:
    assert preview("x" * 200) == "x" * 200
    assert len(preview("x" * 201)) == 200
