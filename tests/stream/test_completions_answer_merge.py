from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.stream import completions_answer as merging


def merge_deltas(*deltas: Any, room: int = 1 << 20) -> Any:
    left, old = merging.CaptureLimit(room), None
    for delta in deltas:
        old = merging.merge_value(old, delta, left)
    return merging.build_json_value(old)


def test_strings_are_continued_and_names_of_things_are_not() -> None:
    first = {"id": "c", "type": "function", "function": {"name": "get", "arguments": "{"}}
    second = {"id": "c", "type": "function", "function": {"arguments": "}"}}
    assert merge_deltas(first, second) == {
        "id": "c",
        "type": "function",
        "function": {"name": "get", "arguments": "{}"},
    }


def test_list_entries_with_an_index_grow_and_others_are_appended() -> None:
    assert merge_deltas([{"index": 0, "text": "a"}, {"index": 1, "text": "b"}], [{"index": 1, "text": "c"}]) == [
        {"index": 0, "text": "a"},
        {"index": 1, "text": "bc"},
    ]
    assert merge_deltas([{"url": "a"}], [{"url": "b"}], [3, "x", [None, "y"]]) == [
        {"url": "a"},
        {"url": "b"},
        3,
        "x",
        ["y"],
    ]


def test_null_adds_nothing_and_numbers_replace() -> None:
    assert merge_deltas({"a": "x", "n": 1}, {"a": None, "n": 2}) == {"a": "x", "n": 2}


@given(st.recursive(st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_a_value_that_comes_once_is_what_it_was(value: Any) -> None:
    kept = merge_deltas(value)
    assert kept == value or merging.REPLACED_FIELDS & set(str(value).replace("'", " ").split())


def test_merged_deltas_stay_within_their_memory_limit() -> None:
    assert len(merge_deltas(*["x" * 10] * 100, room=200)) <= 200
    assert len(merge_deltas(*[[{}]] * 100, room=1000)) <= 1000 // merging.ENTRY_OVERHEAD


def test_deep_values_are_taken_as_they_are() -> None:
    deep: Any = "x"
    for _ in range(500):
        deep = {"a": deep}
    assert merge_deltas(deep) == deep


@pytest.mark.timed
def test_merging_deltas_takes_linear_time() -> None:
    start = time.thread_time()
    assert len(merge_deltas(*[{"a": "xy"}] * 200_000)["a"]) == 400_000
    assert len(merge_deltas(*[[{"index": n}, {"index": 0}] for n in range(50_000)], room=1 << 30)) == 50_000
    assert time.thread_time() - start < 5
