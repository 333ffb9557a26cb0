from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import BadRequest
from proxy.web.api.pagination import make_page, read_cursor, read_offset, slice_page, write_cursor


@given(
    st.integers(-(2**53), 2**53),
    # What a list can be sorted by: a name with a NUL or half a surrogate pair is never stored.
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=50),
    st.floats(-1e15, 1e15),
)
def test_a_cursor_is_decoded_to_its_position(number: int, text: str, time: float) -> None:
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
def test_an_invalid_cursor_or_one_of_another_list_is_reported(wrong: str) -> None:
    with pytest.raises(BadRequest):
        read_cursor(wrong, int)


def test_a_cursor_holds_no_nul() -> None:
    with pytest.raises(BadRequest):
        read_cursor(write_cursor(["a\0"]), str)


def test_a_missing_cursor_is_the_beginning() -> None:
    assert read_cursor(None, int) is None


def test_pages_end_where_nothing_follows() -> None:
    first = make_page([1, 2, 3], 2, str, lambda row: [row])
    assert (first.items, read_cursor(first.next, int)) == (["1", "2"], (2,))
    assert make_page([3], 2, str, lambda row: [row]).next is None
    assert make_page([2, 3], 2, str, lambda row: [row]).next is None


@pytest.mark.parametrize("count", [0, 1, 5, 6, 7])
def test_a_list_in_memory_comes_whole_page_by_page(count: int) -> None:
    rows, found, cursor = list(range(count)), list[int](), None
    while True:
        shown, cursor = slice_page(rows, read_offset(cursor), 3)
        found += shown
        if cursor is None:
            break
        assert len(shown) == 3
    assert found == rows


def test_an_offset_is_never_negative() -> None:
    assert read_offset(write_cursor([-5])) == read_offset(None) == 0
