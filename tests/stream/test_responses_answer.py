from __future__ import annotations

import json

from proxy.dialects.completions.request import read_message
from proxy.stream.responses_answer import MAX_ITEMS, ResponsesAnswer
from tests.response_events import Json, custom_call, message, response, thinking, tool_call
from tests.stream.responses_rounds import send_back

ITEMS = [thinking(1, "So."), message(2, "Hello."), tool_call(3, "shell"), custom_call(4, "patch", "***")]


def dump(value: Json) -> bytes:
    return json.dumps(value).encode()


def test_a_body_is_the_message_that_comes_back() -> None:
    answer = ResponsesAnswer.from_body(dump(response(*ITEMS)))
    raw = answer.build_message()
    assert raw is not None
    assert read_message(raw).digest == send_back(ITEMS).digest
    assert json.loads(raw)["wire"] == ITEMS
    assert (answer.text, [call.name for call in answer.calls]) == ("Hello.", ["shell", "patch"])
    assert (answer.choice_count, answer.is_done, answer.is_truncated, answer.id) == (1, True, False, "resp_1")
    assert answer.finish_reasons == {0: "tool_calls"}
    assert answer.usage is not None
    assert answer.usage.reasoning == 3
    assert answer.build_message(1) is None


def test_an_unfinished_response_keeps_the_text_and_arguments_that_came() -> None:
    answer = ResponsesAnswer()
    assert (answer.build_message(), answer.text, answer.calls, answer.choice_count) == (None, "", (), 0)
    answer.begin_item(0, {"type": "message", "id": "msg_1", "role": "assistant", "content": []})
    answer.add_item_text(0, 0, "Hel")
    answer.add_item_text(0, 0, "lo")
    answer.begin_item(1, {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "shell", "arguments": ""})
    answer.add_arguments(1, '{"a"')
    answer.begin_item(2, {"type": "custom_tool_call", "call_id": "call_2", "name": "patch", "input": ""})
    answer.add_arguments(2, "***")
    answer.add_item_text(9, 0, "of no item")
    assert (answer.text, [call.arguments for call in answer.calls]) == ("Hello", ['{"a"', "***"])
    assert answer.is_truncated
    answer.put_item(0, dump(message(1, "Hello, you.")))
    assert answer.text == "Hello, you."
    assert [json.loads(raw)["type"] for raw in answer.items] == ["message", "function_call", "custom_tool_call"]


def test_bodies_that_are_not_answers_make_no_message() -> None:
    failed = ResponsesAnswer.from_body(b'{"error":{"message":"no"}}')
    assert (failed.error, failed.is_done, failed.build_message()) == ("no", False, None)
    assert ResponsesAnswer.from_body(b"no json").unparsed == 1
    odd = ResponsesAnswer.from_body(dump(response({"type": "message", "role": "assistant", "content": ["bare"]})))
    assert odd.build_message() is None


def test_an_answer_over_the_limit_is_capped() -> None:
    answer = ResponsesAnswer.from_body(dump(response(message(1, "x" * 500))), 200)
    assert answer.is_capped
    assert answer.build_message() is None
    growing = ResponsesAnswer(100)
    growing.begin_item(0, {"type": "message", "role": "assistant"})
    growing.add_item_text(0, 0, "x" * 50)
    assert growing.is_capped


def test_an_answer_of_very_many_items_is_capped() -> None:
    for count in (MAX_ITEMS, MAX_ITEMS + 1):
        items = [message(n, "x") for n in range(count)]
        streamed = ResponsesAnswer()
        for n, item in enumerate(items):
            streamed.begin_item(n, {})
            streamed.put_item(n, dump(item))
        streamed.put_item(0, dump(items[0]))
        for answer in (ResponsesAnswer.from_body(dump(response(*items))), streamed):
            assert (len(answer.items), answer.is_capped) == (MAX_ITEMS, count > MAX_ITEMS)
