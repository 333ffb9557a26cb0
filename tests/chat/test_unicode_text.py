from __future__ import annotations

import sys
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.chat.unicode_text import _RUN, MAX_RUN, normalize, replace_surrogates

MARKS = "\u0316\u0301"
"""A mark that stands below, and one above it: normalization changes neither order, but has to sort the reverse."""


@given(st.text(alphabet=st.sampled_from("aeé \n\u0301\u0316\u0338\u3099か\u1100\u1161数─🙂\U0001d165"), max_size=90))
def test_a_text_of_people_is_normalized_as_python_does_it(text: str) -> None:
    assert normalize("NFC", text) == unicodedata.normalize("NFC", text)
    assert normalize("NFD", text) == unicodedata.normalize("NFD", text)


def test_every_combining_mark_is_one_that_a_run_may_have() -> None:
    chars = (chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)
    assert [c for c in chars if unicodedata.combining(c) and not _RUN.fullmatch(c)] == []


def test_a_run_that_no_script_has_is_cut_and_loses_nothing() -> None:
    text = "x" + MARKS[::-1] * MAX_RUN + "\u0301"
    assert sorted(normalize("NFD", text)) == sorted(text)
    long = "─" * 1000 + "cafe\u0301"
    assert normalize("NFC", long) == "─" * 1000 + "café"


@pytest.mark.parametrize("text", ["x" + MARKS[::-1], "\u0e48\u0e38", "─\u0338", "e\u0301"])
def test_normalizing_combining_marks_takes_linear_time(text: str) -> None:
    """160 KB of marks held every request for 5 s; ten times as many would have held them for eight minutes."""
    began = time.thread_time()
    normalize("NFC", text * 500_000)
    normalize("NFC", text[0] + text[1:] * 500_000)
    assert time.thread_time() - began < 5


def test_a_text_with_half_a_pair_of_surrogates_can_be_sent_and_stored() -> None:
    assert replace_surrogates("a\ud83d b\udc00 🙂").encode() == "a? b? 🙂".encode()
