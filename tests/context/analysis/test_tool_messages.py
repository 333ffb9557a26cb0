"""Sentences with which tools report that they have failed or changed nothing."""

from __future__ import annotations

import pytest

from proxy.context.analysis import tool_messages
from tests.conversations import make_message, result


@pytest.mark.parametrize(
    ("line", "begins"),
    [
        ("Error: no such file", True),
        ("HTTP 403 Forbidden", True),
        ("Fehler: Zugriff verweigert", True),
        ("Error handling in Go is explicit.", False),
        ("Failed tests: 0. The report is attached.", False),
        ("The failed upload has been created again", False),
        ("Error log has been updated", False),
    ],
)
def test_a_message_of_failure_is_known_by_its_beginning(line: str, begins: bool) -> None:
    assert tool_messages.begins_with_failure(line) == begins


def test_only_the_first_sentence_says_no() -> None:
    assert tool_messages.says_no("The event was not found. Try again.")
    assert not tool_messages.says_no("The event is open. One guest was not found.")
    assert not tool_messages.says_no("Created event 55, a guest was not found")
    assert not tool_messages.says_no("Shown: /errors/not-found/denied.txt")


@pytest.mark.parametrize(
    ("text", "doubtful"),
    [
        ("Sent to 3 people", False),
        ("Not sent", True),
        ("errors: 0", False),
        ("\u05e0\u05e2\u05d5\u05dc", True),
        ("not sent " * 60, False),
    ],
)
def test_a_short_message_with_a_word_against_success_is_doubtful(text: str, doubtful: bool) -> None:
    assert tool_messages.reports_doubt(make_message(result("1", text))) == doubtful


def test_an_edit_without_a_change_says_so_in_its_first_line_or_of_a_hunk() -> None:
    assert tool_messages.reports_no_change([], "No changes were made: old_string occurs 3 times")
    assert tool_messages.reports_no_change(["patching file a.py", "1 out of 2 hunks FAILED"], "patching file a.py")
    assert not tool_messages.reports_no_change(["10 replacements made"], "10 replacements made")
