"""Answers that clients return in their own words, and others that only look alike."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.chat.message import Message
from proxy.sessions.given_answer import MIN_ID_CHARS, MIN_TEXT_CHARS, REMEMBERED_CHARS, GivenAnswer
from tests.conversations import assistant, make_message, result, user

ID = "call_Zk3vQ8xLbT"
TEXT = "The deploy key lives in the second vault."


def calling(*ids: str, text: str = "") -> Message:
    return make_message(assistant(text, *ids))


@pytest.mark.parametrize(
    ("given", "returned"),
    [
        (calling(ID), calling(ID, text="I read it.")),
        (calling(ID, ID + "2"), calling(ID)),
        (calling(ID), make_message(assistant(f"I called run with {ID}."))),
        (make_message(assistant(TEXT)), make_message(assistant(f"  {TEXT} And more."))),
        (make_message(assistant(f"Let me think. {TEXT}")), make_message(assistant(TEXT))),
        (make_message(assistant("x" * REMEMBERED_CHARS + TEXT)), make_message(assistant(f"Hm. {TEXT}"[4:]))),
        (
            calling("call_3", "call_4", text="I look."),
            calling("call_tc-pgwgrrhg0jo_0", "tc-yx1fijoghsi", text="I look."),
        ),
        (calling(ID), calling("callZk3vQ")),
        (calling("functions.write:0/Zk3vQ"), calling("functions_write_0_Zk3vQ")),
        (calling("functions.run:0", text=TEXT), calling("functions.run:0")),
        (calling("functions.run:0", text=f"<think>Hm.</think> {TEXT}"), calling("functions.run:0", text=TEXT)),
        (calling("functions.run:0", text="Yes."), calling("functions.run:0", text="Yes.\n")),
    ],
    ids=[
        "a text with the calls",
        "one call left",
        "calls as text",
        "a text behind",
        "no thoughts",
        "its end alone",
        "own ids for counters",
        "a cut id",
        "a cleaned id",
        "a counter without the text",
        "a counter without thoughts",
        "a counter after a short text",
    ],
)
def test_a_returned_answer_is_recognised(given: Message, returned: Message) -> None:
    assert GivenAnswer.remember(given).is_reworded_in(returned)


@pytest.mark.parametrize(
    ("given", "returned"),
    [
        (calling(ID), calling(ID, "call_of_another")),
        (calling(ID), calling("call_of_another")),
        (calling(ID), calling("callZk3v")),
        (calling(ID), calling("callZk3vQ", text="I read it.")),
        (calling("functions.run:0"), calling("functions.run:0", text="I read it.")),
        (calling("functions.run:0", text=TEXT), calling("functions.run:0", text="Another text that is long enough.")),
        (calling("functions.run:0"), calling("functions.run:0", "functions.run:1")),
        (calling("c" * (MIN_ID_CHARS - 1)), calling("c" * (MIN_ID_CHARS - 1), text="I read it.")),
        (make_message(assistant(TEXT)), make_message(user(TEXT))),
        (calling(ID), make_message(result(ID, "text"))),
        (make_message(assistant("y" * (MIN_TEXT_CHARS - 1))), make_message(assistant("y" * (MIN_TEXT_CHARS - 1)))),
        (make_message(assistant(TEXT)), make_message(assistant("Another text that is long enough."))),
    ],
    ids=[
        "another call",
        "another id",
        "cut too short",
        "a cut id and a text",
        "a counter",
        "a counter after another text",
        "a counter more",
        "a short id",
        "of the user",
        "a result",
        "a short text",
        "another text",
    ],
)
def test_a_different_answer_is_not_recognised(given: Message, returned: Message) -> None:
    assert not GivenAnswer.remember(given).is_reworded_in(returned)


def test_little_of_a_long_answer_is_remembered() -> None:
    found: Any = GivenAnswer.remember(make_message(assistant("a" * 10_000 + "b" * 10_000)))
    assert (found.head, found.tail) == ("a" * REMEMBERED_CHARS, "b" * REMEMBERED_CHARS)
