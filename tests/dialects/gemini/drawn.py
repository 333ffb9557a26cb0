"""Drawn Gemini bodies that a strict upstream accepts, in the many forms in which clients write them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).map(lambda text: "t" + text)


def text_part(draw: Any) -> Json:
    part: Json = {"text": draw(TEXTS)}
    if draw(st.integers(0, 9)) == 0:
        part["x_unknown"] = draw(st.sampled_from([1.50, None, {"b": 1, "a": "é"}]))
    return part


def media_part(draw: Any) -> Json:
    number = draw(st.integers(0, 3))
    if number == 0:
        return {"fileData": {"mimeType": "text/plain", "fileUri": "gs://x"}}
    return {"inlineData": {"mimeType": "image/png", "data": f"QUJD{number}"}}


def user_part(draw: Any) -> Json:
    return text_part(draw) if draw(st.integers(0, 4)) else media_part(draw)


def answer(draw: Any, n: int, *, is_snake: bool) -> tuple[list[Json], list[Json]]:
    """(the parts of an answer, its calls)."""
    parts: list[Json] = []
    if draw(st.integers(0, 3)) == 0:
        parts.append({"text": draw(TEXTS), "thought": True})
    parts += [text_part(draw) for _ in range(draw(st.integers(0, 2)))]
    if draw(st.integers(0, 7)) == 0:
        parts.append({"executableCode": {"language": "PYTHON", "code": "1"}})
    calls = []
    for k in range(draw(st.integers(0, 3))):
        call: Json = {"name": f"f{draw(st.integers(0, 1))}", "args": {"n": draw(st.integers(0, 2))}}
        if draw(st.booleans()):
            call["id"] = draw(st.sampled_from([f"id{n}_{k}", f"{call['name']}_179539083442{n}_{k}"]))
        calls.append(call)
        name, signature = ("function_call", "thought_signature") if is_snake else ("functionCall", "thoughtSignature")
        parts.append({name: call, **({} if k else {signature: f"c2ln{n}"})})
    if not calls:
        parts.append({"text": draw(TEXTS)})
    return parts, calls


def result(draw: Any, call: Json, *, is_snake: bool) -> Json:
    response: Json = draw(
        st.one_of(
            TEXTS.map(lambda text: {"output": text}),
            TEXTS.map(lambda text: {"output": text, "code": 0}),
            st.just({}),
            st.just({"output": ["a", 1.0]}),
        )
    )
    made: Json = {"name": call["name"], "response": response}
    if "id" in call and draw(st.integers(0, 3)):
        made["id"] = call["id"]
    if draw(st.integers(0, 7)) == 0:
        made["parts"] = [{"inlineData": {"mimeType": "image/png", "data": "QUJD"}}]
    return {"function_response" if is_snake else "functionResponse": made}


@st.composite
def histories(draw: Any) -> list[Json]:
    """Contents that end with the user's."""
    is_snake = draw(st.integers(0, 5)) == 0
    contents: list[Json] = [
        {"role": "user", "parts": [text_part(draw), *([user_part(draw)] * draw(st.integers(0, 1)))]}
    ]
    for n in range(draw(st.integers(0, 4))):
        parts, calls = answer(draw, n, is_snake=is_snake)
        cut = draw(st.integers(1, len(parts)))
        contents += [{"role": "model", "parts": one} for one in (parts[:cut], parts[cut:]) if one]
        found = [result(draw, call, is_snake=is_snake) for call in calls]
        if found and draw(st.integers(0, 3)) == 0:
            found.append(text_part(draw))
        last = {"parts": found or [user_part(draw)]}
        contents.append(last if draw(st.integers(0, 5)) == 0 else {"role": "user", **last})
    return contents


@st.composite
def bodies(draw: Any) -> bytes:
    """A whole body, as some client writes it."""
    body: Json = {"contents": draw(histories())}
    kind = draw(st.integers(0, 3))
    if kind:
        system = {"parts": [text_part(draw) for _ in range(kind)]}
        body = {"systemInstruction" if kind > 1 else "system_instruction": system} | body
    if draw(st.booleans()):
        declared = [{"name": f"f{n}", "parametersJsonSchema": {"type": "object"}} for n in range(2)]
        body["tools"] = [{"functionDeclarations": declared}, *([{"urlContext": {}}] * draw(st.integers(0, 1)))]
    body["generationConfig"] = {"temperature": 1.0, "thinkingConfig": {"thinkingLevel": "HIGH"}}
    return json.dumps(body, indent=draw(st.sampled_from([None, 1])), ensure_ascii=draw(st.booleans())).encode()
