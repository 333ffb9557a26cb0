"""Lines of a result that tell something."""

from __future__ import annotations

import time

import pytest

from proxy.context.analysis.telling_lines import (
    LONG_LINE,
    find_constants,
    find_imports,
    find_reported_errors,
    find_unlike_lines,
    select_error_lines,
)
from tests.conversations import build_view, make_messages, result, user


@pytest.mark.parametrize("line", [" " * 200_000 + "x", ")" + " " * 200_000 + "x", "\t" * 200_000, "1" * 200_000])
def test_the_imports_of_a_file_with_long_lines_take_linear_time(line: str) -> None:
    (message,) = build_view([user("\n".join(["import os", *[line] * 58]))]).messages
    assert find_imports(message)[:1] == (0,)


@pytest.mark.parametrize("number", ["", "{}\t", "{:6d}\u2192"])
def test_a_bracket_is_kept_where_it_ends_a_list_of_imports_alone(number: str) -> None:
    code = ["from a import (", "    b,", ")", "import c", "value = call(", "    1,", ")", "x = (", "    2", "  )"]
    lines = [number.format(n) + line for n, line in enumerate(code, 1)]
    assert find_imports(make_messages(result("1", "\n".join(lines)))[0]) == (0, 2, 3)
    assert find_imports(make_messages(result("1", "\n".join(lines[4:])))[0]) == ()


@pytest.mark.parametrize("of_time", ["11:11:", "11:11.", "11:11 "])
def test_lines_of_many_times_are_searched_for_reports_in_linear_time(of_time: str) -> None:
    line = f"{(of_time * 64)[:380]} denied"
    message = make_messages(result("1", "\n".join([line] * 200)))[0]
    began = time.thread_time()
    assert find_reported_errors(message) == ()
    assert time.thread_time() - began < 1


@pytest.mark.parametrize(
    ("line", "reports"),
    [
        ("2026-11-26T12:00:01.123Z [main] ERROR no space", True),
        ("12:00:01,123: FATAL no space", True),
        ("1:12:00 SEVERE no space", True),
        ("12:00x FATAL no space", False),
        (f"12:00:01 {'a ' * 40}ERROR", False),
    ],
)
def test_a_line_reports_an_error_where_its_level_stands_near_its_time(line: str, reports: bool) -> None:
    assert find_reported_errors(make_messages(result("1", line))[0]) == ((0,) if reports else ())


def test_a_long_row_of_capital_letters_has_no_constants_and_takes_linear_time() -> None:
    # Base64 of zeros is such a row. Each letter was the beginning of a search to the end of the row.
    (message,) = build_view([user("A" * 1_000_000)]).messages
    assert find_constants(message) == ()


def test_lines_are_compared_in_linear_time() -> None:
    (message,) = build_view([user("\n".join(["a" * 10_000, "7" * 10_000] * 5))]).messages
    assert find_unlike_lines(message) == ()
    (long,) = build_view([user("a" * 1_000_000)]).messages
    assert find_unlike_lines(long) == ()


def test_a_result_whose_lines_all_differ_has_no_unlike_line() -> None:
    (code,) = build_view([user("\n".join(f"def f{'a' * n}(x): return x" for n in range(30)))]).messages
    (alike,) = build_view([user("\n".join(f"step {n}" for n in range(30)))]).messages
    assert find_unlike_lines(code) == find_unlike_lines(alike) == ()


def test_a_line_that_is_too_long_reports_no_error() -> None:
    message = make_messages(result("1", f"Error: no\n{'a ' * LONG_LINE}Error: no"))[0]
    assert select_error_lines(message, message.text.splitlines()) == [0]
