from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.chat.json_spans import SizeLimits
from proxy.chat.message import Message
from proxy.dialects.completions import request as completions
from proxy.dialects.responses.request import (
    ResponsesRequest,
    find_session_names,
    read_wire_request,
)
from proxy.errors import NotManaged
from tests.dialects.responses.histories import (
    IMAGE,
    MARK,
    Json,
    assistant,
    bodies,
    call,
    developer,
    histories,
    make_pair,
    output,
    reasoning,
    user,
)

HISTORY = [
    developer(),
    user(),
    reasoning(),
    assistant("Looking."),
    call(),
    output(),
    reasoning(2),
    assistant("Done.", 2),
    user("More."),
]


def dump(items: Any, **more: Any) -> bytes:
    return json.dumps({"model": "m", "input": items} | more).encode()


def read(items: Any, **more: Any) -> ResponsesRequest:
    return read_wire_request(dump(items, **more))


def chat(request: ResponsesRequest) -> list[Message]:
    return list(completions.read_request(request.chat_body).messages)


def keep(request: ResponsesRequest) -> list[tuple[int | None, bytes]]:
    return [(n, message.raw) for n, message in enumerate(chat(request))]


def written(request: ResponsesRequest, messages: Sequence[tuple[int | None, bytes]], **more: Any) -> Json:
    found: Json = json.loads(request.write(messages, **more))
    return found


@given(bodies())
@settings(max_examples=100, deadline=None)
def test_an_unchanged_request_is_sent_as_received(body: bytes) -> None:
    request = read_wire_request(body)
    assert request.write(keep(request)) == body


@given(histories(), st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_a_history_that_only_grew_gives_messages_that_only_grew(items: list[Json], cut: int) -> None:
    ends = [n for n, item in enumerate(items) if n and item["type"] == "message" and item["role"] == "user"]
    if not ends:
        return
    shorter = items[: ends[cut % len(ends)]]
    if shorter[-1]["type"] in ("message", "item_reference") and shorter[-1].get("role") != "user":
        shorter = items[: ends[cut % len(ends)] + 1]
    before, after = ([m.raw for m in chat(read(one))] for one in (shorter, items))
    assert after[: len(before)] == before


@given(histories())
@settings(max_examples=60, deadline=None)
def test_every_message_is_read_and_results_find_their_calls(items: list[Json]) -> None:
    messages = chat(read(items))
    asked = [c.id for m in messages for c in m.calls]
    assert sorted(asked) == sorted(m.call_id or "" for m in messages if m.is_result)
    assert all(m.role in ("developer", "user", "assistant", "tool") for m in messages)


@given(histories(), st.data())
@settings(max_examples=100, deadline=None)
def test_a_text_that_is_edited_is_the_only_thing_that_changes(items: list[Json], data: st.DataObject) -> None:
    request = read(items)
    messages = chat(request)
    texts = [n for n, m in enumerate(messages) if m.role in ("user", "tool") and m.text]
    if not texts:
        return
    n = data.draw(st.sampled_from(texts))
    way = data.draw(st.sampled_from([completions.replace_text, completions.append_text]))
    empty = [""] if way is completions.replace_text else []
    new = data.draw(st.sampled_from(["[a stub]", messages[n].text + "!", 'q"\\\n', *empty]))
    out = keep(request)
    out[n] = n, way(messages[n].raw, new)
    body = request.write(out)
    assert body == request.write(out)
    at = request.messages[n].start
    sent = json.loads(body)["input"]
    assert sent[:at] + sent[at + 1 :] == items[:at] + items[at + 1 :]
    again = chat(read_wire_request(body))[n]
    if way is completions.append_text:
        assert again.text == messages[n].text + new
    else:
        assert (new or "[removed]") in again.text
        assert len(again.text) <= len(new or "[removed]") + 9 * messages[n].part_count
    assert (again.call_id, again.media_count) == (messages[n].call_id, messages[n].media_count)
    strip = _without_texts(sent[at]) if way is completions.replace_text else None
    assert strip is None or strip == _without_texts(items[at])


def _without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        names = ("text", "output", "content", "stdout", "stderr")
        return {k: "" if k in names and isinstance(v, str) else _without_texts(v) for k, v in value.items()}
    return [_without_texts(one) for one in value] if isinstance(value, list) else value


@given(histories(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_step_that_is_removed_leaves_all_other_items_as_they_are(items: list[Json], data: st.DataObject) -> None:
    request = read(items)
    messages = chat(request)
    starts = [n for n, m in enumerate(messages) if m.role == "assistant"]
    if not starts:
        return
    start = data.draw(st.sampled_from(starts))
    end = start + 1
    while end < len(messages) and messages[end].is_result:
        end += 1
    sent = written(request, [one for one in keep(request) if not start <= (one[0] or 0) < end])["input"]
    begin, stop = request.messages[start].start, request.messages[end - 1].end
    assert sent == items[:begin] + items[stop:]


def test_an_answer_is_one_message_with_its_items_in_wire() -> None:
    answer = chat(read(HISTORY))[2]
    assert (answer.role, answer.text) == ("assistant", "Looking.")
    assert [(c.id, c.name, c.arguments) for c in answer.calls] == [("call_1", "shell", '{"command":["ls"]}')]
    assert json.loads(answer.raw)["wire"] == HISTORY[2:5]


def test_ids_and_signatures_do_not_change_the_identity_of_an_answer() -> None:
    bare = [{k: v for k, v in item.items() if k not in ("id", "status", "encrypted_content")} for item in HISTORY[2:5]]
    assert chat(read([user(), *bare, output()]))[1].digest == chat(read([user(), *HISTORY[2:6]]))[1].digest


def test_hosted_items_and_references_count_for_the_identity_of_an_answer() -> None:
    found = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "a"}}
    other = found | {"action": {"query": "b"}}
    again = {k: v for k, v in found.items() if k not in ("id", "status")}
    digests = [chat(read([user(), one, assistant("x"), user()]))[1].digest for one in (found, again, other)]
    assert digests[0] == digests[1] != digests[2]
    references = [{"type": "item_reference", "id": name} for name in ("msg_1", "msg_2")]
    first, second = (chat(read([user(), one, user()]))[1].digest for one in references)
    assert first != second


def test_tokens_of_reasoning_are_listed_for_the_message_that_bears_them() -> None:
    request = read([user(), reasoning(1), reasoning(2), assistant("x"), user()], instructions="I")
    assert request.bound == (None, None, "gAAA1 gAAA2", None)


def test_the_chat_body_says_what_the_pipeline_asks_for() -> None:
    tools = [
        {"type": "function", "name": "shell", "parameters": {}, "strict": True},
        {"type": "custom", "name": "patch"},
    ]
    request = read(
        HISTORY,
        tools=[*tools, {"type": "web_search"}],
        stream=True,
        instructions="Be good.",
        reasoning={"effort": "high"},
        max_output_tokens=99,
        tool_choice={"type": "function", "name": "shell"},
        text={"format": {"type": "json_schema", "name": "n", "schema": {}}},
    )
    found = completions.read_request(request.chat_body)
    assert (found.model, found.stream, found.max_tokens, found.reasoning_effort) == ("m", True, 99, "high")
    assert found.tool_names == ("shell", "patch")
    assert not found.is_free_text
    assert found.usage_wanted
    assert (found.messages[0].role, found.messages[0].text) == ("system", "Be good.")
    value = json.loads(request.chat_body)
    assert value["tool_choice"] == {"type": "function", "function": {"name": "shell"}}
    assert value["response_format"] == {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}
    assert completions.read_request(read(HISTORY).chat_body).is_free_text


def test_a_note_joins_the_users_message_or_is_a_developer_item_at_its_place() -> None:
    note = completions.make_user_message("A note.")
    request = read([user("Hi."), assistant("x"), user([{"type": "input_text", "text": "More."}])])
    kept = keep(request)
    sent = written(request, [*kept, (None, note)])["input"]
    assert sent[2]["content"] == [{"type": "input_text", "text": t} for t in ("More.", "A note.")]
    sent = written(request, [kept[0], (None, note), *kept[1:]])["input"]
    assert sent[0]["content"] == [{"type": "input_text", "text": t} for t in ("Hi.", "A note.")]
    request = read([user(), call(), output()])
    sent = written(request, [*keep(request), (None, note)])["input"]
    assert sent[3] == developer([{"type": "input_text", "text": "A note."}])


def test_a_text_input_becomes_a_list_only_for_a_note() -> None:
    request = read("Hi \u00e9")
    kept = keep(request)
    edited = [(0, completions.append_text(kept[0][1], " Go."))]
    assert written(request, edited)["input"] == "Hi \u00e9 Go."
    for messages in (kept, edited):
        sent = written(request, [*messages, (None, completions.make_user_message("N"))])["input"]
        texts = [part["text"] for part in sent[0]["content"]]
        assert texts == [json.loads(messages[0][1])["content"], "N"]


def test_a_hidden_round_is_put_back_item_by_item() -> None:
    shown = [user(), reasoning(1), reasoning(2), assistant("Both."), user("Next.")]
    hidden = [reasoning(1), call(7, "recall")]
    answer = [reasoning(2), assistant("Both.")]
    request = read(shown)
    kept = keep(request)
    rounds = [chat(read([user(), *items, user()]))[1].raw for items in (hidden, answer)]
    result = json.dumps({"role": "tool", "tool_call_id": "call_7", "content": "found"}).encode()
    sent = written(request, [kept[0], (None, rounds[0]), (None, result), (None, rounds[1]), kept[2]])["input"]
    assert sent == [user(), *hidden, output(7, "found"), *answer, user("Next.")]


def test_messages_of_the_proxy_without_items_are_written_too() -> None:
    request = read([user(), *make_pair("custom", 1, "out"), user()])
    kept = keep(request)
    ours: list[Json] = [
        {"role": "assistant", "content": "Let me see.", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "recall", "arguments": "{}"}},
            {"id": "b", "type": "custom", "custom": {"name": "patch", "input": "*"}},
        ]},
        {"role": "tool", "tool_call_id": "b", "content": "B"},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "A"}]},
    ]  # fmt: skip
    sent = written(request, [*kept[:3], *((None, json.dumps(one).encode()) for one in ours), kept[3]])["input"]
    assert [item["type"] for item in sent[3:8]] == [
        "message", "function_call", "custom_tool_call", "custom_tool_call_output", "function_call_output",
    ]  # fmt: skip
    assert (sent[3]["role"], sent[3]["content"]) == ("assistant", [{"type": "output_text", "text": "Let me see."}])
    assert sent[7]["output"] == [{"type": "input_text", "text": "A"}]


def test_tools_are_added_after_the_clients_own() -> None:
    ours = {"type": "function", "function": {"name": "recall", "parameters": {"type": "object"}}}
    raw = json.dumps(ours).encode() + b"," + json.dumps({"type": "custom", "custom": {"name": "c"}}).encode()
    added = [
        {"type": "function", "name": "recall", "parameters": {"type": "object"}, "strict": False},
        {"type": "custom", "name": "c"},
    ]
    theirs = [{"type": "web_search"}]
    given: list[tuple[Json, list[Json]]] = [
        ({}, []),
        ({"tools": None}, []),
        ({"tools": []}, []),
        ({"tools": theirs}, theirs),
    ]
    for more, before in given:
        request = read(HISTORY, **more)
        assert written(request, keep(request), tools=raw)["tools"] == before + added


def test_a_text_at_the_end_of_the_system_prompt_extends_its_first_message() -> None:
    request = read([user()], instructions="Be good.")
    out = keep(request)
    out[0] = 0, completions.append_text(out[0][1], " Ask.")
    assert written(request, out)["instructions"] == "Be good. Ask."
    request = read([developer([{"type": "input_text", "text": "D"}]), user()])
    out = keep(request)
    out[0] = 0, completions.append_text(out[0][1], "Ask.")
    assert [part["text"] for part in written(request, out)["input"][0]["content"]] == ["D", "Ask."]


def test_a_part_with_a_cache_mark_keeps_its_mark_and_gets_the_new_text() -> None:
    parts: list[Json] = [
        {"type": "input_text", "text": "a"},
        {"type": "input_text", "text": "b", "prompt_cache_breakpoint": MARK},
        IMAGE,
    ]
    request = read([user(parts), assistant("x"), user()])
    assert chat(request)[0].has_cache_mark
    out = keep(request)
    out[0] = 0, completions.replace_text(out[0][1], "stub")
    sent = written(request, out)["input"][0]["content"]
    assert sent == [parts[0] | {"text": "[removed]"}, parts[1] | {"text": "stub"}, IMAGE]


def test_calls_get_other_arguments_and_every_other_item_stays() -> None:
    request = read([user(), assistant("So."), call(), call(2), output(), output(2), user("More.")])
    kept = keep(request)
    changed = completions.replace_arguments(kept[1][1], [None, '{"short": 1}'])
    made = written(request, [kept[0], (1, changed), *kept[2:]])["input"]
    before = json.loads(request.body)["input"]
    assert made[3] == {**before[3], "arguments": '{"short": 1}'}
    assert [*made[:3], *made[4:]] == [*before[:3], *before[4:]]


def test_what_may_not_be_changed_is_refused() -> None:
    request = read(HISTORY, instructions="I")
    kept = keep(request)

    def refused(at: int, raw: bytes, why: str) -> None:
        with pytest.raises(ValueError, match=why):
            request.write([*kept[:at], (at, raw), *kept[at + 1 :]])

    refused(3, completions.replace_text(kept[3][1], "shorter"), "an assistant")
    refused(3, completions.append_text(kept[3][1], "more"), "an assistant")
    refused(3, completions.remove_calls(kept[3][1]), "more than the text")
    refused(0, completions.replace_text(kept[0][1], "other"), "a system message")
    refused(1, completions.replace_text(kept[1][1], "other"), "a system message")
    refused(4, kept[4][1].replace(b"call_1", b"call_2"), "more than the text")
    for wrong, why in (
        ([kept[0], kept[2], kept[1]], "order"),
        (kept[1:], "instructions"),
        ([(99, b"{}")], "order"),
        (kept[:1], "nothing of the history"),
    ):
        with pytest.raises(ValueError, match=why):
            request.write(wrong)


@pytest.mark.parametrize("kind", ["compaction", "compaction_summary", "context_compaction"])
def test_edits_before_a_compaction_stay_as_they_were_sent(kind: str) -> None:
    items = [user("old"), {"type": kind, "encrypted_content": "e"}, user("new"), call(), output(), user("newer")]
    request = read(items)
    kept = keep(request)
    edited = written(request, [(0, completions.replace_text(kept[0][1], "x")), *kept[1:]])["input"]
    assert edited == [user("x"), *items[1:]]
    assert written(request, kept[1:])["input"] == items[1:]
    assert written(request, [*kept[:3], kept[5]])["input"] == [*items[:3], items[5]]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[]", "unreadable"),
        (b'{"input":"a","input":"b"}', "unreadable"),
        (b'{"model":"m"}', "shape"),
        (b'{"input":[]}', "shape"),
        (b'{"input":3}', "shape"),
        (dump([3]), "unreadable"),
        (dump([{"text": "no type"}]), "shape"),
        (dump([{"role": "critic", "content": "x"}]), "shape"),
        (dump([user(["bare"])]), "shape"),
        (dump([user(3)]), "shape"),
        (b'{"input":[{"role":"user","content":"\\ud800"}]}', "unreadable"),
        (dump("hi", previous_response_id="resp_1"), "chain"),
        (dump("hi", conversation={"id": "conv_1"}), "chain"),
        (dump([{"type": "item_reference", "id": "msg_1"}, user()]), "chain"),
        (dump([{"id": "msg_1"}, {"id": "msg_2"}, output()]), "chain"),
        (dump([user(), {"type": "compaction_trigger"}]), "compaction"),
    ],
)
def test_what_cannot_be_managed_is_refused_with_the_reason(body: bytes, reason: str) -> None:
    with pytest.raises(NotManaged) as told:
        read_wire_request(body)
    assert told.value.reason == reason


TOOL = {"type": "function", "name": "run", "parameters": {"type": "object"}}


def test_tools_are_converted_again_only_where_they_are_others() -> None:
    before = read([user()], tools=[TOOL])
    same, other = (
        read_wire_request(dump([user(), assistant("Yes."), user()], tools=tools), None, before)
        for tools in ([TOOL], [TOOL, {**TOOL, "name": "stop"}])
    )
    assert same.tools is before.tools
    assert before.frame_bytes == sum(map(len, before.tools)) > 0
    chats = [json.loads(one.chat_body)["tools"] for one in (same, other)]
    assert [[tool["function"]["name"] for tool in tools] for tools in chats] == [["run"], ["run", "stop"]]


@given(histories(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_continued_body_is_read_as_a_whole_one(items: list[Json], data: Any) -> None:
    cut = data.draw(st.integers(1, len(items)))
    instructions = data.draw(st.sampled_from([{}, {"instructions": "I"}]))
    tools: Json = data.draw(st.sampled_from([{}, {"tools": []}, {"tools": [TOOL]}]))
    whole = read(items, **instructions, stream=True, **tools)
    for other in ({}, {"instructions": "J"}, {"tools": [TOOL]}, {"tools": [TOOL, TOOL]}):
        assert read_wire_request(whole.body, None, read(items[:cut], **other)) == whole


def test_the_end_of_a_run_of_items_is_read_again_when_a_body_continues() -> None:
    items = [user(), reasoning(), assistant("Looking.")]
    before, whole = read(items), read([*items, call(), {"type": "compaction", "id": "cmp_1"}, output()])
    assert not before.is_cut
    again = read_wire_request(whole.body, None, before)
    assert again == whole


@pytest.mark.parametrize("rest", [b'],"model":"b"}', b'],"input":[]}', b",]}", b",7]}", b"]"])
def test_a_body_that_does_not_continue_another_is_refused_as_a_whole_one(rest: bytes) -> None:
    before = read([user()])
    for known in (None, before):
        with pytest.raises(NotManaged):
            read_wire_request(before.body[: before.prefix_end] + rest, SizeLimits(), known)


def test_too_many_items_are_refused_before_they_are_read() -> None:
    with pytest.raises(NotManaged) as told:
        read_wire_request(dump([user()] * 5), SizeLimits(messages=4))
    assert told.value.reason == "size"
    assert len(read_wire_request(dump([user()] * 4), SizeLimits(messages=4)).messages) == 4


def test_null_members_do_not_make_a_chain() -> None:
    request = read([user()], previous_response_id=None, conversation=None, instructions=None, tools=None)
    assert [m.role for m in chat(request)] == ["user"]


def test_session_names_in_headers_come_before_those_in_the_body() -> None:
    headers = {"session_id": "s", "thread-id": " t ", "x-client-request-id": "never"}
    more = {"conversation": {"id": "conv"}, "client_metadata": {"thread_id": "c"}, "prompt_cache_key": "scope"}
    assert find_session_names(headers, read_wire_request(dump("x", **more), held=())) == ["t", "s", "conv", "c"]
    request = read_wire_request(dump("x", conversation="conv", client_metadata=[]), held=())
    assert find_session_names({}, request) == ["conv"]
    assert find_session_names({}, read("x")) == []


def test_a_body_of_many_values_is_refused_before_any_of_them_is_decoded() -> None:
    """A million keys of `metadata` took 5 s of the interpreter, in which nothing else was answered."""
    keys = b",".join(b'"k%d":1' % n for n in range(1000))
    body = b'{"model":"m","input":"Hello.","metadata":{%b}}' % keys
    with pytest.raises(NotManaged) as caught:
        read_wire_request(body, SizeLimits(values=500))
    assert caught.value.reason == "size"
    with pytest.raises(NotManaged):
        read_wire_request(body, SizeLimits(body_bytes=500))
    assert read_wire_request(body, SizeLimits(values=2000)).value_count >= 1000
