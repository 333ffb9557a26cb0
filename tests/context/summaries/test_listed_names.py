"""Names that a stub lists: what is worth most, and places of one file."""

from __future__ import annotations

import pytest

from proxy.context.summaries.listed_names import (
    LOWEST_RANK,
    NUMBER_RANK,
    find_listing_sizes,
    fold_places,
    rank_name,
    split_places,
)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("src/a.py", 0), ("a.py:12", 0), ("handler_7", 1), ("Timeout", 1), ("12.5", NUMBER_RANK), ("40ms", NUMBER_RANK),
        ("2026-11-27", LOWEST_RANK), ("T10:22:03Z", LOWEST_RANK), ("10:22", LOWEST_RANK),
    ],
)  # fmt: skip
def test_paths_are_worth_most_and_dates_least(name: str, rank: int) -> None:
    assert rank_name(name) == rank


def test_places_of_one_file_stand_together() -> None:
    names, short = fold_places(["a.py:1", "other", "b.py:3", "a.py:9"])
    assert names == ["a.py:1", "a.py:9", "other", "b.py:3"]
    assert short == {"a.py:9": ":9"}
    assert fold_places(["a", "b"]) == (["a", "b"], {})


def test_the_word_after_a_hit_is_a_separate_name() -> None:
    lines = ["src/a.py:11:handler_7(x)", "src/a.py-12-pass_on", "src/a.py-13-other_one"]
    names = ["src/a.py:11:handler_7", "src/a.py-12-pass_on", "src/a.py-13-other_one"]
    assert split_places(names, lines) == ["src/a.py:11", "handler_7", "src/a.py", "pass_on", "other_one"]
    assert split_places(names, ["no hit"]) is names


def test_sizes_of_a_listing_are_found() -> None:
    assert find_listing_sizes(["-rw-r--r-- 1 root root 4096 Nov 27 02:59 a", "4097 b"]) == {"4096"}
