from __future__ import annotations

import json
import math

import pytest

from proxy.web.api.stored_text import MAX_READ_CHARS, clean_json, cut_excerpt, cut_preview, decode_json, render_text


@pytest.mark.parametrize("body", [b'{"a": "\\ud800"}', b'{"a": NaN}', b'{"a": 1e999}', b"\xff", b"[" * 100_000, b"{"])
def test_a_body_that_strict_readers_refuse_is_shown_all_the_same(body: bytes) -> None:
    json.dumps(decode_json(body), allow_nan=False).encode()


def test_stored_json_is_decoded_and_cleaned_for_display() -> None:
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


@pytest.mark.parametrize("content", ["word " * 400_000, [{"type": "text", "text": "word " * 400_000}]])
def test_only_the_beginning_of_a_long_message_is_read(content: object) -> None:
    text = render_text(json.dumps({"content": content}).encode())
    assert MAX_READ_CHARS - 10 <= len(text) <= MAX_READ_CHARS


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
