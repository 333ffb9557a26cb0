"""A stored message is read by its strategy, never by guessing (A5)."""

from __future__ import annotations

from proxy.dialects import read_stored_message

GEMINI = b'{"role": "model", "parts": [{"text": "hi"}]}'
OPENAI = b'{"role": "assistant", "content": "hi"}'


def test_a5_each_strategy_has_its_parser() -> None:
    assert read_stored_message(GEMINI, "gemini").text == "hi"
    assert read_stored_message(GEMINI, "gemini_gca").role == "assistant"
    assert read_stored_message(GEMINI, "openai").text == "", "parts mean nothing to chat completions"
    assert read_stored_message(OPENAI, "openai").text == "hi"


def test_a5_what_came_as_chat_completions_for_a_gemini_upstream_is_read_as_that() -> None:
    assert read_stored_message(OPENAI, "gemini").text == "hi"
    assert (
        read_stored_message(b'{"role": "user", "content": "parts of it", "parts": []}', "gemini").text == "parts of it"
    )
