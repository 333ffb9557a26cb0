"""Gemini's contents: reading text, calls and results out of a stored message in that form.

A message is parsed by the strategy that it was stored with, never by guessing (FEATURES.md A5). Such messages
come in by import and the admin API; there is no native Gemini upstream.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proxy.chat import chain
from proxy.chat.message import Call, ContentShape, Message
from proxy.errors import NotManaged

_ROLES = {"model": "assistant", "user": "user", "function": "tool", "system": "system", "tool": "tool"}


def read_message(raw: bytes) -> Message:
    """The message in one `ContentKind` (`{"role", "parts": [...]}`). Raises NotManaged if `raw` is no such object.

    A part with `functionCall` is a call, a part with `functionResponse` a result; parts with `thought` are reasoning.
    Older models give no call ids; then the function's name is the id, as Gemini itself matches them.
    """
    try:
        content = msgspec.json.decode(raw)
    except (ValueError, RecursionError) as problem:
        raise NotManaged("unreadable", f"a message that cannot be read: {problem}") from problem
    if not isinstance(content, dict) or not isinstance(content.get("parts"), list):
        raise NotManaged("shape", "no Gemini content: an object with a list of parts is expected")
    texts: list[str] = []
    reasoning: list[str] = []
    media: list[bytes] = []
    calls: list[Call] = []
    call_id = None
    for part in content["parts"]:
        if not isinstance(part, dict):
            raise NotManaged("shape", "a part that is no object")
        if isinstance(part.get("functionCall"), dict):
            calls.append(_call(part["functionCall"]))
        elif isinstance(part.get("functionResponse"), dict):
            answer = part["functionResponse"]
            call_id = str(answer.get("id") or answer.get("name") or "")
            texts.append(_result(answer.get("response")))
        elif isinstance(part.get("text"), str):
            (reasoning if part.get("thought") else texts).append(part["text"])
        else:
            media.append(chain.compute_form(msgspec.json.encode(part, order="sorted")))
    role = "tool" if call_id is not None else _ROLES.get(str(content.get("role", "user")), "user")
    text = "".join(texts)
    named = chain.digest_message(role, text, calls, call_id, media)
    shape: ContentShape = "mixed" if media else "parts"
    return Message(
        raw,
        role,
        text,
        tuple(calls),
        call_id,
        "".join(reasoning),
        shape,
        len(media),
        False,
        named,
        chain.compute_form(raw),
        len(content["parts"]),
    )


def _call(call: dict[str, Any]) -> Call:
    name = str(call.get("name") or "")
    return Call(str(call.get("id") or name), name, msgspec.json.encode(call.get("args") or {}).decode())


def _result(response: Any) -> str:
    """A result's text: its only value, if the response is an object with one text; otherwise its JSON."""
    if isinstance(response, dict) and len(response) == 1:
        (only,) = response.values()
        if isinstance(only, str):
            return only
    return response if isinstance(response, str) else msgspec.json.encode(response).decode()
