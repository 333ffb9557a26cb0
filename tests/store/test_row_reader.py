from __future__ import annotations

import pytest

from proxy.store.row_reader import CHUNK_SIZES, expand_per_chunk, split_into_chunks


@pytest.mark.parametrize("count", [0, 1, 8, 9, 64, 65, 600, 1200])
def test_chunks_hold_every_key_once_deepest_first_and_have_the_sizes_that_statements_have(count: int) -> None:
    keys = [b"%d" % n for n in range(count)]
    made = split_into_chunks(keys)
    assert all(len(chunk) in CHUNK_SIZES for chunk in made)
    assert list(dict.fromkeys(key for chunk in made for key in chunk)) == keys[::-1]


def test_a_long_list_begins_with_the_middle_size() -> None:
    assert [len(chunk) for chunk in split_into_chunks([b"k"] * 70)] == [64, 8]
    assert [len(chunk) for chunk in split_into_chunks([b"k"] * 1000)] == [64, 512, 512]


def test_placeholders_are_numbered_in_order_around_a_list() -> None:
    made = expand_per_chunk("a = ? AND k IN ({keys}) LIMIT ?")
    assert set(made) == set(CHUNK_SIZES)
    assert made[8] == "a = $1 AND k IN ($2, $3, $4, $5, $6, $7, $8, $9) LIMIT $10"
