"""An answer is the same from its events and from its body, and reads like any other answer."""

from __future__ import annotations

import json

import pytest

from proxy.chat.message import Call
from proxy.dialects.completions.request import read_message
from proxy.stream.messages_answer import MessagesAnswer
from tests.stream.messages_rounds import call, make, text, think
from tests.strict_messages import events

BLOCKS = [think(), text("Reading."), call("a", path="x"), call("b")]


def _from_events(*, limit: int = 1 << 20) -> MessagesAnswer:
    answer = MessagesAnswer(limit)
    for event in events(make(*BLOCKS)):
        answer.add_event(event.split(b"data: ")[1])
    return answer


def test_events_and_body_give_one_answer() -> None:
    one, other = _from_events(), MessagesAnswer.from_body(json.dumps(make(*BLOCKS)).encode())
    for answer in (one, other):
        assert (answer.text, answer.model, answer.id) == ("Reading.", "claude-opus-5-5", "msg_1")
        assert answer.calls == (Call("a", "read", answer.calls[0].arguments), Call("b", "read", "{}"))
        assert json.loads(answer.calls[0].arguments) == {"path": "x"}
        assert (answer.finish_reasons, answer.stop_reason) == ({0: "tool_calls"}, "tool_use")
        assert (answer.is_done, answer.is_truncated, answer.choice_count) == (True, False, 1)
    assert one.usage == other.usage
    raws = [answer.build_message() or b"" for answer in (one, other)]
    assert read_message(raws[0]).digest == read_message(raws[1]).digest
    assert json.loads(raws[0])["wire"] == json.loads(raws[1])["wire"]


def test_empty_texts_are_part_of_the_answer_and_not_of_what_upstream_gets_back() -> None:
    answer = MessagesAnswer.from_body(json.dumps(make(text("\n\n"), text("x"))).encode())
    assert answer.text == "\n\nx"
    message = answer.build_round_message()
    assert message is not None
    assert json.loads(message)["content"] == "x"
    assert MessagesAnswer.from_body(json.dumps(make(text(" "))).encode()).build_round_message() is None


def test_errors_and_what_is_not_an_answer_are_reported() -> None:
    error = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
    assert MessagesAnswer.from_body(error).error == "Overloaded"
    streamed = MessagesAnswer()
    streamed.add_event(error)
    streamed.add_event(b"not json")
    assert (streamed.error, streamed.unparsed, streamed.is_truncated) == ("Overloaded", 1, True)
    for body in (b"x", b"[]", b'{"content":"x"}'):
        answer = MessagesAnswer.from_body(body)
        assert (answer.unparsed, answer.is_done, answer.build_message(), answer.choice_count) == (1, False, None, 0)


def test_an_answer_over_the_limit_is_capped() -> None:
    answer = _from_events(limit=150)
    assert answer.is_capped
    answer.build_message()


@pytest.mark.parametrize("index", [1, 2])
def test_an_answer_of_messages_has_no_second_choice(index: int) -> None:
    assert _from_events().build_message(index) is None


def test_the_rest_of_a_text_that_began_without_text_is_kept() -> None:
    answer = MessagesAnswer()
    answer.add_event(b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":[1]}}')
    answer.add_event(b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Well."}}')
    assert json.loads(answer.build_message() or b"")["content"] == "Well."
