"""An answer of Gemini, added up."""

from __future__ import annotations

import json

from proxy.stream.gemini_answer import MAX_PARTS, GeminiAnswer, split_body
from tests.stream.gemini_rounds import call, chunks, text, think
from tests.stream.round_relays import read_canonical


def test_a_body_is_one_response_or_a_list_of_chunks() -> None:
    responses = chunks(think(), text("One "), text("two."), call("a"))
    whole = chunks(think(), text("One two."), call("a"), together=True)[0]
    listed = json.dumps(responses, indent=1).encode()
    assert len(split_body(listed)) == 4
    one, other = GeminiAnswer.from_body(listed), GeminiAnswer.from_body(json.dumps(whole).encode())
    assert one.build_message() == other.build_message()
    assert read_canonical(one.build_message()) == ("assistant", "One two.", ["a"])
    assert (one.text, one.is_done, one.finish_reasons, one.choice_count) == ("One two.", True, {0: "tool_calls"}, 1)
    assert one.usage == other.usage


def test_texts_are_joined_also_where_they_are_read_between() -> None:
    answer = GeminiAnswer()
    for n, part in enumerate([text("a"), text("b"), {"text": 5}, text("c"), think(), text("d"), text("e")]):
        answer.add_part(part)
        assert answer.text.startswith("ab"[: n + 1])
    assert answer.text == "abcde"
    assert len(answer.parts) == 3


def test_empty_texts_do_not_go_back() -> None:
    answer = GeminiAnswer()
    answer.add_part({"text": "", "thoughtSignature": "x"})
    answer.add_part(call("a"))
    answer.add_part({"text": ""})
    message = answer.build_round_message()
    assert message is not None
    assert json.loads(message)["wire"] == [{"text": "", "thoughtSignature": "x"}, call("a")]


def test_what_is_not_an_answer_makes_no_message() -> None:
    assert GeminiAnswer().build_message() is None
    assert GeminiAnswer.from_body(b"nothing").unparsed == 1
    assert GeminiAnswer.from_body(b"[1").unparsed == 1
    error = GeminiAnswer.from_body(b'[{"error":{"message":"busy"}}]')
    assert (error.error, error.is_done) == ("busy", False)
    strange = GeminiAnswer.from_body(
        b'{"candidates":[{"content":{"parts":[{"functionCall":{}}]},"finishReason":"STOP"}]}'
    )
    assert strange.build_message() is None
    assert strange.calls == ()


def test_a_stored_answer_is_capped_in_text_and_parts() -> None:
    answer = GeminiAnswer(limit=500)
    for _ in range(9):
        answer.add_part({"text": "x" * 100})
    assert answer.is_capped
    assert len(answer.text) <= 500
    many = GeminiAnswer()
    for n in range(MAX_PARTS + 1):
        many.add_part({"inlineData": {"n": n}})
    assert many.is_capped
    assert len(many.parts) == MAX_PARTS
