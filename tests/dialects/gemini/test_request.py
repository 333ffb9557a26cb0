"""Gemini contents, read by the strategy that they were stored with (A5)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.dialects.gemini.request import Place, read_gemini_request, read_message, read_place
from proxy.errors import NotManaged
from tests.dialects.gemini.drawn import histories


def content(role: str, *parts: object) -> bytes:
    return json.dumps({"role": role, "parts": list(parts)}).encode()


def test_a5_text_calls_and_thoughts_are_distinguished() -> None:
    message = read_message(
        content(
            "model",
            {"text": "I think", "thought": True},
            {"text": "Let me "},
            {"text": "look."},
            {"functionCall": {"name": "ls", "args": {"path": "/a"}}},
        )
    )
    assert (message.role, message.text, message.reasoning) == ("assistant", "Let me look.", "I think")
    assert [(c.id, c.name, c.arguments) for c in message.calls] == [("ls", "ls", '{"path":"/a"}')]


def test_a5_a_function_response_is_the_result_of_the_call_of_its_name_or_id() -> None:
    named = read_message(content("user", {"functionResponse": {"name": "ls", "response": {"output": "a\nb"}}}))
    assert (named.role, named.call_id, named.text) == ("tool", "ls", "a\nb")
    by_id = read_message(content("user", {"functionResponse": {"id": "7", "name": "ls", "response": {"n": 1, "m": 2}}}))
    assert (by_id.call_id, by_id.text) == ("7", '{"n":1,"m":2}')


def test_parts_that_are_not_text_count_as_media_and_distinguish_messages() -> None:
    one, other = (read_message(content("user", {"text": "see"}, {"inlineData": {"data": d}})) for d in "ab")
    assert (one.media_count, one.shape) == (1, "mixed")
    assert one.digest != other.digest


@pytest.mark.parametrize("raw", [b"[]", b"{}", b'{"parts": 1}', b'{"parts": [1]}', b"{", b'"x"'])
def test_what_is_not_a_content_is_not_managed(raw: bytes) -> None:
    with pytest.raises(NotManaged):
        read_message(raw)


def read(**body: Any) -> dict[str, Any]:
    made = {"contents": [{"role": "user", "parts": [{"text": "Go."}]}], **body}
    path = "/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse"
    found: dict[str, Any] = json.loads(read_gemini_request(json.dumps(made).encode(), None, path).chat_body)
    return found


def test_the_path_names_the_model_and_the_stream() -> None:
    assert read_place("/v1beta/models/gemini-3-pro:generateContent") == Place("gemini-3-pro", is_stream=False)
    assert read_place("/v1beta/models/g:streamGenerateContent?alt=sse&key=k") == Place("g", is_stream=True)
    assert read_place("/v1beta/models/g:streamGenerateContent") == Place("g", is_stream=False)
    assert read_place("/v1/projects/p/locations/l/publishers/google/models/g:countTokens").model == "g"
    assert read_place("/models/g%3AgenerateContent").model == "g"
    assert read_place("/v1/messages").model == ""


def test_a_request_becomes_a_chat_request() -> None:
    declared = [{"name": "f", "description": "Do.", "parametersJsonSchema": {"type": "object"}}]
    found = read(
        systemInstruction={"parts": [{"text": "Be kind."}]},
        tools=[{"functionDeclarations": declared}, {"googleSearch": {}}],
        toolConfig={"functionCallingConfig": {"mode": "ANY"}},
        generationConfig={
            "maxOutputTokens": 9,
            "candidateCount": 2,
            "responseMimeType": "application/json",
            "responseModalities": ["TEXT", "IMAGE"],
            "responseLogprobs": True,
            "thinkingConfig": {"thinkingLevel": "HIGH"},
        },
    )
    assert found["model"] == "gemini-3-pro"
    assert found["stream"] is True
    assert [one["role"] for one in found["messages"]] == ["system", "user"]
    function = {"name": "f", "description": "Do.", "parameters": {"type": "object"}}
    assert found["tools"] == [{"type": "function", "function": function}, {"googleSearch": {}}]
    assert (found["tool_choice"], found["max_completion_tokens"], found["n"]) == ("required", 9, 2)
    assert found["response_format"] == {"type": "json_schema", "json_schema": {"schema": {}}}
    assert (found["modalities"], found["reasoning_effort"], found["logprobs"]) == (["text", "image"], "high", True)


def test_tools_of_the_providers_alone_take_no_functions_beside_them() -> None:
    assert "tools" not in read(tools=[{"googleSearch": {}}])


def test_function_calling_config_becomes_tool_choice() -> None:
    calling = {"mode": "ANY", "allowedFunctionNames": ["f"]}
    choice = read(toolConfig={"functionCallingConfig": calling})["tool_choice"]
    assert choice == {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]},
    }
    assert read(tool_config={"function_calling_config": {"mode": "none"}})["tool_choice"] == "none"


def test_results_find_their_calls_by_id_and_by_order() -> None:
    calls = [{"functionCall": {"name": "f", "args": {"n": n}}} for n in range(2)]
    calls.append({"functionCall": {"name": "f", "args": {}, "id": "c3"}})
    answers = [{"functionResponse": {"name": "f", "response": {"output": text}}} for text in "ab"]
    answers.insert(0, {"functionResponse": {"name": "f", "id": "c3", "response": {"output": "c"}}})
    body = {"contents": [{"parts": [{"text": "Go."}]}, {"role": "model", "parts": calls}, {"parts": answers}]}
    made = json.loads(read_gemini_request(json.dumps(body).encode()).chat_body)["messages"]
    ids = [call["id"] for call in made[1]["tool_calls"]]
    assert [(one["tool_call_id"], one["content"]) for one in made[2:]] == [("c3", "c"), (ids[0], "a"), (ids[1], "b")]


@settings(max_examples=30)
@given(histories(), st.data())
def test_a_body_that_has_grown_gives_a_chat_body_that_has_grown(
    contents: list[dict[str, object]], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(1, len(contents)))
    while cut < len(contents) and contents[cut].get("role") == "model":
        cut += 1  # an answer is one message, however many contents it has
    short, long = (
        json.loads(read_gemini_request(json.dumps({"contents": one}).encode()).chat_body)["messages"]
        for one in (contents[:cut], contents)
    )
    assert long[: len(short)] == short


@pytest.mark.parametrize(
    ("reason", "body"),
    [
        ("chain", {"cachedContent": "cachedContents/1"}),
        ("shape", {"contents": []}),
        ("shape", {"contents": "text"}),
        ("shape", {"contents": [{"role": "system", "parts": []}]}),
        ("shape", {"contents": [{"parts": 1}]}),
        ("shape", {"contents": [{"parts": [{"functionResponse": {"name": 1}}]}]}),
        ("shape", {"systemInstruction": 1}),
        ("shape", {"toolConfig": {"functionCallingConfig": {"streamFunctionCallArguments": True}}}),
        ("shape", {"tools": [{"functionDeclarations": [{}]}]}),
    ],
)
def test_a_request_that_is_not_understood_is_not_managed(reason: str, body: dict[str, Any]) -> None:
    with pytest.raises(NotManaged) as caught:
        read(**body)
    assert caught.value.reason == reason


def test_a_body_without_contents_is_not_managed() -> None:
    for body in (b"{}", b"[]", b'{"contents"', b'{"contents":[{"parts":[]}],"contents":1}'):
        with pytest.raises(NotManaged):
            read_gemini_request(body)
