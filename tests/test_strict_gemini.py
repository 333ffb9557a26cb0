"""The strict upstream of Gemini refuses what it should, and takes what is right."""

from __future__ import annotations

from typing import Any

import pytest

from tests.strict_gemini import SKIP, StrictGemini, refuse, sign, split_response

Json = dict[str, Any]
MODEL = "gemini-3-pro"
PROMPT: Json = {"role": "user", "parts": [{"text": "Go."}]}


def call(name: str = "ls", *, signed: bool = True) -> Json:
    part: Json = {"functionCall": {"name": name, "args": {}}}
    return {**part, "thoughtSignature": sign(MODEL, part)} if signed else part


def model_turn(*parts: Json) -> Json:
    return {"role": "model", "parts": list(parts)}


def results(*names: str) -> Json:
    return {"role": "user", "parts": [{"functionResponse": {"name": name, "response": {}}} for name in names]}


def test_a_valid_conversation_is_accepted() -> None:
    own = {**call("b", signed=False), "thoughtSignature": SKIP}
    contents = [PROMPT, model_turn(call(), call("b", signed=False)), results("ls", "b"), model_turn(own), results("b")]
    assert list(refuse({"contents": contents}, MODEL)) == []
    old = [PROMPT, model_turn(call(signed=False)), results("ls"), model_turn({"text": "x"}), PROMPT]
    assert list(refuse({"contents": old}, MODEL)) == []


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        ("not specified", []),
        ("valid role", [{"role": "system", "parts": [{"text": "x"}]}]),
        ("must not be empty", [PROMPT, model_turn(), PROMPT]),
        ("must have one initialized field", [{"parts": [{"thought": True}]}]),
        ("Unknown name", [{"parts": [{"text": "x", "cache_control": {}}]}]),
        ("immediately after a user turn", [model_turn(call()), results("ls")]),
        ("number of function response parts", [PROMPT, model_turn(call(), call(signed=False)), results("ls")]),
        ("immediately after a function call turn", [results("ls")]),
        ("in the order", [PROMPT, model_turn(call("a"), call("b", signed=False)), results("b", "a")]),
        ("missing a thought_signature", [PROMPT, model_turn(call(signed=False)), results("ls")]),
        (
            "Corrupted",
            [PROMPT, model_turn({**call("a", signed=False), "thoughtSignature": sign(MODEL, call("b"))}), results("a")],
        ),
    ],
)
def test_each_invalid_request_is_refused_with_googles_words(text: str, contents: list[Json]) -> None:
    found = list(refuse({"contents": contents}, MODEL))
    assert found
    assert text in found[0]


def test_duplicate_functions_and_unknown_fields_are_refused() -> None:
    twice = [{"functionDeclarations": [{"name": "f"}, {"name": "f"}]}]
    assert "Duplicate" in next(refuse({"contents": [PROMPT], "tools": twice}))
    assert "Unknown name" in next(refuse({"contents": [PROMPT], "messages": []}))


def test_chunks_of_a_stream_add_up_to_the_response() -> None:
    whole = StrictGemini().make_response({}, [{"text": "a long text of many words"}, call(signed=False)])
    chunks = split_response(whole)
    parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
    assert "".join(part.get("text", "") for part in parts) == "a long text of many words"
    assert parts[-1]["thoughtSignature"]
    assert [chunk["candidates"][0].get("finishReason") for chunk in chunks][-2:] == [None, "STOP"]
