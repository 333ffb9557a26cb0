from __future__ import annotations

import json

import pytest

from proxy.dialects.completions.request import read_message
from proxy.dialects.responses import items as responses_items
from proxy.errors import NotManaged
from tests.dialects.responses.histories import IMAGE, KINDS, Json, assistant, call, make_pair, output, reasoning, user


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_every_call_finds_its_result(kind: str) -> None:
    asked, answered = make_pair(kind, 1, "text")
    assert (responses_items.find_role(asked), responses_items.find_role(answered)) == ("model", "result")
    assert responses_items.find_call(asked) == responses_items.find_answered_call(answered) == "call_1"
    assert responses_items.RESULTS[responses_items.find_type(answered)] == responses_items.find_type(asked)
    message = json.loads(responses_items.make_assistant([(asked, b"{}")]))
    assert [one["id"] for one in message["tool_calls"]] == ["call_1"]


def test_items_that_the_provider_answers_itself_are_the_models() -> None:
    for kind in ("tool_search_call", "tool_search_output"):
        item: Json = {"type": kind, "call_id": None, "execution": "server"}
        assert (
            responses_items.find_role(item),
            responses_items.find_call(item),
            responses_items.find_answered_call(item),
        ) == ("model", None, None)


def test_messages_and_references_may_lack_their_type() -> None:
    assert responses_items.find_type({"role": "user", "content": "x"}) == "message"
    assert responses_items.find_type({"id": "msg_1"}) == "item_reference"
    assert responses_items.find_role({"type": "additional_tools", "role": "developer", "tools": []}) == "system"
    assert responses_items.find_role({"type": "configuration_update"}) == "system"
    with pytest.raises(NotManaged):
        responses_items.find_role({"content": "x"})


def test_only_reasoning_bears_a_token() -> None:
    assert responses_items.find_token(reasoning(3)) == "gAAA3"
    assert responses_items.find_token({"type": "compaction", "encrypted_content": "e"}) is None
    assert responses_items.find_token(reasoning(3, encrypted_content=None)) is None


def test_shown_reasoning_is_the_summary_or_the_text_itself() -> None:
    summary = [{"type": "summary_text", "text": "S"}]
    text = [{"type": "reasoning_text", "text": "R"}, {"type": "reasoning_text", "text": "T"}]
    for item, wanted in ((reasoning(1, summary=summary), "S"), (reasoning(1, summary=summary, content=text), "R\n\nT")):
        assert json.loads(responses_items.make_assistant([(item, b"{}")]))["reasoning_content"] == wanted


def test_texts_of_several_messages_are_parted_and_refusals_are_kept() -> None:
    two = [(assistant("A"), b"{}"), (assistant("B", 2), b"{}")]
    assert json.loads(responses_items.make_assistant(two))["content"] == "A\n\nB"
    refused = assistant("") | {"content": [{"type": "refusal", "refusal": "No."}]}
    assert json.loads(responses_items.make_assistant([(refused, b"{}")]))["content"] == [
        {"type": "refusal", "refusal": "No."}
    ]
    assert json.loads(responses_items.make_assistant([(reasoning(), b"{}")]))["content"] is None


def test_parts_have_the_form_of_chat_completions() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        IMAGE,
        {"type": "input_image", "file_id": "f"},
        {"type": "input_file", "filename": "n", "file_data": "d", "other": 1},
        {"type": "text", "text": 3},
        {"type": "new", "text": "kept from every stage"},
    ]
    assert json.loads(responses_items.make_message(user(parts)))["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": IMAGE["image_url"], "detail": "auto"}},
        {"type": "input_image", "input_image": {"file_id": "f"}},
        {"type": "file", "file": {"filename": "n", "file_data": "d"}},
        {"type": "unknown", "unknown": {"text": 3}},
        {"type": "new", "new": {"text": "kept from every stage"}},
    ]


def test_the_texts_of_an_item_are_found_in_any_spelling() -> None:
    item = output(1, [{"text": "a", "type": "input_t\u0065xt"}, IMAGE, {"type": "new", "text": "b"}])
    raw = json.dumps(item, indent=1).replace("input_text", "input_t\\u0065xt").encode()
    texts, end = responses_items.find_texts(raw, item)
    assert [raw[slice(*span)] for span in texts] == [b'"a"']
    assert end is not None
    assert raw[:end].endswith(b"}")
    _, shell = make_pair("shell", 1, "out")
    raw = json.dumps(shell).encode()
    texts, end = responses_items.find_texts(raw, shell)
    assert [raw[slice(*span)] for span in texts] == [b'"out"', b'"e"']
    assert end is None


def test_a_message_of_the_proxy_that_is_not_text_is_refused() -> None:
    image = json.dumps({"role": "user", "content": [{"type": "image_url"}]}).encode()
    with pytest.raises(ValueError, match="no text"):
        responses_items.make_items(image, {})


def test_the_items_of_an_answer_come_back_as_they_were() -> None:
    raws = [json.dumps(item, indent=1).encode() for item in (reasoning(), assistant("x"), call())]
    message = responses_items.make_assistant([(json.loads(raw), raw) for raw in raws])
    assert responses_items.make_items(message, {}) == raws


def test_reasoning_by_its_id_alone_leaves_and_takes_the_ids_after_it_along() -> None:
    """Behind another reasoning ids stay. Reasoning without an id is looked for by nobody."""
    asked: Json = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "read", "arguments": "{}"}
    said: Json = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": []}
    bare: Json = {"type": "reasoning", "summary": []}
    sealed = {**bare, "id": "rs_2", "encrypted_content": "gAAA"}
    raws = [json.dumps(one).encode() for one in ({**bare, "id": "rs_1"}, asked, said, sealed, {**asked, "id": "fc_2"})]
    left = [json.loads(raw) for raw in responses_items.leave_out_unstored_reasoning(raws)]
    assert [(one["type"], one.get("id")) for one in left] == [
        ("function_call", None),
        ("message", None),
        ("reasoning", "rs_2"),
        ("function_call", "fc_2"),
    ]
    assert "status" not in left[1]
    kept = [json.dumps(bare).encode(), raws[1]]
    assert responses_items.leave_out_unstored_reasoning(kept) == kept


def test_tools_are_translated_both_ways() -> None:
    chat: Json = {"type": "function", "function": {"name": "n", "parameters": {}, "strict": True}}
    assert responses_items.make_tool(chat) == {"type": "function", "name": "n", "parameters": {}, "strict": True}
    assert responses_items.make_chat_tool(responses_items.make_tool(chat)) == chat
    assert (
        responses_items.make_chat_tool({"type": "web_search"})
        == responses_items.make_tool({"type": "web_search"})
        == {"type": "web_search"}
    )


@pytest.mark.parametrize(
    "foreign",
    [
        b'[{"type":"text","text":"Hi."}]',
        b'[{"type":"thinking","thinking":"","signature":"s"},{"type":"tool_use","id":"call_1"}]',
        b'[{"functionCall":{"name":"read","args":{}}}]',
    ],
)
def test_the_blocks_of_another_dialect_are_not_read_as_items(foreign: bytes) -> None:
    asked = b'{"id":"call_1","type":"function","function":{"name":"read","arguments":"{}"}}'
    chat = b'{"role":"assistant","content":"Hi.","tool_calls":[' + asked + b'],"wire":' + foreign + b"}"
    assert [json.loads(raw) for raw in responses_items.make_items(chat, {})] == [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]},
        {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": "{}"},
    ]


def test_an_answer_with_the_output_of_an_earlier_answers_program_is_its_continuation() -> None:
    program: Json = {"type": "program", "call_id": "p", "code": "", "fingerprint": "f"}
    done: Json = {"type": "program_output", "call_id": "p", "result": "", "status": "completed"}
    called: Json = {**call(), "caller": {"type": "program", "caller_id": "p"}}

    def goes_on(*items: Json) -> bool:
        return read_message(
            responses_items.make_assistant([(item, json.dumps(item).encode()) for item in items])
        ).continues

    assert [goes_on(*items) for items in ([program], [program, called], [program, done])] == [False] * 3
    assert goes_on(done)
    assert goes_on(called)
