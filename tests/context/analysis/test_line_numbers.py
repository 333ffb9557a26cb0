from __future__ import annotations

from sys import getsizeof

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.context.analysis.line_numbers import drop_most_numbers, read_lines, split_lines, thin_numbers
from tests.conversations import make_message

ROWS = [f"    return value_{n}" for n in range(40)]


def numbered(mark: str, start: int = 1, width: int = 6) -> str:
    return "\n".join(f"{n:{width}}{mark}{row}" for n, row in enumerate(ROWS, start))


@pytest.mark.parametrize("mark", ["\t", "\u2192", "|", ":", ": "])
@pytest.mark.parametrize("width", [0, 6])
def test_a_listing_is_recognised_by_consecutive_numbers(mark: str, width: int) -> None:
    lines = split_lines(numbered(mark, 95, width))
    assert lines.is_listing
    assert lines.numbers[0] == 95
    assert lines.bare[3] == mark[1:] + ROWS[3], "what stands behind the mark is the line, blanks included"


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(ROWS),
        "\n".join(f"12:{row}" for row in ROWS),
        "\n".join(f"{n * 7}:{row}" for n, row in enumerate(ROWS)),
        numbered("\t")[:90],
        "",
    ],
    ids=["plain", "one number", "hits of a search", "too short", "empty"],
)
def test_other_texts_are_not_listings(text: str) -> None:
    lines = split_lines(text)
    assert not lines.is_listing
    assert lines.bare is lines.whole


def test_every_tenth_number_stays_and_the_first_and_those_after_a_jump() -> None:
    text = numbered("\t", 5) + "\n\n(more)\n" + "\n".join(f"{n}\tx = {n}" for n in (80, 81, 82))
    lines = split_lines(text)
    out = thin_numbers(lines, 0, len(lines.whole))
    kept = [line.split("\t")[0].strip() for line in out if "\t" in line]
    assert kept == ["5", "10", "20", "30", "40", "80"]
    assert out[1] == ROWS[1]
    assert len(out) == len(lines.whole), "a line stays a line"


@given(st.text(st.sampled_from("ab 1\n\r\x0b\x0c\x85\u2028\u2029\t:|"), max_size=80))
def test_lines_put_together_again_are_the_text(text: str) -> None:
    lines = split_lines(text)
    assert "\n".join(lines.whole) == text
    same = text.splitlines() == [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    assert lines.is_plain <= (same or not text or text.endswith("\r")), "others count the same lines"


@given(
    st.lists(st.one_of(st.text(), st.integers(1, 99).map(lambda n: f"{n:4}\t  row {n}")), max_size=30), st.booleans()
)
@pytest.mark.parametrize("mark", ["\t", "\u2192", ": ", "| "])
def test_the_lines_of_a_message_are_those_of_its_text_each_time(mark: str, rows: list[str], numbered_too: bool) -> None:
    text = "\n".join([*rows, *(numbered(mark).split("\n") if numbered_too else ())])
    one = make_message({"role": "tool", "tool_call_id": "c", "content": text})
    assert read_lines(one) == split_lines(text) == read_lines(one)


def test_only_round_line_numbers_of_a_listing_are_names() -> None:
    """A file of 1,200 lines has 200 numbers of four digits, which say no more than the round ones."""
    listing = make_message({"role": "tool", "tool_call_id": "c", "content": numbered("\u2192", 1000)})
    names = ["value_3", *(str(n) for n in range(1000, 1040)), "8080", "2026-11-27"]
    expected = ["value_3", *(str(n) for n in range(1000, 1040, 5)), "8080", "2026-11-27"]
    assert drop_most_numbers(listing, names) == expected
    padded = numbered("| ", 100).replace("   1", "0001")
    listing = make_message({"role": "tool", "tool_call_id": "c", "content": padded})
    assert drop_most_numbers(listing, ["000105", "000106", "a.py"]) == ["a.py"], "nobody names a line so"
    plain = make_message({"role": "tool", "tool_call_id": "c", "content": "\n".join(names)})
    assert drop_most_numbers(plain, names) == names


def test_remembered_facts_of_lines_take_a_tenth_of_their_memory() -> None:
    rows = "\n".join(f"{n:6}\tdef handler_{n}(request): return process_{n}(request)" for n in range(1000, 1100))
    one = make_message({"role": "tool", "tool_call_id": "c", "content": rows})
    taken = sum(map(getsizeof, (*read_lines(one).whole, *read_lines(one).bare)))
    facts = [value for value in one.derived_values.values() if hasattr(value, "cuts")]
    assert sum(getsizeof(facts[0].cuts) + getsizeof(facts[0].numbers) for _ in facts) < taken / 10


def test_line_ends_of_other_readers_are_detected() -> None:
    assert split_lines("a\r\nb\r\n").is_plain
    assert not split_lines("a\rb").is_plain
    assert not split_lines("a\x0cb").is_plain
    assert not split_lines("a\u2028b").is_plain


@pytest.mark.parametrize("form", ["{n:05d}| {row}", "{n}: {row}", "{n}| {row}"])
def test_a_blank_after_the_mark_is_not_part_of_the_files_text(form: str) -> None:
    rows = ["import os", "", *ROWS]
    lines = split_lines("\n".join(form.format(n=n, row=row) for n, row in enumerate(rows, 1)))
    assert lines.bare == rows
    assert thin_numbers(lines, 0, len(rows))[1:9] == rows[1:9]


def test_line_numbers_with_leading_zeros_are_removed_with_the_blank_after_them() -> None:
    text = "\n".join(f"{n:05d}| {row}" for n, row in enumerate(ROWS, 20))
    assert split_lines(text).bare == ROWS


@pytest.mark.parametrize("rows", [ROWS, [f" * line {n} of a comment" for n in range(40)]], ids=["indented", "comment"])
def test_all_line_numbers_stay_where_a_blank_may_belong_to_the_file_or_the_listing(rows: list[str]) -> None:
    whole = [f"{n}:{row}" for n, row in enumerate(rows, 20)]
    assert thin_numbers(split_lines("\n".join(whole)), 0, len(whole)) == whole


@pytest.mark.parametrize("mark", ["\t", "\u2192"])
def test_after_a_tab_or_an_arrow_each_blank_is_the_files(mark: str) -> None:
    lines = split_lines(numbered(mark))
    assert lines.bare == ROWS
    assert thin_numbers(lines, 0, 5)[1:] == ROWS[1:5]


@pytest.mark.parametrize("mark", ["|", ":"])
def test_a_mark_without_a_blank_takes_none(mark: str) -> None:
    rows = ["def f():", *ROWS]
    lines = split_lines("\n".join(f"{n}{mark}{row}" for n, row in enumerate(rows, 1)))
    assert lines.bare == rows
    assert thin_numbers(lines, 0, 5)[1:] == rows[1:5]
