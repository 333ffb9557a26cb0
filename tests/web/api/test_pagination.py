from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import BadRequest
from proxy.web.api.pagination import (
    clean_json,
    cut_excerpt,
    cut_preview,
    decode_json,
    make_page,
    read_cursor,
    render_text,
    write_cursor,
)


@given(
    st.integers(-(2**53), 2**53),
    # What a list can be sorted by: a name with a NUL or half a surrogate pair is never stored.
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=50),
    st.floats(-1e15, 1e15),
)
def test_a_cursor_brings_back_its_place(number: int, text: str, time: float) -> None:
    assert read_cursor(write_cursor([number, text, time]), int, str, float) == (number, text, time)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "x",
        "é",
        "WyJ4Il0",
        write_cursor([]),
        write_cursor([1, 2]),
        write_cursor([1e300]),
        write_cursor([2**62]),
        write_cursor([-(2**62)]),
    ],
)
def test_a_cursor_that_is_none_or_another_lists_is_told(wrong: str) -> None:
    with pytest.raises(BadRequest):
        read_cursor(wrong, int)


def test_a_cursor_holds_no_nul() -> None:
    with pytest.raises(BadRequest):
        read_cursor(write_cursor(["a\0"]), str)


def test_no_cursor_is_no_place() -> None:
    assert read_cursor(None, int) is None


def test_pages_end_where_nothing_follows() -> None:
    first = make_page([1, 2, 3], 2, str, lambda row: [row])
    assert (first.items, read_cursor(first.next, int)) == (["1", "2"], (2,))
    assert make_page([3], 2, str, lambda row: [row]).next is None
    assert make_page([2, 3], 2, str, lambda row: [row]).next is None


@pytest.mark.parametrize("body", [b'{"a": "\\ud800"}', b'{"a": NaN}', b'{"a": 1e999}', b"\xff", b"[" * 100_000, b"{"])
def test_what_no_strict_reader_takes_is_shown_all_the_same(body: bytes) -> None:
    json.dumps(decode_json(body), allow_nan=False).encode()


def test_json_is_shown_as_it_is() -> None:
    assert decode_json(b'{"a": [1, null, "x"]}') == {"a": [1, None, "x"]}
    assert clean_json({"\ud800": [math.nan, "ok"]}) == {"?": ["nan", "ok"]}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "two\n words "}, "two words"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "image_url"}, "b"]}, "a"),
        ({"content": None, "tool_calls": [{"function": {"name": "ls"}}, {"custom": {}}, 3]}, "ls()"),
        ({"content": "two", "tool_calls": True}, "two"),
        ({"parts": []}, ""),
        ([], ""),
    ],
)
def test_a_line_says_what_a_message_says(message: object, text: str) -> None:
    assert render_text(json.dumps(message).encode()) == text


def test_a_preview_is_short() -> None:
    assert cut_preview("x" * 200) == "x" * 200
    assert len(cut_preview("x" * 201)) == 200


def test_an_excerpt_shows_the_word_that_was_searched_for() -> None:
    text = "start " + "x " * 500 + "The Needle (here) " + "y " * 500
    assert "Needle" in cut_excerpt(text, "nowhere needle")
    assert len(cut_excerpt(text, "needle")) == 200
    assert cut_excerpt(text, "(here").startswith("…")
    assert cut_excerpt("a short text", "text") == "a short text"
    assert cut_excerpt(text, "none of these") == cut_preview(text)
    assert cut_excerpt(text, " ") == cut_preview(text)
