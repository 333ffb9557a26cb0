from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.chat.json_spans import MAX_TOP_LEVEL_KEYS
from proxy.dialects.responses import chained
from proxy.dialects.responses.chained import ChainParameters
from proxy.dialects.responses.request import read_wire_request
from proxy.errors import NotManaged
from tests.response_events import custom_call, message, thinking, tool_call, web_search

Json = dict[str, Any]


def dump(given: Any, **more: Any) -> bytes:
    return json.dumps({"model": "gpt-6.2", "input": given} | more).encode()


USER: Json = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello."}]}
HISTORY: list[Json] = [
    {"type": "message", "role": "developer", "content": "Be brief."},
    {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "late"}]},
    USER,
    thinking(1, "Hm."), message(2, "I look."), tool_call(3, "read"), custom_call(4, "patch", "x"), web_search(5),
    {"type": "function_call_output", "call_id": "call_3", "output": "text"},
    {"type": "custom_tool_call_output", "call_id": "call_4", "output": [{"type": "input_text", "text": "done"}]},
    {"type": "message", "role": "user", "content": [
        {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"},
        {"type": "input_image", "file_id": "file_1"}, {"type": "input_file", "filename": "a.txt", "file_data": "AA"},
        {"type": "input_text", "text": "And?", "prompt_cache_breakpoint": {"mode": "explicit"}},
    ]},
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        (dump("hi"), ChainParameters()),
        (dump("hi", previous_response_id="resp_1", store=None), ChainParameters("resp_1")),
        (dump("hi", conversation="conv_1"), ChainParameters(conversation="conv_1")),
        (dump("hi", conversation={"id": "conv_1"}), ChainParameters(conversation="conv_1")),
        (dump("hi", store=False), ChainParameters(is_stored=False)),
        (dump("hi", background=True), ChainParameters(is_whole=False, is_background=True)),
        (dump("hi", prompt={"id": "p"}), ChainParameters(is_whole=False)),
        (dump("hi", include=["a", chained.ENCRYPTED]), ChainParameters(asks_encrypted=True)),
        (dump("hi", previous_response_id=7, conversation=[], include="x"), ChainParameters()),
        (b"[]", None),
    ],
)
def test_what_a_request_says_of_stored_responses_is_read(body: bytes, facts: ChainParameters | None) -> None:
    assert chained.read_chain_parameters(body) == facts


def test_the_facts_of_a_longer_body_are_the_same_with_the_request_before() -> None:
    items = [{"role": "user", "content": f"question {n}"} for n in range(9)]
    before = read_wire_request(dump(items[:8], store=False, include=[chained.ENCRYPTED]))
    for rest in ({}, {"store": False}, {"store": True, "prompt": {"id": "p"}}, {"previous_response_id": "resp_1"}):
        body = dump(items, **rest)
        assert chained.read_chain_parameters(body, before) == chained.read_chain_parameters(body)
    head = b'{"store":false,"input":[{"role":"user","content":"a"}'
    first = read_wire_request(head + b"]}")
    assert chained.read_chain_parameters(head + b'],"background":true}', first) == ChainParameters(
        is_stored=False, is_whole=False, is_background=True
    )
    assert chained.read_chain_parameters(head + b'],"store":true}', first) is None, "a key that is there twice"


def test_a_history_is_written_as_the_items_that_it_came_as() -> None:
    request = read_wire_request(dump(HISTORY))
    restored = chained.restore_items([one.canonical for one in request.messages])
    assert [json.loads(raw) for raw in restored] == HISTORY
    assert chained.can_restore(dump(HISTORY))
    again = read_wire_request(b'{"model":"gpt-6.2","input":[' + b",".join(restored) + b"]}")
    assert again.chat_body == request.chat_body, "the same messages, byte for byte"


@pytest.mark.parametrize(
    "item",
    [
        {"type": "item_reference", "id": "msg_1"},
        USER | {"phase": "late"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x", "more": 1}]},
        {"type": "function_call_output", "call_id": "call_1", "output": "x", "created_by": "user_1"},
        {"type": "shell_call_output", "call_id": "call_1", "output": [{"stdout": "x"}]},
        {"type": "message", "role": "user", "content": 7},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
    ],
)
def test_an_item_that_would_lose_something_is_not_written_again(item: Json) -> None:
    assert not chained.can_restore(dump([USER, item]))


def test_a_call_of_the_history_says_what_its_output_is() -> None:
    history = [one.canonical for one in read_wire_request(dump(HISTORY[2:8])).messages]
    assert chained.can_restore(dump(HISTORY[8:10]), history)
    assert not chained.can_restore(dump(HISTORY[8:10])), "without its call it could be of either type"
    assert chained.can_restore(dump("hi"), history)
    assert chained.can_restore(b'{"previous_response_id":"resp_1"}', history)
    shell = [{"type": "shell_call", "call_id": "s", "action": {}}]
    with pytest.raises(ValueError, match="shell_call"):
        chained.restore_items(
            [*(one.canonical for one in read_wire_request(dump(shell)).messages),
             b'{"role":"tool","tool_call_id":"s","content":[]}']
        )  # fmt: skip


def test_reasoning_without_its_token_is_seen() -> None:
    bare = [USER, thinking(1, encrypted_content=None), message(2, "Hello.")]
    assert chained.has_bare_reasoning([one.canonical for one in read_wire_request(dump(bare)).messages])
    assert not chained.has_bare_reasoning([one.canonical for one in read_wire_request(dump(HISTORY)).messages])


def test_a_whole_request_names_nothing_and_keeps_every_other_byte() -> None:
    body = b'{ "previous_response_id" : "resp_1", "a":1.0, "input" : "hi\\u0041", "conversation":null , "b" : [ ] }'
    assert chained.write_whole_request(body, [b'{"x":1}']) == (
        b'{ "a":1.0, "input" : [{"x":1},{"type":"message","role":"user","content":"hi\\u0041"}], "b" : [ ] }'
    )
    assert json.loads(chained.write_whole_request(b'{"previous_response_id":"r"}', [b"1"])) == {"input": [1]}
    assert json.loads(chained.write_whole_request(dump([2, 3]), [b"1"]))["input"] == [1, 2, 3]


def test_what_the_proxy_asks_for_is_added_once() -> None:
    assert json.loads(chained.write_unstored(dump("hi", store=True)))["store"] is False
    assert json.loads(chained.write_unstored(dump("hi")))["store"] is False
    for include, wanted in ((None, [chained.ENCRYPTED]), (["a"], ["a", chained.ENCRYPTED])):
        asked = chained.ask_for_encrypted(dump("hi", include=include))
        assert json.loads(asked)["include"] == wanted
        assert chained.ask_for_encrypted(asked) == asked
        assert json.loads(chained.drop_encrypted(asked)).get("include") == include
    assert json.loads(chained.ask_for_encrypted(dump("hi")))["include"] == [chained.ENCRYPTED]
    assert chained.drop_encrypted(dump("hi")) == dump("hi")


def test_a_request_is_read_as_following_what_the_provider_holds() -> None:
    held = [one.canonical for one in read_wire_request(dump(HISTORY)).messages]
    new = {"type": "item_reference", "id": "msg_1"}
    for given, count in (([USER], 1), ("hi", 1), ([], 0), (None, 0), ([new, USER], 2)):
        body = dump(given, previous_response_id="resp_1", instructions="Be careful.")
        request = read_wire_request(body, held=held)
        messages = json.loads(request.chat_body)["messages"]
        assert messages[0] == {"role": "system", "content": "Be careful."}
        assert messages[1 : 1 + len(held)] == [json.loads(raw) for raw in held]
        assert len(messages) == 1 + len(held) + count
        assert request.has_instructions
        assert request.body == body
        with pytest.raises(ValueError, match="holds"):
            request.write([(n, one.canonical) for n, one in enumerate(request.messages)])
    with pytest.raises(NotManaged):
        read_wire_request(dump([], conversation="conv_1"), held=[])
    with pytest.raises(NotManaged) as refused:
        read_wire_request(dump([USER, {"type": "compaction_trigger"}], conversation="conv_1"), held=[])
    assert refused.value.reason == "compaction"


def test_references_are_replaced_by_items_and_all_else_stays() -> None:
    items: list[Json] = [USER, {"type": "item_reference", "id": "msg_1"}, {"id": "rs_1"}, message(3, "item_reference")]
    body = dump(items, store=True)
    assert chained.list_references(body) == ["msg_1", "rs_1"], "the type may be missing"
    made = json.loads(chained.replace_references(body, {"msg_1": b'{"is":1}', "rs_1": b'{"is":2}'}))
    assert made == {"model": "gpt-6.2", "input": [USER, {"is": 1}, {"is": 2}, items[3]], "store": True}
    with pytest.raises(KeyError):
        chained.replace_references(body, {})
    assert chained.list_references(dump("item_reference")) == []


def test_values_that_are_too_long_for_a_name_are_not_decoded() -> None:
    long = b'"%b"' % (b"x" * chained.MAX_PARAMETER_BYTES)
    facts = chained.read_chain_parameters(
        b'{"previous_response_id":%b,"include":[%b],"prompt":{"id":%b}}' % (long, long, long)
    )
    assert facts == ChainParameters(is_whole=False)
    assert chained.read_chain_parameters(b'{"prompt":null}') == ChainParameters()


def test_a_body_with_too_many_keys_has_no_facts() -> None:
    keys = b",".join(b'"k%d":1' % n for n in range(MAX_TOP_LEVEL_KEYS + 1))
    assert chained.read_chain_parameters(b"{%b}" % keys) is None
