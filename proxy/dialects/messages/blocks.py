"""One wire message as canonical messages, and a canonical message as wire blocks.

A user message with tool results becomes one tool message for each result, and one user message for all its other
blocks. An assistant message stays one message. The conversion sees one wire message alone, never its place, so the
same message always gives the same bytes. Canonical parts are the wire's own blocks, byte for byte, where a chat part
has the same form.

Chat form has no place for signatures, for the order of an answer's blocks or for blocks of the provider's own tools.
An assistant message with such blocks bears all its blocks in the member `wire`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from proxy.chat import json_spans
from proxy.dialects import spans
from proxy.dialects.base import BOUND_SEPARATOR
from proxy.dialects.completions.request import CACHE_MARKS, CONTINUES, make_message, read_message
from proxy.dialects.part_edits import make_text_part
from proxy.errors import NotManaged

_FOREIGN_TYPES = frozenset({"message", "reasoning", "item_reference"})
"""Types of the items of Responses, beside those of its calls."""
WIRE = "wire"
"""Member of a canonical assistant message: the blocks of its wire message."""

SERVER_CALLS = ("server_tool_use", "mcp_tool_use")
"""Types of the calls that the provider runs itself."""
THINKING = ("thinking", "redacted_thinking")
"""Types of the blocks that hold reasoning."""
_KNOWN = {
    "text": {"type", "text", *CACHE_MARKS},
    "tool_use": {"type", "id", "name", "input", *CACHE_MARKS},
}
"""Members of the blocks that chat form can express in full. Cache marks are the client's and are not part of them."""
_ROLES = frozenset({"user", "assistant", "system"})
_RESULT_MEMBERS = ("content", "is_error", "cache_control")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""Decoder of an object whose values are copied: a search for their spans takes seven times as long."""


@dataclass(frozen=True, slots=True)
class MessageUnit:
    """One canonical message, and the blocks of the wire message that it was read from."""

    chat: bytes
    """The canonical message."""
    blocks: tuple[int, ...]
    """Indices of its blocks; empty if the wire message's content is a string."""
    is_result: bool = False
    """True for the result of a tool call."""
    bound: str | None = None
    """The tokens that bind it, joined by `BOUND_SEPARATOR`."""


@dataclass(frozen=True, slots=True)
class WireMessage:
    """A wire message: its role and its canonical messages, at least one."""

    role: str
    units: tuple[MessageUnit, ...]
    is_empty: bool = False


def convert_message(raw: bytes) -> WireMessage:
    """The wire message in these bytes. Raises NotManaged if it is not understood."""
    try:
        members = spans.read_members(raw)
        role, content = spans.read_any(_cut_span(raw, members["role"])), _cut_span(raw, members["content"])
        if not isinstance(role, str) or role not in _ROLES:
            raise NotManaged("shape", "a message of an unknown role")
        if content[:1] == b'"':
            return WireMessage(role, (MessageUnit(make_message(role, content), ()),), content == b'""')
        blocks = [_cut_span(content, one) for one in spans.read_elements(content)]
        if role == "assistant":
            return WireMessage(role, (make_assistant_message(blocks),), not blocks)
        if role == "system":
            return WireMessage(role, (MessageUnit(make_message(role, content), tuple(range(len(blocks)))),))
        return WireMessage(role, _convert_user(blocks))
    except (KeyError, ValueError, RecursionError) as problem:
        raise NotManaged("shape", f"a message that cannot be read: {problem}") from problem


def _cut_span(raw: bytes, span: spans.Span) -> bytes:
    return raw[span[0] : span[1]]


def _convert_user(blocks: Sequence[bytes]) -> tuple[MessageUnit, ...]:
    units, others = [], []
    for n, block in enumerate(blocks):
        members = _OBJECT.decode(block)
        if "type" not in members:
            raise NotManaged("shape", "a content block without a type")
        if spans.read_any(members["type"]) == "tool_result":
            units.append(MessageUnit(_convert_result(members), (n,), is_result=True))
        else:
            others.append(n)
    if others or not units:
        content = b"[" + b",".join(blocks[n] for n in others) + b"]"
        units.append(MessageUnit(make_message("user", content), tuple(others)))
    return tuple(units)


def _convert_result(members: Mapping[str, msgspec.Raw]) -> bytes:
    found = {name: bytes(members[name]) for name in _RESULT_MEMBERS if name in members}
    content = found.pop("content", b'""')
    made = b'{"role":"tool","tool_call_id":' + bytes(members["tool_use_id"]) + b',"content":' + content
    return made + b"".join(b',"' + name.encode() + b'":' + value for name, value in found.items()) + b"}"


def make_assistant_message(blocks: Sequence[bytes]) -> MessageUnit:
    """The canonical message of an assistant message with these blocks.

    Answers of upstream and answers that a client sends back are both read here, so both have the same digest. Raises
    NotManaged or ValueError if a block is not understood.
    """
    parts: list[bytes] = []
    calls: list[bytes] = []
    reasoning: list[str] = []
    tokens: list[str] = []
    server_calls: set[str] = set()
    is_plain, continues, texts, mark = True, False, 0, b""
    for block in blocks:
        value = spans.read_any(block)
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str):
            raise NotManaged("shape", "a content block without a type")
        known = _KNOWN.get(kind)
        is_plain = is_plain and not (kind == "text" and (calls or texts))
        is_plain = is_plain and known is not None and known.issuperset(value)
        if "cache_control" in value:
            mark = json_spans.read_value(block, "cache_control") or b""
        if kind in SERVER_CALLS:
            server_calls.add(str(value.get("id")))
        continues = continues or not find_server_calls(value) <= server_calls
        if kind == "text" and isinstance(value.get("text"), str):
            texts += 1
            parts.append(block)
        elif kind == "tool_use":
            calls.append(_convert_call(block, value))
        elif kind in THINKING:
            reasoning.append(_read_thinking(value))
            tokens.append(read_token(value))
        else:
            parts.append(_canonicalize(value))
    content: bytes | None = b"[" + b",".join(parts) + b"]"
    if len(parts) <= texts <= 1:
        content = bytes(_OBJECT.decode(parts[0])["text"]) if texts else b"null"
    members: list[tuple[str, bytes]] = []
    if any(reasoning):
        members.append(("reasoning_content", spans.encode_text("\n\n".join(filter(None, reasoning)))))
    if calls:
        members.append(("tool_calls", b"[" + b",".join(calls) + b"]"))
    if mark and len(parts) <= texts <= 1:  # a list of parts shows the mark itself
        members.append(("cache_control", mark))
    if continues:
        members.append((CONTINUES, b"true"))
    if not is_plain:
        members.append((WIRE, b"[" + b",".join(blocks) + b"]"))
    bound = BOUND_SEPARATOR.join(filter(None, tokens))
    chat = make_message("assistant", content or b'""', *members)
    return MessageUnit(chat, tuple(range(len(blocks))), bound=bound or None)


def find_server_calls(block: dict[str, Any]) -> set[str]:
    """The ids of the provider's own calls that a block belongs to: its result, or a call that its code has made."""
    if str(block.get("type")).endswith("_tool_result"):
        return {str(block.get("tool_use_id"))}
    caller = block.get("caller")
    named = caller.get("tool_id") if isinstance(caller, dict) else None
    return {named} if isinstance(named, str) else set()


def read_token(block: dict[str, Any]) -> str:
    """The token of a thinking block: its signature, or the data of a redacted one; "" if there is none."""
    token = block.get("signature" if block.get("type") == "thinking" else "data")
    return token if isinstance(token, str) else ""


def _read_thinking(block: dict[str, Any]) -> str:
    text = block.get("thinking") or ""
    if not isinstance(text, str):
        raise NotManaged("shape", "thinking that is no text")
    return text


def _convert_call(block: bytes, value: dict[str, Any]) -> bytes:
    call_id, name = value.get("id"), value.get("name")
    if not isinstance(call_id, str) or not isinstance(name, str) or "input" not in value:
        raise NotManaged("shape", "a tool call of an unknown kind")
    arguments = spans.encode_text(bytes(_OBJECT.decode(block)["input"]).decode())
    function = b'{"name":' + spans.encode_text(name) + b',"arguments":' + arguments + b"}"
    return b'{"id":' + spans.encode_text(call_id) + b',"type":"function","function":' + function + b"}"


def _canonicalize(block: dict[str, Any]) -> bytes:
    """An opaque block as it counts for the digest: clients send members that are null, or leave them out."""
    plain = {name: value for name, value in block.items() if name not in CACHE_MARKS}
    return msgspec.json.encode(_without_nulls(plain), order="sorted")


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def make_answer_blocks(chat: bytes) -> bytes:
    """The wire blocks of a canonical assistant message, as a JSON array.

    They are the message's `wire`, or are made from its text and calls if it has none of this dialect. Raises ValueError
    if the text or the calls say something else than `wire`: somebody has edited an answer.
    """
    wire = json_spans.read_value(chat, WIRE)
    blocks = _read_wire(wire) if wire is not None and wire != b"null" else None
    if wire is None or blocks is None:
        return _make_plain_blocks(chat)
    if read_message(make_assistant_message(blocks).chat).digest != read_message(chat).digest:
        raise ValueError("the blocks of an assistant message differ from its text and calls")
    return wire


def _read_wire(wire: bytes) -> list[bytes] | None:
    """The blocks in a member `wire`; None if another dialect wrote it, with other types or none."""
    blocks = [_cut_span(wire, one) for one in spans.read_elements(wire)]
    kinds = [json_spans.decode_string(json_spans.read_value(block, "type") or b"") or "" for block in blocks]
    is_foreign = any(not kind or kind in _FOREIGN_TYPES or kind.endswith("_call") for kind in kinds)
    return None if is_foreign else blocks


def _make_plain_blocks(chat: bytes) -> bytes:
    content = json_spans.read_value(chat, "content") or b"null"
    blocks: list[bytes] = []
    if content[:1] == b"[":
        blocks += [_cut_span(content, one) for one in spans.read_elements(content)]
    elif content != b"null" and (spans.read_any(content) or "").strip():
        blocks.append(make_text_part(content))
    for call in read_message(chat).calls:
        value = spans.read_any(call.arguments.encode()) if call.arguments.strip() else {}
        if not isinstance(value, dict):
            raise ValueError("the arguments of a tool call are no object")
        head = b'{"type":"tool_use","id":' + spans.encode_text(call.id) + b',"name":' + spans.encode_text(call.name)
        blocks.append(head + b',"input":' + (call.arguments.strip() or "{}").encode() + b"}")
    return b"[" + b",".join(blocks) + b"]"


def make_result_block(chat: bytes) -> bytes:
    """The wire block of a canonical tool message. Raises ValueError or KeyError if it is none."""
    members = spans.read_members(chat)
    found = {name: _cut_span(chat, members[name]) for name in _RESULT_MEMBERS if name in members}
    head = b'{"type":"tool_result","tool_use_id":' + _cut_span(chat, members["tool_call_id"])
    return head + b"".join(b',"' + name.encode() + b'":' + value for name, value in found.items()) + b"}"
