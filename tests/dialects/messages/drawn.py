"""Drawn Messages bodies that a strict upstream accepts, in the many forms in which clients write them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from proxy.dialects.messages.request import read_messages_request
from proxy.dialects.written_history import OutgoingMessage

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).map(lambda text: "t" + text)
MARK = {"type": "ephemeral"}


def text_block(draw: Any) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "text", "text": draw(TEXTS)}
    if draw(st.integers(0, 9)) == 0:
        block["x_unknown"] = draw(st.sampled_from([1.50, None, {"b": 1, "a": "é"}]))
    return block


def image(draw: Any) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "url", "url": f"http://x/{draw(st.integers(0, 9))}"}}


def result(draw: Any, call_id: str) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id}
    kind = draw(st.integers(0, 4))
    if kind < 2:
        block["content"] = draw(TEXTS)
    elif kind < 4:
        block["content"] = [text_block(draw) if draw(st.booleans()) else image(draw) for _ in range(kind)]
    if draw(st.booleans()):
        block["is_error"] = draw(st.booleans())
    return block


def answer(draw: Any, n: int) -> tuple[Any, list[str]]:
    """(the content of an assistant message, the ids of its calls)."""
    if draw(st.integers(0, 5)) == 0:
        return draw(TEXTS), []
    blocks: list[dict[str, Any]] = []
    if draw(st.booleans()):
        blocks.append({"type": "thinking", "thinking": draw(st.sampled_from(["", "hm"])), "signature": f"sig{n}=="})
    if draw(st.integers(0, 7)) == 0:
        blocks.append({"type": "redacted_thinking", "data": f"red{n}"})
    if draw(st.booleans()):
        blocks.append(text_block(draw))
    if draw(st.integers(0, 7)) == 0:
        blocks.append({"type": "server_tool_use", "id": f"srv_{n}", "name": "web_search", "input": {}})
        blocks.append({"type": "web_search_tool_result", "tool_use_id": f"srv_{n}", "content": []})
    calls = draw(st.integers(0, 3))
    for k in range(calls):
        call_input = draw(st.dictionaries(st.sampled_from("ab"), st.one_of(st.integers(0, 9), TEXTS), max_size=2))
        blocks.append({"type": "tool_use", "id": f"toolu_{n}_{k}", "name": f"f{k}", "input": call_input})
    if not calls:
        blocks.append(text_block(draw))
    return blocks, [f"toolu_{n}_{k}" for k in range(calls)]


def prompt(draw: Any) -> Any:
    if draw(st.booleans()):
        return draw(TEXTS)
    return [text_block(draw) if draw(st.integers(0, 4)) else image(draw) for _ in range(draw(st.integers(1, 3)))]


@st.composite
def histories(draw: Any) -> list[dict[str, Any]]:
    """Messages that end with the user's."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt(draw)}]
    if draw(st.integers(0, 3)) == 0:
        messages.append({"role": "system", "content": [text_block(draw)]})
    for n in range(draw(st.integers(0, 4))):
        content, calls = answer(draw, n)
        messages.append({"role": "assistant", "content": content})
        if calls:
            blocks = [result(draw, one) for one in calls]
            blocks += [text_block(draw) for _ in range(draw(st.integers(0, 2)) // 2)]
            messages.append({"role": "user", "content": blocks})
        else:
            messages.append({"role": "user", "content": prompt(draw)})
    return messages


@st.composite
def bodies(draw: Any) -> bytes:
    """Whole bodies, with the client's own spaces, escapes and order of keys."""
    body: dict[str, Any] = {"model": "claude-opus-5-5", "max_tokens": 100, "messages": draw(histories())}
    if draw(st.booleans()):
        body["system"] = draw(st.one_of(TEXTS, st.just([{"type": "text", "text": "You.", "cache_control": MARK}])))
    if draw(st.booleans()):
        body["tools"] = [{"name": f"f{k}", "description": "d", "input_schema": {"type": "object"}} for k in range(3)]
    if draw(st.booleans()):
        body["stream"] = True
    body = {name: body[name] for name in draw(st.permutations(list(body)))}
    separators, ascii_only = draw(st.sampled_from([(",", ":"), (", ", ": "), (" , ", " :  ")])), draw(st.booleans())
    return json.dumps(body, separators=separators, ensure_ascii=ascii_only).encode()


def append_messages(body: bytes, messages: list[bytes]) -> bytes:
    """The wire body with canonical messages of the proxy at its end: an answer, and the results of its calls."""
    request = read_messages_request(body)
    own: list[OutgoingMessage] = [(n, unit.chat) for n, (_, unit) in enumerate(request.units)]
    return request.write([*own, *((None, raw) for raw in messages)])
