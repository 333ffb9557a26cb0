from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.chat.json_spans import MAX_VALUES
from proxy.chat.message import Call
from proxy.dialects.completions.request import read_message
from proxy.dialects.completions.stream import read_chunk
from proxy.dialects.usage import Usage
from proxy.stream.completions_answer import MAX_CALLS, MAX_CHOICES, AssembledAnswer


def delta(value: dict[str, Any], index: int = 0, finish: str | None = None) -> bytes:
    return json.dumps(
        {"id": "c1", "model": "m", "choices": [{"index": index, "delta": value, "finish_reason": finish}]}
    ).encode()


def answer(*data: bytes, limit: int = 8 << 20) -> AssembledAnswer:
    made = AssembledAnswer(limit)
    for one in data:
        made.add_event(one)
    return made


def message(made: AssembledAnswer, index: int = 0) -> Any:
    raw = made.build_message(index)
    return None if raw is None else json.loads(raw)


def call(index: int | None, arguments: str, name: str = "", number: str = "") -> dict[str, Any]:
    part: dict[str, Any] = {"function": {"arguments": arguments}}
    if index is not None:
        part["index"] = index
    if number:
        part |= {"id": number, "type": "function"}
        part["function"]["name"] = name
    return part


def test_texts_add_up_and_the_stream_is_complete() -> None:
    made = answer(
        delta({"role": "assistant", "content": ""}),
        delta({"content": "Hé"}),
        delta({"content": "llo"}),
        delta({}, 0, "stop"),
    )
    assert message(made) == {"role": "assistant", "content": "Héllo"}
    assert (made.text, made.finish_reasons, made.id, made.model) == ("Héllo", {0: "stop"}, "c1", "m")
    assert not made.is_truncated
    assert not made.is_done


def test_streamed_tool_calls_are_assembled_by_index() -> None:
    made = answer(
        delta({"role": "assistant", "content": None}),
        delta({"tool_calls": [call(0, "", "read", "a")]}),
        delta({"tool_calls": [call(1, '{"q"', "find", "b"), call(0, "{}")]}),
        delta({"tool_calls": [call(1, ":1}")]}, 0, "tool_calls"),
    )
    assert made.calls == (Call("a", "read", "{}"), Call("b", "find", '{"q":1}'))
    assert message(made) == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}},
            {"id": "b", "type": "function", "function": {"name": "find", "arguments": '{"q":1}'}},
        ],
    }


@pytest.mark.parametrize("indexes", [(0, 0), (None, None)], ids=["all the same", "none"])
def test_calls_without_indexes_of_their_own_are_distinguished_by_id(indexes: tuple[int | None, int | None]) -> None:
    made = answer(
        delta({"tool_calls": [call(indexes[0], "{", "read", "a")]}),
        delta({"tool_calls": [call(indexes[0], "}")]}),
        delta({"tool_calls": [call(indexes[1], "[", "find", "b"), call(indexes[1], "]")]}),
    )
    assert made.calls == (Call("a", "read", "{}"), Call("b", "find", "[]"))


def test_an_id_that_is_said_with_every_fragment_is_one_call() -> None:
    made = answer(
        delta({"tool_calls": [call(0, "{", "read", "a")]}), delta({"tool_calls": [{**call(0, "}"), "id": "a"}]})
    )
    assert made.calls == (Call("a", "read", "{}"),)


def test_reasoning_and_unknown_fields_belong_to_the_message() -> None:
    made = answer(
        delta({"role": "assistant", "reasoning_content": "th"}),
        delta({"reasoning_content": "ink", "refusal": None}),
        delta({"reasoning_details": [{"index": 0, "type": "reasoning.text", "text": "a"}]}),
        delta({"reasoning_details": [{"index": 0, "type": "reasoning.text", "text": "b", "signature": "s"}]}),
        delta({"content": "x", "annotations": [{"type": "url_citation"}]}),
        delta({"tool_calls": [{**call(0, "{}", "f", "a"), "extra_content": {"google": {"thought_signature": "abc"}}}]}),
    )
    found = message(made)
    assert found["reasoning_content"] == "think"
    assert found["reasoning_details"] == [{"index": 0, "type": "reasoning.text", "text": "ab", "signature": "s"}]
    assert found["annotations"] == [{"type": "url_citation"}]
    assert found["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "abc"}}
    assert "refusal" not in found


def test_the_pieces_of_a_thinking_block_are_one_block_up_to_its_signature() -> None:
    def think(text: str, signature: str | None = None) -> dict[str, Any]:
        return {"type": "thinking", "thinking": text, "signature": signature}

    redacted = {"type": "redacted_thinking", "data": "d"}
    made = answer(
        delta({"role": "assistant", "thinking_blocks": [think("th")]}),
        delta({"thinking_blocks": [think("ink")]}),
        delta({"thinking_blocks": [think("", "s1")]}),
        delta({"thinking_blocks": [redacted, think("more")]}),
        delta({"thinking_blocks": [think("", "s2"), think("", "s3")]}),
    )
    blocks = [think("think", "s1"), redacted, think("more", "s2"), think("", "s3")]
    assert message(made)["thinking_blocks"] == blocks


def test_the_old_kind_of_call_is_a_call() -> None:
    made = answer(
        delta({"function_call": {"name": "f", "arguments": "{"}}), delta({"function_call": {"arguments": "}"}})
    )
    assert made.calls == (Call("f", "f", "{}"),)


def test_content_in_parts_is_kept_as_parts_and_its_text_is_read() -> None:
    made = answer(
        delta({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}),
        delta({"content": [{"type": "text", "text": "a"}]}),
        delta({"content": "b"}),
    )
    assert made.text == "ab"
    assert message(made)["content"][1:] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def test_choices_are_kept_apart() -> None:
    made = answer(delta({"content": "a"}, 1), delta({"content": "b"}, 0), delta({"content": "c"}, 1, "stop"))
    assert message(made, 1)["content"] == "ac"
    assert message(made, 0)["content"] == "b"
    assert message(made, 2) is None
    assert made.is_truncated
    made.add_event(delta({}, 0, "stop"))
    assert not made.is_truncated


def test_a_stream_that_breaks_off_is_truncated_unless_it_said_that_it_is_over() -> None:
    assert answer().is_truncated
    assert answer(delta({"content": "a"})).is_truncated
    assert not answer(delta({"content": "a"}), b"[DONE]").is_truncated
    assert answer(delta({"content": "a"}), b"[DONE]").is_done


def test_usage_is_taken_from_wherever_it_comes() -> None:
    made = answer(
        delta({"content": "a"}),
        b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}',
        b'{"usage":null}',
    )
    assert made.usage == Usage(9, 1, 10)


def test_an_error_in_the_stream_is_noted() -> None:
    assert answer(delta({"content": "a"}), b'{"error":{"message":"overloaded"}}').error == "overloaded"


def test_garbage_is_counted_and_nothing_else() -> None:
    made = answer(b"<html>", b"{", delta({"content": "a"}), b"[]")
    assert (made.unparsed, made.text) == (3, "a")


def test_a_character_cut_in_two_is_whole_again() -> None:
    made = answer(b'{"choices":[{"delta":{"content":"\\ud83d"}}]}', b'{"choices":[{"delta":{"content":"\\ude00"}}]}')
    assert made.text == "😀"
    assert message(made)["content"] == "😀"


def test_capture_is_bounded_and_says_so() -> None:
    made = answer(
        *[delta({"content": "x" * 100})] * 100, delta({}, 0, "stop"), b'{"usage":{"prompt_tokens":1}}', limit=1000
    )
    assert made.is_capped
    assert len(made.text) <= 1000
    assert made.finish_reasons == {0: "stop"}
    assert made.usage is not None
    calls = answer(*[delta({"tool_calls": [call(n, "", "f", f"id{n}")]}) for n in range(100)], limit=1000)
    assert calls.is_capped
    assert len(calls.calls) < 20
    assert not answer(delta({"content": "x"}), limit=1000).is_capped


def test_very_many_choices_or_calls_cap_an_answer() -> None:
    # 60,000 choices in one body held all requests for a second, and 30,000 calls in a stream for three.
    choices = [{"index": n, "message": {"role": "assistant", "content": "x"}} for n in range(MAX_CHOICES + 1)]
    made = AssembledAnswer.from_body(json.dumps({"choices": choices}).encode())
    assert (made.is_capped, made.choice_count) == (True, MAX_CHOICES)
    made = AssembledAnswer.from_body(json.dumps({"choices": choices[1:]}).encode())
    assert (made.is_capped, made.choice_count) == (False, MAX_CHOICES)
    calls = [delta({"tool_calls": [call(n, "{}", "look", f"c{n}")]}) for n in range(MAX_CALLS + 1)]
    assert [len(answer(*calls[:n]).calls) for n in (MAX_CALLS, MAX_CALLS + 1)] == [MAX_CALLS, MAX_CALLS]
    assert [answer(*calls[:n]).is_capped for n in (MAX_CALLS, MAX_CALLS + 1)] == [False, True]


def test_a_message_of_very_many_values_caps_an_answer() -> None:
    for count, capped in ((MAX_VALUES // 2, False), (2 * MAX_VALUES, True)):
        content = b"[" + b",".join([b"1"] * count) + b"]"
        made = AssembledAnswer.from_body(b'{"choices":[{"message":{"content":%b}}]}' % content)
        assert (made.is_capped, made.build_message() is None) == (capped, capped)


def test_text_shown_to_the_client_instead_counts() -> None:
    made = AssembledAnswer()
    chunk = read_chunk(delta({"content": "ab\n"}))
    assert chunk is not None
    made.add_chunk(chunk, {0: "ab"})
    made.add_text("\n")
    assert made.text == "ab\n"


BODY = (
    b'{ "id":"x","model":"m","choices":[{"index":0,'
    b'"message":{"role":"assistant", "content":"h\\u00e9","x":1.0},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}'
)


def test_the_message_of_a_body_is_the_exact_slice() -> None:
    made = AssembledAnswer.from_body(BODY)
    assert made.build_message() == b'{"role":"assistant", "content":"h\\u00e9","x":1.0}'
    found = (made.text, made.finish_reasons, made.usage, made.id, made.model)
    assert found == ("hé", {0: "stop"}, Usage(3, 2, 5), "x", "m")
    assert made.is_done
    assert not made.is_truncated
    assert made.build_message(1) is None


def test_calls_of_a_body_are_read() -> None:
    inner = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "f", "input": "x"}}, 3],
    }
    made = AssembledAnswer.from_body(json.dumps({"choices": [{"message": inner}]}).encode())
    assert made.calls == (Call("a", "f", "x"),)
    assert made.text == ""


@pytest.mark.parametrize(
    ("body", "error", "unparsed"),
    [
        (b'{"error":{"message":"no"}}', "no", 0),
        (b'[{"error":{"message":"no"}}]', "no", 0),
        (b"<html>", None, 1),
        (b"", None, 1),
        (b"[]", None, 1),
    ],
)
def test_a_body_that_is_not_a_completion_has_no_message(body: bytes, error: str | None, unparsed: int) -> None:
    made = AssembledAnswer.from_body(body)
    assert (made.error, made.unparsed, made.build_message(), made.text, made.calls) == (error, unparsed, None, "", ())
    assert made.is_truncated


def test_an_odd_body_is_read_all_the_same() -> None:
    made = AssembledAnswer.from_body(
        b'{"id":7,"choices":[{"index":null,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"},1],"x":NaN}'
    )
    assert (made.text, made.finish_reasons, made.is_done) == ("a", {0: "stop"}, True)


def test_a_body_over_the_limit_is_not_kept() -> None:
    made = AssembledAnswer.from_body(BODY, limit=10)
    assert made.is_capped
    assert made.build_message() is None


@given(st.text(), st.lists(st.integers(0, 100), max_size=5))
def test_a_streamed_message_is_read_like_the_same_message_in_a_body(text: str, cuts: list[int]) -> None:
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    parts = [delta({"content": text[a:b]}) for a, b in pairwise(edges)]
    parts.append(delta({"tool_calls": [call(0, "{}", "f", "a")]}))
    raw = answer(delta({"role": "assistant", "content": ""}), *parts).build_message()
    whole = {
        "role": "assistant",
        "content": text,
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    assert raw is not None
    assert read_message(raw).digest == read_message(json.dumps(whole).encode()).digest
