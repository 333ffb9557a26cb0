from __future__ import annotations

import re

import pytest

from proxy.context.summaries.truncate import make_mark_renderer, truncate_text

TEXT = "\n".join(f"line {n:03}: something was said here" for n in range(200))


def missing(count: int) -> str:
    return f"[{count} left out]"


@pytest.mark.parametrize("tokens", [0, 10, 18, 50, 300, 1_000, 6_000, 10**6])
def test_a_truncated_text_fits_and_has_head_and_tail(tokens: int) -> None:
    made = truncate_text(TEXT, tokens, len, missing)
    assert len(made) <= max(tokens, len(missing(len(TEXT))))
    if tokens >= len(TEXT):
        assert made == TEXT
    elif tokens >= 300:
        head, _, rest = made.partition("\n[")
        left, _, tail = rest.partition(" left out]\n")
        assert TEXT.startswith(head)
        assert TEXT.endswith(tail)
        assert len(head) + len(tail) + int(left) == pytest.approx(len(TEXT), abs=2)
        assert len(made) > tokens - 300
        assert head.splitlines()[-1].endswith("here"), "the cut is made between lines"
        assert tail.startswith("line")


def test_a_text_of_one_line_is_cut_anywhere() -> None:
    made = truncate_text("x" * 5_000, 1_000, len, missing)
    assert 800 < len(made) <= 1_000
    assert made.startswith("xxx")
    assert made.endswith("xxx")


def test_a_line_of_json_is_cut_between_its_numbers() -> None:
    numbers = [str(1_000_000 + 7 * n) for n in range(900)]
    text = "[" + ", ".join(f'{{"id": {number}}}' for number in numbers) + "]"
    for tokens in range(300, 330):
        made = truncate_text(text, tokens, len, lambda _: "[cut]")
        assert set(re.findall(r"\d+", made)) < {*numbers}
        assert len(made) <= tokens


def test_uneven_text_comes_down_to_the_size_as_well() -> None:
    """Half of it is ten times as heavy as the rest."""
    text = "a" * 3_000 + "Z" * 3_000

    def count(part: str) -> int:
        return len(part) + 9 * part.count("Z")

    assert count(truncate_text(text, 2_000, count, missing)) <= 2_000


def test_the_mark_names_the_message_and_how_to_get_it() -> None:
    assert 'recall("abc")' in make_mark_renderer("abc", 9, {"recall", "query_db"})(5)
    assert "WHERE id='abc'" in make_mark_renderer("abc", 9, {"query_db"})(5)
    assert (
        make_mark_renderer("abc", 9, ())(5)
        == "[... 5 of 9 characters are left out to fit the context window; message abc]"
    )
