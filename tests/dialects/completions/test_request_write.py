"""Writing back: what is ours changes, every other byte stays. The twin of test_completions.py, which reads."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.completions.request import (
    ERASED_TEXT,
    append_text,
    erase_content,
    extend_text,
    make_user_message,
    read_changed_arguments,
    read_message,
    read_request,
    remove_calls,
    replace_arguments,
    replace_images,
    replace_text,
    write_request,
)
from tests.conversations import Json, assistant, encode_json, make_request, user

BODY = (
    b'{ "temperature" : 1.0,"messages" : [ {"role":"user","content":"a"} ],"stream":true ,\n'
    b'"unknown":{"x" : [1,2]},"model":"m" }'
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def test_a_request_without_changes_is_the_body_itself() -> None:
    found = read_request(BODY)
    assert write_request(found) is found.body
    assert write_request(found, [m.raw for m in found.messages]) == BODY.replace(b"[ {", b"[{").replace(b"} ]", b"}]")


def test_only_the_messages_array_changes() -> None:
    made = write_request(read_request(BODY), [b'{"role":"user","content":"b"}', b'{"role":"x"}'])
    assert made == BODY.replace(b'[ {"role":"user","content":"a"} ]', b'[{"role":"user","content":"b"},{"role":"x"}]')


def test_usage_is_asked_for_at_the_end_where_there_are_no_stream_options() -> None:
    made = write_request(read_request(BODY), request_usage=True)
    assert made == BODY[:-1] + b',"stream_options":{"include_usage":true}}'


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (b"null", b'{"include_usage":true}'),
        (b"{ }", b'{ "include_usage":true}'),
        (b'{"include_obfuscation" : false}', b'{"include_obfuscation" : false,"include_usage":true}'),
        (b'{"include_usage" : false, "x":1}', b'{"include_usage" : true, "x":1}'),
        (b'{"include_usage":null}', b'{"include_usage":true}'),
    ],
)
def test_usage_is_asked_for_in_place(options: bytes, asked: bytes) -> None:
    body = b'{"stream_options": %b ,"stream":true,"messages":[{"role":"user","content":"a"}]}'
    assert write_request(read_request(body % options), request_usage=True) == body % asked


def test_usage_is_asked_for_in_a_body_with_other_messages_too() -> None:
    body = b'{"messages":[{"role":"user","content":"aaaaaaaaaaaa"}],"stream_options":{"x":1},"stream":true}'
    made = write_request(read_request(body), [b'{"role":"user","content":"b"}'], request_usage=True)
    assert made == (
        b'{"messages":[{"role":"user","content":"b"}],"stream_options":{"x":1,"include_usage":true},"stream":true}'
    )


@pytest.mark.parametrize(
    "more", [{}, {"stream": False}, {"stream": True, "stream_options": {"include_usage": True}}, {"stream": None}]
)
def test_usage_is_not_asked_for_without_a_stream_or_where_the_client_has(more: Json) -> None:
    found = make_request([user("a")], **more)
    assert write_request(found, request_usage=True) == found.body


def test_stream_options_that_are_not_an_object_are_a_value_error() -> None:
    with pytest.raises(ValueError, match="told apart"):
        write_request(make_request([user("a")], stream=True, stream_options=7), request_usage=True)


KEPT = (
    b'"reasoning_content" : "so", "tool_calls":[{"id":"1","function":{"name":"f","arguments":"{ }"},'
    b'"extra_content":{"google":{"thought_signature":"abc\\u003d"}}}], "x":1.50'
)


@pytest.mark.parametrize(
    ("content", "new"),
    [
        (b'"old"', b'"n\\"w"'),
        (b'[{"type":"text","text":"old"}]', b'[{"type":"text","text":"n\\"w"}]'),
        (b'[ {"text" : "a", "type":"text"} , {"type":"text","text":"b"} ]', b'[{"text" : "n\\"w", "type":"text"}]'),
        (
            b'[{"type":"text","text":"a"},{"type":"text","text":"b","cache_control":{"type":"ephemeral"}}]',
            b'[{"type":"text","text":"n\\"w","cache_control":{"type":"ephemeral"}}]',
        ),
        (
            b'[{"type":"image_url","image_url":{"url" : "u"}},{"type":"text","text":"a"},{"type":"file"}]',
            b'[{"type":"image_url","image_url":{"url" : "u"}},{"type":"text","text":"n\\"w"},{"type":"file"}]',
        ),
    ],
)
def test_with_text_changes_the_text_and_nothing_else(content: bytes, new: bytes) -> None:
    raw = b'{"role":"tool", ' + KEPT + b', "content" : %b , "cache_control":{"type":"ephemeral"} }'
    assert replace_text(raw % content, 'n"w') == raw % new


@pytest.mark.parametrize(
    ("content", "new"),
    [
        (b'"old\\n"', b'"old\\n+\\"1\\""'),
        (b'""', b'"+\\"1\\""'),
        (b'[{"type":"text","text":"a"}]', b'[{"type":"text","text":"a"},{"type":"text","text":"+\\"1\\""}]'),
        (b'[ {"type":"text","text":"a]"} ]', b'[ {"type":"text","text":"a]"} ,{"type":"text","text":"+\\"1\\""}]'),
        (b"[]", b'[{"type":"text","text":"+\\"1\\""}]'),
        (b"[ ]", b'[ {"type":"text","text":"+\\"1\\""}]'),
        (b'[{"type":"image_url"}]', b'[{"type":"image_url"},{"type":"text","text":"+\\"1\\""}]'),
    ],
)
def test_with_appended_adds_at_the_end_and_changes_nothing_else(content: bytes, new: bytes) -> None:
    raw = b'{"role":"user", ' + KEPT + b', "content" : %b , "name":"ann" }'
    assert append_text(raw % content, '+"1"') == raw % new


@pytest.mark.parametrize("content", [b'"content":null', b'"content":[]', b'"content":[{"type":"image_url"}]', b'"c":1'])
def test_a_message_without_text_has_none_to_replace(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"content|text"):
        replace_text(b'{"role":"user",%b}' % content, "new")


@pytest.mark.parametrize("content", [b'"content":null', b'"c":1', b'"content":7', b'"content":"a","content":"b"'])
def test_a_message_without_content_takes_no_text(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"content|text"):
        append_text(b'{"role":"user",%b}' % content, "new")


@pytest.mark.parametrize(
    ("content", "new"),
    [
        (b'"a"', b'"a+"'),
        (b'[ {"type":"text", "text" : "\\u0041" ,"x":1} ]', b'[ {"type":"text", "text" : "\\u0041+" ,"x":1} ]'),
        (b'[{"type":"image_url"}]', b'[{"type":"image_url"},{"type":"text","text":"+"}]'),
        (b'[{"type":"text","text":null}]', b'[{"type":"text","text":null},{"type":"text","text":"+"}]'),
        (b'[{"text":"a"},{"text":"b"}]', b'[{"text":"a"},{"text":"b"},{"type":"text","text":"+"}]'),
        (b"[]", b'[{"type":"text","text":"+"}]'),
        (b"[1]", b'[1,{"type":"text","text":"+"}]'),
    ],
)
def test_text_added_for_good_joins_the_only_text_of_a_list(content: bytes, new: bytes) -> None:
    raw = b'{"role":"user","content":%b,"name":"n"}'
    assert extend_text(raw % content, "+") == raw % new


def test_without_calls_leaves_the_text_and_every_other_field() -> None:
    raw = (
        b'{"role":"assistant","tool_calls" : [ {"id":"1"} ] ,"reasoning_content":"so", "content" :"text",'
        b'"function_call":{"name":"f"},"extra_content":{"x" : 1}}'
    )
    assert remove_calls(raw) == (
        b'{"role":"assistant","reasoning_content":"so", "content" :"text","extra_content":{"x" : 1}}'
    )
    assert remove_calls(b'{"role":"assistant","content":"a"}') == b'{"role":"assistant","content":"a"}'


CONTENTS: st.SearchStrategy[Any] = TEXT | st.lists(
    st.builds(lambda t, more: {"type": "text", "text": t, **more}, TEXT, st.sampled_from([{}, {"cache_control": {}}]))
    | st.just({"type": "image_url", "image_url": {"url": "https://x"}}),
    max_size=4,
)


@given(CONTENTS, TEXT, st.booleans())
def test_a_rewritten_message_reads_back_with_only_its_text_changed(content: Any, new: str, escaped: bool) -> None:
    raw = json.dumps(assistant(content, "1", reasoning_content="so"), ensure_ascii=escaped).encode()
    before = read_message(raw)
    more = read_message(append_text(raw, new))
    assert more.text == before.text + new
    assert (more.calls, more.reasoning, more.media_count, more.has_cache_mark) == (
        before.calls, before.reasoning, before.media_count, before.has_cache_mark,
    )  # fmt: skip
    if before.shape == "string" or any(part["type"] == "text" for part in content):
        other = read_message(replace_text(raw, new))
        assert other.text == new
        assert (other.calls, other.reasoning, other.media_count, other.has_cache_mark) == (
            before.calls, before.reasoning, before.media_count, before.has_cache_mark,
        )  # fmt: skip
        assert read_message(replace_text(raw, before.text)).digest == before.digest
    assert read_message(remove_calls(raw)).digest == read_message(encode_json(assistant(content))).digest


ANSWER = (
    b'{"role": "assistant", "content": null, "x": 1.50, "tool_calls": [ {"id":"a", "type":"function", '
    b'"function":{"arguments":"{}","name":"f"}}, {"id":"b","type":"function","function":{"name":"g",'
    b'"arguments":"{}"}}]}'
)


def test_a_call_gets_other_arguments_and_every_other_byte_stays() -> None:
    made = replace_arguments(ANSWER, [None, '{"n":"\u00e9"}'])
    assert made == ANSWER[:-8] + b'"{\\"n\\":\\"\xc3\xa9\\"}"}}]}'
    assert read_changed_arguments(ANSWER, made) == [None, '{"n":"\u00e9"}']
    assert replace_arguments(ANSWER, [None, None]) == ANSWER


@pytest.mark.parametrize("arguments", [[], ["{}"], ["{}", "{}", "{}"]])
def test_a_message_with_other_calls_gets_no_arguments(arguments: list[str | None]) -> None:
    with pytest.raises(ValueError, match="other calls"):
        replace_arguments(ANSWER, arguments)
    custom = b'{"role":"assistant","tool_calls":[{"id":"a","type":"custom","custom":{"name":"f","input":"x"}}]}'
    with pytest.raises(ValueError, match="without arguments"):
        replace_arguments(custom, ["{}"])


def test_changed_arguments_are_read_only_where_nothing_else_has_changed() -> None:
    changed = replace_arguments(ANSWER, ["[]", None])
    for other in (ANSWER, changed.replace(b"null", b'"so"'), changed.replace(b'"b"', b'"c"'), b'{"role":"assistant"}'):
        assert read_changed_arguments(ANSWER, other) is None


def test_a_user_message_of_the_proxy_is_plain() -> None:
    assert json.loads(make_user_message('a "b"\n')) == {"role": "user", "content": 'a "b"\n'}


def test_a_blanked_message_says_nothing_and_still_pairs() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"secret":1}'}}
    raw = msgspec.json.encode({"role": "assistant", "content": "secret", "tool_calls": [call], "reasoning": "secret"})
    out = erase_content(raw)
    assert b"secret" not in out
    message = read_message(out)
    assert (message.role, message.text, [c.id for c in message.calls]) == ("assistant", ERASED_TEXT, ["c1"])
    result = erase_content(b'{"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"secret"}]}')
    assert (read_message(result).call_id, read_message(result).text) == ("c1", ERASED_TEXT)


def test_a_text_part_takes_the_place_of_each_image_and_keeps_its_cache_mark() -> None:
    picture = {"type": "image_url", "image_url": {"url": "u"}}
    mark = {"cache_control": {"type": "ephemeral"}}
    parts = [picture, {"type": "text", "text": "a"}, {**picture, **mark}, {"type": "file", "file": {"file_id": "f"}}]
    raw = encode_json({"role": "tool", "x": 1.5, "content": parts, "tool_call_id": "c"})
    remark = {"type": "text", "text": "[gone]"}
    wanted = [remark, parts[1], {**remark, **mark}, parts[3]]
    assert json.loads(replace_images(raw, "[gone]")) == {**json.loads(raw), "content": wanted}
    assert replace_images(raw, "[gone]").startswith(b'{"role": "tool", "x": 1.5, ')


@pytest.mark.parametrize("content", ["text", [{"type": "text", "text": "a"}], None, []])
def test_a_message_without_an_image_has_none_to_replace(content: Any) -> None:
    with pytest.raises(ValueError, match="without an image"):
        replace_images(encode_json({"role": "tool", "content": content}), "[gone]")
