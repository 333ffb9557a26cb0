"""Row D4: what stands for messages that have left."""

from __future__ import annotations

import pytest

from proxy.context.summaries.summary import (
    ARGUMENT_CHARS,
    INSTRUCTION,
    TEXT_CHARS,
    accept_summary,
    build_question,
    count_chars,
    render_count,
)
from tests.conversations import assistant, make_message, make_messages, result, system, user


def test_d4_the_count_reads_as_in_the_source() -> None:
    talk = [user("a"), assistant("b")] * 15 + [user("a"), assistant(None, "c1"), result("c1", "r")] * 10
    assert (
        render_count(make_messages(*talk)) == "Previous 50 turns: 25 user messages, 25 model responses, 10 tool calls"
    )


@pytest.mark.parametrize("text", [None, "", " \n", "x" * 10, "x" * 11])
def test_d4_a_summary_that_is_missing_empty_or_no_shorter_is_none(text: str | None) -> None:
    assert accept_summary(text, 10) is None


def test_d4_a_shorter_summary_is_accepted_without_the_blanks_around_it() -> None:
    assert accept_summary(" done \n", 5) == "done"


def test_a_message_says_its_text_and_its_calls() -> None:
    assert count_chars(make_message(user("abc"))) == 3
    assert count_chars(make_message(assistant("ab", "c1"))) == 2 + len("run") + len('{"n": 1}')


def test_a_question_shows_both_ends_of_long_texts_and_every_call() -> None:
    talk = make_messages(
        user("A" + "x" * 5000 + "Z"), assistant(None, "c1", "c2"), result("c1", "found it"), system("s")
    )
    asked = build_question(talk)
    assert asked.startswith(INSTRUCTION)
    assert "[user] Axx" in asked
    assert "xxZ\n\n[assistant]\n[calls run] {" in asked
    assert asked.count("[calls run]") == 2
    assert "[tool] found it" in asked
    assert len(asked) < len(INSTRUCTION) + TEXT_CHARS + 2 * ARGUMENT_CHARS + 100
