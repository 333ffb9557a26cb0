from __future__ import annotations

from proxy.memory.words import STOP, telling


def test_words_that_say_nothing_of_a_topic_are_left_out() -> None:
    assert telling("Please look at the file parse_header.py, and run it again") == ["parse", "header", "py"]
    assert telling("the and of") == []
    assert all(word == word.lower() for word in STOP)


def test_a_blob_is_no_word() -> None:
    assert telling("x" * 41 + " " + "y" * 40 + " z") == ["x" * 40, "y" * 40]
