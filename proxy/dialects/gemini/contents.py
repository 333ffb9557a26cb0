"""A run of wire contents as canonical messages, and a canonical message as wire parts.

Contents of the model that follow each other are one answer: SDKs keep each chunk of a stream as its own content.
A content of the user becomes one tool message for each `functionResponse`, and one user message for all other parts.

Older models give calls no ids, and results answer calls by name and order. Canonical messages need ids: such a call
gets one that is made of its name and arguments. An id that is the function's name with numbers behind it was made by
the client (Gemini CLI), after the answer had passed, and counts as none. Field names come in camel case or in snake
case.

Chat form has no place for thought signatures or for the order of parts. An answer with such parts bears all of them in
the member `wire`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import msgspec

from proxy.chat import chain, json_spans
from proxy.dialects import spans
from proxy.dialects.base import MADE_CALL_ID, UNSIGNED
from proxy.dialects.completions.request import make_message, read_message
from proxy.dialects.part_edits import make_text_part
from proxy.errors import NotManaged

WIRE: Final = "wire"
"""Member of a canonical assistant message: the parts of its answer."""

_RANDOM_ID: Final = re.compile(r"pyd_ai_[0-9a-f]{32}|[0-9A-Za-z]{16}")
"""Ids of calls that pydantic-ai and the AI SDK make."""
_PLAIN: Final = ({"text"}, {"functionCall"})
_CALL_MEMBERS: Final = {"name", "args", "id"}


@dataclass(frozen=True, slots=True)
class WireCall:
    """A call of an answer. wire_id: its id on the wire, "" for none."""

    id: str
    name: str
    wire_id: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The canonical message of an answer, and its calls."""

    chat: bytes
    calls: tuple[WireCall, ...]
    is_unsigned: bool = False
    """Its first call has no thought signature."""


def get_field(value: dict[str, Any], camel: str) -> Any:
    """The member under its name in camel case, else in snake case; None if it has neither."""
    found = value.get(camel)
    return value.get(to_snake(camel)) if found is None else found


def to_snake(camel: str) -> str:
    """The other spelling of a field's name."""
    return re.sub("([A-Z])", lambda found: "_" + found[1].lower(), camel)


def find_span(members: dict[str, spans.Span], camel: str) -> spans.Span | None:
    """The span of a member in either spelling."""
    return members.get(camel) or members.get(to_snake(camel))


def read_field(raw: bytes, camel: str) -> bytes | None:
    """The bytes of a member in either spelling."""
    found = json_spans.read_value(raw, camel)
    return json_spans.read_value(raw, to_snake(camel)) if found is None else found


def make_call_id(name: str, arguments: str, before: Counter[str]) -> str:
    """An id for a call without one, from the answer alone. before: the ids made for its earlier calls."""
    digest = blake2b(f"{name} {chain.canonicalize_arguments(arguments)}".encode("utf-8", "replace"), digest_size=8)
    made = f"{MADE_CALL_ID}{digest.hexdigest()}"
    before[made] += 1
    return made if before[made] == 1 else f"{made}_{before[made]}"


def is_made_by_client(wire_id: str, name: str) -> bool:
    """True if the id is one of those that clients make where the model gives none: the function's name and numbers, or
    a random id. The answer had none when it came, so the id must not tell the answer from what the client sends."""
    if _RANDOM_ID.fullmatch(wire_id):
        return True
    return bool(name) and re.fullmatch(re.escape(name) + r"[_-]\d{6,}(?:[_-]\w*)?", wire_id) is not None


def make_assistant_message(parts: Sequence[bytes]) -> Answer:
    """The canonical message of an answer with these parts. Raises NotManaged if a part is not understood."""
    texts: list[str] = []
    reasoning: list[str] = []
    opaque: list[bytes] = []
    calls: list[WireCall] = []
    written_calls: list[bytes] = []
    counts: Counter[str] = Counter()
    is_plain, is_unsigned = True, False
    for raw in parts:
        value = spans.read_any(raw)
        if not isinstance(value, dict):
            raise NotManaged("shape", "a part that is no object")
        call = get_field(value, "functionCall")
        is_plain = is_plain and set(value) in _PLAIN
        if isinstance(call, dict):
            wire_call, written = _convert_call(raw, call, counts)
            is_unsigned = is_unsigned or (not calls and not get_field(value, "thoughtSignature"))
            is_plain = is_plain and set(call) <= _CALL_MEMBERS and (wire_call.wire_id or wire_call.id) == wire_call.id
            calls.append(wire_call)
            written_calls.append(written)
        elif value.get("thought") is True and isinstance(value.get("text"), str):
            reasoning.append(value["text"])
        elif isinstance(value.get("text"), str):
            is_plain = is_plain and not calls
            texts.append(value["text"])
        else:
            opaque.append(_make_opaque(value))
    literal = spans.encode_text("".join(texts))
    content = literal if any(texts) or not calls else b"null"
    if opaque:
        content = b"[" + b",".join(([make_text_part(literal)] if any(texts) else []) + opaque) + b"]"
    members: list[tuple[str, bytes]] = []
    if any(reasoning):
        members.append(("reasoning_content", spans.encode_text("".join(reasoning))))
    if written_calls:
        members.append(("tool_calls", b"[" + b",".join(written_calls) + b"]"))
    if not is_plain:
        members.append((WIRE, b"[" + b",".join(parts) + b"]"))
    return Answer(make_message("assistant", content, *members), tuple(calls), is_unsigned)


def _is_made(call_id: str) -> bool:
    return call_id.startswith(MADE_CALL_ID)


def _convert_call(raw: bytes, call: dict[str, Any], counts: Counter[str]) -> tuple[WireCall, bytes]:
    """The call, and the canonical call."""
    name, wire_id = call.get("name"), call.get("id")
    if not isinstance(name, str) or not isinstance(call.get("args") or {}, dict):
        raise NotManaged("shape", "a tool call of an unknown kind")
    args = json_spans.read_value(read_field(raw, "functionCall") or b"{}", "args")
    arguments = "{}" if args in (None, b"null") else (args or b"").decode()
    wire_id = wire_id if isinstance(wire_id, str) else ""
    own = wire_id if wire_id and not is_made_by_client(wire_id, name) else make_call_id(name, arguments, counts)
    function = b'{"name":' + spans.encode_text(name) + b',"arguments":' + spans.encode_text(arguments) + b"}"
    made = b'{"id":' + spans.encode_text(own) + b',"type":"function","function":' + function + b"}"
    return WireCall(own, name, wire_id), made


def _make_opaque(value: dict[str, Any], *, is_referred: bool = False) -> bytes:
    """A part that chat form cannot say, as it counts for the digest. is_referred: no text can stand in for it."""
    plain = {name: one for name, one in value.items() if name not in ("thoughtSignature", "thought_signature")}
    kind = b"gemini_referred" if is_referred else b"gemini"
    return b'{"type":"' + kind + b'","part":' + msgspec.json.encode(plain, order="sorted") + b"}"


def convert_part(raw: bytes) -> bytes:
    """The canonical part of a part that is no call and no result. Raises NotManaged if it is no object."""
    value = spans.read_any(raw)
    if not isinstance(value, dict):
        raise NotManaged("shape", "a part that is no object")
    if isinstance(value.get("text"), str) and value.get("thought") is not True:
        return make_text_part(json_spans.read_value(raw, "text") or b'""')
    return _make_opaque(value)


def convert_result(raw: bytes, call_id: str) -> bytes:
    """The canonical tool message of a part with a `functionResponse`, which answers the call of this id."""
    response = read_field(raw, "functionResponse") or b"{}"
    text = read_result_text(response)[1]
    inner = json_spans.read_value(response, "parts")
    content = text
    if inner not in (None, b"null", b"[]"):
        # A response that refers to its media by their names needs them all.
        is_referred = b'"$ref"' in response
        media = [
            _make_opaque(spans.read_any((inner or b"")[a:b]), is_referred=is_referred)
            for a, b in spans.read_elements(inner or b"")
        ]
        content = b"[" + b",".join([make_text_part(text), *media]) + b"]"
    # Gemini's documents: a function that failed answers with the member `error`, and one that succeeded with `output`.
    failed = (("is_error", b"true"),) if _names_error(response) else ()
    return make_message("tool", content, ("tool_call_id", spans.encode_text(call_id)), *failed)


def _names_error(response: bytes) -> bool:
    """True if the only member of a function's response is `error`."""
    if b'"error"' not in response:
        return False
    value = json_spans.read_value(response, "response")
    members = json_spans.find_members(value) if value is not None else None
    return members is not None and [one.key for one in members] == ["error"]


def read_result_text(response: bytes) -> tuple[spans.Span | None, bytes]:
    """(the span of the text in a `functionResponse`, the JSON string of the text).

    The text of a response with one member that is a string is this string. The text of any other response is its JSON,
    which has no span.
    """
    span = spans.read_members(response).get("response")
    if span is None:
        return None, b'""'
    members = json_spans.find_members(response[span[0] : span[1]])
    if members is not None and len(members) == 1:
        start, end = span[0] + members[0].start, span[0] + members[0].end
        if response[start : start + 1] == b'"':
            return (start, end), response[start:end]
    return None, spans.encode_text(response[span[0] : span[1]].decode())


def make_answer_parts(chat: bytes, *, is_signed: bool) -> list[bytes]:
    """The wire parts of a canonical assistant message.

    They are the message's `wire`, or are made from its text and calls if it has none of this dialect. is_signed: the
    model signs its calls, and would refuse one without. Raises ValueError if the text or the calls say something else
    than `wire`: somebody has edited an answer.
    """
    wire = json_spans.read_value(chat, WIRE)
    parts = _read_wire(wire) if wire is not None and wire != b"null" else None
    if parts is None:
        return _make_plain_parts(chat, is_signed=is_signed)
    if read_message(make_assistant_message(parts).chat).digest != read_message(chat).digest:
        raise ValueError("the parts of an answer differ from its text and calls")
    return parts


def _read_wire(wire: bytes) -> list[bytes] | None:
    """The parts in a member `wire`; None if another dialect wrote it: its blocks and items have a type."""
    parts = [wire[start:end] for start, end in spans.read_elements(wire)]
    return None if any(json_spans.read_value(part, "type") is not None for part in parts) else parts


def _make_plain_parts(chat: bytes, *, is_signed: bool) -> list[bytes]:
    message = read_message(chat)
    parts = [make_wire_text(spans.encode_text(message.text))] if message.text.strip() else []
    for call in message.calls:
        arguments = call.arguments.strip() or "{}"
        if not isinstance(spans.read_any(arguments.encode()), dict):
            raise ValueError("the arguments of a tool call are no object")
        named = b"" if _is_made(call.id) else b'"id":' + spans.encode_text(call.id) + b","
        inner = named + b'"name":' + spans.encode_text(call.name) + b',"args":' + arguments.encode()
        signed = b',"thoughtSignature":' + UNSIGNED if is_signed and call is message.calls[0] else b""
        parts.append(b'{"functionCall":{' + inner + b"}" + signed + b"}")
    return parts


def make_wire_text(literal: bytes) -> bytes:
    """A text part of the wire. literal: the JSON string of its text."""
    return b'{"text":' + literal + b"}"


def find_wire_id(chat: bytes, call_id: str) -> str:
    """The id on the wire of a call in a canonical assistant message; "" if it has none there."""
    if not _is_made(call_id):
        return call_id
    wire = json_spans.read_value(chat, WIRE)
    calls = make_assistant_message(_read_wire(wire) or ()).calls if wire is not None else ()
    return next((call.wire_id for call in calls if call.id == call_id), "")


def make_result_part(chat: bytes, name: str, wire_id: str) -> bytes:
    """The wire part of a tool message that answers a call of this function. wire_id: of the call, or ""."""
    message = read_message(chat)
    known = b'"id":' + spans.encode_text(wire_id) + b"," if wire_id else b""
    head = known + b'"name":' + spans.encode_text(name) + b',"response":'
    return b'{"functionResponse":{' + head + _make_response(chat, message.text) + b"}}"


def _make_response(chat: bytes, text: str) -> bytes:
    """The response of a function: its `output`, or its `error` if the call failed."""
    if b'"is_error"' not in chat or json_spans.read_value(chat, "is_error") != b"true":
        return b'{"output":' + spans.encode_visible(text) + b"}"
    members = json_spans.find_members(text.encode())
    if members is not None and [one.key for one in members] == ["error"]:
        return text.encode()
    return b'{"error":' + spans.encode_visible(text) + b"}"
